"""What the replicas of a node need of it: where they lie, how they are kept, the cluster store, the way to others.

Says nothing of how a node gives it (node.environment), so that replicas run without a broker, or without a process.
"""

from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Protocol, TypeVar

from headrace.base.errors import NewerFormat
from headrace.base.ids import ContainerId, NodeId
from headrace.container.sync_cycle import Room
from headrace.container.writer_pool import Pool
from headrace.log.container_log import LogOptions
from headrace.peer.session import Session
from headrace.store.protocol import ClusterStore
from headrace.store.records import ContainerRecord, NodeRecord

T = TypeVar("T")


class View(Protocol):
    """What the cluster store holds, as last seen (store.view.ClusterView)."""

    @property
    def nodes(self) -> Mapping[NodeId, NodeRecord]: ...

    @property
    def containers(self) -> Mapping[ContainerId, ContainerRecord]: ...

    @property
    def versions(self) -> Mapping[ContainerId, int]: ...

    @property
    def reachable_at(self) -> float: ...

    def may(self, level: int, /) -> bool: ...

    def is_deleted(self, container: ContainerId, /) -> bool: ...

    def refresh(self) -> None: ...


class Environment(Protocol):
    """What replicas need of their node."""

    @property
    def node_id(self) -> NodeId: ...

    @property
    def node_format(self) -> str:
        """Of the node's folder."""

    @property
    def executor(self) -> Executor: ...

    @property
    def writer_pool(self) -> Pool:
        """What writes the logs."""

    @property
    def view(self) -> View: ...

    @property
    def folder(self) -> Path:
        """Where the replicas' folders lie."""

    def options(self, kind: str, volume: str) -> LogOptions: ...

    def room(self, kind: str) -> Room: ...

    def fatal(self, reason: str) -> None:
        """End the process: the disk failed (invariant 13)."""

    def too_new(self, error: NewerFormat) -> None:
        """End the process: what it met is for a newer version."""

    def store(self, change: Callable[[ClusterStore], T], /) -> Awaitable[T]:
        """Run a blocking call on the cluster store in a thread."""
        ...

    async def connect(self, node: NodeRecord) -> Session: ...

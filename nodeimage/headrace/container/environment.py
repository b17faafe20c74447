"""What the replicas of a node need from it: folders, log options, the cluster store, connections to other nodes.

This module does not say how a node provides these (see node.environment), so replicas can run without the rest of a
node, and several nodes' replicas in one process.
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
    """The content of the cluster store, as last seen (store.view.ClusterView)."""

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
    """What replicas need from their node."""

    @property
    def node_id(self) -> NodeId: ...

    @property
    def node_format(self) -> str:
        """The incarnation of the node's data folder."""

    @property
    def executor(self) -> Executor: ...

    @property
    def writer_pool(self) -> Pool:
        """The pool that writes the logs."""

    @property
    def view(self) -> View: ...

    @property
    def folder(self) -> Path:
        """The folder that contains the replicas' folders."""

    def options(self, kind: str, volume: str) -> LogOptions: ...

    def room(self, kind: str) -> Room: ...

    def fatal(self, reason: str) -> None:
        """End the process because the disk failed (invariant 13)."""

    def too_new(self, error: NewerFormat) -> None:
        """End the process because it met data or messages of a newer version."""

    def store(self, change: Callable[[ClusterStore], T], /) -> Awaitable[T]:
        """Run a blocking call on the cluster store in a thread."""
        ...

    async def connect(self, node: NodeRecord) -> Session: ...

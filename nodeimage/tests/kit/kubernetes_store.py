"""A cluster store on Kubernetes over a toy API server, and its watchers."""

import time
import uuid
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec import structs

from headrace.base.ids import Epoch, NodeId
from headrace.node.folder import DataFolder, Identity
from headrace.store import records
from headrace.store.kubernetes import objects
from headrace.store.kubernetes.store import KubernetesStore
from headrace.store.protocol import StoreUnavailable
from headrace.store.records import ContainerRecord, NodeRecord
from kit.toy_api import ToyApi

NODES = "/apis/headrace.dev/v1alpha1/namespaces/ns/storagenodes"

CONTAINERS = "/apis/headrace.dev/v1alpha1/namespaces/ns/storagecontainers"

STORE = "/api/v1/namespaces/ns/configmaps/c-store"

Open = Callable[..., KubernetesStore]


@pytest.fixture
def store(open_kubernetes: Open) -> KubernetesStore:
    return open_kubernetes()


def register(store: KubernetesStore, *, folder: DataFolder | None = None, **fields: str) -> NodeRecord:
    def take_id() -> NodeId:
        return records.take_node_id(store)

    own = Identity("c", take_id(), str(uuid.uuid4())) if folder is None else folder.reserved("c", take_id)
    return records.register_node(
        store,
        node_id=NodeId(own.node_id),
        new=True,
        format=uuid.UUID(own.folder_id),
        run=uuid.uuid4(),
        host="h",
        port=9092,
        **fields,
    )


def until(what: str, holds: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 20
    while not (found := holds()):
        assert time.monotonic() < deadline, what
        time.sleep(0.01)
    return found


def all_watch(api: ToyApi, stores: int = 1) -> None:
    """Wait until all stores watch: the first contents may come from a list, before the watch begins."""
    until("all watch", lambda: api.watches == stores * len(objects.watched("c")))


class Follower:
    """The knowledge of one watcher."""

    def __init__(self, store: KubernetesStore) -> None:
        self.store = store
        self.revision = 0
        self.versions: dict[str, int] = {}

    def look(self, timeout_s: float = 0.05) -> dict[str, int]:
        changes = self.store.watch("", since=self.revision, timeout_s=timeout_s)
        self.revision = changes.revision
        self.versions |= {each.key: each.version for each in changes.records}
        for key in changes.removed:
            self.versions.pop(key, None)
        return self.versions

    def has(self, key: str) -> Callable[[], bool]:
        def shown() -> bool:
            try:
                return key in self.look()
            except StoreUnavailable:
                return False

        return shown

    def lacks(self, key: str) -> Callable[[], bool]:
        def gone() -> bool:
            try:
                return key not in self.look()
            except StoreUnavailable:
                return False

        return gone

    def fell(self) -> bool:
        """Whether the store is known to have been set back, once; everything is then read again."""
        try:
            changes = self.store.watch("", since=self.revision, timeout_s=0.05)
        except StoreUnavailable:
            return False
        if changes.generation:
            assert changes.whole
            self.versions = {each.key: each.version for each in changes.records}
        self.revision = changes.revision
        return changes.generation == 1


def meta(number: int) -> dict[str, Any]:
    return {"name": f"c-{number}", "labels": {"headrace.dev/cluster": "c"}}


def container(number: int, epoch: int = 1) -> bytes:
    member = (1, str(uuid.UUID(int=1)))
    return msgspec.json.encode(
        {"container_id": number, "kind": "data", "primary": 1, "epoch": epoch, "in_sync": [member], "replicas": [1]}
    )


def crashes_of_a_start() -> list[tuple[int, bool]]:
    return [(calls, landed) for calls in range(12) for landed in (False, True)]


def version_of(store: KubernetesStore, container: ContainerRecord) -> int:
    found = store.get(f"container/{container.container_id}")
    assert found is not None
    return found.version


def container_of(container: ContainerRecord, epoch: int) -> bytes:
    return msgspec.json.encode(structs.replace(container, epoch=Epoch(epoch)))

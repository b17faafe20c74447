"""Both cluster stores, for the tests that apply to either: SQLite's file, and Kubernetes over a toy API server."""

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from headrace.store.kubernetes.api import Access
from headrace.store.kubernetes.store import KubernetesStore
from headrace.store.protocol import ClusterStore
from headrace.store.records import ClusterRecord
from headrace.store.sqlite import SqliteStore
from kit.toy_api import ToyApi, toy_api

OpenStore = Callable[[], ClusterStore]

CLUSTER = ClusterRecord("id-of-the-cluster-22--", 7, secret="ab" * 16)


@pytest.fixture
def api() -> Iterator[ToyApi]:
    """An API server."""
    with toy_api() as served:
        yield served


@pytest.fixture
def open_kubernetes(api: ToyApi) -> Iterator[Callable[..., KubernetesStore]]:
    """Opens the cluster `c` in the namespace `ns`, as another process would."""
    made: list[KubernetesStore] = []

    def opened(token_file: Path | None = None) -> KubernetesStore:
        access = Access(api.url, token_file=token_file)
        store = KubernetesStore(cluster="c", namespace="ns", access=access, cluster_record=msgspec.json.encode(CLUSTER))
        made.append(store)
        return store

    yield opened
    for each in made:
        each.close()


@pytest.fixture
def open_sqlite(tmp_path: Path) -> Iterator[Callable[[], SqliteStore]]:
    """Opens one file, as another process would."""
    made: list[SqliteStore] = []

    def opened() -> SqliteStore:
        made.append(SqliteStore(tmp_path / "cluster.sqlite"))
        return made[-1]

    yield opened
    for each in made:
        each.close()


@pytest.fixture(params=["sqlite", "kubernetes"])
def open_store(request: pytest.FixtureRequest) -> OpenStore:
    """Opens the store of the same cluster again."""
    opened: OpenStore = request.getfixturevalue(f"open_{request.param}")
    return opened


@pytest.fixture
def store(open_store: OpenStore) -> ClusterStore:
    """The store of a new cluster."""
    return open_store()


@pytest.fixture
def sqlite_store(open_sqlite: Callable[[], SqliteStore]) -> SqliteStore:
    """The store of a new cluster, only on SQLite."""
    return open_sqlite()

"""What a folder needs before its nodes can start: the cluster store, the default volume, and the nodes' identities.

A node's id is taken from the store before its process runs, so that the folder `node-3` is that of node 3. From then on
the store has a record of the node, with a run that never existed: the node gets no roles until its process has
registered itself and answers. Everything here blocks.
"""

import shutil
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.base.errors import FolderRefused, HeadraceError
from headrace.base.ids import NodeId
from headrace.local.folder import keep_room, node_folders, node_name, node_number
from headrace.local.hints import quoted
from headrace.node.folder import DataFolder, Identity, level_seen
from headrace.store import container_records, records
from headrace.store.record_types import VolumeRecord, default_min_in_sync, default_replicas
from headrace.store.sqlite import SqliteStore

STORE_FILE = "cluster.sqlite"
MAX_NODES = 99
"""The maximum number of nodes on one machine."""


class OtherNodes(HeadraceError):
    """The folder has another number of nodes than was requested."""


@dataclass(frozen=True, slots=True)
class NewNode:
    """A node that has an id and a folder, and has not run yet."""

    node_id: NodeId
    run: uuid.UUID
    """The placeholder run in its record until its process has registered itself."""

    @property
    def name(self) -> str:
        """The name of its folder."""
        return node_name(self.node_id)


def default_volume(nodes: int) -> VolumeRecord:
    """The volume `default` of a cluster that starts with this many nodes."""
    replicas = default_replicas(nodes)
    return VolumeRecord("default", replicas=replicas, min_in_sync=default_min_in_sync(replicas))


@contextmanager
def opened_store(folder: Path) -> Iterator[SqliteStore]:
    """The folder's cluster store. Raises FolderRefused if it is missing although nodes exist, and StoreUnavailable."""
    path = folder / STORE_FILE
    if not path.exists() and node_folders(folder):
        raise FolderRefused(
            f"{path} is missing, the nodes' folders are there: put it back, or"
            f" `headrace recover-store --data {quoted(folder)}`"
        )
    with closing(SqliteStore(path)) as store:
        yield store


def removed_nodes(folder: Path) -> list[str]:
    """The names of nodes that still have folders, but were removed from the cluster. Raises FolderRefused.

    `headrace node remove --bootstrap` leaves the node's folder as it is. So does this function: the folder may still be
    needed.
    """
    present = node_folders(folder)
    if not present:
        return []
    with opened_store(folder) as store:
        return _removed(store, folder, present)


def ensure_nodes(folder: Path, wanted: int | None) -> list[str]:
    """The names of the folder's nodes, without removed ones. If none has ever served, first creates nodes until there
    are `wanted` (None: one).

    Raises OtherNodes if the cluster has another number of nodes than `wanted`, FolderRefused, StoreUnavailable.
    """
    with opened_store(folder) as store:
        found = node_folders(folder)
        removed = _removed(store, folder, found)
        present = [name for name in found if name not in removed]
        keep_room(folder)
        if present and (container_records.containers(store) or wanted in (None, len(present))):
            if wanted not in (None, len(present)):
                raise OtherNodes(_other_number(folder, present, wanted or 0))
            return present
        count = wanted or 1
        if len(present) > count:
            raise OtherNodes(_other_number(folder, present, count))
        cluster = records.ensure_cluster(store, first_nodes=count)
        records.change_volume(store, "default", lambda _: default_volume(count))
        made = [_new_node(store, folder, cluster.cluster_id).name for _ in range(count - len(present))]
    return [*present, *made]


def new_node(folder: Path) -> NewNode:
    """Create one more node for an existing cluster. Raises FolderRefused, StoreUnavailable."""
    with opened_store(folder) as store:
        return _new_node(store, folder, records.ensure_cluster(store).cluster_id)


def forget_if_new(folder: Path, node: NewNode) -> bool:
    """Undo `new_node` if the node's process never registered itself; returns whether it was undone."""
    with opened_store(folder) as store:
        present = records.get_node(store, node.node_id)
        if present is not None and present.run != node.run:
            return False
        records.remove_node(store, node.node_id)
    shutil.rmtree(folder / node.name, ignore_errors=True)
    return True


def _removed(store: SqliteStore, folder: Path, names: list[str]) -> list[str]:
    """The nodes that the store knows to be removed. Raises FolderRefused for a node that the store never had or has
    lost, and if the store has none of them."""
    gone = [name for name in names if records.get_node(store, NodeId(node_number(name))) is None]
    unknown = [name for name in gone if not _is_known_removed(store, folder / name)]
    if unknown or (gone and gone == names):
        raise FolderRefused(
            f"{folder / STORE_FILE} does not know {(unknown or gone)[0]}: it is an old copy, or another cluster's; put"
            f" the right one back, or `headrace recover-store --data {quoted(folder)}`"
        )
    return gone


def _is_known_removed(store: SqliteStore, folder: Path) -> bool:
    """Whether the store shows that it had this node; otherwise the store is an old copy."""
    node_id = NodeId(node_number(folder.name))
    lost = records.may_be_lost(store, node_id, folder_level=level_seen(folder))
    return records.had_node_id(store, node_id) and not lost


def _new_node(store: SqliteStore, folder: Path, cluster_id: str) -> NewNode:
    format, run = uuid.uuid4(), uuid.uuid4()
    node = NewNode(records.take_node_id(store), run)
    records.register_node(store, node_id=node.node_id, new=True, format=format, run=run, host="127.0.0.1", port=0)
    data = DataFolder.open(folder / node.name)
    try:
        if data.identity() is not None:
            raise FolderRefused(f"{data.path} holds another node's data: move it away")
        data.claim(Identity(cluster_id, node.node_id, str(format)))
    finally:
        data.close()
    return node


def _other_number(folder: Path, present: list[str], wanted: int) -> str:
    has = f"the cluster in {folder} has {len(present)} node{'' if len(present) == 1 else 's'}, not {wanted}"
    if wanted < len(present):
        return f"{has}: start it without --nodes; `headrace node drain` and `headrace node remove` make it smaller"
    return f"{has}: start it without --nodes; then `headrace node add` makes it larger"

"""Rebuilds the cluster store of a stopped embedded cluster from the nodes' folders (docs/operations.md).

Each replica keeps its container's last known record; container.lost_record decides what becomes of these. If a
replica's node led by an old copy of the store, and wrote other frames in an epoch that the leading replica knows too,
that replica is set aside and recreated: by their histories alone the two would seem equal (local/log_divergence.py).

What only the store knew is lost: zones, labels, limits and spread of volumes, drains, and how many producer ids were
handed out. The new store uses other random bits for producer ids, so that none is handed out twice. Ids of nodes and
containers skip ahead. If an old store can be read, its volumes, feature settings, drains and secret are kept; the
file itself stays beside the new one.

Recovery needs no disk space beyond what `headrace up` has reserved for it. Everything here blocks. Nothing is changed
before all folders have been read.
"""

import re
import secrets
import time
import uuid
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from msgspec import structs

from headrace.base.errors import CorruptLog, FolderRefused, HeadraceError
from headrace.base.ids import ContainerId, NodeId
from headrace.base.levels import format_of
from headrace.container.lost_record import (
    AS_IT_LIES,
    FoundReplica,
    ahead,
    found_replica,
    recorded_volumes,
    recovered_record,
)
from headrace.local.cluster import running_cluster
from headrace.local.folder import expanded, node_folders, room_file, start_lock
from headrace.local.founding import STORE_FILE, default_volume
from headrace.local.hints import quoted
from headrace.local.log_divergence import diverges
from headrace.log.container_log import ContainerLog
from headrace.log.synced_mark import read_mark
from headrace.node.folder import DataFolder, Identity
from headrace.store import container_records, records
from headrace.store.compare_and_set import skip_ids
from headrace.store.features import get_features
from headrace.store.protocol import StoreUnavailable
from headrace.store.records import ClusterRecord, ContainerRecord, FeaturesRecord, NodeRecord, VolumeRecord
from headrace.store.sqlite import SqliteStore


class NotRecovered(HeadraceError):
    """The folder does not contain enough to rebuild a store."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """The contents of the new store, and warnings about it."""

    cluster_id: str
    nodes: tuple[NodeId, ...]
    containers: tuple[ContainerRecord, ...]
    volumes: tuple[VolumeRecord, ...]
    kept_as: Path | None
    """The path of the old store; None: there was none."""
    warnings: list[str] = field(default_factory=list)


def recover_store(folder: Path) -> Recovered:
    """Replace the store of a folder whose nodes are all stopped. Raises NotRecovered, FolderRefused."""
    folder = expanded(folder).resolve()
    if not node_folders(folder):
        raise NotRecovered(f"{folder} holds no nodes: name the folder of the cluster with --data")
    with start_lock(folder):
        if running_cluster(folder) is not None:
            raise NotRecovered(f"the cluster in {folder} runs: stop it with `headrace down --data {quoted(folder)}`")
        warnings: list[str] = []
        identities: list[Identity] = []
        replicas: dict[ContainerId, list[FoundReplica]] = {}
        for name in node_folders(folder):
            data = DataFolder.open(folder / name)  # refused while a process uses it
            try:
                identity = data.identity()
                assert identity is not None, "node_folders found its node.json"
                identities.append(identity)
                for found in _replicas(data.path, NodeId(identity.node_id), warnings):
                    replicas.setdefault(found.record.container_id, []).append(found)
            finally:
                data.close()
        diverged = {container: _diverged(found, warnings) for container, found in replicas.items()}
        replicas = {
            container: [each for each in found if each not in diverged[container]]
            for container, found in replicas.items()
        }
        return _write(folder, identities, replicas, [each for found in diverged.values() for each in found], warnings)


def _diverged(found: Sequence[FoundReplica], warnings: list[str]) -> list[FoundReplica]:
    """The replicas that diverge from the one that is ahead although their histories agree."""
    best = ahead(found)
    diverged = []
    for each in found:
        if each is best:
            continue
        try:
            with (
                closing(ContainerLog.open(each.folder, AS_IT_LIES)) as log,
                closing(ContainerLog.open(best.folder, AS_IT_LIES)) as leading,
            ):
                if diverges(log, each.history, leading, best.history):
                    diverged.append(each)
        except CorruptLog as error:
            warnings.append(f"{each.folder} cannot be compared with {best.folder}, and is kept: {error}")
    return diverged


def _set_aside(replica: FoundReplica, warnings: list[str]) -> None:
    node_folder = replica.folder.parent.parent
    aside = node_folder / f"container-{replica.folder.name}-set-aside-{time.strftime('%Y%m%dT%H%M%S')}"
    replica.folder.rename(aside)
    warnings.append(
        f"node {replica.node} led container {replica.folder.name} according to an old copy of the store, and "
        f"wrote what no other node has: that replica is now {aside}, and is recreated from the others; delete it once "
        "all is well"
    )


def _replicas(node_folder: Path, node: NodeId, warnings: list[str]) -> list[FoundReplica]:
    found = []
    for path in sorted((node_folder / "containers").glob("*")):
        if not re.fullmatch(r"\d+", path.name):
            continue
        try:
            replica = found_replica(path, node)
        except CorruptLog as error:
            warnings.append(f"{error}; it is left out")
            continue
        if replica is not None:
            found.append(replica)
    return found


def _write(
    folder: Path,
    identities: Sequence[Identity],
    replicas: dict[ContainerId, list[FoundReplica]],
    diverged: Sequence[FoundReplica],
    warnings: list[str],
) -> Recovered:
    clusters = sorted({identity.cluster_id for identity in identities})
    if len(clusters) > 1:
        raise NotRecovered(f"{folder} holds nodes of different clusters ({', '.join(clusters)}): separate them")
    containers = tuple(recovered_record(found) for _, found in sorted(replicas.items()))
    if not any(each.kind == "catalog" for each in containers):
        raise NotRecovered(f"no node in {folder} has a whole replica of the catalog: restore one from a copy")
    room_file(folder).unlink(missing_ok=True)
    old = _old_store(folder, clusters[0], warnings)
    volumes = _volumes(containers, old, len(identities))
    level = max(identity.level for identity in identities)  # the folders' contents may be of that level
    cluster = ClusterRecord(
        cluster_id=clusters[0],
        random_bits=1 + secrets.randbelow(2**23 - 1),
        format_version=format_of(level),
        secret=old.secret or secrets.token_hex(records.SECRET_BYTES),
        first_nodes=len(identities),
    )
    draft = folder / f"{STORE_FILE}.new"
    _remove(draft)
    with closing(SqliteStore(draft)) as store:
        _put(store, records.CLUSTER_KEY, cluster)
        if level or old.features.epoch:
            features = structs.replace(old.features, level=level, raising=0, epoch=old.features.epoch + 1)
            _put(store, records.FEATURES_KEY, features)
        for volume in volumes:
            records.ensure_volume(store, volume)
        for identity in identities:
            _put(store, f"{records.NODE_PREFIX}{identity.node_id}", _node(identity, old))
        for record in containers:
            container_records.put_container(store, record, None)
        named = (node for record in containers for node in (*record.replicas, *(each for each, _ in record.in_sync)))
        skip_ids(store, "node", max([*named, *(NodeId(identity.node_id) for identity in identities)]))
        skip_ids(store, "container", max(record.container_id for record in containers))
    for each in diverged:
        _set_aside(each, warnings)
    kept_as = _replace(folder, draft)
    for record in containers:
        for each in replicas[record.container_id]:
            if (each.node, each.format) in record.in_sync:
                _accept_end(each, warnings)
    return Recovered(
        cluster_id=clusters[0],
        nodes=tuple(NodeId(identity.node_id) for identity in identities),
        containers=containers,
        volumes=volumes,
        kept_as=kept_as,
        warnings=warnings,
    )


def _accept_end(replica: FoundReplica, warnings: list[str]) -> None:
    """Accept a replica's end as it is, since no replica has more. Otherwise its node would not count it as in sync."""
    synced = read_mark(replica.folder)
    if replica.end < synced:
        warnings.append(
            f"{replica.folder} ends at position {replica.end}, though it was synced up to {synced}: the records after "
            "its end are lost"
        )
        ContainerLog.accept_loss(replica.folder)


@dataclass(frozen=True, slots=True)
class _OldStore:
    """What can be read from an old store."""

    secret: str = ""
    volumes: tuple[VolumeRecord, ...] = ()
    features: FeaturesRecord = field(default_factory=FeaturesRecord)
    draining: frozenset[NodeId] = frozenset()


def _old_store(folder: Path, cluster_id: str, warnings: list[str]) -> _OldStore:
    path = folder / STORE_FILE
    if not path.exists():
        return _OldStore()
    try:
        with closing(SqliteStore(path)) as store:
            cluster = records.ensure_cluster(store)
            if cluster.cluster_id != cluster_id:
                warnings.append(f"{path} is the store of another cluster; nothing is taken from it")
                return _OldStore()
            return _OldStore(
                secret=cluster.secret,
                volumes=tuple(records.volumes(store)),
                features=get_features(store),
                draining=frozenset(node.node_id for node in records.nodes(store) if node.draining),
            )
    except (FolderRefused, StoreUnavailable, CorruptLog) as error:
        warnings.append(f"nothing is taken from the old store: {error}")
        return _OldStore()


def _volumes(containers: Sequence[ContainerRecord], old: _OldStore, nodes: int) -> tuple[VolumeRecord, ...]:
    """The old store's volumes, and others as far as the containers' records describe them."""
    volumes = {volume.name: volume for volume in (*recorded_volumes(containers), *old.volumes)}
    volumes.setdefault("default", default_volume(nodes))
    return tuple(volume for _, volume in sorted(volumes.items()))


def _node(identity: Identity, old: _OldStore) -> NodeRecord:
    """A node's record until the node registers itself at its next start."""
    return NodeRecord(
        node_id=NodeId(identity.node_id),
        format=uuid.UUID(identity.folder_id),
        run=uuid.UUID(identity.runs[-1]) if identity.runs else uuid.uuid4(),
        host="127.0.0.1",
        port=0,
        draining=NodeId(identity.node_id) in old.draining,
    )


def _put(store: SqliteStore, key: str, record: msgspec.Struct) -> None:
    store.put(key, msgspec.json.encode(record), None)


def _replace(folder: Path, draft: Path) -> Path | None:
    """Put the new store in the old one's place, and return the old one's new path. A crash in between loses neither:
    the new one is still the draft."""
    path = folder / STORE_FILE
    kept_as = None
    if path.exists():
        kept_as = folder / f"{STORE_FILE}.before-{time.strftime('%Y%m%dT%H%M%S')}"
        for suffix in ("-wal", "-shm"):  # leftovers of a killed process belong to the old file
            part = path.with_name(path.name + suffix)
            if part.exists():
                part.rename(kept_as.with_name(kept_as.name + suffix))
        path.rename(kept_as)
    draft.rename(path)
    return kept_as


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)

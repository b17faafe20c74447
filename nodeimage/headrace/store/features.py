"""The cluster's feature level (headrace.base.levels), one record of the store: when it may be raised, and how.

A level is raised in two steps, so that no version meets data that it does not know, whenever a process crashes:

    raising   from now on older versions are refused: by the cluster's record, and by each node's own folder
    level     once each registered node has reported that its folder refuses them; only then may its data be written

A node's range is valid for the process incarnation that published it: an older version that has since taken over its
folder publishes none, and no range means level 0. All functions block, and use only compare-and-set.
"""

import contextlib
import uuid
from collections.abc import Callable, Iterable

from msgspec import structs

from headrace.base.errors import Code, HeadraceError, KafkaError, NewerFormat
from headrace.base.ids import Millis, NodeId
from headrace.base.levels import NEWEST, OLDEST, format_of
from headrace.store.compare_and_set import change, read
from headrace.store.protocol import ClusterStore, NotOurs
from headrace.store.record_types import (
    CLUSTER_KEY,
    FEATURES_KEY,
    NODE_PREFIX,
    ClusterRecord,
    FeaturesRecord,
    NodeRecord,
    SupportedLevels,
    decode,
)


def supports(node: NodeRecord, level: int) -> bool:
    """Return whether the registered process incarnation reads all that a level lets others write."""
    oldest, newest = range_of(node)
    return oldest <= level <= newest


def range_of(node: NodeRecord) -> tuple[int, int]:
    """Return the (oldest, newest) level of the registered process incarnation."""
    told = node.supports
    return (0, 0) if told is None or told.run != node.run else (told.oldest, told.newest)


def common(nodes: Iterable[NodeRecord]) -> int:
    """Return the highest level that all of these nodes support; 0 if there are none."""
    return min((range_of(node)[1] for node in nodes), default=0)


def own_range(run: uuid.UUID) -> SupportedLevels:
    """Return the range that this version publishes for a process incarnation."""
    return SupportedLevels(run, OLDEST, NEWEST)


def get_features(store: ClusterStore) -> FeaturesRecord:
    """Return the cluster's record. No record means level 0."""
    return read(store, FEATURES_KEY, FeaturesRecord) or FeaturesRecord()


def check_level(features: FeaturesRecord) -> None:
    """Raise NewerFormat, with one line that says what to do, if this version does not support the cluster's level."""
    at = features.required
    if not OLDEST <= at <= NEWEST:
        raise NewerFormat(
            f"the cluster's feature level is {at}, this version supports {OLDEST} to {NEWEST}; use a newer headrace"
            if at > NEWEST
            else f"the cluster's feature level is {at}, this version supports {OLDEST} and up: upgrade by way of an "
            "older headrace"
        )


def found(store: ClusterStore, *, level: int = NEWEST) -> FeaturesRecord:
    """Return the record of a new cluster, created if missing.

    A new cluster starts at the newest level, since there is no older data, or at the level that the format of the
    cluster's record implies.
    """
    return change(store, FEATURES_KEY, FeaturesRecord, lambda present: present or FeaturesRecord(level=level, epoch=1))


def hold(store: ClusterStore, most: int | None) -> FeaturesRecord:
    """Keep the level at or below `most`; None ends the hold. Raises KafkaError if the level is above `most` already."""

    def decide(present: FeaturesRecord | None) -> FeaturesRecord:
        before = present or FeaturesRecord()
        if most is not None and most < before.required:
            raise KafkaError(
                Code.INVALID_UPDATE_VERSION,
                f"the level is {before.required} already, and is not lowered: what was written is not read by older "
                "versions",
            )
        return structs.replace(before, most=most, wanted=0)

    return _changed(store, decide)


def ask_for(store: ClusterStore, level: int, *, validate_only: bool = False) -> FeaturesRecord:
    """Request that the controller raise the level at once.

    Raises KafkaError if that is impossible: a node does not support it, or the level is held.
    """
    nodes = _nodes(store)

    def decide(present: FeaturesRecord | None) -> FeaturesRecord:
        before = present or FeaturesRecord()
        check_wanted(before, nodes, level)
        return before if level <= before.level else structs.replace(before, wanted=max(level, before.wanted))

    if validate_only:
        return decide(read(store, FEATURES_KEY, FeaturesRecord))
    return _changed(store, decide)


def check_wanted(features: FeaturesRecord, nodes: Iterable[NodeRecord], level: int) -> None:
    """Raise KafkaError with the reason if the cluster cannot be raised to a level."""
    if level < features.required:
        raise KafkaError(
            Code.INVALID_UPDATE_VERSION,
            f"the level is {features.required} and is not lowered: what was written is not read by older versions",
        )
    if level > NEWEST:
        raise KafkaError(Code.INVALID_UPDATE_VERSION, f"this version supports the levels {OLDEST} to {NEWEST}")
    if features.most is not None and level > features.most:
        raise KafkaError(
            Code.FEATURE_UPDATE_FAILED,
            f"the level is held at {features.most}: `headrace features hold --off` lets it be raised",
        )
    if unable := [node for node in nodes if not supports(node, level)]:
        names = ", ".join(f"node {node.node_id} ({'{} to {}'.format(*range_of(node))})" for node in unable[:5])
        raise KafkaError(
            Code.FEATURE_UPDATE_FAILED,
            f"level {level} is not supported by {names}: upgrade these first, or remove those that are gone",
        )


def set_wait(store: ClusterStore, wait_s: float) -> FeaturesRecord:
    """Set the seconds for which all nodes must have supported the next level and been well before it is raised
    automatically."""
    return _changed(store, lambda present: structs.replace(present or FeaturesRecord(), wait_s=wait_s))


def note_able(store: ClusterStore, since: Millis) -> FeaturesRecord:
    """Record since when all nodes support a higher level and are well, by the cluster's time; 0: they do not, or are
    not."""
    return change(
        store,
        FEATURES_KEY,
        FeaturesRecord,
        lambda present: structs.replace(present or FeaturesRecord(), able_since=since),
    )


def begin_raising(store: ClusterStore, level: int) -> FeaturesRecord:
    """Take the first step. Raises KafkaError like `check_wanted`: a node may have registered since the controller
    checked."""
    nodes = _nodes(store)

    def decide(present: FeaturesRecord | None) -> FeaturesRecord:
        before = present or FeaturesRecord()
        check_wanted(before, nodes, level)
        return structs.replace(before, raising=max(level, before.raising))

    return _changed(store, decide)


def raise_again(store: ClusterStore, level: int) -> FeaturesRecord:
    """Take the first step again after the store was restored to a copy from before it.

    A folder has seen that level, and other folders may contain data of it. Older versions are refused again before
    anything else is written.
    """
    refuse_older(store, level)

    def decide(present: FeaturesRecord | None) -> FeaturesRecord:
        before = present or FeaturesRecord()
        if before.required >= level:
            return before
        most = None if before.most is not None and before.most < level else before.most
        return structs.replace(before, raising=level, most=most)

    return _changed(store, decide)


def refuse_older(store: ClusterStore, level: int) -> None:
    """Make the cluster's record refuse versions below a level. On Kubernetes the operator does that."""

    def decide(present: ClusterRecord | None) -> ClusterRecord:
        if present is None:
            raise HeadraceError("the cluster store has no record of the cluster")
        return structs.replace(present, format_version=max(present.format_version, format_of(level)))

    with contextlib.suppress(NotOurs):
        change(store, CLUSTER_KEY, ClusterRecord, decide)


def finish_raising(store: ClusterStore, level: int) -> FeaturesRecord:
    """Take the second step: data of the level may be written from now on.

    Raises KafkaError if a registered node does not support the level; such a node has been refused by then, unless it
    had started before.
    """
    nodes = _nodes(store)

    def decide(present: FeaturesRecord | None) -> FeaturesRecord:
        before = present or FeaturesRecord()
        check_wanted(before, nodes, level)
        return structs.replace(before, level=max(level, before.level), raising=0, wanted=0, able_since=Millis(0))

    return _changed(store, decide)


def publish_range(store: ClusterStore, node_id: NodeId, supported: SupportedLevels) -> None:
    """Publish again what a process incarnation supports, after an older version rewrote the node's record and dropped
    it."""

    def decide(present: NodeRecord | None) -> NodeRecord:
        if present is None:
            raise HeadraceError(f"there is no node {node_id}")
        return present if present.run != supported.run else structs.replace(present, supports=supported)

    change(store, f"{NODE_PREFIX}{node_id}", NodeRecord, decide)


def _changed(store: ClusterStore, decide: Callable[[FeaturesRecord | None], FeaturesRecord]) -> FeaturesRecord:
    """Change the record, with a higher epoch if it differs."""

    def risen(present: FeaturesRecord | None) -> FeaturesRecord:
        wanted = decide(present)
        if wanted == (present or FeaturesRecord()):
            return wanted
        return structs.replace(wanted, epoch=(present or FeaturesRecord()).epoch + 1)

    return change(store, FEATURES_KEY, FeaturesRecord, risen, anyway=True)


def _nodes(store: ClusterStore) -> list[NodeRecord]:
    return [decode(each.value, NodeRecord, each.key) for each in store.list(NODE_PREFIX)]

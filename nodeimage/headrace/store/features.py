"""The cluster's feature level, one record of the store: who may raise it, and how (see headrace.base.levels).

A level is raised in two steps, so that whoever dies when, no version meets what it does not know:

    raising   older versions are refused from now on: by the cluster's record, and by each node's own folder
    level     once each node that is registered has said that its folder refuses them; only now it may be written

A node's range counts for the run that published it: an older version that took over its folder since publishes none,
and none is level 0. All functions block, and go through compare and set alone.
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
    """Whether the run that is registered reads all that a level lets others write."""
    oldest, newest = range_of(node)
    return oldest <= level <= newest


def range_of(node: NodeRecord) -> tuple[int, int]:
    """(oldest, newest) level of the run that is registered."""
    told = node.supports
    return (0, 0) if told is None or told.run != node.run else (told.oldest, told.newest)


def common(nodes: Iterable[NodeRecord]) -> int:
    """The highest level that all of these support; 0 where there are none."""
    return min((range_of(node)[1] for node in nodes), default=0)


def own_range(run: uuid.UUID) -> SupportedLevels:
    """What this version publishes of a run."""
    return SupportedLevels(run, OLDEST, NEWEST)


def get_features(store: ClusterStore) -> FeaturesRecord:
    """The cluster's. No record means level 0."""
    return read(store, FEATURES_KEY, FeaturesRecord) or FeaturesRecord()


def check_level(features: FeaturesRecord) -> None:
    """Raise NewerFormat, with one line that says what to do, for a level that this version does not support."""
    at = features.required
    if not OLDEST <= at <= NEWEST:
        raise NewerFormat(
            f"the cluster's feature level is {at}, this version supports {OLDEST} to {NEWEST}; use a newer headrace"
            if at > NEWEST
            else f"the cluster's feature level is {at}, this version supports {OLDEST} and up: upgrade by way of an "
            "older headrace"
        )


def found(store: ClusterStore, *, level: int = NEWEST) -> FeaturesRecord:
    """Of a store that has no cluster yet: it starts at the newest level, as there is nothing to go back to; or at the
    one that whoever made the cluster's record chose by its format.
    """
    return change(store, FEATURES_KEY, FeaturesRecord, lambda present: present or FeaturesRecord(level=level, epoch=1))


def hold(store: ClusterStore, most: int | None) -> FeaturesRecord:
    """Have the level stay at `most` at the highest; None: no longer. Raises KafkaError where it is above that."""

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
    """Have the controller raise the level at once. Raises KafkaError where it cannot be: a node that does not support
    it, or a hold.
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
    """Raise KafkaError with the reason where a cluster cannot be raised to a level."""
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
    """Have the level be raised by itself after so many seconds in which all nodes supported the next and were well."""
    return _changed(store, lambda present: structs.replace(present or FeaturesRecord(), wait_s=wait_s))


def note_able(store: ClusterStore, since: Millis) -> FeaturesRecord:
    """Since when all nodes support a higher level and are well, by the cluster's time; 0: they are not."""
    return change(
        store,
        FEATURES_KEY,
        FeaturesRecord,
        lambda present: structs.replace(present or FeaturesRecord(), able_since=since),
    )


def begin_raising(store: ClusterStore, level: int) -> FeaturesRecord:
    """The first step. Raises KafkaError as `check_wanted`: a node may have registered since the controller looked."""
    nodes = _nodes(store)

    def decide(present: FeaturesRecord | None) -> FeaturesRecord:
        before = present or FeaturesRecord()
        check_wanted(before, nodes, level)
        return structs.replace(before, raising=max(level, before.raising))

    return _changed(store, decide)


def raise_again(store: ClusterStore, level: int) -> FeaturesRecord:
    """Begin the first step again where the store was set back to before it: a folder has seen that level, and what is
    in the others may be of it. Who is of an older version is refused again before anything else is written.
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
    """Have versions below a level be refused by the cluster's record. On Kubernetes the operator sees to it."""

    def decide(present: ClusterRecord | None) -> ClusterRecord:
        if present is None:
            raise HeadraceError("the cluster store has no record of the cluster")
        return structs.replace(present, format_version=max(present.format_version, format_of(level)))

    with contextlib.suppress(NotOurs):
        change(store, CLUSTER_KEY, ClusterRecord, decide)


def finish_raising(store: ClusterStore, level: int) -> FeaturesRecord:
    """The second step: it may be written from now on. Raises KafkaError where a node registered that does not read it;
    that one has been refused by then, unless it had started before.
    """
    nodes = _nodes(store)

    def decide(present: FeaturesRecord | None) -> FeaturesRecord:
        before = present or FeaturesRecord()
        check_wanted(before, nodes, level)
        return structs.replace(before, level=max(level, before.level), raising=0, wanted=0, able_since=Millis(0))

    return _changed(store, decide)


def publish_range(store: ClusterStore, node_id: NodeId, supported: SupportedLevels) -> None:
    """Say again what a run supports: somebody of an older version has written the node's record, and dropped it."""

    def decide(present: NodeRecord | None) -> NodeRecord:
        if present is None:
            raise HeadraceError(f"there is no node {node_id}")
        return present if present.run != supported.run else structs.replace(present, supports=supported)

    change(store, f"{NODE_PREFIX}{node_id}", NodeRecord, decide)


def _changed(store: ClusterStore, decide: Callable[[FeaturesRecord | None], FeaturesRecord]) -> FeaturesRecord:
    """With a higher epoch, if anything is other than it was."""

    def risen(present: FeaturesRecord | None) -> FeaturesRecord:
        wanted = decide(present)
        if wanted == (present or FeaturesRecord()):
            return wanted
        return structs.replace(wanted, epoch=(present or FeaturesRecord()).epoch + 1)

    return change(store, FEATURES_KEY, FeaturesRecord, risen, anyway=True)


def _nodes(store: ClusterStore) -> list[NodeRecord]:
    return [decode(each.value, NodeRecord, each.key) for each in store.list(NODE_PREFIX)]

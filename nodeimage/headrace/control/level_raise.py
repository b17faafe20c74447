"""When the cluster's feature level is raised (store.features says how). Pure: no I/O, no clock.

The level is raised automatically once all nodes have supported a higher one and have been well for `wait_s`, or at once
if someone requested it; never past a hold. The time since when the nodes have supported it is in the store, so a new
controller continues the wait of the last one.
"""

from dataclasses import dataclass

from headrace.base.ids import Millis
from headrace.control.observations import Observed
from headrace.store.features import common
from headrace.store.records import FeaturesRecord


@dataclass(frozen=True, slots=True)
class NoteAble:
    """Record since when all nodes support a higher level and are well; 0: they do not, or are not."""

    since: Millis


@dataclass(frozen=True, slots=True)
class BeginRaising:
    """Take the first step."""

    level: int
    reason: str


@dataclass(frozen=True, slots=True)
class FinishRaising:
    """Take the second step: all nodes have taken the first."""

    level: int


LevelStep = NoteAble | BeginRaising | FinishRaising


def level_step(observed: Observed, features: FeaturesRecord, *, now: float, time: Millis | None) -> LevelStep | None:
    """Return the next step, if any. `now`: the controller's clock, in seconds; `time`: the cluster's time, None if
    unknown."""
    if features.raising > features.level:
        return FinishRaising(features.raising) if _are_fenced(observed, features.raising, now) else None
    able = common(observed.nodes.values())
    target = able if features.most is None else min(able, features.most)
    if target <= features.level:
        return NoteAble(Millis(0)) if features.able_since else None
    if features.wanted > features.level and target >= features.wanted:
        return BeginRaising(features.wanted, "as it was asked for")
    if not are_well(observed, now):
        return NoteAble(Millis(0)) if features.able_since else None
    if time is None:
        return None
    if not features.able_since or features.able_since > time:
        return NoteAble(time)
    if time - features.able_since >= features.wait_s * 1000:
        return BeginRaising(target, f"all nodes have supported it, and been healthy, for {features.wait_s:g} s")
    return None


def are_well(observed: Observed, now: float) -> bool:
    """Return whether all nodes answer and no container lacks a replica in sync, except for want of nodes."""
    if not all(observed.is_alive(node, now) for node in observed.nodes):
        return False
    short = (observed.containers[each] for each in observed.inventory.short)
    return all(len(record.in_sync) >= len(observed.nodes) for record in short)


def _are_fenced(observed: Observed, level: int, now: float) -> bool:
    """Return whether every registered node is alive and its data folder refuses versions older than `level`."""
    for node in observed.nodes:
        result = observed.probes.get(node)
        if not observed.is_alive(node, now) or result is None or result.answer is None or result.answer.fenced < level:
            return False
    return True

"""A cluster's feature level: set as the resource asks, with a Secret that older images refuse once it is raised.

The cluster raises its level by itself (headrace.control.level_raise). `auto` leaves that to the cluster, except
that the level which security needs is requested at once if the resource enables security; a number raises the level to
it at once, and holds it there. In addition the operator keeps pods of an older version from
starting, even with an empty disk: the cluster record is then mounted from another Secret, in a format that they refuse.
"""

from collections.abc import Mapping
from typing import Any, Final

from headrace.base.errors import Code, KafkaError
from headrace.base.levels import Level, format_of
from headrace_operator.admin import Calls
from headrace_operator.builders.cluster import ClusterObjects
from headrace_operator.builders.names import bootstrap
from headrace_operator.kinds.cluster_record import ClusterRecords
from headrace_operator.kinds.cluster_view import ANSWER_S, QUIET_S, WORKING_S, ObservedCluster
from headrace_operator.specs import AUTO, ClusterSpec
from headrace_operator.status import Condition

LEVEL: Final = "FeatureLevel"
"""The condition's type. Ready does not depend on it: a level that is yet to be raised blocks nobody."""
SECURED: Final = int(Level.SECURED)
"""The feature level that security needs."""
Order = tuple[str, dict[str, Any]]


class FeatureLevelStep:
    """Takes the next step towards the requested feature level."""

    def __init__(self, *, admin: Calls, cluster_records: ClusterRecords) -> None:
        self._admin = admin
        self._cluster_records = cluster_records

    async def step(self, objects: ClusterObjects, spec: ClusterSpec, seen: ObservedCluster) -> None:
        """Set the level as the resource asks, or note why it differs. Raises HeadraceError."""
        where = bootstrap(objects.name, objects.namespace)
        try:
            shown = await self._admin.call(where, "features.show", {}, patience_s=ANSWER_S)
            refusal = ""
            least = SECURED if spec.security.enabled else 0
            for method, params in orders(spec.feature_level, shown, least=least):
                try:
                    shown = await self._admin.call(where, method, params)
                except KafkaError as error:
                    refusal = str(error)
        except KafkaError as error:
            if error.code is not Code.INVALID_REQUEST:
                raise
            shown, refusal = ORIGINAL, ""  # an older version, which has no levels
        seen.level = int(shown["level"])
        needed = format_of(max(seen.level, shown["raising"] or 0))
        if needed > seen.record_format:
            await self._cluster_records.fence(objects, seen, needed)
        told = condition(spec.feature_level, shown, refusal)
        seen.note(told.type, told.ok, told.reason, told.message, again_s=QUIET_S if told.ok else WORKING_S)


ORIGINAL: Final[Mapping[str, Any]] = {
    "level": 0,
    "raising": None,
    "wanted": None,
    "held_at": None,
    "supported_by_all": 0,
    "raised_by_itself_after_s": 0.0,
}
"""The answer to `features.show` that stands for nodes without feature levels."""


def orders(asked: int | str, shown: Mapping[str, Any], *, least: int = 0) -> list[Order]:
    """Return the admin calls that bring the level to what the resource asks for. `least`: the level to which `auto`
    raises without waiting. Pure.
    """
    if asked == AUTO:
        found: list[Order] = [] if shown["held_at"] is None else [("features.hold", {"off": True})]
        at = max(shown["level"], shown["raising"] or 0)
        if at < least <= shown["supported_by_all"] and (shown["wanted"] or 0) < least:
            found.append(("features.upgrade", {"level": least, "wait_s": 0}))
        return found
    level = int(asked)
    at = max(shown["level"], shown["raising"] or 0)
    if level < at:
        return []
    told: list[Order] = []
    if shown["held_at"] != level:
        told.append(("features.hold", {"level": level}))
    if at < level <= shown["supported_by_all"] and (shown["wanted"] or 0) < level:
        told.append(("features.upgrade", {"level": level, "wait_s": 0}))
    return told


def condition(asked: int | str, shown: Mapping[str, Any], refusal: str) -> Condition:
    """Return the condition of the feature level. Pure."""
    level, able = shown["level"], shown["supported_by_all"]
    if refusal:
        return Condition(LEVEL, False, "Refused", refusal)
    if shown["raising"] is not None:
        return Condition(
            LEVEL, False, "Raising", f"the level is being raised to {shown['raising']}: every node has to answer first"
        )
    if asked != AUTO and int(asked) < level:
        return Condition(
            LEVEL,
            False,
            "NotLowered",
            f"the level is {level} and is never lowered: older versions could not read what was written",
        )
    if asked != AUTO and int(asked) > able:
        return Condition(
            LEVEL, False, "NotSupported", f"level {asked} is asked for, and all nodes support {able}: set spec.version"
        )
    if asked != AUTO and level < int(asked):
        return Condition(LEVEL, False, "Raising", f"the level is {level}, and {asked} was asked for")
    if asked == AUTO and level < able:
        wait = f"{shown['raised_by_itself_after_s']:g} s"
        return Condition(
            LEVEL, False, "Waits", f"all nodes support level {able}: it is raised once all has been well for {wait}"
        )
    if level < able:
        return Condition(LEVEL, True, "Held", f"at {level}; all nodes support {able}")
    return Condition(LEVEL, True, "Newest", f"{level}")

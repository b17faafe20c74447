"""The status of a resource: conditions and figures, and when they are worth a patch. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

READY: Final = "Ready"
WARNED: Final = frozenset(
    {
        "AuthorityUnfit",
        "CertificateExpired",
        "CertificateExpires",
        "CertificateUnfit",
        "ClaimWaits",
        "DiskFull",
        "DrainRefused",
        "NoAuthority",
        "NodeDisagrees",
        "PodsCannotRun",
        "Refused",
        "WrongListeners",
        "WrongSettings",
    }
)
"""Reasons that name a cause which somebody has to see to. When a condition becomes so there is an event of type Warning
with that reason too, and Ready gives it before what only follows from it.
"""
FIGURES_S: Final = 60.0
"""Figures alone are written at most so often; conditions at once."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One of a resource. `ok` None: unknown."""

    type: str
    ok: bool | None
    reason: str
    message: str = ""


def instant(at_s: float) -> str:
    """Seconds since 1970 as Kubernetes writes times."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def ready(conditions: Sequence[Condition]) -> Condition:
    """Sums up: the first that is not so says why, a cause (WARNED) before others, and all before what is unknown."""
    for state in (False, None):
        found = [each for each in conditions if each.ok is state]
        if found:
            first = next((each for each in found if each.reason in WARNED), found[0])
            return Condition(READY, first.ok, first.reason, first.message)
    return Condition(READY, True, "Ready", "")


def complete(conditions: Sequence[Condition], types: Sequence[str]) -> list[Condition]:
    """All types of a kind, from first sight on: what was not looked at is unknown."""
    given = {each.type: each for each in conditions}
    why = next((each for each in conditions if each.ok is not True), None)
    waits = "not looked at yet" if why is None else f"not looked at: {why.type} is {why.reason}"
    unknown = {each: Condition(each, None, "NotLookedAt", waits) for each in types}
    return list((unknown | given).values())


def status(
    *,
    generation: int,
    conditions: Sequence[Condition],
    figures: Mapping[str, Any],
    before: Mapping[str, Any],
    now: str,
) -> dict[str, Any]:
    """The whole status; a condition that stays as it was keeps the time of its last change."""
    known = {each["type"]: each for each in before.get("conditions", [])}
    shown = []
    for each in conditions:
        state = "Unknown" if each.ok is None else str(each.ok)
        old = known.get(each.type)
        since = old["lastTransitionTime"] if old is not None and old["status"] == state else now
        shown.append(
            {
                "type": each.type,
                "status": state,
                "observedGeneration": generation,
                "lastTransitionTime": since,
                "reason": each.reason,
                "message": each.message[:32_000],
            }
        )
    return {
        "observedGeneration": generation,
        "conditions": shown,
        **{name: value for name, value in figures.items() if value is not None},
    }


def warnings(conditions: Sequence[Condition], before: Mapping[str, Any]) -> list[Condition]:
    """The conditions that are not so any more, or for another reason, by a cause that somebody has to see to; of those
    with one reason, as a cause shows in several, the first.
    """
    known = {(each["type"], each["reason"]) for each in before.get("conditions", []) if each["status"] == "False"}
    told = {reason for _, reason in known}
    found: dict[str, Condition] = {}
    for each in conditions:
        if each.ok is False and each.reason in WARNED and each.reason not in told:
            found.setdefault(each.reason, each)
    return list(found.values())


def figures_of(before: Mapping[str, Any]) -> dict[str, Any]:
    """What a status says beside conditions: none before the first reconcile that came to something."""
    return {name: value for name, value in before.items() if name not in ("observedGeneration", "conditions")}


def differs(wanted: Mapping[str, Any], before: Mapping[str, Any], *, figures: bool) -> bool:
    """Whether a status is to be written; `figures`: theirs is the time too."""
    keys = ("observedGeneration", "conditions")
    if any(wanted.get(key) != before.get(key) for key in keys):
        return True
    return figures and any(wanted.get(key) != before.get(key) for key in wanted.keys() | before.keys())

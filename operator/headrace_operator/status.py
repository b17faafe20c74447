"""The status of a resource: conditions and figures, and when a change is worth a write. Pure."""

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
"""Reasons of conditions that need a person's attention. When a condition gets such a reason, a Warning event with that
reason is posted too, and Ready shows it rather than reasons that merely follow from it.
"""
FIGURES_S: Final = 60.0
"""Least seconds between two writes of figures alone; conditions are written at once."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of a resource. `ok` None: unknown."""

    type: str
    ok: bool | None
    reason: str
    message: str = ""


def instant(at_s: float) -> str:
    """Return seconds since 1970 in Kubernetes' time format."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def ready(conditions: Sequence[Condition]) -> Condition:
    """Return the condition Ready: it takes the reason of the first False condition, of one with a WARNED reason first;
    unknown conditions come last.
    """
    for state in (False, None):
        found = [each for each in conditions if each.ok is state]
        if found:
            first = next((each for each in found if each.reason in WARNED), found[0])
            return Condition(READY, first.ok, first.reason, first.message)
    return Condition(READY, True, "Ready", "")


def complete(conditions: Sequence[Condition], types: Sequence[str]) -> list[Condition]:
    """Return conditions of all types of a kind: those that were not determined are unknown."""
    given = {each.type: each for each in conditions}
    why = next((each for each in conditions if each.ok is not True), None)
    waits = "not checked yet" if why is None else f"not checked: {why.type} is {why.reason}"
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
    """Return the whole status; a condition whose status is unchanged keeps the time of its last change."""
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
    """Return the conditions that became False for a new reason that needs attention (WARNED); of several with the same
    reason, the first.
    """
    known = {(each["type"], each["reason"]) for each in before.get("conditions", []) if each["status"] == "False"}
    told = {reason for _, reason in known}
    found: dict[str, Condition] = {}
    for each in conditions:
        if each.ok is False and each.reason in WARNED and each.reason not in told:
            found.setdefault(each.reason, each)
    return list(found.values())


def figures_of(before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a status besides the conditions: {} before the first successful reconcile."""
    return {name: value for name, value in before.items() if name not in ("observedGeneration", "conditions")}


def differs(wanted: Mapping[str, Any], before: Mapping[str, Any], *, figures: bool) -> bool:
    """Return whether a status has to be written. `figures`: whether changed figures count too."""
    keys = ("observedGeneration", "conditions")
    if any(wanted.get(key) != before.get(key) for key in keys):
        return True
    return figures and any(wanted.get(key) != before.get(key) for key in wanted.keys() | before.keys())

"""Checks of a StreamCluster's `settings` and `tracing`: storage node arguments that users may set. Pure.

A node does not start with an unknown argument, so it is refused before any pod gets it.
"""

import math
from collections.abc import Mapping
from typing import Final

from headrace.node.options import AUDITED
from headrace.tracing.endpoint import TracingRefused, checked_endpoint

MINIMA: Final[Mapping[str, int]] = {
    "chunk-bytes": 64 * 1024,
    "container-bytes": 64 * 1024,
    "partitionlet-bytes": 1024,
    "disk-quota": 0,
    "disk-reserve": 0,
    "first-nodes": 1,
    "rebalance-delay-ms": 0,
    "snapshot-rate": 0,
    "max-connections": 0,
    "max-connections-per-ip": 0,
    "connections-max-idle-ms": 1000,
    "metrics-topics": 0,
}
"""Settings that are whole numbers, with the minimum of each (headrace.node.options)."""
SECONDS: Final = frozenset({"rebuild-after-s"})
TEXTS: Final = frozenset({"label", "zone"})
FLAGS: Final = frozenset({"no-fsync"})
ACTIONS: Final = frozenset({"audit-allowed"})
"""Settings that list the actions that are audited even if they are allowed."""
KNOWN: Final = (*MINIMA, *SECONDS, *TEXTS, *FLAGS, *ACTIONS)


def fault(settings: Mapping[str, str]) -> str:
    """Return what is wrong with the first setting with which a node would not start; "" if nothing is."""
    for name, value in sorted(settings.items()):
        if wrong := _fault(name, value):
            return f"settings.{name}: {wrong}"
    return ""


def tracing_fault(endpoint: str) -> str:
    """Return what is wrong with `tracing.endpoint`, if a node would not start with it; "" if nothing is."""
    if not endpoint:
        return ""
    try:
        checked_endpoint(endpoint)
    except TracingRefused as error:
        return f"tracing.endpoint: {error}"
    return ""


def _fault(name: str, value: str) -> str:
    if name in MINIMA:
        number = _number(value, int)
        if number is None:
            return f"{value!r} is not a whole number"
        return "" if number >= MINIMA[name] else f"{value} is too small; the minimum is {MINIMA[name]}"
    if name in SECONDS:
        number = _number(value, float)
        return (
            ""
            if number is not None and math.isfinite(number) and number >= 0
            else f"{value!r} is not a number of seconds"
        )
    if name in ACTIONS:
        unknown = sorted({each.strip() for each in value.split(",")} - set(AUDITED))
        return f"{unknown[0]!r} is not an audited action; these are: {', '.join(AUDITED)}" if unknown else ""
    if name in FLAGS:
        return f'it is a flag without a value: write {name}: ""' if value else ""
    if name in TEXTS:
        return "" if value and not value.startswith("-") else f"{value!r} is not a valid value for it"
    return f"the storage nodes have no such setting; they have {', '.join(sorted(KNOWN))}"


def _number(text: str, kind: type[int] | type[float]) -> float | None:
    try:
        return kind(text)
    except ValueError:
        return None

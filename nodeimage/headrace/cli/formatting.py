"""Formats the cluster's values for people, by their names, whose ending tells the unit. Pure functions."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from headrace.cli.units import show_duration, show_size

if TYPE_CHECKING:
    from headrace.local.folder import NodeProcess

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MOMENTS = ("created_ms", "committed_ms", "started_ms", "since_ms", "oldest_ms", "expires_ms")
"""Names of values in milliseconds since 1970. Names that end in one of these, such as `problem_since_ms`, are too;
every other name that ends in `_ms` is a duration."""
_ENDS: Final = tuple(f"_{each}" for each in MOMENTS)
INSTANTS = ("at_ms", "last_error_at_ms")
"""Names of moments that are shown with milliseconds."""


def show_value(name: str, value: Any) -> object:
    """A value in readable form: sizes, durations and moments with units, lists and mappings on one line."""
    match value:
        case None | "":
            return "-"
        case bool():
            return "yes" if value else "no"
        case int() if name in MOMENTS or name.endswith(_ENDS):
            return show_moment(value)
        case int() if name in INSTANTS:
            return show_moment(value, millis=True)
        case int() if name.split("_")[-1] == "bytes":
            return show_size(value)
        case int() if name.endswith("_ms"):
            return show_duration(max(value, 0))
        case float():
            return f"{value:.1f}"
        case Mapping():
            return ", ".join(f"{key}={show_value(str(key), each)}" for key, each in value.items()) or "none"
        case list() | tuple():
            apart = "; " if any(isinstance(each, Mapping) or " " in str(each) for each in value) else ", "
            return apart.join(str(show_value("", each)) for each in value) or "none"
        case _:
            return value


def show_moment(ms: int, *, millis: bool = False) -> str:
    """Milliseconds since 1970 as `2014-02-05 08:30:00Z`; a moment outside the calendar (mostly a time in another unit)
    as it is, `1700000000000000 ms`."""
    try:
        moment = EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return f"{ms} ms"
    return f"{moment.replace(tzinfo=None).isoformat(' ', 'milliseconds' if millis else 'seconds')}Z"


def label(name: str) -> str:
    """`ttl_ms` as `ttl`, `log_start` as `log start`."""
    if name == "retention_bytes":  # distinguishes it from `retention_ms`
        return "retention size"
    for unit in ("_ms", "_bytes"):
        if name != unit.removeprefix("_"):
            name = name.removesuffix(unit)
    return name.replace("_", " ")


def described(properties: Mapping[str, Any]) -> list[tuple[str, object]]:
    """Label and readable value of each property; those of a nested mapping are named `outer.inner`."""
    shown: list[tuple[str, object]] = []
    for name, value in properties.items():
        if isinstance(value, Mapping) and value and name != "configs":
            shown += [(f"{label(name)}.{inner}", each) for inner, each in described(value)]
        else:
            shown.append((label(name), show_value(name, value)))
    return shown


def rows_of(
    things: Sequence[Mapping[str, Any]], names: Sequence[str] = ()
) -> tuple[list[str], Iterable[list[object]], list[str]]:
    """For a table: labels of the columns (`names`, or all), the rows, and the labels of columns with numbers."""
    names = names or (list(things[0]) if things else [])
    numbers = [
        label(name)
        for name in names
        if any(isinstance(each.get(name), (int, float)) and not isinstance(each[name], bool) for each in things)
    ]
    return (
        [label(name) for name in names],
        ([show_value(name, each.get(name)) for name in names] for each in things),
        numbers,
    )


def process_fields(node: "NodeProcess") -> dict[str, object]:
    """A node of this machine, in its JSON form."""
    found: dict[str, object] = {"id": node.node_id, "name": node.name, "port": node.port, "pid": node.pid}
    if node.metrics_port is not None:
        found["metrics"] = f"http://127.0.0.1:{node.metrics_port}/metrics"
    return found

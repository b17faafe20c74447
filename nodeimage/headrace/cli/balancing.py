"""`headrace balance`: each node's load, what was moved and why, and whether balancing is on."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from headrace.base.errors import HeadraceError
from headrace.cli.cluster_status import EVENT_COLUMNS, UP, newest_events
from headrace.cli.formatting import rows_of
from headrace.cli.options import Bootstrap, DataFolder, Output
from headrace.cli.output import OutputFormat, note, print_json, print_line, print_table
from headrace.cli.units import show_size

MOVES: Final = ("primary", "roll", "container")
MAX_EVENTS: Final = 200
SHOWN: Final = 20
COLUMNS: Final = (
    *("node", "state", "leads", "in_per_second_bytes", "out_per_second_bytes", "requests_per_second"),
    "disk_used_bytes",
)
RULES: Final = """\
Every 3 s the controller compares the nodes' loads. A node that carries more than {over_mean:g} of the mean, in traffic,
requests or disk, and for two rounds, gives up some load: it hands a primary over to a replica in sync, or its hottest
partitions continue in containers of the coolest node. No stored byte is copied. At most {moves_per_minute} moves a
minute; then both nodes are left alone for 15 s. A node that carries less than half of the mean has just joined or
returned: all that carry more than the mean roll some partitions to it at once. Below {traffic}/s, {requests_floor:,}
requests/s and {disk} no node counts as overloaded."""


def balance(
    pause: Annotated[bool, typer.Option("--pause", help="Move nothing until --resume")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Move load again")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Say what was moved and why, and by which rules")] = False,
    bootstrap: Bootstrap = None,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show each node's load; pause or resume balancing.

    \b
    Examples:
      headrace balance --explain
      headrace balance --pause
    """
    from headrace.cli.connect import ask_each, connected

    if pause and resume:
        raise HeadraceError("--pause and --resume exclude each other: give only one")
    with connected(bootstrap, data) as cluster:
        answer = cluster.admin("balance", {"paused": True if pause else False if resume else None})
    if explain:
        addresses = [node["address"] for node in answer["nodes"] if node["state"] in UP]
        seen = ask_each(cluster.target, addresses, "cluster.events", {"events": MAX_EVENTS})
        answer["moves"] = moves((each for each in seen if each is not None), SHOWN)
    if output is OutputFormat.JSON:
        print_json(answer)
        return
    note("paused: nothing is moved; `headrace balance --resume` ends that" if answer["paused"] else "balancing is on")
    columns, rows, numbers = rows_of(answer["nodes"], COLUMNS)
    print_table(columns, rows, right=numbers)
    if explain:
        _explain(answer)


def moves(seen: Any, most: int) -> list[dict[str, Any]]:
    """The newest events that moved load, in order of time. Pure."""
    moved = ([event for event in events if event["kind"] in MOVES] for events in seen)
    return newest_events(moved, most)


def _explain(answer: Mapping[str, Any]) -> None:
    floors = {"traffic": show_size(answer["traffic_floor"]), "disk": show_size(answer["disk_floor"])}
    for line in ("", *RULES.format(**answer, **floors).splitlines(), ""):
        print_line(line)
    moved = answer["moves"]
    if not moved:
        print_line("Nothing has been moved since the running nodes were started.")
        return
    columns, rows, numbers = rows_of(moved, EVENT_COLUMNS)
    print_table(columns, rows, title="moves", right=numbers)

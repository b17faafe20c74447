"""`headrace chain` and `scrub`: where a topic's records lie, and whether they can still be read."""

import time
from typing import Annotated

import typer

from headrace.cli.options import Bootstrap, DataFolder, Output
from headrace.cli.output import OutputFormat, note, print_fields, print_json, print_table
from headrace.cli.topic_names import split_partition
from headrace.cli.words import described, rows_of
from headrace.errors import HeadraceError

POLL_S = 0.2


def chain(
    topic: Annotated[str, typer.Argument(metavar="STREAM:TOPIC[/PARTITION]", show_default=False)],
    bootstrap: Bootstrap = None,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show a topic's partitionlets in order: which offsets, in which container, on which node, how big."""
    from headrace.cli.connect import connected

    name, partition = split_partition(topic)
    with connected(bootstrap, data) as cluster:
        partitionlets = cluster.admin("chain", {"topic": name, "partition": partition})
    if output is OutputFormat.JSON:
        print_json(partitionlets)
        return
    columns, rows, numbers = rows_of(partitionlets)
    print_table(columns, rows, right=numbers)


def scrub(
    wait: Annotated[bool, typer.Option("--wait", help="Return when everything was read back")] = False,
    bootstrap: Bootstrap = None,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Read everything stored back from the disk and check every checksum. Exit code 1 when something is damaged."""
    from headrace.cli.connect import connected

    with connected(bootstrap, data) as cluster:
        state = cluster.admin("scrub.start")
        if not wait:
            note("reading everything back; `headrace scrub --wait` waits for the result, `headrace status` shows it")
        while wait and state.get("running"):
            time.sleep(POLL_S)
            state = cluster.admin("scrub.status")
    if output is OutputFormat.JSON:
        print_json(state)
    else:
        print_fields(described(state))
    if state.get("errors"):
        raise HeadraceError("the scrub found damage: what is above says where")

"""`headrace chain` and `scrub`: where a topic's records are stored, and whether they can still be read."""

import time
from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from headrace.base.errors import HeadraceError
from headrace.cli.cluster_status import UP
from headrace.cli.formatting import described, rows_of
from headrace.cli.options import Bootstrap, DataFolder, Output
from headrace.cli.output import OutputFormat, note, print_fields, print_json, print_table
from headrace.cli.topic_names import split_partition

POLL_S: Final = 0.2
SUMS: Final = ("containers", "containers_done", "frames", "read_bytes")


def chain(
    topic: Annotated[str, typer.Argument(metavar="STREAM:TOPIC[/PARTITION]", show_default=False)],
    bootstrap: Bootstrap = None,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show where a topic's records lie.

    Lists each partition's partitionlets in order: their offsets, container, node and size.

    \b
    Example:
      headrace chain /factory/sensors:press-7
    """
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
    wait: Annotated[bool, typer.Option("--wait", help="Return once everything has been read back")] = False,
    bootstrap: Bootstrap = None,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Check every checksum of everything stored.

    The exit code is 1 if something is damaged.

    \b
    Example:
      headrace scrub --wait
    """
    from headrace.cli.connect import ask_each, connected

    with connected(bootstrap, data) as cluster:
        nodes = {node["node"]: node["address"] for node in cluster.admin("node.list") if node["state"] in UP}
    state = merged(dict(zip(nodes, ask_each(cluster.target, list(nodes.values()), "scrub.start"), strict=True)))
    if not wait:
        note("reading everything back; `headrace scrub --wait` waits for the result")
    while wait and state.get("running"):
        time.sleep(POLL_S)
        state = merged(dict(zip(nodes, ask_each(cluster.target, list(nodes.values()), "scrub.status"), strict=True)))
    if output is OutputFormat.JSON:
        print_json(state)
    else:
        print_fields(described(state))
    if state.get("errors"):
        raise HeadraceError("the scrub found damage: what is above says where")


def merged(states: Mapping[int, Any]) -> dict[str, Any]:
    """The states of several nodes' scrubs, combined; a node that does not answer (None) is an error. Pure."""
    answered = {node: state for node, state in states.items() if state is not None}
    errors = [f"node {node} does not answer" for node in states if node not in answered]
    for node, state in answered.items():
        errors += [error if len(states) == 1 else f"node {node}: {error}" for error in state["errors"]]
    running = any(state["running"] for state in answered.values())
    kinds = sorted({state["state"] for state in answered.values()})
    return {
        "nodes": len(answered),
        "running": running,
        "state": "running" if running else ", ".join(kinds),
        **{name: sum(state[name] for state in answered.values()) for name in SUMS},
        "seconds": max((state["seconds"] for state in answered.values()), default=0),
        "errors": errors,
    }

"""`headrace node`: adds, drains, starts, stops and removes nodes.

The cluster decides about roles and data; processes and folders are those of the embedded cluster. On Kubernetes the
operator manages the processes, and drains nodes itself.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headrace.base.errors import HeadraceError
from headrace.cli.cluster_status import NODE_COLUMNS, node_row
from headrace.cli.formatting import process_fields, rows_of
from headrace.cli.options import Bootstrap, DataFolder, Output
from headrace.cli.output import OutputFormat, note, print_json, print_line, print_table
from headrace.cli.signals import Interrupts
from headrace.cli.topic_names import parse_settings
from headrace.local.hints import data_option

if TYPE_CHECKING:
    from headrace.cli.connect import Cluster
    from headrace.local.folder import NodeProcess

app = typer.Typer(help="List, add, start, stop, drain and remove nodes.", no_args_is_help=True)

POLL_S: Final = 0.3
NodeId = Annotated[int, typer.Argument(metavar="ID", min=1, help="Its number in `headrace node list`")]
NodeName = Annotated[str, typer.Argument(metavar="ID", help="For example 2, or node-2", show_default=False)]


@app.command(name="list")
def list_nodes(bootstrap: Bootstrap = None, data: DataFolder = None, output: Output = OutputFormat.TABLE) -> None:
    """List the nodes: addresses, states, what they lead.

    \b
    Example:
      headrace node list
    """
    from headrace.cli.connect import connected

    with connected(bootstrap, data) as cluster:
        nodes = cluster.admin("node.list")
    if output is OutputFormat.JSON:
        print_json(nodes)
        return
    columns, rows, numbers = rows_of([node_row(each) for each in nodes], [n for n in NODE_COLUMNS if n in nodes[0]])
    print_table(columns, rows, right=numbers)


@app.command()
def add(
    port: Annotated[
        int | None,
        typer.Option("--port", min=0, max=65_535, help="[default: after the last; 0: a free one]", show_default=False),
    ] = None,
    zone: Annotated[
        str | None,
        typer.Option("--zone", help="The node's zone, for volumes that choose zones", show_default=False),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            "--label",
            metavar="NAME=VALUE",
            help="A label by which volumes choose nodes; may repeat",
            show_default=False,
        ),
    ] = None,
    node_option: Annotated[
        list[str] | None,
        typer.Option("--node-option", help="Argument for the node's process; may repeat", show_default=False),
    ] = None,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Add a node to the running cluster of a folder.

    It takes new writes within seconds; no stored records are copied to it.

    \b
    Example:
      headrace node add
    """
    from headrace.local.folder import default_folder
    from headrace.local.nodes import add_node

    labels = parse_settings(label or [])
    options = [*(["--zone", zone] if zone else [])]
    for name, value in labels.items():
        options += ["--label", f"{name}={value}"]
    began = time.monotonic()
    node = _reported(
        lambda folder: add_node(folder, port=port, options=[*options, *(node_option or [])], progress=note),
        data or default_folder(),
    )
    note(f"ready after {time.monotonic() - began:.1f} s")
    _print_process(node, output)


@app.command()
def start(node: NodeName, data: DataFolder = None, output: Output = OutputFormat.TABLE) -> None:
    """Start a node of the folder that is not running.

    \b
    Example:
      headrace node start 2
    """
    from headrace.local.folder import default_folder
    from headrace.local.nodes import start_node

    began = time.monotonic()
    started = _reported(lambda folder: start_node(folder, node, progress=note), data or default_folder())
    note(f"ready after {time.monotonic() - began:.1f} s")
    _print_process(started, output)


@app.command()
def stop(
    node: NodeName,
    timeout: Annotated[float, typer.Option("--timeout", min=0, help="Seconds after which it is killed")] = 30.0,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Stop one node of the folder.

    Other nodes take over its roles; its replicas stay, and catch up at its next start.

    \b
    Example:
      headrace node stop 2
    """
    from headrace.local.folder import default_folder
    from headrace.local.nodes import stop_node

    name, killed = stop_node(data or default_folder(), node, timeout_s=timeout)
    if killed:
        note(f"{name} did not stop within {timeout:.0f} s and was killed; what it acknowledged is safe")
    if output is OutputFormat.JSON:
        print_json({"stopped": [name], "killed": [name] if killed else []})
    else:
        note(f"stopped {name}; start it again with `headrace node start {name}{data_option(data)}`")


@app.command()
def drain(
    node: NodeId,
    cancel: Annotated[bool, typer.Option("--cancel", help="Let the node take roles and replicas again")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Return once it is empty")] = True,
    timeout: Annotated[float, typer.Option("--timeout", min=0, help="Seconds that --wait waits at most")] = 3600.0,
    bootstrap: Bootstrap = None,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Empty a node, so that it can be removed.

    Its roles go to others at once, then its replicas. Clients notice nothing. The exit code is 1 if it is not
    empty when --wait ends.

    \b
    Example:
      headrace node drain 1
    """
    from headrace.cli.connect import connected

    with connected(bootstrap, data) as cluster:
        answer = cluster.admin("node.drain", {"node": node, "cancel": cancel})
        for warning in answer["warnings"]:
            note(f"note: {warning}")
        if wait and not cancel:
            answer = {**answer, **_await_drained(cluster, node, timeout)}
    if output is OutputFormat.JSON:
        print_json(answer)
    elif cancel:
        note(f"node {node} takes roles and replicas again")
    elif answer["replicas"]:
        note(f"node {node} is being drained: {_left(answer)}; `headrace node list` shows its progress")
    else:
        note(f"node {node} is empty; `headrace node remove {node}{data_option(data)}` removes it")
    if wait and not cancel and answer["replicas"]:
        raise typer.Exit(1)


@app.command()
def remove(
    node: NodeId,
    force: Annotated[bool, typer.Option("--force", help="Give up the replicas that it still has")] = False,
    bootstrap: Bootstrap = None,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Remove a node for good; drain it first.

    Its process is stopped if it runs on this machine.

    \b
    Example:
      headrace node remove 1
    """
    from headrace.cli.connect import connected, connected_to

    with connected(bootstrap, data) as cluster:
        folder = cluster.target.folder
        addresses = {each["node"]: each["address"] for each in cluster.admin("node.list")}
        checked = cluster.admin("node.remove", {"node": node, "force": force, "check_only": True})
    if folder is not None:
        _stop_process(folder, node)
    others = ",".join(address for number, address in addresses.items() if number != node)
    with connected_to(cluster.target.at(others)) as cluster:
        answer = cluster.admin("node.remove", {"node": node, "force": force})
    if folder is not None:
        _drop_folder(folder, node, erase=not checked["replicas_given_up"])
    if output is OutputFormat.JSON:
        print_json(answer)
    elif answer["replicas_given_up"]:
        note(f"removed node {node}; {answer['replicas_given_up']} replicas are recreated on other nodes")
    else:
        note(f"removed node {node}")


def _await_drained(cluster: "Cluster", node: int, timeout_s: float) -> dict[str, Any]:
    """Wait until the node has no replica; returns its state then. Prints the progress whenever it changes."""
    deadline = time.monotonic() + timeout_s
    printed = ""
    while True:
        found = next((each for each in cluster.admin("node.list") if each["node"] == node), None)
        if found is None:
            raise HeadraceError(f"node {node} was removed meanwhile")
        left = {"leads": found["leads"], "replicas": found["replicas"]}
        if not left["replicas"] or time.monotonic() >= deadline:
            return left
        if (now := _left(left)) != printed:
            note(f"node {node}: {now}")
            printed = now
        time.sleep(POLL_S)


def _left(answer: dict[str, Any]) -> str:
    replicas = answer["replicas"]
    return f"{replicas} replica{'' if replicas == 1 else 's'} left, {answer['leads']} of them primary"


def _stop_process(folder: Path, node: int) -> None:
    """Stop the node's process, if it belongs to this folder and runs."""
    from headrace.local.folder import ClusterNotRunning, node_name
    from headrace.local.nodes import NodeRefused, stop_node

    try:
        stop_node(folder, node_name(node))
    except (NodeRefused, ClusterNotRunning):
        return  # not a node of this folder, or not running
    note(f"stopped {node_name(node)}")


def _drop_folder(folder: Path, node: int, *, erase: bool) -> None:
    from headrace.local.folder import node_folders, node_name
    from headrace.local.nodes import drop_node

    name = node_name(node)
    if name in node_folders(folder):
        drop_node(folder, name, erase=erase)
        if not erase:
            note(f"its data stay in {folder / name}; no node will use them again")


def _reported(work: "Any", folder: Path) -> "NodeProcess":
    """Run a start; if a node dies, print its last lines before the error."""
    from headrace.local.starting import NodeDied

    try:
        with Interrupts().caught():
            node: NodeProcess = work(folder)
    except NodeDied as error:
        for line in error.log:
            note(f"  {line}")
        raise
    return node


def _print_process(node: "NodeProcess", output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json(process_fields(node))
    else:
        print_line(f"127.0.0.1:{node.port}")

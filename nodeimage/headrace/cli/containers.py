"""`headrace containers`, and two last resorts when what a cluster needs is lost: `recover-unclean`, `recover-store`."""

import sys
from typing import Annotated, Any, Final

import typer

from headrace.base.errors import HeadraceError
from headrace.cli.formatting import described, rows_of
from headrace.cli.options import Bootstrap, DataFolder, Output
from headrace.cli.output import OutputFormat, is_terminal, note, print_fields, print_json, print_line, print_table
from headrace.local.hints import data_option

COLUMNS: Final = (
    *("container", "kind", "state", "volume", "primary", "epoch", "in_sync", "replicas", "wanted", "recovered"),
    "bytes",
)
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation")]


def containers(
    volume: Annotated[
        str | None, typer.Option("--volume", help="Only containers of this volume", show_default=False)
    ] = None,
    bootstrap: Bootstrap = None,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """List the containers: leaders, replicas, sizes.

    A container is a log that many topics share; it is what is replicated.

    \b
    Example:
      headrace containers
    """
    from headrace.cli.connect import ask_each, connected

    with connected(bootstrap, data) as cluster:
        found = cluster.admin("container.list")
        addresses = {node["node"]: node["address"] for node in cluster.admin("node.list")}
        if volume is not None:
            cluster.admin("volume.show", {"name": volume})  # refuses an unknown volume
    needed = [leader for leader in {each["primary"] for each in found} if leader in addresses]
    answers = ask_each(cluster.target, [addresses[leader] for leader in needed], "container.list")
    rows_shown = with_bytes(found, dict(zip(needed, answers, strict=True)))
    rows_shown = [each for each in rows_shown if volume is None or each["volume"] == volume]
    if output is OutputFormat.JSON:
        print_json(rows_shown)
        return
    shown = [name for name in COLUMNS if name != "recovered" or any(each["recovered"] for each in rows_shown)]
    columns, rows, numbers = rows_of(rows_shown, shown)
    print_table(columns, rows, right=numbers)


def with_bytes(found: list[dict[str, Any]], answers: dict[int, Any]) -> list[dict[str, Any]]:
    """The containers with the bytes that their leaders report; None for a leader that did not answer. Pure."""
    stored = {
        (node, each["container"]): each["bytes"] for node, told in answers.items() if told is not None for each in told
    }
    return [{**each, "bytes": stored.get((each["primary"], each["container"]))} for each in found]


def recover_unclean(
    container: Annotated[int, typer.Argument(metavar="CONTAINER", min=1, help="Its number in `headrace containers`")],
    node: Annotated[
        int | None,
        typer.Option("--node", help="The new leader [default: the node with the most records]", show_default=False),
    ] = None,
    yes: Yes = False,
    bootstrap: Bootstrap = None,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Let an out-of-sync replica lead; this may lose data.

    A container without in-sync replicas waits for them, as they have every acknowledged record. Use
    this only if their disks are lost for good: it makes the container writable again.

    \b
    Example:
      headrace recover-unclean 7
    """
    from headrace.cli.connect import connected

    with connected(bootstrap, data) as cluster:
        params: dict[str, Any] = {"container": container, "node": node}
        planned = cluster.admin("container.recover", params)
        if not yes:
            _ask(planned)
        done = cluster.admin("container.recover", {**params, "node": planned["node"], "epoch": planned["epoch"]})
    if output is OutputFormat.JSON:
        print_json(done)
    else:
        note(f"node {done['node']} leads container {container} in epoch {done['epoch']}; {done['loss']}")


def _ask(planned: dict[str, Any]) -> None:
    """Explain, and ask for confirmation. Raises Abort, and HeadraceError without a terminal."""
    in_sync = ", ".join(str(node) for node in planned["in_sync"])
    count = planned["open_partitionlets"]
    note(
        f"Container {planned['container']} ({planned['kind']}) waits for node {in_sync}, which had all of its records."
    )
    note(f"It holds the newest part of {count} partition{'' if count == 1 else 's'}.")
    note(f"Node {planned['node']} would lead it, with what it has up to position {planned['end']}.")
    note(f"What may be lost: {planned['loss']}.")
    if not is_terminal(sys.stdin):
        raise HeadraceError("nothing was done: add --yes to give up what may be lost")
    typer.confirm("Give that up?", abort=True, err=True)


def recover_store(
    data: DataFolder = None,
    pod: Annotated[bool, typer.Option("--pod", help="Run in a pod of a cluster on Kubernetes")] = False,
    yes: Yes = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Rebuild the cluster store from the nodes' folders.

    For a cluster of this machine, stop it first. On Kubernetes, run it in a pod of the running cluster with --pod:
    it puts deleted StorageContainers back, and only shows them without --yes.

    \b
    Examples:
      headrace recover-store --yes
      kubectl exec quickstart-0 -- headrace recover-store --pod
    """
    if pod:
        _recover_of_pod(yes, output)
        return
    from headrace.local.folder import default_folder
    from headrace.local.store_recovery import recover_store as recover

    folder = data or default_folder()
    if not yes:
        note(f"{folder}/cluster.sqlite is set aside, and a new one is built from the nodes' folders.")
        note("Every node of the cluster must be in this folder: data that only others hold would be missing.")
        if not is_terminal(sys.stdin):
            raise HeadraceError("nothing was done: add --yes to do it")
        typer.confirm("Do it?", abort=True, err=True)
    done = recover(folder)
    for warning in done.warnings:
        note(f"warning: {warning}")
    result = {
        "data": str(folder),
        "cluster": done.cluster_id,
        "nodes": list(done.nodes),
        "containers": [
            {
                "container": each.container_id,
                "kind": each.kind,
                "primary": each.leader,
                "epoch": each.epoch,
                "in_sync": [node for node, _ in each.in_sync],
                "replicas": list(each.replicas),
            }
            for each in done.containers
        ],
        "volumes": [each.name for each in done.volumes],
        "old_store": str(done.kept_as) if done.kept_as else None,
        "warnings": list(done.warnings),
    }
    if output is OutputFormat.JSON:
        print_json(result)
        return
    print_fields(described({name: result[name] for name in ("cluster", "nodes", "volumes", "old_store")}))
    print_line()
    columns, rows, numbers = rows_of(result["containers"])  # type: ignore[arg-type]
    print_table(columns, rows, title="containers", right=numbers)
    note(f"start the cluster with `headrace up{data_option(data)}`, and look at `headrace volume list`")


def _recover_of_pod(yes: bool, output: OutputFormat) -> None:
    from headrace.node.pod import recover_store

    done = recover_store(apply=yes)
    if output is OutputFormat.JSON:
        print_json(done)
        return
    for warning in done["warnings"]:
        note(f"warning: {warning}")
    if not done["containers"]:
        note("no container's record is missing")
        return
    columns, rows, numbers = rows_of(done["containers"])
    print_table(columns, rows, title="containers", right=numbers)
    note("their records are back" if done["done"] else "nothing was done: add --yes to have these records written")

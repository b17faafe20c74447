"""`headrace status`: nodes, redundancy, recent events. Any node can answer; events are requested from all of them.

With `--watch` it repeats this over connections that stay open.
"""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headrace.base.errors import HeadraceError
from headrace.cli.formatting import described, rows_of, show_value
from headrace.cli.options import Bootstrap, DataFolder, Output
from headrace.cli.output import OutputFormat, note, print_fields, print_json, print_line, print_table
from headrace.cli.units import show_duration, show_size
from headrace.local.hints import data_option

if TYPE_CHECKING:
    from headrace.cli.connect import Cluster
    from headrace.cli.polling import Asking

EVENTS: Final = 10
POLL_S: Final = 0.5
UP: Final = ("up", "up, full", "starting", "draining", "drained", "stopping")
NODE_COLUMNS: Final = (
    *("node", "address", "state", "roles", "zone", "leads", "replicas", "in_sync"),
    *("in_per_second_bytes", "out_per_second_bytes", "disk_used_bytes", "resident_bytes", "uptime_ms", "pid"),
)
LACKING_COLUMNS: Final = ("container", "kind", "volume", "primary", "in_sync", "wanted", "reason", "behind_bytes")
TURNS: Final = ("lost", "whole")
"""Kinds of the events that report a change of redundancy."""
LINK_FIELDS: Final = ("name", "stream", "state", "lag_records", "last_error")
EVENT_COLUMNS: Final = ("at_ms", "kind", "container", "reason")


def status(
    node: Annotated[int | None, typer.Option("--node", help="Show one node, in full", show_default=False)] = None,
    events: Annotated[int, typer.Option("--events", min=0, help="Number of newest events to show")] = EVENTS,
    wait: Annotated[bool, typer.Option("--wait", help="Return once all replicas are in sync")] = False,
    timeout: Annotated[float, typer.Option("--timeout", min=0, help="Seconds that --wait waits at most")] = 600.0,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat until Ctrl-C")] = False,
    interval: Annotated[float, typer.Option("--interval", min=0.2, help="Seconds between updates of --watch")] = 2.0,
    bootstrap: Bootstrap = None,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show the cluster: nodes, redundancy, recent events.

    \b
    Examples:
      headrace status
      headrace status --wait
    """
    from headrace.cli.connect import connected

    if watch:
        if wait:
            raise HeadraceError("--watch and --wait exclude each other: give only one")
        _watch(bootstrap, data, node=node, events=events, interval_s=interval, output=output)
        return
    with connected(bootstrap, data) as cluster:
        if node is not None:
            _print_node(_node_detail(cluster, node), output)
            return
        if wait:
            _await_whole(cluster, timeout)
        here = _embedded(cluster.target.folder)
        shown = _gathered(cluster, here, events)
    if output is OutputFormat.JSON:
        print_json(shown)
        return
    _print(shown)
    for each in shown["nodes"]:
        if here and each["state"].endswith("down"):
            note(
                f"node {each['node']} is down: `headrace node start {each['node']}{data_option(data)}` starts it again"
            )


def _watch(
    bootstrap: str | None, data: Path | None, *, node: int | None, events: int, interval_s: float, output: OutputFormat
) -> None:
    """Show the status repeatedly until an interrupt."""
    from headrace.cli.polling import Polled
    from headrace.cli.target import find_target
    from headrace.cli.watching import watch

    def gather() -> dict[str, Any]:
        if node is not None:
            return _node_detail(cluster, node)
        return _gathered(cluster, _embedded(target.folder), events)

    def draw(shown: dict[str, Any]) -> None:
        if node is not None:
            _print_node(shown, output)
        elif output is OutputFormat.JSON:
            print_json(shown)
        else:
            _print(shown)

    target = find_target(bootstrap, data)
    with Polled(target) as cluster:
        watch(gather, draw, interval_s=interval_s, in_place=output is not OutputFormat.JSON)


def _gathered(cluster: "Asking", here: Mapping[str, Any], events: int) -> dict[str, Any]:
    """The data to show: the cluster's status, and details from each node that is up."""
    answer = cluster.admin("cluster.status")
    own = cluster.admin("status")
    addresses = [node["address"] for node in answer["nodes"] if node["state"] in UP]
    details = dict(zip(addresses, cluster.each(addresses, "status"), strict=True))
    seen = cluster.each(addresses, "cluster.events", {"events": events})
    processes = here.get("processes", {})
    for node in answer["nodes"]:
        detail = details.get(node["address"]) or {}
        node["uptime_ms"] = detail.get("uptime_ms")
        node["resident_bytes"] = detail.get("memory", {}).get("resident_bytes")
        node["version"] = detail.get("version")
        node["build"] = detail.get("build")  # absent from older nodes
        node["listener_problems"] = listener_problems(detail.get("listeners", ()))
        node["pid"] = processes.get(node["node"])
    return {
        "bootstrap": ",".join(addresses),
        **({"data": here["data"]} if here else {}),
        "cluster": answer["cluster"],
        "controller": answer["controller"],
        **{name: own[name] for name in ("streams", "topics", "partitions")},
        "links": [{name: each[name] for name in LINK_FIELDS} for each in cluster.admin("link.list")],
        **{name: answer[name] for name in ("redundancy", "volumes", "nodes", "lacking")},
        "set_back": answer.get("set_back"),  # absent from older nodes
        "store": answer.get("store"),
        "security": answer.get("security"),
        "events": newest_events((each for each in seen if each is not None), events),
    }


def newest_events(seen: Iterable[Sequence[dict[str, Any]]], most: int) -> list[dict[str, Any]]:
    """Events that several nodes saw, in order of time. All nodes see redundancy change, a moment apart; the first one's
    event is kept."""
    found: list[dict[str, Any]] = []
    last_turn = ""
    for event in sorted((event for events in seen for event in events), key=lambda event: event["at_ms"]):
        if event["kind"] in TURNS:
            if event["kind"] == last_turn:
                continue
            last_turn = event["kind"]
        found.append(event)
    return found[-most:] if most else []


def redundancy_in_words(redundancy: Mapping[str, Any]) -> str:
    """One line: `whole`, or what is missing."""
    since = f", since {show_value('since_ms', redundancy['since_ms'])}" if redundancy.get("since_ms") else ""
    count = redundancy["containers"]
    if redundancy["whole"]:
        return f"whole: {count} container{'' if count == 1 else 's'} with all replicas in sync{since}"
    lacking = redundancy["lacking"]
    text = f"not whole: {lacking} of {count} containers {'lacks' if lacking == 1 else 'lack'} replicas{since}"
    if redundancy["behind_bytes"]:
        text += f"; {show_size(redundancy['behind_bytes'])} still to copy"
    if stalled := redundancy.get("stalled"):
        text += f"; {stalled} {'accepts' if stalled == 1 else 'accept'} no writes"
        text += ", as a replica that was in sync is gone, and cannot be removed from the in-sync set"
    below = redundancy["below_minimum"]
    if below:
        fewer = "1 is below its minimum and accepts" if below == 1 else f"{below} are below their minimum and accept"
        text += f"; {fewer} no writes"
    return text


def volume_in_words(volume: Mapping[str, Any]) -> str:
    """One line about a volume."""
    replicas = volume["replicas"]
    if replicas == 1:
        text = "1 replica"
    else:
        where = "in memory" if volume["durability"] == "memory" else "on disk"
        least = volume["min_in_sync"]
        text = f"{replicas} replicas; a record is acknowledged once all in sync, {least} at least, have it {where}"
    return f"{text}; {volume['problem']}" if volume["problem"] else text


def links_in_words(links: Iterable[Mapping[str, Any]]) -> str:
    """One line: how many links are in which state."""
    states = Counter(each["state"] for each in links)
    return ", ".join(f"{count} {state}" for state, count in sorted(states.items()))


def controller_in_words(controller: int | None, nodes: Iterable[Mapping[str, Any]]) -> str:
    """One line: which node is the controller. If it does not answer, another one becomes controller within seconds."""
    if controller is None:
        return "none at present"
    answers = any(each["node"] == controller and each["state"] in UP for each in nodes)
    return f"node {controller}" if answers else f"node {controller}, which does not answer"


def set_back_in_words(found: Mapping[str, Any] | None) -> str:
    """One line about a cluster store that was set back to an old copy; "": it was not, as far as is known."""
    if not found:
        return ""
    nodes, count = found["nodes"], found["containers"]
    knows = f"node {nodes[0]} knows" if len(nodes) == 1 else f"nodes {', '.join(map(str, nodes))} know"
    frozen = f"container {found['such_as'][0]}" if count == 1 else f"{count} containers, such as {found['such_as'][0]}"
    return f"an old copy of itself: {knows} newer records of {frozen}, which stand still; {found['do']}"


def store_in_words(found: Mapping[str, Any] | None) -> str:
    """One line about a cluster store that does not answer; "": it does, as far as is known."""
    if not found or not found["silent_ms"]:
        return ""
    since = show_duration(max(1_000, round(found["silent_ms"], -3)))
    return (
        f"node {found['node']} has not heard of it for {since}: leaders serve reads and writes as before, but "
        "nothing fails over, and a container that loses an in-sync replica accepts no writes until the store answers"
    )


def clocks_in_words(nodes: Iterable[Mapping[str, Any]]) -> str:
    """One line about wrong clocks and their offsets; "": none is known."""
    return "; ".join(
        f"node {each['node']}'s clock is {show_duration(abs(round(off_ms, -3)))}"
        f" {'ahead of' if off_ms > 0 else 'behind'} the cluster's time"
        for each in nodes
        if (off_ms := each.get("clock_off_ms"))
    )


def listener_problems(listeners: Iterable[Mapping[str, Any]]) -> list[str]:
    """The problems of a node's listeners, one line each."""
    return [
        f"listener {each['name']}: {each['problem']} (since {show_value('since_ms', each['problem_since_ms'])})"
        for each in listeners
        if each["problem"]
    ]


def listeners_in_words(nodes: Iterable[Mapping[str, Any]]) -> str:
    """One line about the problems of all listeners; "": none is known."""
    return "; ".join(f"node {node['node']}, {said}" for node in nodes for said in node.get("listener_problems", ()))


def node_row(node: Mapping[str, Any]) -> dict[str, Any]:
    """A node as a table shows it: empty cells for roles that it lacks, and its uptime in whole seconds."""
    uptime_ms = node.get("uptime_ms")
    return {
        **node,
        "roles": ", ".join(node["roles"]),
        **({"uptime_ms": max(1_000, uptime_ms // 1_000 * 1_000)} if uptime_ms is not None else {}),
    }


def _print(shown: dict[str, Any]) -> None:
    heading: dict[str, Any] = {name: shown[name] for name in ("cluster", "bootstrap", "data") if name in shown}
    heading["controller"] = controller_in_words(shown["controller"], shown["nodes"])
    heading |= {name: shown[name] for name in ("streams", "topics", "partitions")}
    heading |= {f"volume {each['volume']}": volume_in_words(each) for each in shown["volumes"]}
    if shown["links"]:
        heading["links"] = links_in_words(shown["links"])
    heading["redundancy"] = redundancy_in_words(shown["redundancy"])
    if store := set_back_in_words(shown["set_back"]) or store_in_words(shown["store"]):
        heading["cluster store"] = store
    if security := (shown["security"] or {}).get("problem"):
        heading["security"] = security
    if clocks := clocks_in_words(shown["nodes"]):
        heading["clocks"] = clocks
    if listeners := listeners_in_words(shown["nodes"]):
        heading["listeners"] = listeners
    print_fields(described(heading))
    _print_things("nodes", [node_row(each) for each in shown["nodes"]], NODE_COLUMNS)
    _print_things("not whole", shown["lacking"], LACKING_COLUMNS)
    _print_things("events", shown["events"], EVENT_COLUMNS)


def _print_things(title: str, things: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Print a table without empty columns."""
    if things:
        filled = [name for name in columns if any(each.get(name) not in (None, "", []) for each in things)]
        labels, rows, numbers = rows_of(things, filled)
        print_line()
        print_table(labels, rows, title=title, right=numbers)


def _node_detail(cluster: "Asking", node: int) -> dict[str, Any]:
    """The status of one node. Raises HeadraceError."""
    nodes = {each["node"]: each for each in cluster.admin("node.list")}
    if node not in nodes:
        raise HeadraceError(f"there is no node {node}; there are {', '.join(map(str, nodes))}")
    (detail,) = cluster.each([nodes[node]["address"]], "status")
    if detail is None:
        raise HeadraceError(f"node {node} at {nodes[node]['address']} does not answer: see `headrace status`")
    return dict(detail)


def _print_node(detail: dict[str, Any], output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json(detail)
        return
    tables: dict[str, list[dict[str, Any]]] = {
        "listeners": detail.get("listeners", []),  # older nodes report neither these nor traffic
        "containers": detail["containers"],
        "traffic": detail.get("traffic", {}).get("streams", []),
    }
    print_fields(described({name: told for name, told in detail.items() if name not in tables}))
    for title, rows in tables.items():
        _print_things(title, rows, list(rows[0]) if rows else ())


def _await_whole(cluster: "Cluster", timeout_s: float) -> None:
    """Return when redundancy is whole; prints what is missing whenever that changes. Raises HeadraceError."""
    deadline = time.monotonic() + timeout_s
    printed = ""
    while True:
        redundancy = cluster.admin("cluster.status")["redundancy"]
        if redundancy["whole"]:
            return
        now = redundancy_in_words(redundancy)
        if time.monotonic() >= deadline:
            raise HeadraceError(f"after {timeout_s:.0f} s redundancy is {now}; `headrace status` shows why")
        if now != printed:
            note(now)
            printed = now
        time.sleep(POLL_S)


def _embedded(folder: Path | None) -> dict[str, Any]:
    """What this machine knows of the cluster that runs in the folder: its path, and process ids by node. Empty if it
    runs in none."""
    from headrace.local.cluster import running_cluster

    if folder is None:
        return {}
    cluster = running_cluster(folder)
    nodes = cluster.nodes if cluster else ()
    return {"data": str(folder), "processes": {node.node_id: node.pid for node in nodes}}

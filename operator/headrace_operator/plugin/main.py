"""The program `kubectl-headrace`, which kubectl runs as `kubectl headrace`.

Exit codes are those of `headrace`: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""

import contextlib
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from headrace.base.errors import HeadraceError
from headrace.cli.formatting import rows_of
from headrace.cli.output import OutputFormat, note, print_json, print_line, print_table
from headrace.cli.running import run_app
from headrace.cli.signals import Interrupts
from headrace.cli.text import printable
from headrace.cli.watching import is_live
from headrace_operator.builders.cluster import RESTART
from headrace_operator.builders.names import selector
from headrace_operator.plugin import support_bundle, views
from headrace_operator.plugin.kubectl import Absent, Kubectl, Manifest
from headrace_operator.plugin.place import Place, placed
from headrace_operator.specs import API

app = typer.Typer(
    name="kubectl headrace",
    help="Headrace's clusters on Kubernetes.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)

POLL_S: Final = 2.0
LOG_FIELDS: Final = ("link", "source", "stream", "name")
"""Fields in the nodes' logs that name the link a line is about."""
NODE_CONTAINER: Final = "node"
INTERRUPTS: Final = Interrupts()

ClusterName = Annotated[
    str | None,
    typer.Option("--cluster", "-c", help="The StreamCluster, if there are several", show_default=False),
]
Output = Annotated[OutputFormat, typer.Option("--output", "-o", help="How to print the result")]


@app.command()
@placed
def status(
    place: Place,
    cluster: Annotated[str | None, typer.Argument(metavar="[CLUSTER]", show_default=False)] = None,
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Show all namespaces")] = False,
    every: Annotated[bool, typer.Option("--conditions", help="Show conditions that are as they should be too")] = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show clusters, nodes, links and what is wrong.

    What is wrong are the conditions that are not as they should be; --conditions shows the others too.

    \b
    Example:
      kubectl headrace status -A
    """
    kubectl, where = place.kubectl, None if all_namespaces else place.namespace
    clusters = kubectl.all(API, "StreamCluster", where)
    if cluster is not None:
        clusters = [each for each in clusters if each["metadata"]["name"] == cluster]
        if not clusters:
            raise Absent(f"there is no StreamCluster {cluster} in {_shown_place(where)}: `kubectl headrace status -A`")
    of = {(each["metadata"].get("namespace"), each["metadata"]["name"]) for each in clusters}
    nodes = [each for each in kubectl.all(API, "StorageNode", where) if _place_of(each) in of or cluster is None]
    pods = [each for each in kubectl.all("v1", "Pod", where) if _place_of(each) in of]
    links = [each for each in kubectl.all(API, "ReplicationLink", where) if cluster is None or _links_to(each, of)]
    told = views.conditions([*clusters, *links])
    shown: dict[str, list[dict[str, Any]]] = {
        "clusters": views.clusters(clusters),
        "nodes": views.nodes(nodes, pods),
        "links": views.links(links),
        "conditions": told
        if every or output is OutputFormat.JSON
        else [row for row in told if row["status"] != "True"],
    }
    if output is OutputFormat.JSON:
        print_json(shown)
        return
    if not clusters:
        note(
            f"there is no StreamCluster in {_shown_place(where)}; `kubectl headrace status -A` looks in all namespaces"
        )
    for number, (title, rows) in enumerate((title, rows) for title, rows in shown.items() if rows):
        _print_rows(title, rows, apart=number > 0)


@app.command()
@placed
def restart(
    place: Place,
    cluster: Annotated[str | None, typer.Argument(metavar="[CLUSTER]", show_default=False)] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Return when all pods are recreated and ready")] = False,
    timeout: Annotated[float, typer.Option("--timeout", min=0, help="Seconds that --wait waits")] = 3600.0,
) -> None:
    """Restart a cluster's pods, one by one.

    The operator recreates each pod once the one before has caught up.

    \b
    Example:
      kubectl headrace restart quickstart --wait
    """
    kubectl, where, name = place.kubectl, place.namespace, place.cluster(cluster)
    mark = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    kubectl.annotate("StreamCluster", where, name, {RESTART: mark})
    note(f"streamcluster/{name} is restarted pod by pod; `kubectl get streamcluster {name} -w` shows how far it is")
    if wait:
        with INTERRUPTS.caught():
            _await_pods(kubectl, where, name, mark, timeout)
        note(f"all pods of {name} were recreated")


@app.command()
@placed
def drain(
    place: Place,
    node: Annotated[int, typer.Argument(metavar="NODE", min=1, help="Its id, as `kubectl headrace status` shows it")],
    cancel: Annotated[bool, typer.Option("--cancel", help="Let the node take roles and replicas again")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Return when it is empty")] = True,
    timeout: Annotated[float, typer.Option("--timeout", min=0, help="Seconds that --wait waits")] = 3600.0,
    cluster: ClusterName = None,
) -> None:
    """Empty a node; its pod stays.

    Its roles go to others at once, then its replicas.

    \b
    Example:
      kubectl headrace drain 2
    """
    kubectl, where, name = place.kubectl, place.namespace, place.cluster(cluster)
    nodes = [each for each in kubectl.all(API, "StorageNode", where) if views.cluster_of(each) == name]
    found = next((each for each in nodes if views.number_of(each) == node), None)
    if found is None:
        known = ", ".join(str(views.number_of(each)) for each in nodes) or "none"
        raise Absent(f"cluster {name} has no node {node}; there are {known}")
    ready = [each for each in views.storage_pods(kubectl.all("v1", "Pod", where), name) if views.is_ready(each)]
    if not ready:
        raise HeadraceError(f"no pod of {name} is ready, so nothing can be drained: `kubectl headrace status {name}`")
    # Ask the node's own pod last: it may have to wait for others.
    ready.sort(key=lambda pod: pod["metadata"]["name"] == views.pod_of(found))
    command = ["headrace", "node", "drain", str(node), "--timeout", f"{timeout:g}"]
    command += ["--cancel"] if cancel else ["--wait" if wait else "--no-wait"]
    if code := kubectl.run_in(where, ready[0]["metadata"]["name"], NODE_CONTAINER, command):
        raise typer.Exit(code)


@app.command()
@placed
def logs(
    place: Place,
    link: Annotated[str, typer.Argument(metavar="LINK", help="The name of a ReplicationLink", show_default=False)],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the logs until Ctrl-C")] = False,
    tail: Annotated[
        int, typer.Option("--tail", min=1, help="How many lines of each pod to search, the newest ones")
    ] = 10_000,
) -> None:
    """Show what the nodes' logs say of a link.

    Reads the logs of all pods of the link's cluster.

    \b
    Example:
      kubectl headrace logs from-quickstart --follow
    """
    kubectl, where = place.kubectl, place.namespace
    found = kubectl.get(API, "ReplicationLink", where, link)
    spec = found.get("spec") or {}
    reference = spec.get("clusterRef") or {}
    names = {str(spec.get("name") or link), str((spec.get("target") or {}).get("stream") or link)}
    labels = selector(str(reference.get("name", "")))
    of = reference.get("namespace") or where
    with INTERRUPTS.caught():
        shown = 0
        for line in kubectl.logs(of, labels, NODE_CONTAINER, lines=tail, follow=follow):
            if about(line, names):
                print_line(line)
                shown += 1
    if not shown:
        note(f"the newest {tail} lines of each pod do not mention link {printable(link)}")


@app.command(name="support-bundle")
@placed
def support_bundle_(
    place: Place,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="[default: headrace-support-NAMESPACE-TIME.tar.xz here]", show_default=False),
    ] = None,
    lines: Annotated[
        int, typer.Option("--lines", min=1, max=1_000_000, help="How many lines of each log, the newest ones")
    ] = 5_000,
) -> None:
    """Collect resources, events, logs and status in a file.

    It contains no Secrets; look through it before you send it to those who help.

    \b
    Example:
      kubectl headrace support-bundle
    """
    kubectl, where = place.kubectl, place.namespace
    root = f"headrace-support-{where}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    path = file or Path(f"{root}.tar.xz")
    progress = _Progress()
    bundle = support_bundle.Bundle(kubectl, namespace=where, lines=lines, progress=progress.begin)
    with INTERRUPTS.caught():
        try:
            count = support_bundle.write(path, bundle.files(), root=root)
        except FileExistsError:
            raise HeadraceError(f"{path} exists already: name another with --file") from None
    note(
        f"{count} files. Secrets and values of environment variables are not in it; look through it before you send it"
    )
    print_line(str(path))


def about(line: str, names: set[str]) -> bool:
    """Return whether a line of a node's log is about something with one of these names. Pure."""
    return any(f"{field}={name}" in words for words in [_words(line)] for field in LOG_FIELDS for name in names)


def run() -> None:
    """Run the program, as the console script does."""
    run_app(app, name="kubectl headrace")


def _words(line: str) -> set[str]:
    """Return the words of a line in logfmt without quotes, so that `key="value"` becomes `key=value`."""
    return {word.replace('"', "") for word in line.split()}


def _await_pods(kubectl: Kubectl, namespace: str, cluster: str, mark: str, timeout_s: float) -> None:
    """Return once enough ready pods have the restart's mark. Raises HeadraceError after the time-out."""
    deadline = time.monotonic() + timeout_s
    said = ""
    while True:
        resource = kubectl.get(API, "StreamCluster", namespace, cluster)
        wanted = int((resource.get("spec") or {}).get("nodes") or 1)
        pods = views.storage_pods(kubectl.all("v1", "Pod", namespace), cluster)
        done = sum(
            (each["metadata"].get("annotations") or {}).get(RESTART) == mark and views.is_ready(each) for each in pods
        )
        if done >= wanted:
            return
        current = views.condition(resource, "Current")
        now = f"{done} of {wanted} pods are done"
        if current.get("status") == "False":
            now += f": {current.get('message')}"
        if time.monotonic() >= deadline:
            raise HeadraceError(f"after {timeout_s:g} s {now}")
        if now != said:
            note(now)
            said = now
        time.sleep(POLL_S)


def _print_rows(title: str, rows: Sequence[Mapping[str, Any]], *, apart: bool) -> None:
    columns = [name for name in rows[0] if any(each.get(name) not in (None, "") for each in rows)]
    labels, cells, numbers = rows_of(rows, columns)
    if apart:
        print_line()
    print_table(labels, cells, title=title, right=numbers)


def _place_of(found: Manifest) -> tuple[str | None, str]:
    return found["metadata"].get("namespace"), views.cluster_of(found)


def _links_to(link: Manifest, clusters: set[tuple[str | None, str]]) -> bool:
    reference = (link.get("spec") or {}).get("clusterRef") or {}
    return (reference.get("namespace") or link["metadata"].get("namespace"), reference.get("name")) in clusters


def _shown_place(namespace: str | None) -> str:
    return "any namespace" if namespace is None else f"namespace {namespace}"


class _Progress:
    """Shows what is being collected, in one line of the terminal; without a terminal shows nothing."""

    def __init__(self) -> None:
        self._live = is_live(sys.stderr)

    def begin(self, what: str) -> None:
        """Show what is collected next."""
        if self._live:
            with contextlib.suppress(OSError):
                print(f"\r\x1b[K{printable(what)[:70]}\r", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    run()

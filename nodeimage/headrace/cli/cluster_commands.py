"""`headrace up` and `down`: the embedded cluster."""

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.base.errors import HeadraceError
from headrace.cli.formatting import process_fields
from headrace.cli.options import DataFolder, Output
from headrace.cli.output import OutputFormat, flush, note, print_json, print_line
from headrace.cli.signals import handled
from headrace.local.hints import data_option

if TYPE_CHECKING:
    from headrace.local.cluster import Started
    from headrace.local.folder import ClusterFile
    from headrace.local.tail import LogTail

POLL_S = 0.1
RENEWAL_S = 600.0
"""Seconds between two checks for certificates to renew."""


class _StopSignal:
    """Whether this process was asked to end. A plain flag, since a signal handler must not take locks."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.asked = True


@contextmanager
def _stop_signal() -> Iterator[_StopSignal]:
    stop = _StopSignal()
    with handled(stop, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        yield stop


def up(
    nodes: Annotated[
        int | None,
        typer.Option("--nodes", "-n", min=1, max=99, show_default=False, help="Nodes of a new cluster [default: 1]"),
    ] = None,
    data: DataFolder = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=0,
            max=65_535,
            show_default=False,
            help="Kafka port of the first node, the next for the others; 0: any [default: as before, 9092, or any]",
        ),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return when ready; `headrace down` stops it")] = False,
    node_option: Annotated[
        list[str] | None,
        typer.Option("--node-option", help="Argument for each node's process; may repeat", show_default=False),
    ] = None,
    secure: Annotated[
        bool,
        typer.Option(
            "--secure",
            help="Use TLS and passwords: creates certificates and an administrator; the folder stays secure",
        ),
    ] = False,
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="NAME",
            show_default=False,
            help="Name by which others reach this machine; may repeat, clients get the first [default: loopback]",
        ),
    ] = None,
    allow_anonymous: Annotated[
        bool, typer.Option("--allow-anonymous", help="Allow --host without --secure: everybody may do everything")
    ] = False,
    tracing_endpoint: Annotated[
        str,
        typer.Option(
            "--tracing-endpoint",
            metavar="URL",
            show_default=False,
            help="Collector of the nodes' OpenTelemetry traces, such as http://localhost:4318",
        ),
    ] = "",
    output: Output = OutputFormat.TABLE,
) -> None:
    """Start a cluster on this machine.

    Prints its addresses once it serves. With --nodes 3 each record has three replicas, and at least two have it on
    disk when it is acknowledged. Without --detach the command stays in the foreground and shows the nodes' logs;
    Ctrl-C stops the cluster. The data stay. `headrace up` without options starts the same cluster again.

    \b
    Examples:
      headrace up --nodes 3 --detach
      headrace up --secure --detach
    """
    from headrace.local.cluster import NodeDied, StartGivenUp, StartOptions, start
    from headrace.local.folder import default_folder

    folder = data or default_folder()
    of_nodes = [*(node_option or ()), *_of_tracing(tracing_endpoint)]
    with _stop_signal() as stop:
        began = time.monotonic()
        try:
            options = StartOptions(
                nodes=nodes,
                port=port,
                node_options=tuple(of_nodes),
                secure=secure,
                hosts=tuple(host or ()),
                allow_anonymous=allow_anonymous,
            )
            started = start(folder, options, progress=note, stopping=lambda: stop.asked)
        except StartGivenUp as error:
            note(str(error))
            raise typer.Exit(1) from error
        except NodeDied as error:
            _show_log(error.log)
            raise
        with _stopped_on_failure(started):
            note(f"ready after {time.monotonic() - began:.1f} s")
            _print_address(started.folder, started.cluster, output)
            _tell_of_security(started.folder, started.cluster.bootstrap)
            if detach:
                note(f"stop it with `headrace down{data_option(data)}`")
                return
            note(f"Ctrl-C stops it; in another terminal try `headrace status{data_option(data)}`")
            _stay(started, stop, data)


def _of_tracing(endpoint: str) -> list[str]:
    """The nodes' options for tracing. Raises TracingRefused for a bad endpoint, so that nobody waits for traces in
    vain."""
    from headrace.tracing.endpoint import checked_endpoint, need_extra

    if not endpoint:
        return []
    need_extra()
    return ["--tracing-endpoint", checked_endpoint(endpoint)]


@contextmanager
def _stopped_on_failure(started: "Started") -> Iterator[None]:
    """Stop the nodes if `up` fails for any reason: otherwise nobody would know that they run."""
    try:
        yield
    except BaseException:
        started.stop()
        raise


def down(
    data: DataFolder = None,
    timeout: Annotated[float, typer.Option("--timeout", min=0, help="Seconds after which a node is killed")] = 30.0,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Stop the cluster of a folder.

    The data stay; `headrace up` starts it again.

    \b
    Examples:
      headrace down
      headrace down --data ~/three-nodes
    """
    from headrace.local.cluster import stop
    from headrace.local.folder import default_folder

    folder = data or default_folder()
    cluster, killed = stop(folder, timeout_s=timeout)
    for name in killed:
        note(f"{name} did not stop within {timeout:.0f} s and was killed; what it acknowledged is safe")
    if output is OutputFormat.JSON:
        print_json({"data": str(folder), "stopped": [node.name for node in cluster.nodes], "killed": list(killed)})
    else:
        names = ", ".join(node.name for node in cluster.nodes)
        note(f"stopped {names}; start again with `headrace up{data_option(data)}`")


def _stay(started: "Started", stop: _StopSignal, data: Path | None) -> None:
    """Stay in the foreground: show the logs until the last node ends or a signal arrives.

    A node that dies is reported, and the others continue. Nodes that other commands add or start in the folder are
    shown too, and stopped with the rest.
    """
    from headrace.local.cluster import NodeDied

    tails: dict[str, LogTail] = {}
    renewal = time.monotonic()
    try:
        while not stop.asked and started.check():
            _show_new_lines(started, tails)
            if time.monotonic() >= renewal:
                _renew(started.folder)
                renewal = time.monotonic() + RENEWAL_S
            for death in started.deaths():
                note(f"{death}; others continue; `headrace node start {death.name}{data_option(data)}` starts it again")
            time.sleep(POLL_S)
    except NodeDied as error:
        _show_new_lines(started, tails)
        started.stop()
        raise HeadraceError(f"{error}; start again with `headrace up{data_option(data)}`") from error
    if stop.asked:
        note("stopping")
        for name in started.stop():
            note(f"{name} did not stop in time and was killed; what it acknowledged is safe")
    _show_new_lines(started, tails)
    note("stopped")


def _renew(folder: Path) -> None:
    """Renew certificates that expire soon. On failure, the nodes continue with their present ones."""
    from headrace.local.secure_folder import renew

    try:
        for line in renew(folder, now=time.time()):
            note(line)
    except HeadraceError as error:
        note(f"warning: certificates are not renewed: {error}")


def _tell_of_security(folder: Path, bootstrap: str) -> None:
    """Print how clients log in to a secure cluster; nothing for another cluster."""
    from headrace.local.folder import client_properties_path
    from headrace.local.hints import quoted
    from headrace.local.secure_folder import ADMIN, librdkafka_properties_path, secured

    if secured(folder) is None:
        return
    path = client_properties_path(folder)
    note(f"secure: clients log in over TLS; the administrator is {ADMIN}, and `headrace` uses {path} by itself")
    note(f"  kafka-console-consumer --bootstrap-server {bootstrap} --consumer.config {quoted(path)} --topic TOPIC")
    note(f"  kcat -F {quoted(librdkafka_properties_path(folder))} -L")


def _show_new_lines(started: "Started", tails: "dict[str, LogTail]") -> None:
    """Print what the nodes have written since the last call; with several nodes each line names its node."""
    from headrace.local.tail import LogTail

    nodes = started.now().nodes
    for node in nodes:
        if node.name not in tails:
            path = started.log_path(node.name)
            tails[node.name] = LogTail(path, offset=started.log_offsets.get(node.name, 0))
    for name, tail in tails.items():
        whose = f"{name} | " if len(tails) > 1 else ""
        while lines := tail.read():
            for line in lines:
                note(f"{whose}{line}")


def _show_log(lines: Sequence[str]) -> None:
    for line in lines:
        note(f"  {line}")


def _print_address(folder: Path, cluster: "ClusterFile", output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        from headrace.local.folder import client_properties_path
        from headrace.local.secure_folder import secured

        client_file = {"client_properties": str(client_properties_path(folder))} if secured(folder) is not None else {}
        nodes = [process_fields(node) for node in cluster.nodes]
        print_json({"bootstrap": cluster.bootstrap, "data": str(folder), **client_file, "nodes": nodes})
    else:
        print_line(cluster.bootstrap)
        flush()

"""The storage nodes of one pod: `python -m headrace.node.pod --cluster NAME [--shards N] [arguments of headrace.node]`.

A pod is identified by its name and keeps its disk: its shard K has the folder /data/node-K, ports at an offset of K,
and the slot POD/K. With one shard this process becomes the node; with more it starts them, passes SIGTERM on, and ends
when any of them does, so that Kubernetes starts all of them again; it answers /livez, /readyz and /safez for all.

Environment (Kubernetes' downward API): POD_NAME, POD_NAMESPACE, POD_IP, and HOST_NAME for what fails together.
"""

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError, URLError

from headrace.base.acceptor import Acceptor
from headrace.base.admission import Admission, Place
from headrace.base.descriptor_plan import plan_of_process
from headrace.base.errors import HeadraceError
from headrace.metrics.merging import CONTENT_TYPE, merged
from headrace.store.kubernetes.pod_ports import ADMIN_PORT, CLIENT_PORT, EXTERNAL_PORT, PEER_PORT

SHARD_ADMIN_PORT: Final = 8180
"""Admin port of shard 0 of several; the pod itself then answers at ADMIN_PORT."""
CHECK_S: Final = 1.0
METRICS: Final = frozenset({"/metrics", "/metrics/kafka"})
ANSWERED: Final = frozenset({"/livez", "/readyz", "/safez"}) | METRICS
"""Paths that the pod forwards to its shards. To a shard such a caller looks like one on its own host, so nothing that
changes anything is forwarded."""
MAX_ANSWERED: Final = 64
"""The maximum number of connections that the pod answers at a time."""
HAND_OVER_S: Final = 10.0
RECOVER_S: Final = 150.0
NEEDED: Final = ("POD_NAME", "POD_NAMESPACE", "POD_IP")
RECORD: Final = Path("/etc/headrace/cluster/record")
PEER_SECRETS: Final = RECORD.with_name("peer-secrets")
"""The file with the secrets by which nodes authenticate each other, once they have changed. It lies beside the
cluster's record."""
TEXT: Final = "text/plain; charset=utf-8"
"""Content type of the shards' answers, except metrics."""


def command(
    shard: int,
    *,
    cluster: str,
    shards: int,
    data: Path,
    environment: Mapping[str, str],
    more: Sequence[str],
    listeners: Path | None = None,
) -> list[str]:
    """The command that runs one shard. `listeners`: a folder with a file of listeners for each shard, `shard-0.toml`
    and so on."""
    pod, namespace, address = environment["POD_NAME"], environment["POD_NAMESPACE"], environment["POD_IP"]
    host = f"{pod}.{cluster}-nodes.{namespace}.svc"
    found = [sys.executable, "-m", "headrace.node", "--data", str(data / f"node-{shard}")]
    found += ["--kubernetes", f"{namespace}/{cluster}", "--cluster-record", str(RECORD)]
    found += ["--peer-secrets", str(PEER_SECRETS)]
    found += ["--bind", "::" if ":" in address else "0.0.0.0", "--host", host, "--peer-host", address]
    found += ["--port", str(CLIENT_PORT + shard), "--peer-port", str(PEER_PORT + shard)]
    if listeners is None:
        found += ["--listener", f"external={EXTERNAL_PORT + shard}"]
    else:
        found += ["--listeners", str(listeners / f"shard-{shard}.toml")]
    found += ["--admin-port", str(_admin_port(shard, shards))]
    found += ["--slot", f"{pod}/{shard}", "--failure-host", environment.get("HOST_NAME") or pod]
    if "--secure" not in more and "--allow-anonymous" not in more:
        found.append("--allow-anonymous")  # the pods' network is not loopback; this keeps clusters as open as before
    return [*found, *more]


def _admin_port(shard: int, shards: int) -> int:
    return ADMIN_PORT if shards == 1 else SHARD_ADMIN_PORT + shard


def main(arguments: Sequence[str] | None = None) -> int:
    """The pod's process; the exit code."""
    parser = argparse.ArgumentParser(prog="headrace.node.pod", description="The storage nodes of one pod.")
    parser.add_argument("--cluster", default="")
    parser.add_argument("--hand-over", action="store_true", help="have the running nodes hand over, then return")
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--data", type=Path, default=Path("/data"))
    parser.add_argument(
        "--listeners-folder", type=Path, help="folder with the listeners of each shard: shard-0.toml, ..."
    )
    given, more = parser.parse_known_args(arguments)
    if given.hand_over:
        return asyncio.run(_hand_over(given.shards))
    if not given.cluster:
        parser.error("--cluster is missing")
    if missing := [name for name in NEEDED if not os.environ.get(name)]:
        parser.error(f"{', '.join(missing)} is not set; see Kubernetes' downward API")
    commands = [
        command(
            shard,
            cluster=given.cluster,
            shards=given.shards,
            data=given.data,
            environment=os.environ,
            more=more,
            listeners=given.listeners_folder,
        )
        for shard in range(given.shards)
    ]
    for shard in range(given.shards):
        (given.data / f"node-{shard}").mkdir(parents=True, exist_ok=True)
    if given.shards == 1:
        os.execv(commands[0][0], commands[0])
    return asyncio.run(_run(commands))


async def _run(commands: Sequence[Sequence[str]]) -> int:
    shards = [await asyncio.create_subprocess_exec(*each) for each in commands]
    loop = asyncio.get_running_loop()
    ended = [loop.create_task(shard.wait()) for shard in shards]

    def stop() -> None:
        for shard in shards:
            if shard.returncode is None:
                shard.send_signal(signal.SIGTERM)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    served = serve_pod(_listening(ADMIN_PORT), len(shards))
    try:
        await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
        stop()
        codes = await asyncio.gather(*ended)
    finally:
        served.close()
        await served.wait_closed()
    return max(codes, key=abs)


def _listening(port: int) -> socket.socket:
    """A listening socket at all addresses of the pod."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def serve_pod(listening: socket.socket, shards: int) -> Acceptor:
    """Answer HTTP requests for all shards. Each connection gets one answer, within `CHECK_S` of its request line. If
    there are too many connections, the oldest one is closed."""

    def accepted(place: Place) -> asyncio.BaseProtocol:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            place.occupy(writer.transport.abort)
            try:
                await _answer(shards, reader, writer)
            finally:
                place.leave()

        return asyncio.StreamReaderProtocol(asyncio.StreamReader(), answer)

    plan = plan_of_process()
    admission = Admission(
        kind="http",
        most=MAX_ANSWERED,
        most_of_address=plan.limit,
        descriptors=plan.limit - plan.reserve // 4,
        time=asyncio.get_running_loop().time,
    )
    served = Acceptor(listening, accepted, admission)
    served.start()
    return served


async def _answer(shards: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one request, and close the connection."""
    try:
        line = (await asyncio.wait_for(reader.readline(), CHECK_S)).decode("latin-1").split()
        path = _path(line)
        loop = asyncio.get_running_loop()
        if path in ANSWERED:
            answers = await asyncio.gather(
                *(loop.run_in_executor(None, _ask, _admin_port(shard, shards), path) for shard in range(shards))
            )
            status, body = _joined(path, answers)
        else:
            status, body = int(HTTPStatus.NOT_FOUND), b"not here\n"
        shown = CONTENT_TYPE if path in METRICS and status == HTTPStatus.OK else TEXT
        head = (
            f"HTTP/1.1 {status} \r\nContent-Type: {shown}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await writer.drain()
    except (OSError, TimeoutError, ValueError):  # ValueError: the request line is too long
        pass
    finally:
        writer.close()


def _path(line: Sequence[str]) -> str:
    """The path that a request's first line names; "": none that is served."""
    return line[1].partition("?")[0] if len(line) == 3 and line[0] == "GET" else ""


def _joined(path: str, answers: Sequence[tuple[int, bytes]]) -> tuple[int, bytes]:
    """The worst status of the shards' answers, with the texts of the shards that gave it; for metrics, the metrics of
    all shards."""
    status = max(code for code, _ in answers)
    if path in METRICS and status == HTTPStatus.OK:
        return status, merged([text.decode() for _, text in answers]).encode()
    return status, b"".join(text for code, text in answers if code == status)


def recover_store(*, apply: bool) -> dict[str, Any]:
    """[blocking] Have a node of this pod restore what the cluster store has lost; returns its answer. Raises
    HeadraceError."""
    path = f"/recover-store{'?apply=1' if apply else ''}"
    status, text = _ask(SHARD_ADMIN_PORT, path, "POST", RECOVER_S)
    if status == HTTPStatus.SERVICE_UNAVAILABLE:  # a single shard answers at the pod's own port
        status, text = _ask(ADMIN_PORT, path, "POST", RECOVER_S)
    if status != HTTPStatus.OK:
        raise HeadraceError(text.decode().strip())
    found: dict[str, Any] = json.loads(text)
    return found


async def _hand_over(shards: int) -> int:
    """Have all shards hand over at once, since they wait for the same things."""
    loop = asyncio.get_running_loop()
    answers = await asyncio.gather(
        *(
            loop.run_in_executor(None, _ask, _admin_port(shard, shards), "/hand-over", "POST", HAND_OVER_S)
            for shard in range(shards)
        )
    )
    for status, text in answers:
        if status != HTTPStatus.OK:
            sys.stderr.write(text.decode())
    return int(any(status != HTTPStatus.OK for status, _ in answers))


def _ask(port: int, path: str, method: str = "GET", timeout_s: float = CHECK_S) -> tuple[int, bytes]:
    """[blocking]"""
    asked = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(asked, timeout=timeout_s) as answer:
            return int(answer.status), answer.read()
    except HTTPError as error:
        return error.code, error.read()
    except (URLError, OSError) as error:
        return int(HTTPStatus.SERVICE_UNAVAILABLE), f"shard at {port}: {error}\n".encode()


if __name__ == "__main__":
    sys.exit(main())

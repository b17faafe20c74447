"""The embedded cluster, used like a user does: by the command `headrace`.

Builds the commands and finds free ports; each command is shown before it runs.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

HOST: Final = "127.0.0.1"
NODES: Final = 3
PORTS: Final = range(20_000, 32_000)
"""Ports for nodes: below the range of outgoing connections, so that a port is free again after a restart."""
COMMAND_TIMEOUT_S: Final = 150.0
CLEAN_UP_S: Final = 40.0
METRICS_TIMEOUT_S: Final = 30.0
METRICS_TOPICS: Final = 100
"""Topics whose traffic the nodes' metrics report: more than a machine has devices."""


class CommandFailed(Exception):
    """A `headrace` command failed; the message is the command's own."""


@dataclass(slots=True)
class Cluster:
    """The cluster with its data in `data`."""

    data: Path
    show: Callable[[str], None]
    ports: dict[int, int] = field(default_factory=dict)
    """The port of each node by its id, including nodes that are down."""
    pids: dict[int, int] = field(default_factory=dict)
    """The process ids of running nodes, by node id."""
    metrics: dict[int, str] = field(default_factory=dict)
    """The metrics address of running nodes, by node id."""

    @property
    def addresses(self) -> dict[int, tuple[str, int]]:
        """The addresses of all nodes, by node id."""
        return {node: (HOST, port) for node, port in self.ports.items()}

    @property
    def bootstrap(self) -> str:
        """All addresses, in the form that clients take."""
        return ",".join(f"{HOST}:{port}" for port in self.ports.values())

    def up(self) -> None:
        """Start the cluster with all of its nodes. Raises CommandFailed."""
        port = str(free_ports(NODES))
        by_topic = ("--node-option", f"--metrics-topics={METRICS_TOPICS}")
        said = self.run("up", "--nodes", str(NODES), "--detach", "--port", port, *by_topic, "--output", "json")
        for node in json.loads(said)["nodes"]:
            self._runs(node["id"], node)

    def start(self, node: int) -> None:
        """Start one of the nodes again. Raises CommandFailed."""
        self._runs(node, json.loads(self.run("node", "start", str(node), "--output", "json")))

    def kill(self, node: int) -> None:
        """Kill a node (kill -9)."""
        self.metrics.pop(node, None)
        os.kill(self.pids.pop(node), signal.SIGKILL)

    def stop_all(self) -> list[int]:
        """Stop all nodes that run in the folder; return the ids of processes that are left nevertheless."""
        pids = list(self.pids.values())
        try:
            self.run("down", shown=bool(pids))
        except CommandFailed:
            pass  # none runs
        self.pids.clear()
        self.metrics.clear()
        return [pid for pid in pids if _is_running(pid)]

    def last_metrics(self) -> str:
        """Return the current metrics of all running nodes, one after the other, in Prometheus's format."""
        told = []
        for node, address in sorted(self.metrics.items()):
            with urllib.request.urlopen(address, timeout=METRICS_TIMEOUT_S) as answer:
                told.append(f"# node {node}, {address}\n{answer.read().decode()}")
        return "\n".join(told)

    def ask(self, *words: str) -> Any:
        """Return a command's JSON output. Raises CommandFailed."""
        return json.loads(self.run(*words, "--output", "json", shown=False))

    def _runs(self, node: int, told: Mapping[str, Any]) -> None:
        self.ports[node], self.pids[node] = told["port"], told["pid"]
        if "metrics" in told:
            self.metrics[node] = told["metrics"]

    def run(self, *words: str, shown: bool = True) -> str:
        """Run `headrace WORDS --data DIR`; return its stdout. Raises CommandFailed."""
        command = [*words, "--data", str(self.data)]
        if shown:
            self.show("headrace " + " ".join(_short(command)))
        return run_command(command)


def run_command(command: Sequence[str]) -> str:
    """Run `headrace COMMAND`; return its stdout. Raises CommandFailed. An interrupted command first cleans up after
    itself.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace.cli.main", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said, noted = process.communicate(timeout=COMMAND_TIMEOUT_S)
    except BaseException as error:
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=CLEAN_UP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise CommandFailed(f"headrace {command[0]}: no end after {COMMAND_TIMEOUT_S:.0f} s") from None
        raise
    if process.returncode != 0:
        raise CommandFailed(noted.strip().splitlines()[-1] if noted.strip() else f"exit code {process.returncode}")
    return said


def free_ports(count: int) -> int:
    """Return the first of `count` consecutive ports of this machine that are free now. Raises OSError."""
    for first in random.sample(PORTS, 100):
        if all(_is_free(port) for port in range(first, first + count)):
            return first
    raise OSError(f"no {count} free ports of {HOST} found between {PORTS.start} and {PORTS.stop}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _short(command: Sequence[str]) -> list[str]:
    """Return the command as a user would type it: with paths relative to this folder, and without --output."""
    here = f"{Path.cwd()}/"
    return [word.removeprefix(here) for word in command if word not in ("--output", "json")]

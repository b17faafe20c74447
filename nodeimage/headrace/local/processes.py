"""Processes and ports of this machine: identifies processes that we started, ends them, and finds who holds a port.

A process id alone does not identify a process, since ids are reused: each check also compares the process's birth,
which the kernel counts in ticks. If the system has none, or a former version started the process, the creation time is
used.
"""

import contextlib
import os
import random
import socket
from pathlib import Path

import psutil

from headrace.base.machine import boot_id
from headrace.local.folder import NodeProcess

CREATED_TOLERANCE_S = 2.0
"""Tolerance for creation times. They are derived from the kernel's boot time, which shifts when the clock is set:
slightly by synchronization, by any amount when a person sets it."""
STATE, START_TICKS = 0, 19
"""Indexes of fields 3 and 22 of /proc/PID/stat (proc(5)), counted after the program's name, which may contain anything.
"""
FREE_PORTS = range(20_000, 32_000)
"""Ports for nodes. They lie below Linux's ephemeral range, whose ports any outgoing connection may take while a node is
down."""


def created_at(pid: int) -> float | None:
    """When the process was created (seconds since 1970); None if it is gone or a zombie."""
    if pid <= 0:  # no process has it, and a signal to 0 reaches a whole group
        return None
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return process.create_time()
    except psutil.NoSuchProcess:
        return None


def birth_of(pid: int) -> str:
    """The id of the machine's boot, and the clock ticks from the boot to the process's creation. Setting the clock does
    not change it.

    "" if the process is gone or a zombie, or if the system is not Linux, which alone reports it.
    """
    try:
        boot = boot_id()
    except OSError:
        return ""
    if pid <= 0:
        return ""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if fields[STATE] in (b"Z", b"X") else f"{boot}:{int(fields[START_TICKS])}"


def is_alive(node: NodeProcess) -> bool:
    """Whether exactly the process that was started still runs."""
    if node.birth:
        return birth_of(node.pid) == node.birth
    created = created_at(node.pid)
    return created is not None and abs(created - node.created) <= CREATED_TOLERANCE_S


def end(node: NodeProcess, signal_number: int) -> None:
    """Send the signal to the node's process, but to no other process that has reused its id."""
    if is_alive(node):
        with contextlib.suppress(ProcessLookupError):
            os.kill(node.pid, signal_number)


def resident_bytes(node: NodeProcess) -> int | None:
    """Resident memory of the node's process in bytes; None if it is gone."""
    if not is_alive(node):
        return None
    try:
        return int(psutil.Process(node.pid).memory_info().rss)
    except psutil.Error:
        return None


def port_is_free(host: str, port: int) -> bool:
    """Whether a listener could be opened now; lingering connections of a former listener do not count."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
        return True


def port_holder(port: int) -> str | None:
    """The process that listens on the port, as `name (pid 123)`; None if this user may not see it."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.AccessDenied, OSError):
        return None
    for connection in connections:
        listens = connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
        if listens and connection.pid:
            try:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
            except psutil.Error:
                return f"pid {connection.pid}"
    return None


def free_port(host: str) -> int:
    """A port that is free now. Raises OSError if 100 random tries find none."""
    for port in random.sample(FREE_PORTS, 100):
        if port_is_free(host, port):
            return port
    raise OSError(f"no free port of {host} found between {FREE_PORTS.start} and {FREE_PORTS.stop}")

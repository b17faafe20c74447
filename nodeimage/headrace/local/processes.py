"""Processes and ports of this machine: is a process still the one that we started, who holds a port, ending one.

A process id alone names nobody, since ids are used again: each question takes the process's birth too, by the kernel's
own count. Where the system tells no such, or a former version started the process, it takes the time of creation.
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
"""The kernel's boot time, from which creation times are reckoned, moves when the clock is set: a little as it is kept
right, by any span when somebody sets it."""
STATE, START_TICKS = 0, 19
"""Fields 3 and 22 of /proc/PID/stat (proc(5)), counted behind the program's name, which may hold anything."""
FREE_PORTS = range(20_000, 32_000)
"""Below Linux's ephemeral range, whose ports any outgoing connection may take while a node is down."""


def created_at(pid: int) -> float | None:
    """When the process was created (seconds since 1970), or None where it is gone or only its corpse is left."""
    if pid <= 0:  # nobody's; and a signal to 0 reaches a whole group
        return None
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return process.create_time()
    except psutil.NoSuchProcess:
        return None


def birth_of(pid: int) -> str:
    """Which boot of the machine, and when in it (clock ticks), the process was created: no clock that is set moves it.

    "" where the process is gone, or only its corpse is left, or where the system does not say (other than Linux).
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
    """Whether the very process that was started still runs."""
    if node.birth:
        return birth_of(node.pid) == node.birth
    created = created_at(node.pid)
    return created is not None and abs(created - node.created) <= CREATED_TOLERANCE_S


def end(node: NodeProcess, signal_number: int) -> None:
    """Sends the signal to the node's process, and to no other that has taken its id since."""
    if is_alive(node):
        with contextlib.suppress(ProcessLookupError):
            os.kill(node.pid, signal_number)


def resident_bytes(node: NodeProcess) -> int | None:
    """Resident memory of the node's process, or None where it is gone."""
    if not is_alive(node):
        return None
    try:
        return int(psutil.Process(node.pid).memory_info().rss)
    except psutil.Error:
        return None


def port_is_free(host: str, port: int) -> bool:
    """Whether a listener could be opened now; connections of a former listener that linger do not count."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
        return True


def port_holder(port: int) -> str | None:
    """The process that listens on the port, as `name (pid 123)`, where this user may know it."""
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
    """A port that is free now. Raises OSError when 100 random tries found none."""
    for port in random.sample(FREE_PORTS, 100):
        if port_is_free(host, port):
            return port
    raise OSError(f"no free port of {host} found between {FREE_PORTS.start} and {FREE_PORTS.stop}")

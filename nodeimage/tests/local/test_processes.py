import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from headrace.local.cluster import end_processes
from headrace.local.folder import NodeProcess
from headrace.local.processes import (
    FREE_PORTS,
    birth_of,
    created_at,
    end,
    free_port,
    is_alive,
    port_holder,
    port_is_free,
    resident_bytes,
)

IGNORES_SIGTERM = (
    "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); sys.stdin.read()"
)
WAITS = "import sys; print(1, flush=True); sys.stdin.read()"


@pytest.fixture
def child(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    program = getattr(request, "param", WAITS)
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def named(process: subprocess.Popen[bytes], *, created: float | None = None) -> NodeProcess:
    known = created_at(process.pid) if created is None else created
    assert known is not None
    return NodeProcess(name="node-1", port=1, pid=process.pid, created=known)


def test_a_process_is_known_by_its_id_and_its_time_of_creation(child: subprocess.Popen[bytes]) -> None:
    node = named(child)
    assert is_alive(node)
    assert (resident_bytes(node) or 0) > 1 << 20
    assert not is_alive(named(child, created=node.created - 60))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts a process's birth from its own boot")
def test_a_process_stays_the_same_when_the_clock_is_set(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = msgspec.structs.replace(named(child), birth=birth_of(child.pid))
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: node.created + 3_600)
    assert is_alive(node)
    assert not is_alive(msgspec.structs.replace(node, birth=f"{node.birth}0"))
    assert end_processes([node], timeout_s=10) == ()
    assert child.wait(timeout=10) == -signal.SIGTERM
    assert birth_of(child.pid) == ""


def test_a_process_that_took_the_id_is_never_signalled(child: subprocess.Popen[bytes]) -> None:
    stranger = named(child, created=1_000.0)
    end(stranger, signal.SIGKILL)
    assert end_processes([stranger], timeout_s=1) == ()
    assert child.poll() is None


def test_a_process_that_ended_is_not_alive_even_before_it_is_waited_for(child: subprocess.Popen[bytes]) -> None:
    node = named(child)
    assert end_processes([node], timeout_s=10) == ()
    assert not is_alive(node)
    assert resident_bytes(node) is None
    assert child.wait(timeout=10) == -signal.SIGTERM


@pytest.mark.parametrize("child", [IGNORES_SIGTERM], indirect=True)
def test_a_process_that_does_not_stop_in_time_is_killed_and_named(child: subprocess.Popen[bytes]) -> None:
    assert end_processes([named(child)], timeout_s=0.2) == ("node-1",)
    assert child.wait(timeout=10) == -signal.SIGKILL


def test_a_port_with_a_listener_is_taken_and_says_by_whom() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert not port_is_free("127.0.0.1", port)
        assert "pid" in (port_holder(port) or "")
    assert port_is_free("127.0.0.1", port)
    assert port_holder(port) is None


def test_a_port_is_free_again_although_connections_of_the_former_listener_linger() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = listener.accept()
            accepted.close()  # this side closes first and is left in TIME_WAIT
            assert client.recv(1) == b""
    assert port_is_free("127.0.0.1", port)


def test_a_free_port_lies_where_no_outgoing_connection_takes_it() -> None:
    port = free_port("127.0.0.1")
    assert port in FREE_PORTS
    ephemeral = Path("/proc/sys/net/ipv4/ip_local_port_range")
    if ephemeral.exists() and ephemeral.read_text().split() == ["32768", "60999"]:
        assert port < 32_768

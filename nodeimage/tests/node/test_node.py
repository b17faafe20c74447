"""Ports that another process holds."""

import asyncio
import socket

import pytest

from headrace.base.errors import FolderRefused
from headrace.node import node
from headrace.node.node import _listen
from kit.own_ports import own_port

HOST = "127.0.0.1"


def listener(port: int) -> socket.socket:
    return socket.create_server((HOST, port))


async def test_a_port_is_waited_for_that_the_helper_of_a_killed_run_still_has() -> None:
    """A restarted node ended at once, if its former process had been killed while starting a child process."""
    port = own_port()
    held = listener(port)
    asyncio.get_running_loop().call_later(0.3, held.close)
    with await _listen(HOST, port) as listening:
        assert listening.getsockname() == (HOST, port)
        assert held.fileno() == -1


async def test_a_port_that_stays_taken_is_told_with_the_option_that_chooses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "FORMER_S", 0.2)
    port = own_port()
    with listener(port), pytest.raises(FolderRefused, match=f"cannot listen on {HOST}:{port}: .*--peer-port"):
        await _listen(HOST, port, option="--peer-port")


async def test_an_address_that_is_not_here_is_not_waited_for() -> None:
    async with asyncio.timeout(1.0):
        with pytest.raises(FolderRefused, match="cannot listen on ::2"):
            await _listen("::2", own_port())

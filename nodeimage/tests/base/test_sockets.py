"""Settings and addresses of sockets, also of those that were reset."""

import asyncio
import socket
from typing import Any

import pytest

from headrace.base.sockets import endpoints, keep_alive


def test_a_silent_connection_is_asked_as_often_as_it_was_told() -> None:
    with socket.socket() as sock:
        keep_alive(sock, idle_s=30, every_s=5, tries=4)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        assert [sock.getsockopt(socket.IPPROTO_TCP, option) for option in options] == [30, 5, 4]


class Transport(asyncio.BaseTransport):
    """A transport that returns addresses, or raises the error of a reset."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.error = error

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if self.error is not None:
            raise self.error
        return {"sockname": ("127.0.0.1", 9092), "peername": ("127.0.0.1", 50_000)}[name]


def test_both_ends_are_told() -> None:
    assert endpoints(Transport()) == (("127.0.0.1", 9092), ("127.0.0.1", 50_000))


@pytest.mark.parametrize("error", [OSError(107, "not connected"), ValueError("closed")])
def test_a_connection_that_was_reset_has_no_ends_and_is_no_error(error: Exception) -> None:
    assert endpoints(Transport(error)) == (None, None)

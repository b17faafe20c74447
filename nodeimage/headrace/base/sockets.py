"""What every protocol on a socket has to know of it."""

import asyncio
import socket
from typing import Any

__all__ = ["endpoints", "keep_alive"]


def keep_alive(sock: socket.socket, *, idle_s: int, every_s: int, tries: int) -> None:
    """Have the connection end once the other side, silent for `idle_s`, leaves so many questions, `every_s` apart,
    unanswered. Of a listening socket: those that it accepts.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, every_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, tries)


def endpoints(transport: asyncio.BaseTransport) -> tuple[Any, Any]:
    """Its own address and the other side's; None where that cannot be asked: it may have been reset as it was made.

    On uvloop that is an error, and one in `connection_made` leaves a connection that nobody hears of.
    """
    try:
        return transport.get_extra_info("sockname"), transport.get_extra_info("peername")
    except (OSError, ValueError):
        return None, None

"""Settings and addresses of sockets, for all protocols."""

import asyncio
import socket
from typing import Any

__all__ = ["endpoints", "keep_alive"]


def keep_alive(sock: socket.socket, *, idle_s: int, every_s: int, tries: int) -> None:
    """Enables TCP keep-alive: after `idle_s` of silence the kernel sends probes every `every_s`, and ends the
    connection once `tries` of them are unanswered. On a listening socket it applies to the accepted connections.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, every_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, tries)


def endpoints(transport: asyncio.BaseTransport) -> tuple[Any, Any]:
    """The local and the remote address of a connection; None and None if it was reset while it was created.

    uvloop raises an exception then, which in `connection_made` would leave a connection that nothing handles.
    """
    try:
        return transport.get_extra_info("sockname"), transport.get_extra_info("peername")
    except (OSError, ValueError):
        return None, None

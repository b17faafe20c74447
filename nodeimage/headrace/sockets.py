"""What every protocol on a socket has to know of it."""

import asyncio
from typing import Any

__all__ = ["endpoints"]


def endpoints(transport: asyncio.BaseTransport) -> tuple[Any, Any]:
    """Its own address and the other side's; None where that cannot be asked: it may have been reset as it was made.

    On uvloop that is an error, and one in `connection_made` leaves a connection that nobody hears of.
    """
    try:
        return transport.get_extra_info("sockname"), transport.get_extra_info("peername")
    except (OSError, ValueError):
        return None, None

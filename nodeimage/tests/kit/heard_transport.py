"""The far end of a connection, without a socket: it keeps the answers."""

import asyncio
import struct
from typing import Any


class HeardTransport(asyncio.Transport):
    """The transport of a client at loopback."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.answers = bytearray()
        self.reading = True
        self.over = False

    def write(self, data: Any) -> None:
        self.answers += data

    def writelines(self, list_of_data: Any) -> None:
        for data in list_of_data:
            self.answers += data

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def abort(self) -> None:
        self.over = True

    def close(self) -> None:
        self.over = True

    def is_closing(self) -> bool:
        return self.over

    def frames(self) -> list[bytes]:
        """The answers, without their lengths. Fails on an incomplete frame."""
        found: list[bytes] = []
        at = 0
        while at < len(self.answers):
            (length,) = struct.unpack_from(">i", self.answers, at)
            assert length <= len(self.answers) - at - 4, "half an answer"
            found.append(bytes(self.answers[at + 4 : at + 4 + length]))
            at += 4 + length
        return found

"""Cuts a Kafka server's bytes into responses. No sockets.

    response => length INT32, then that many bytes (`wire.header` reads their header)

Small responses pass through a staging buffer and are copied out of it. A large response gets memory of its own as soon
as its length is known, and the socket then reads directly into it: batches of a fetch are never copied. Either way the
memory belongs to the receiver of the response, is writable, and lives as long as any slice of it. The caller that asks
for the next response may supply the memory for a large one.
"""

import mmap
import struct
from collections.abc import Callable
from typing import Final

from headrace.base.errors import MalformedRequest

_STAGING: Final = 64 << 10
_LARGE: Final = 16 << 10
"""Size above which an incomplete response gets memory of its own."""
_MAPPED: Final = 4 << 20
"""Size above which a response gets mapped memory, which costs nothing before the bytes arrive: a server can claim any
length."""
_ALERT: Final = b"\x15\x03"
"""The first bytes of a TLS alert."""
_LENGTH = struct.Struct(">i")

Allocate = Callable[[int], memoryview]
"""Returns memory for the given number of bytes."""


def fresh_memory(length: int) -> memoryview:
    """New memory of `length` bytes."""
    return memoryview(mmap.mmap(-1, length) if length > _MAPPED else bytearray(length))


class ResponseReader:
    """Turns bytes into responses; a response longer than `limit` bytes is refused as soon as its length is known."""

    __slots__ = ("_end", "_large", "_large_end", "_staging", "_start", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._staging = memoryview(bytearray(_STAGING))
        self._start = 0
        self._end = 0
        self._large: memoryview | None = None
        """The memory of the large response that is being received, without its length field."""
        self._large_end = 0

    def get_buffer(self) -> memoryview:
        """The memory for the next bytes; never empty once `next` has returned None."""
        if self._large is not None:
            return self._large[self._large_end :]
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start and self._end > _STAGING - _LARGE - _LENGTH.size:
            size = self._end - self._start
            self._staging[:size] = self._staging[self._start : self._end]
            self._start, self._end = 0, size
        return self._staging[self._end :]

    def came(self, count: int) -> None:
        """Note that `count` bytes were written to the memory that `get_buffer` returned last."""
        if self._large is not None:
            self._large_end += count
        else:
            self._end += count

    def next(self, allocate: Allocate = fresh_memory) -> memoryview | None:
        """The next whole response; None if it is incomplete, in which case `allocate` supplies its memory if it is
        large."""
        if self._large is not None:
            if self._large_end < len(self._large):
                return None
            response, self._large = self._large, None
            return response
        have = self._end - self._start - _LENGTH.size
        if have < 0:
            return None
        (length,) = _LENGTH.unpack_from(self._staging, self._start)
        if not 0 <= length <= self.limit:
            if bytes(self._staging[self._start : self._start + 2]) == _ALERT:
                raise MalformedRequest("it speaks TLS (security.protocol SSL or SASL_SSL)")
            raise MalformedRequest(
                f"a response of {length} bytes, where {self.limit} is the limit; is it a Kafka port?"
            )
        begin = self._start + _LENGTH.size
        if length <= have:
            self._start = begin + length
            return memoryview(bytearray(self._staging[begin : self._start]))
        if length > _LARGE:
            large = allocate(length)
            large[:have] = self._staging[begin : self._end]
            self._large, self._large_end = large, have
            self._start = self._end = 0
        return None

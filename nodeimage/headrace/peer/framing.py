"""Frames between nodes: messages to bytes and back. No sockets.

    frame   => length u32, header length u32, header, payload     (big-endian; `length` counts all behind itself)
    header  => msgpack map of a message (peer.messages), 1 MiB at most
    payload => bytes that belong to the message, 80 MiB at most; often none

`FrameReader` is where a socket's bytes arrive. Small frames come through a staging buffer, and their payloads are
copied out of it. A large frame gets memory of its own as soon as its length is known, and the socket then reads right
into it: one allocation, and no copy but of the first bytes, which came with the length. Either way a payload belongs
to whoever gets it: nothing here writes to it again.
"""

import mmap
import struct
from collections.abc import Sequence
from typing import Final

import msgspec

from headrace.base.errors import Code, KafkaError, MalformedRequest
from headrace.log.frames import MOST_BYTES
from headrace.peer.messages import AnyMessage, Message

Buffer = bytes | bytearray | memoryview
"""Items are bytes: `len` is the length in bytes."""

MAX_HEADER: Final = 1 << 20
MAX_PAYLOAD: Final = MOST_BYTES
MAX_FRAME: Final = 4 + MAX_HEADER + MAX_PAYLOAD
"""Of the length that a frame claims."""
NO_PAYLOAD: Final = memoryview(b"")

_STAGING: Final = 64 * 1024
_FIRST_STAGING: Final = 8 * 1024
"""As long as no more comes at a time: most sessions are of containers at rest, and of those that have not proven who
they are there may be many, too."""
_LARGE: Final = 16 * 1024
"""A longer frame that has not come whole gets memory of its own."""
_MAPPED: Final = 4 << 20
"""A longer one gets mapped memory, which costs nothing before its bytes come: lengths are easy to claim."""
_WINDOW: Final = 4 * 1024
"""Read at first, and after a large frame: more would be the beginning of the next large one, and copied."""
_JOINED: Final = 32 * 1024
"""A frame that is smaller is sent as one piece: copying it costs less than a list of pieces."""
_PIECE: Final = 4 * 1024
"""Buffers that are smaller are joined with their neighbours."""

_TLS: Final = 0x1603
"""How a TLS handshake begins: as a length, beyond any limit."""

_PREFIX: Final = struct.Struct(
    ">I"  # length of the rest
    "I"  # of the header
)
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)


def encode_message(message: Message) -> bytes:
    """The message alone, as a header or inside of a Call."""
    return _encoder.encode(message)


def decode_message(header: Buffer | msgspec.Raw) -> Message:
    """The message that `header` is. Raises MalformedRequest, also for a type that is not known here."""
    try:
        return _decoder.decode(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedRequest(f"not a message that this version knows: {error}") from error


def encode_frame(message: Message, buffers: Sequence[Buffer] = ()) -> list[Buffer]:
    """The pieces of a frame, in order: one if it is small, else large buffers stay as they are.

    Raises KafkaError MESSAGE_TOO_LARGE where the other side would not read it.
    """
    header = _encoder.encode(message)
    size = sum(map(len, buffers))
    if size > MAX_PAYLOAD or len(header) > MAX_HEADER:
        name = type(message).__name__
        raise KafkaError(Code.MESSAGE_TOO_LARGE, f"{name}: {len(header)} + {size} bytes are too many for a frame")
    prefix = _PREFIX.pack(4 + len(header) + size, len(header))
    if size <= _JOINED:
        return [b"".join((prefix, header, *buffers))]
    pieces: list[Buffer] = []
    small: list[Buffer] = [prefix, header]
    for buffer in buffers:
        if len(buffer) < _PIECE:
            small.append(buffer)
            continue
        if small:
            pieces.append(b"".join(small))
            small = []
        pieces.append(buffer)
    if small:
        pieces.append(b"".join(small))
    return pieces


class FrameReader:
    """Bytes in, frames out. `limit` is the longest frame taken; `take_longer` raises it between two frames."""

    __slots__ = ("_end", "_large", "_large_end", "_staging", "_start", "_window", "limit")

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self.limit = limit
        self._staging = memoryview(bytearray(_FIRST_STAGING))
        self._start = 0
        self._end = 0
        self._window = _WINDOW
        self._large: memoryview | None = None
        """All behind the length of a large frame that is coming."""
        self._large_end = 0

    def take_longer(self, limit: int = MAX_FRAME) -> None:
        """Raise the limit, between two frames."""
        self.limit = limit

    def shrink(self) -> None:
        """Take as little memory as at first, where nothing of a frame has come."""
        if not self.is_within and len(self._staging) > _FIRST_STAGING:
            self._staging = memoryview(bytearray(_FIRST_STAGING))
            self._start = self._end = 0
            self._window = _WINDOW

    def _enlarge(self) -> None:
        staged = self._staging[self._start : self._end]
        self._staging = memoryview(bytearray(_STAGING))
        self._staging[: len(staged)] = staged
        self._start, self._end = 0, len(staged)

    def get_buffer(self) -> memoryview:
        """Where the next bytes go; never empty once `next` has given None."""
        if self._large is not None:
            return self._large[self._large_end :]
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start and self._end + self._window > len(self._staging):
            size = self._end - self._start
            self._staging[:size] = self._staging[self._start : self._end]
            self._start, self._end = 0, size
        return self._staging[self._end : self._end + self._window]

    def came(self, count: int) -> None:
        """`count` bytes came into what `get_buffer` gave last."""
        if self._large is not None:
            self._large_end += count
            return
        self._end += count
        if count == self._window and self._window < _STAGING:
            self._window *= 2
            if self._window >= len(self._staging):
                self._enlarge()

    @property
    def is_within(self) -> bool:
        """Part of a frame has come."""
        return self._large is not None or self._end > self._start

    def next(self) -> tuple[memoryview, memoryview] | None:
        """The next whole frame's header and payload, or None. Raises MalformedRequest.

        The header is to be decoded before more bytes come; the payload is the caller's.
        """
        if self._large is not None:
            if self._large_end < len(self._large):
                return None
            body, self._large = self._large, None
            self._window = _WINDOW
            end = self._header_end(body, len(body))
            return body[4:end], body[end:].toreadonly()
        available = self._end - self._start
        if available < _PREFIX.size:
            return None
        (length,) = struct.unpack_from(">I", self._staging, self._start)
        if not 4 < length <= self.limit:
            if length >> 16 == _TLS:
                raise MalformedRequest("the other side speaks TLS, and this node does not: start it with --peer-tls")
            raise MalformedRequest(f"a frame of {length} bytes; the limit is {self.limit}")
        body = self._staging[self._start + 4 : min(self._start + 4 + length, self._end)]
        end = self._header_end(body, length)
        if len(body) == length:
            self._start += 4 + length
            return body[4:end], memoryview(bytes(body[end:])) if end < length else NO_PAYLOAD
        if length > _LARGE:
            large = memoryview(mmap.mmap(-1, length) if length > _MAPPED else bytearray(length))
            large[: len(body)] = body
            self._large, self._large_end = large, len(body)
            self._start = self._end = 0
        elif 4 + length > len(self._staging):
            self._enlarge()
        return None

    def _header_end(self, body: memoryview, length: int) -> int:
        (size,) = struct.unpack_from(">I", body)
        if not 0 < size <= min(MAX_HEADER, length - 4):
            raise MalformedRequest(f"a header of {size} bytes in a frame of {length}")
        return 4 + int(size)

"""Frames between nodes: encoding of messages to bytes and back. No sockets.

    frame   => length u32, header length u32, header, payload     (big-endian; `length` counts all bytes after itself)
    header  => msgpack map of a message (peer.messages), 1 MiB at most
    payload => bytes that belong to the message, 80 MiB at most; often none

`FrameReader` receives a socket's bytes. Small frames pass through a staging buffer, and their payloads are copied out
of it. A large frame gets memory of its own as soon as its length is known, and the socket then reads directly into this
memory: one allocation, and no copy except of the first bytes, which arrived with the length. In both cases the receiver
owns the payload: it is never written to again.
"""

import mmap
import struct
from collections.abc import Sequence
from typing import Final

import msgspec

from headrace.base.errors import Code, KafkaError, MalformedRequest
from headrace.log.frames import MAX_BYTES
from headrace.peer.messages import AnyMessage, Message

Buffer = bytes | bytearray | memoryview
"""Types of buffers. The items of a memoryview must be bytes, so that `len` is the length in bytes."""

MAX_HEADER: Final = 1 << 20
MAX_PAYLOAD: Final = MAX_BYTES
MAX_FRAME: Final = 4 + MAX_HEADER + MAX_PAYLOAD
"""The greatest length that a frame may declare."""
NO_PAYLOAD: Final = memoryview(b"")

_STAGING: Final = 64 * 1024
_FIRST_STAGING: Final = 8 * 1024
"""The size of the staging buffer until more bytes arrive at a time. Small, since most sessions belong to idle
containers, and there may be many whose handshake is not done."""
_LARGE: Final = 16 * 1024
"""A frame longer than this gets memory of its own if it has not arrived as a whole."""
_MAPPED: Final = 4 << 20
"""A frame longer than this gets mapped memory, which takes no space until its bytes arrive: a length is easily
forged."""
_WINDOW: Final = 4 * 1024
"""The most bytes to read at first and after a large frame: more could be the beginning of the next large frame, which
would have to be copied."""
_JOINED: Final = 32 * 1024
"""The largest payload that is copied to send its frame as one piece, which costs less than a list of pieces."""
_PIECE: Final = 4 * 1024
"""Buffers smaller than this are joined with adjacent ones."""

_TLS: Final = 0x1603
"""The first two bytes of a TLS handshake. As the high half of a length they exceed any limit."""

_PREFIX: Final = struct.Struct(
    ">I"  # length of the rest of the frame
    "I"  # length of the header
)
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)


def encode_message(message: Message) -> bytes:
    """The encoded message, for a frame's header or inside a Call."""
    return _encoder.encode(message)


def decode_message(header: Buffer | msgspec.Raw) -> Message:
    """The decoded message. Raises MalformedRequest, also for an unknown type of message."""
    try:
        return _decoder.decode(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedRequest(f"not a message that this version knows: {error}") from error


def encode_frame(message: Message, buffers: Sequence[Buffer] = ()) -> list[Buffer]:
    """The pieces of a frame, in order: one if the frame is small; otherwise large buffers are not copied.

    Raises KafkaError MESSAGE_TOO_LARGE if the frame exceeds the limits of the other side.
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
    """Takes bytes from a socket and returns frames. `limit` is the greatest length of a frame that is accepted."""

    __slots__ = ("_end", "_large", "_large_end", "_staging", "_start", "_window", "limit")

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self.limit = limit
        self._staging = memoryview(bytearray(_FIRST_STAGING))
        self._start = 0
        self._end = 0
        self._window = _WINDOW
        self._large: memoryview | None = None
        """The memory for a large frame that is arriving, without its length."""
        self._large_end = 0

    def take_longer(self, limit: int = MAX_FRAME) -> None:
        """Raises the limit. Only between two frames."""
        self.limit = limit

    def shrink(self) -> None:
        """Shrinks the staging buffer to its first size, unless part of a frame has arrived."""
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
        """The memory for the next bytes; never empty after `next` has returned None."""
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
        """Reports that `count` bytes were written to the memory that `get_buffer` returned last."""
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
        """Whether part of a frame has arrived."""
        return self._large is not None or self._end > self._start

    def next(self) -> tuple[memoryview, memoryview] | None:
        """The header and payload of the next complete frame; None if there is none. Raises MalformedRequest.

        Decode the header before more bytes are read; the payload may be kept.
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

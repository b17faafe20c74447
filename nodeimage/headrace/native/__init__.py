"""The compiled extension modules. Each is None if this Headrace was built without it, and all are optional.

`writer` writes to files without the interpreter lock (_writer.c); without it, Python threads do
(container/writer_pool.py). `codecs` reads and writes valid, ordinary requests and records (_codecs.py); the functions
in `wire` and `log` that call it handle everything else, and everything if it is missing.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

if TYPE_CHECKING:
    from headrace.native import _writer as writer

Buffer = bytes | bytearray | memoryview
T = TypeVar("T")


class Codecs(Protocol):
    """The functions of _codecs.py. `made` is the class of the result, a named tuple. All raise OverflowError for a
    number that its field cannot hold."""

    def read_batch(self, view: Buffer, check_crc: bool, from_client: bool, made: type[T], /) -> T | None:
        """See `wire.batch.read_batch`; None: the batch is invalid."""

    def stamp(self, view: Buffer, base_offset: int, leader_epoch: int, /) -> bool:
        """See `wire.batch.stamp`; False: nothing was written."""

    def scan_records(
        self, view: Buffer, start: int, count: int, base_timestamp: int, most_keyless: int, made: type[T], /
    ) -> T | None:
        """See `wire.records.check_records`, for the records from `start` to the end of `view`; None: they are invalid.
        For a large view the interpreter lock is released, so nothing may write to the view meanwhile."""

    def read_records(
        self,
        view: Buffer,
        at: int,
        most: int,
        base_offset: int,
        base_timestamp: int,
        append_time: int | None,
        made: type[T],
        /,
    ) -> tuple[list[T], int]:
        """Up to `most` records from byte `at` on, fewer if an invalid one follows, and the position after them.
        `append_time`: the timestamp of all records; None: each has its own."""

    def batch_frame_header(
        self,
        length: int,
        epoch: int,
        position: int,
        partitionlet: int,
        first: int,
        last: int,
        max_timestamp: int,
        batch: Buffer,
        /,
    ) -> bytes:
        """See `log.frames.batch_frame_header`."""

    def check_frames(self, frames: Buffer, position: int, /) -> int:
        """See `log.frames.check_frames`; -1: some frame is invalid, or its type is unusual."""

    def take_batches(
        self,
        view: memoryview,
        batches: list[memoryview],
        partitionlet: int,
        offset: int,
        limit: int,
        max_bytes: int,
        /,
    ) -> int | None:
        """See `log.frames.take_batches`; None: something is invalid, and `batches` is unchanged."""

    def read_request_header(self, buf: Buffer, flexible_from: dict[int, int], made: type[T], /) -> T | None:
        """See `wire.header.read_request_header`; `flexible_from`: the first flexible version by API key. None: the
        header is malformed or unusual."""

    def decode_produce(self, buf: memoryview, body: int, version: int, made: type[T], part: type[Any], /) -> T | None:
        """See `wire.produce.decode_request`; None: the request is malformed or unusual."""

    def decode_fetch(
        self, buf: Buffer, body: int, version: int, made: type[T], topic: type[Any], partition: type[Any], /
    ) -> T | None:
        """See `wire.fetch.decode_request`; None: the request is malformed or unusual."""

    def encode_produced(self, version: int, results: list[Any], throttle_ms: int, /) -> bytes | None:
        """See `wire.produce.encode_response`; None: the version is old, or a result has a message or record errors."""


def _found(name: str) -> Any:
    """The extension module of this name; None if it is missing or disabled by HEADRACE_PURE."""
    if os.environ.get("HEADRACE_PURE", "") not in ("", "0"):
        return None
    try:
        return import_module(f"headrace.native.{name}")
    except ImportError:  # it was built without a C compiler, or for another platform
        return None


codecs: Final[Codecs | None] = _found("_codecs")
if not TYPE_CHECKING:
    writer = _found("_writer")

__all__ = ["codecs", "writer"]

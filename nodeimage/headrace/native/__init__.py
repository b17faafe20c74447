"""The pieces that are compiled to machine code, each None where this Headrace was built without it; all can be missing.

`writer`: writes to files without the interpreter's lock (_writer.c). What stands in for it: threads of Python
(container/writer_pool.py). `codecs`: what each request and each record comes through, for what is sound and usual
(_codecs.py). What stands in for it, and does the rest always: the functions in `wire` and `log` that call it.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

if TYPE_CHECKING:
    from headrace.native import _writer as writer

Buffer = bytes | bytearray | memoryview
T = TypeVar("T")


class Codecs(Protocol):
    """What _codecs.py has. `made` is the class of the result, a named tuple. Numbers beyond their field raise
    OverflowError."""

    def read_batch(self, view: Buffer, check_crc: bool, from_client: bool, made: type[T], /) -> T | None:
        """See `wire.batch.read_batch`; None: the batch is not sound."""

    def stamp(self, view: Buffer, base_offset: int, leader_epoch: int, /) -> bool:
        """See `wire.batch.stamp`; False: nothing is written."""

    def scan_records(
        self, view: Buffer, start: int, count: int, base_timestamp: int, most_keyless: int, made: type[T], /
    ) -> T | None:
        """See `wire.records.check_records`, of records that go from `start` to the end of `view`; None: they are not
        sound. Of a large view the interpreter's lock is let go of: nobody may write to it."""

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
        """The next `most` records from place `at` on, or as many as are sound; and the place behind them.
        `append_time`: that of all of them."""

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
        """See `log.frames.check_frames`; -1: something is wrong with them."""

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
        """See `log.frames.take_batches`; None: something is wrong, and `batches` is as it was."""

    def read_request_header(self, buf: Buffer, flexible_from: dict[int, int], made: type[T], /) -> T | None:
        """See `wire.header.read_request_header`; `flexible_from`: by key of an API, its first flexible version. None:
        it is malformed, or rare."""

    def decode_produce(self, buf: memoryview, body: int, version: int, made: type[T], part: type[Any], /) -> T | None:
        """See `wire.produce.decode_request`; None: it is malformed, or rare."""

    def decode_fetch(
        self, buf: Buffer, body: int, version: int, made: type[T], topic: type[Any], partition: type[Any], /
    ) -> T | None:
        """See `wire.fetch.decode_request`; None: it is malformed, or rare."""

    def encode_produced(self, version: int, results: list[Any], throttle_ms: int, /) -> bytes | None:
        """See `wire.produce.encode_response`; None: of an old version, or a result has a message."""


def _found(name: str) -> Any:
    """The piece of this name, or None."""
    if os.environ.get("HEADRACE_PURE", "") not in ("", "0"):
        return None
    try:
        return import_module(f"headrace.native.{name}")
    except ImportError:  # there was no C compiler, or the library is for another platform
        return None


codecs: Final[Codecs | None] = _found("_codecs")
if not TYPE_CHECKING:
    writer = _found("_writer")

__all__ = ["codecs", "writer"]

"""The compiled codecs compared with those in Python: for any bytes both have to find the same, or refuse alike."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
from crc32c import crc32c

from headrace.base.errors import HeadraceError
from headrace.log import frames
from headrace.native import codecs
from headrace.wire import batch, fetch, header, produce, records

NEEDS_CODECS = pytest.mark.skipif(codecs is None, reason="the native pieces are not built")
CALLERS = (batch, fetch, frames, header, produce, records)
"""The modules that have compiled twins."""


@contextlib.contextmanager
def in_python() -> Iterator[None]:
    """Within the context, everything is done in Python."""
    with contextlib.ExitStack() as stack:
        for module in CALLERS:
            stack.enter_context(mock.patch.object(module, "_native", None))
        yield


def outcome(call: Callable[[], Any]) -> Any:
    """The outcome of a call, with the types of all numbers and tuples; for an error, its type and its text."""
    try:
        return typed(call())
    except HeadraceError as error:
        return type(error), str(error)


def typed(value: Any) -> Any:
    """A value that is equal only to one of the same types."""
    if isinstance(value, tuple | list):
        return type(value), [typed(each) for each in value]
    if isinstance(value, memoryview):
        return memoryview, bytes(value), value.readonly
    return type(value), value


def assert_alike(call: Callable[[], Any]) -> Any:
    """The outcome of a call, which must be the same in compiled code and in Python."""
    native = outcome(call)
    with in_python():
        assert native == outcome(call)
    return native


def sealed(data: bytes) -> bytearray:
    """The batch with correct length and CRC."""
    made = bytearray(data)
    if len(made) >= batch.BATCH_HEADER_SIZE:
        made[8:12] = (len(made) - 12).to_bytes(4, "big")
        made[16] = batch.MAGIC
        made[17:21] = crc32c(bytes(made[21:])).to_bytes(4, "big")
    return made


def compare_batch(data: bytes) -> None:
    """Compare a record batch: its header, the check of its records, and each record."""
    view = memoryview(data)
    for check_crc in (True, False):
        for from_client in (True, False):
            assert_alike(
                lambda crc=check_crc, client=from_client: batch.read_batch(view, check_crc=crc, from_client=client)
            )
    try:
        found = batch.read_batch(view, check_crc=False, from_client=False)
    except HeadraceError:
        return
    for keys in (True, False):
        if found.record_count <= records.ANY_NAMES and not found.append_time and found.record_count > 0:
            assert_alike(lambda keys=keys: records.check_records(found, view, keys=keys, limit=1 << 20))
    assert_alike(lambda: all_records(found, view[: found.length]))


def all_records(found: batch.BatchHeader, view: memoryview) -> list[Any]:
    """The records before the first unreadable one, and the error of that one."""
    read: list[Any] = []
    try:
        read.extend(batch.batch_records(found, view))
    except HeadraceError as error:
        read.append((type(error), str(error)))
    return read


def compare_stamp(data: bytes, base_offset: int, leader_epoch: int) -> None:
    """Compare the fields that the broker writes into a batch."""

    def stamped() -> bytes:
        made = bytearray(data)
        batch.stamp(made, base_offset, leader_epoch)
        return bytes(made)

    assert_alike(stamped)


def compare_frames(data: bytes, position: int, *, partitionlet: int, offset: int, limit: int, max_bytes: int) -> None:
    """Compare frames of a log: the check of raw ones, and batches taken from them."""
    view = memoryview(data)
    assert_alike(lambda: frames.check_frames(view, position))
    for before in (0, 1):
        found = [memoryview(b"before")] * before

        def taken(found: list[memoryview] = found) -> Any:
            batches = list(found)
            try:
                left: Any = frames.take_batches(
                    view,
                    batches,
                    partitionlet=partitionlet,
                    offset=offset,
                    limit=limit,
                    max_bytes=max_bytes,
                    source="test",
                )
            except HeadraceError as error:
                left = type(error), str(error)
            return left, batches

        assert_alike(taken)


def compare_request(data: bytes, body: int, version: int) -> None:
    """Compare a client's request: its header, and the results of Produce and Fetch for the rest."""
    view = memoryview(bytearray(data))
    assert_alike(lambda: header.read_request_header(view))
    assert_alike(lambda: produce.decode_request(view, body, version))
    assert_alike(lambda: fetch.decode_request(view, body, version))

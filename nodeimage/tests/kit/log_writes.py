"""Intervention in the writes of a log, whichever threads do them: the native ones, or those of Python.

A native thread writes without Python's lock, so a test that replaces `os.pwritev` does not affect it. `through_python`
makes the node's writer pools do their native writes by the current `os.pwritev`: queue, threads and the handling of the
outcome stay those of the native writer.
"""

import ctypes
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from headrace.container import writer_pool
from headrace.container.writer_pool import WriterPool
from headrace.native import writer

NEEDS_NATIVE: Final = pytest.mark.skipif(writer is None, reason="the native pieces are not built")
_WRITE: Final = ctypes.CFUNCTYPE(
    ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_int
)


class _Vector(ctypes.Structure):
    """struct iovec"""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


@_WRITE
def _write(fd: int, vectors: int, count: int, offset: int, flags: int) -> int:
    found = (_Vector * count).from_address(vectors)
    buffers = [(ctypes.c_char * vector.length).from_address(vector.base) for vector in found if vector.length]
    try:
        return os.pwritev(fd, [memoryview(buffer).cast("B") for buffer in buffers], offset, flags)
    except OSError as error:
        return -(error.errno or 0)


def address() -> int:
    """The address for `writer_pool.WRITE_CALL` that makes native writes use `os.pwritev`."""
    found = ctypes.cast(_write, ctypes.c_void_p).value
    assert found is not None
    return found


def through_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools created from now on do their native writes by `os.pwritev`."""
    monkeypatch.setattr(writer_pool, "WRITE_CALL", address())


class Threads(ThreadPoolExecutor):
    """The threads that use a replica's files, created on its loop: `pool` writes the logs."""

    def __init__(self, count: int = 3) -> None:
        super().__init__(count)
        self.pool = WriterPool()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait, cancel_futures=cancel_futures)
        self.pool.close()


class LogWrites:
    """The writes of frames to chunks, in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, native: bool) -> None:
        self._monkeypatch = monkeypatch
        self.native = native
        if native:
            through_python(monkeypatch)
        else:
            monkeypatch.setattr(writer_pool, "writer", None)

    def by(self, call: Callable[..., int]) -> None:
        """From now on, `call(write, path, buffers, offset, flags)` performs the writes; `write()` does the original
        one.
        """
        pwritev = os.pwritev

        def write(fd: int, buffers: Sequence[Any], offset: int, flags: int = 0) -> int:
            path = Path(os.readlink(f"/proc/self/fd/{fd}"))
            if path.suffix != ".chunk":
                return pwritev(fd, buffers, offset, flags)

            def as_it_is(*, length: int | None = None) -> int:
                some = buffers if length is None else [b"".join(buffers)[:length]]
                return pwritev(fd, some, offset, flags)

            return call(as_it_is, path, sum(map(len, buffers)), flags)

        self._monkeypatch.setattr(os, "pwritev", write)

    def after(self, call: Callable[[Path], None]) -> None:
        """From now on, each write is preceded by `call` with the chunk's path, which may block or raise."""

        def write(as_it_is: Callable[[], int], path: Path, _length: int, _flags: int) -> int:
            call(path)
            return as_it_is()

        self.by(write)


@pytest.fixture(params=[pytest.param("native", marks=NEEDS_NATIVE), "python"])
def log_writes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> LogWrites:
    """The writes of the native threads, then of those of Python."""
    return LogWrites(monkeypatch, native=request.param == "native")

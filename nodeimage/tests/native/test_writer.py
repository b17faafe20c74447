"""Threads that write without the interpreter lock, with the real kernel or with writes that a test controls."""

import ctypes
import errno
import gc
import mmap
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.log.files import OpenFile
from headrace.native import writer
from kit.log_writes import NEEDS_NATIVE

pytestmark = NEEDS_NATIVE
CALL = ctypes.CFUNCTYPE(
    ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_int
)  # fmt: skip
PWRITEV = ctypes.CDLL(None, use_errno=True).pwritev
PWRITEV.restype = ctypes.c_ssize_t
PWRITEV.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64)

Made = Callable[..., Any]


@pytest.fixture
def file(tmp_path: Path) -> OpenFile:
    return OpenFile.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)


@pytest.fixture
def made() -> Iterator[Made]:
    """Creates writers that are closed at the end."""
    writers = []

    def make(threads: int = 1, call: int = 0) -> Any:
        writers.append(writer.Writer(threads, call))
        return writers[-1]

    yield make
    for each in writers:
        each.close()


class Gated:
    """Writes that wait until the test releases them."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.let = threading.Semaphore(0)
        self.offsets: list[int] = []
        self._call = CALL(self._write)
        self.address = ctypes.cast(self._call, ctypes.c_void_p).value

    def _write(self, fd: int, vectors: int, count: int, offset: int, flags: int) -> int:
        self.offsets.append(offset)
        self.begun.release()
        assert self.let.acquire(timeout=60)
        return int(PWRITEV(fd, vectors, count, offset))


def taken(from_: Any, count: int, *, seconds: float = 60.0) -> list[tuple[Any, int, float]]:
    """The next results, in the order of their completion."""
    found: list[tuple[Any, int, float]] = []
    end = time.monotonic() + seconds
    while len(found) < count:
        ready, _, _ = select.select([from_.fileno()], [], [], end - time.monotonic())
        assert ready, f"{found} is all that came"
        found += from_.take()
    return found


def content(file: OpenFile) -> bytes:
    return os.pread(file.fd, 1 << 20, 0)


def test_pieces_lie_one_behind_the_other_and_who_waits_is_told_how_long_it_took(file: OpenFile, made: Made) -> None:
    one = made()
    one.submit(file.fd, [b"ab", bytearray(b"cd"), b"", memoryview(b"xefx")[1:3]], 3, os.RWF_DSYNC, "job")
    ((token, result, seconds),) = taken(one, 1)
    assert (token, result) == ("job", 6)
    assert 0 < seconds < 60
    assert content(file) == bytes(3) + b"abcdef"
    assert one.take() == []
    assert select.select([one.fileno()], [], [], 0)[0] == [], "it is readable only while there is something"


def test_an_error_is_told_by_its_number(file: OpenFile, made: Made) -> None:
    one = made()
    fd = os.open("/dev/full", os.O_WRONLY)
    read_only = os.open(f"/proc/self/fd/{file.fd}", os.O_RDONLY)
    for token, bad in (("closed", -1), ("full", fd), ("read only", read_only)):
        one.submit(bad, [b"x"], 0, 0, token)
    assert [outcome[:2] for outcome in taken(one, 3)] == [
        ("closed", -errno.EBADF),
        ("full", -errno.ENOSPC),
        ("read only", -errno.EBADF),
    ]
    os.close(fd)
    os.close(read_only)


FULL_TMPFS = """
import os, select, sys
from headrace.native import writer
def result(fd, size, offset):
    one.submit(fd, [bytes(size)], offset, os.RWF_DSYNC, None)
    select.select([one.fileno()], [], [])
    return one.take()[0][1]
one = writer.Writer(1)
fd = os.open(sys.argv[1] + "/file", os.O_RDWR | os.O_CREAT)
print(result(fd, 65536, 0), result(fd, 131072, 0), result(fd, 1, 131072), result(fd, 65536, 0))
"""


def test_a_disk_that_is_full_takes_what_it_has_room_for_and_then_nothing(tmp_path: Path) -> None:
    """A real file system of 96 KiB; allocated bytes can be overwritten."""
    run = [sys.executable, "-c", FULL_TMPFS, str(tmp_path)]
    alone = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    command = [*alone, 'mount -t tmpfs -o size=96k none "$0" && exec "$@"', str(tmp_path), *run]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no unshare here")
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip(f"no file system of its own: {done.stderr}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["65536", "98304", str(-errno.ENOSPC), "65536"]


FALLS_SHORT = """
import os, resource, select, signal, sys
from headrace.native import writer
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (5, 5))
one = writer.Writer(1)
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
for offset in (0, 5):
    one.submit(fd, [b"abcd", b"efgh"], offset, os.RWF_DSYNC, None)
    select.select([one.fileno()], [], [])
    print(one.take()[0][1])
"""


def test_a_write_that_falls_short_is_told_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "file"
    done = subprocess.run(
        [sys.executable, "-c", FALLS_SHORT, str(file)], capture_output=True, text=True, check=True
    )  # fmt: skip
    assert done.stdout.split() == ["5", str(-errno.EFBIG)]
    assert file.read_bytes() == b"abcde"


def test_a_write_needs_no_lock_of_the_interpreter(file: OpenFile, made: Made) -> None:
    """The main thread holds the lock all the time until the bytes are in the file."""
    os.ftruncate(file.fd, mmap.PAGESIZE)
    seen = mmap.mmap(file.fd, mmap.PAGESIZE)
    one, interval = made(), sys.getswitchinterval()
    now, end = time.monotonic, time.monotonic() + 60
    sys.setswitchinterval(1000)
    try:
        one.submit(file.fd, [b"x"], 0, os.RWF_DSYNC, None)
        while seen[0] != 120 and now() < end:
            pass
    finally:
        sys.setswitchinterval(interval)
    assert seen[0] == 120
    taken(one, 1)


def test_one_thread_writes_what_came_first_first(file: OpenFile, made: Made) -> None:
    gated = Gated()
    one = made(1, gated.address)
    for number in range(5):
        one.submit(file.fd, [b"%d" % number], number, 0, number)
    assert gated.begun.acquire(timeout=60)
    assert not gated.begun.acquire(timeout=0.05), "one at a time"
    gated.let.release(5)
    assert [token for token, _, _ in taken(one, 5)] == [0, 1, 2, 3, 4]
    assert gated.offsets == [0, 1, 2, 3, 4]
    assert content(file) == b"01234"


def test_writes_wait_only_where_all_threads_are_busy(file: OpenFile, made: Made) -> None:
    gated = Gated()
    some = made(3, gated.address)
    for number in range(4):
        some.submit(file.fd, [b"%d" % number], number, 0, number)
    for _ in range(3):
        assert gated.begun.acquire(timeout=60)
    assert not gated.begun.acquire(timeout=0.05), "three at a time"
    gated.let.release(4)
    assert {token for token, _, _ in taken(some, 4)} == {0, 1, 2, 3}
    assert content(file) == b"0123"


def test_many_writes_are_each_told_once(file: OpenFile, made: Made) -> None:
    some = made(8)
    count = 5000
    found: list[tuple[Any, int, float]] = []
    for number in range(count):
        some.submit(file.fd, [b"%04d" % number], 4 * number, 0, number)
        if number % 100 == 0:
            found += some.take()
    found += taken(some, count - len(found))
    assert sorted(token for token, _, _ in found) == list(range(count))
    assert {result for _, result, _ in found} == {4}
    assert content(file) == b"".join(b"%04d" % number for number in range(count))


def test_what_is_written_stays_as_and_where_it_is_until_then(file: OpenFile, made: Made) -> None:
    """Even if the caller drops the buffers or the file meanwhile."""
    gated = Gated()
    one = made(1, gated.address)
    grows = bytearray(b"a" * 4096)
    held = OpenFile(os.dup(file.fd))
    one.submit(held.fd, [grows, b"b" * 4096, memoryview(bytearray(b"c" * 4096))], 0, 0, held)
    del held
    gc.collect()
    others = [bytearray(b"z" * 4096) for _ in range(100)]
    with pytest.raises(BufferError):
        grows.append(1)
    gated.let.release()
    ((token, result, _),) = taken(one, 1)
    assert result == 3 * 4096
    assert content(file) == b"a" * 4096 + b"b" * 4096 + b"c" * 4096
    grows.append(1)
    assert isinstance(token, OpenFile)
    del others


def test_what_cannot_be_written_is_refused_and_nothing_is_held(file: OpenFile, made: Made) -> None:
    one = made()
    held = bytearray(b"abc")
    wrong: list[Sequence[Any]] = [[held, 1], [held] * 1025, [held, memoryview(held)[::2]]]
    for buffers in wrong:
        with pytest.raises((TypeError, ValueError, BufferError)):
            one.submit(file.fd, buffers, 0, 0, None)
    wrong.clear()
    del buffers
    held.append(1)
    assert one.take() == []
    with pytest.raises(ValueError, match="one thread or more"):
        made(0)


def test_closing_lets_what_is_queued_be_written(file: OpenFile, made: Made) -> None:
    gated = Gated()
    one = made(1, gated.address)
    held = bytearray(b"b")
    one.submit(file.fd, [b"a"], 0, 0, None)
    one.submit(file.fd, [held], 1, 0, None)
    closing = threading.Thread(target=one.close)
    closing.start()
    assert gated.begun.acquire(timeout=60)
    assert closing.is_alive()
    gated.let.release(2)
    closing.join(60)
    assert content(file) == b"ab"
    held.append(1)
    for call in (one.take, one.fileno, lambda: one.submit(file.fd, [b"c"], 0, 0, None)):
        with pytest.raises(ValueError, match="closed"):
            call()
    one.close()


def test_a_writer_that_nobody_has_any_more_writes_what_it_was_given(file: OpenFile) -> None:
    gated = Gated()
    one = writer.Writer(1, gated.address)
    one.submit(file.fd, [bytearray(b"a" * 4096)], 0, 0, None)
    one.submit(file.fd, [bytearray(b"b" * 4096)], 4096, 0, None)
    assert gated.begun.acquire(timeout=60)
    del one
    gc.collect()
    others = [bytearray(b"z" * 4096) for _ in range(100)]
    gated.let.release(2)
    end = time.monotonic() + 60
    while len(content(file)) < 8192 and time.monotonic() < end:
        time.sleep(0.001)
    assert content(file) == b"a" * 4096 + b"b" * 4096
    del others


FORKS = """
import os
from headrace.native import writer
one = writer.Writer(1)
pid = os.fork()
if pid == 0:
    del one
    os._exit(7)
one.close()
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_the_child_of_a_fork_ends_without_the_threads_that_it_does_not_have() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "7"


def test_no_thread_can_be_had_for_the_first_write(tmp_path: Path) -> None:
    """Further threads are optional, but the first one must start."""
    program = (
        "import resource\n"
        "from headrace.native import writer\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))\n"
        "held = []\n"
        "try:\n"
        "    while True:\n"
        "        held.append(writer.Writer(1))\n"
        "except OSError as error:\n"
        "    print(error.errno)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() in {str(errno.EAGAIN), str(errno.ENOMEM), str(errno.EMFILE)}, done.stderr


@pytest.mark.parametrize("pure", ["1", "0"])
def test_there_is_none_where_python_alone_is_asked_for(pure: str) -> None:
    program = "from headrace.native import writer; print(writer is None)"
    environment = {**os.environ, "HEADRACE_PURE": pure}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
    )  # fmt: skip
    assert done.stdout.strip() == str(pure == "1")

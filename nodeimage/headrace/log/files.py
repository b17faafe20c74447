"""File operations of the log: complete writes and reads, preallocation, holes, and the head of every file.

    offset  type  field
         0  8s    magic    b"HEADRACE"
         8  4s    kind     b"CHNK", b"INDX" or b"DEAD"
        12  u32   version  1
        16  u64   start    position of the chunk that the file belongs to
        24  u32   flags    of a chunk: 1 = regrouped
        28  32x            zero
        60  u32   crc      CRC-32C of bytes 0 to 60

The head's layout is the same in every version, so that an older Headrace can tell a newer format from damage.

Knows nothing of the files' contents beyond that head. An `OSError` for a full disk becomes `StorageFull`, one for want
of descriptors `OutOfDescriptors`, one for bytes that the disk can no longer read `CorruptLog`; all others propagate.
File systems notice damage to a file's own metadata (its inode) when the file is opened, looked up or removed: see
`lost_as_corrupt_log`.
"""

import ctypes
import errno
import mmap
import os
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from headrace.base.errors import CorruptLog, NewerFormat, StorageFull, SyncFailed
from headrace.log.descriptors import open_descriptor, put_off_without_descriptors

FILE_HEAD_BYTES: Final = 64
_HEAD: Final = struct.Struct("<8s4sIQI32x")
_CRC: Final = struct.Struct("<I")
MAGIC: Final = b"HEADRACE"
VERSION: Final = 1
REGROUPED: Final = 1
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_LOST: Final = frozenset({errno.EIO, errno.EUCLEAN, errno.EBADMSG})
_TOUCHED: Final = 1 << 20
_IOV_MAX: Final = os.sysconf("SC_IOV_MAX")
_SMALL_BUFFER: Final = 4096
_JOIN_BYTES: Final = 4 << 20
_ONE_CALL_BYTES: Final = 16 << 20
"""The most that is written by one system call. Linux writes at most 2 GiB per call; far below that limit, short writes
are so rare that the whole write can be repeated."""
_WRITTEN_BACK: Final = 1 << 20

_ROOM_BYTES: Final = 4096
"""Step in which files that are overwritten in place grow."""

_KEEP_SIZE: Final = 1
_PUNCH_HOLE: Final = 2
_ZERO_RANGE: Final = 16
_libc = ctypes.CDLL(None, use_errno=True)
_fallocate = _libc.fallocate
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class OpenFile:
    """A file descriptor that closes when the last reference to this object is dropped."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def open(cls, path: Path, flags: int = os.O_RDWR) -> "OpenFile":
        """Opens `path`; with O_CREAT, mode 0640. Raises `OutOfDescriptors`."""
        return cls(open_descriptor(path, flags))

    def __del__(self) -> None:
        os.close(self.fd)


class FileHead(NamedTuple):
    """The first 64 bytes of every file."""

    kind: bytes
    start: int
    flags: int = 0

    def encode(self) -> bytes:
        """64 bytes, checksum included."""
        body = _HEAD.pack(MAGIC, self.kind, VERSION, self.start, self.flags)
        return body + _CRC.pack(crc32c(body))


def read_head(fd: int, path: Path, kind: bytes) -> FileHead:
    """The head of an open file. Raises `NewerFormat` for a format version that this program does not know, `CorruptLog`
    if the file is damaged or not a file of kind `kind`.
    """
    raw = _pread(fd, FILE_HEAD_BYTES, 0)
    if len(raw) < FILE_HEAD_BYTES:
        raise CorruptLog(f"{path}: {len(raw)} bytes are too few for a file of the log. Restore it from a replica.")
    magic, found, version, start, flags = _HEAD.unpack_from(raw)
    if magic != MAGIC:
        raise CorruptLog(f"{path}, byte 0: not a file of a Headrace log. Restore it, or move it away.")
    if crc32c(raw[: FILE_HEAD_BYTES - 4]) != _CRC.unpack_from(raw, FILE_HEAD_BYTES - 4)[0]:
        raise CorruptLog(f"{path}, byte 0: the file's head is damaged. Restore it from a replica.")
    if version > VERSION:
        raise NewerFormat(
            f"{path} has format {version}, this Headrace knows up to {VERSION}. Start the newer version that wrote it."
        )
    if found != kind:
        raise CorruptLog(f"{path}, byte 8: a file of kind {found!r}, not {kind!r}. Restore it from a replica.")
    return FileHead(kind, start, flags)


@contextmanager
def full_disk_as_storage_full(what: Path) -> Iterator[None]:
    """Turns ENOSPC and EDQUOT into `StorageFull`."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StorageFull(f"no room on the disk for {what}. Writes resume when there is room.") from error
        raise


@contextmanager
def lost_as_corrupt_log() -> Iterator[None]:
    """Turns an error that says that the disk can no longer read a file into `CorruptLog`, if the call named a path.

    Only then did the file system have to look the file up. Reads of an open file raise `CorruptLog` themselves, and a
    failed write or sync is not damage (invariant 13). A disk that cannot be reached at all gives the same errors, but
    the rename that sets a damaged replica aside then fails too.
    """
    try:
        yield
    except OSError as error:
        if is_lost(error) and error.filename is not None:
            raise CorruptLog(f"{error.filename}: the disk cannot read it: {error.strerror}. Refetch this.") from error
        raise


def write_and_sync(fd: int, offset: int, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
    """Writes `buffers` as `write_all` does, and syncs them: they are on the disk on return, as after `fdatasync`.

    If one system call can take all of them, that call writes and syncs: between two calls the writer thread would wait
    for the interpreter lock, which a busy event loop releases only once per switch interval.
    """
    group = for_one_call(buffers)
    if group is not None:
        try:
            done = os.pwritev(fd, group, offset, os.RWF_DSYNC)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
        else:
            if done == sum(map(len, group)):
                return
    write_all(fd, offset, buffers)
    os.fdatasync(fd)


def for_one_call(buffers: Sequence[bytes | bytearray | memoryview]) -> Sequence[bytes | bytearray | memoryview] | None:
    """The same bytes in so few pieces that one system call can write them; None if that is not possible."""
    group = _joined(buffers)
    return group if len(group) <= _IOV_MAX and sum(map(len, group)) <= _ONE_CALL_BYTES else None


def write_all(fd: int, offset: int, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
    """Writes `buffers` contiguously from `offset` on, in groups of at most IOV_MAX. Returns the bytes written.

    Many small buffers are joined first, as one copy is cheaper than a thousand I/O vectors.
    """
    written = 0
    for at in range(0, len(buffers), _IOV_MAX):
        group = _joined(buffers[at : at + _IOV_MAX])
        size = sum(map(len, group))
        done = os.pwritev(fd, group, offset + written)
        while done < size:  # a short write: rare, so the copy does not matter
            done += os.pwrite(fd, b"".join(group)[done:], offset + written + done)
        written += size
    return written


def _joined(buffers: Sequence[bytes | bytearray | memoryview]) -> Sequence[bytes | bytearray | memoryview]:
    size = sum(map(len, buffers))
    if size <= _JOIN_BYTES and size < _SMALL_BUFFER * len(buffers):
        return (b"".join(buffers),)
    return buffers


def read_exactly(fd: int, offset: int, length: int) -> bytes:
    """`length` bytes from `offset` on; fewer only at the file's end. Raises `CorruptLog` if they are unreadable."""
    piece = _pread(fd, length, offset)
    if len(piece) == length or not piece:
        return piece
    pieces = [piece]
    have = len(piece)
    while have < length and (piece := _pread(fd, length - have, offset + have)):
        pieces.append(piece)
        have += len(piece)
    return b"".join(pieces)


def will_need(fd: int, offset: int, length: int) -> bool:
    """Asks the kernel to start reading `length` bytes from `offset` on; False: the kernel rejects such advice."""
    try:
        os.posix_fadvise(fd, offset, length, os.POSIX_FADV_WILLNEED)
    except OSError:
        return False
    return True


def mapped(fd: int, offset: int, length: int, *, what: str) -> memoryview:
    """`length` bytes from `offset` on, mapped into memory. Raises `OutOfDescriptors`.

    Call `touch` before using bytes that may be on the disk only. Before Python 3.13 a mapping holds a descriptor of its
    own.
    """
    skipped = offset % mmap.ALLOCATIONGRANULARITY
    with put_off_without_descriptors(what):
        if sys.version_info >= (3, 13):
            held = mmap.mmap(fd, length + skipped, prot=mmap.PROT_READ, offset=offset - skipped, trackfd=False)
        else:
            held = mmap.mmap(fd, length + skipped, prot=mmap.PROT_READ, offset=offset - skipped)
    return memoryview(held)[skipped:]


def touch(fd: int, offset: int, length: int) -> None:
    """Reads bytes that are about to be used in a mapped file: an unreadable byte there would kill the process.

    Raises `CorruptLog` if the disk cannot read them.
    """
    end = offset + length
    while offset < end and (piece := _pread(fd, min(end - offset, _TOUCHED), offset)):
        offset += len(piece)


def is_lost(error: OSError) -> bool:
    """Whether the error says that the disk can no longer read a file, so that a retry is useless."""
    return error.errno in _LOST


def _pread(fd: int, length: int, offset: int) -> bytes:
    try:
        return os.pread(fd, length, offset)
    except OSError as error:
        _raise_lost(fd, offset, error)
        raise


def _lseek(fd: int, offset: int, whence: int) -> int:
    try:
        return os.lseek(fd, offset, whence)
    except OSError as error:
        _raise_lost(fd, offset, error)
        raise


def _raise_lost(fd: int, offset: int, error: OSError) -> None:
    if is_lost(error):
        where = os.readlink(f"/proc/self/fd/{fd}")
        raise CorruptLog(f"{where}, byte {offset}: the disk cannot read it: {error.strerror}") from error


def sync_file(fd: int) -> None:
    """Syncs an open file.

    Raises `SyncFailed` (invariant 13), or `OSError` for want of room: the data must be written again then.
    """
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno in _FULL:
            raise
        where = os.readlink(f"/proc/self/fd/{fd}")
        raise SyncFailed(f"{where} could not be synced: {error.strerror}") from error


def write_back(path: Path) -> None:
    """[blocking] Overwrites a file with its own content and syncs it. Holes stay. Raises `SyncFailed`, `CorruptLog`.

    Needed after a failed sync, after which the page cache counts the data as clean, so that another sync does nothing.
    Nothing else may write to the file meanwhile.
    """
    file = OpenFile.open(path)
    fd, at, size = file.fd, 0, os.fstat(file.fd).st_size
    while at < size:
        try:
            at = _lseek(fd, at, os.SEEK_DATA)
            until = _lseek(fd, at, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break  # nothing but a hole up to the end
        while at < until and (piece := read_exactly(fd, at, min(_WRITTEN_BACK, until - at))):
            try:
                write_all(fd, at, [piece])
            except OSError as error:
                raise SyncFailed(f"{path} could not be written again: {error.strerror}") from error
            at += len(piece)
    sync_file(fd)


@contextmanager
def synced_folder(folder: Path) -> Iterator[None]:
    """Makes names that are created, renamed or removed in `folder` within this context durable at its end.

    Opens the folder first, so that it raises `OutOfDescriptors` before anything has been done.
    """
    opened = OpenFile.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    yield
    os.fsync(opened.fd)


def sync_folder(folder: Path) -> None:
    """Makes names that were created, renamed or removed in `folder` durable. Raises `OutOfDescriptors`, and must be
    called again then; callers that do not retry use `synced_folder`."""
    with synced_folder(folder):
        pass


def replace_file(path: Path, content: Sequence[bytes | memoryview]) -> None:
    """Replaces the content of `path` atomically, also if the process crashes. Raises `StorageFull`; nothing has changed
    then."""
    temporary = path.with_name(path.name + ".tmp")
    with synced_folder(path.parent):
        with full_disk_as_storage_full(path):
            file = OpenFile.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            try:
                write_all(file.fd, 0, content)
                os.fsync(file.fd)
            except OSError:
                temporary.unlink()
                raise
        temporary.rename(path)


def rewrite_file(path: Path, content: bytes) -> None:
    """As `replace_file`, for a small file that must be written even if the disk is full: two files take turns, and the
    one with the content before the last, whose name is `path` with the suffix `.room`, is overwritten.

    `content` is padded with blanks. Raises `StorageFull` if the content needs more room than ever before and the disk
    has none; nothing has changed then.
    """
    room = path.with_name(path.name + ".room")
    former = path.with_name(path.name + ".tmp")
    with synced_folder(path.parent):
        _write_over(room, content)
        former.unlink(missing_ok=True)
        known = path.exists()
        if known:
            os.link(path, former)
        room.rename(path)
        if known:
            former.rename(room)
        else:
            try:
                _write_over(room, b"")
            except StorageFull:
                pass  # then the next call needs room


def _write_over(room: Path, content: bytes) -> None:
    if room.exists() and room.stat().st_nlink > 1:
        room.unlink()  # after a crash both names may lead to the current file; and a backup may consist of hard links
    with full_disk_as_storage_full(room):
        file = OpenFile.open(room, os.O_RDWR | os.O_CREAT)
        had = os.fstat(file.fd).st_size
        try:
            size = max(had, -(-len(content) // _ROOM_BYTES) * _ROOM_BYTES, _ROOM_BYTES)
            write_all(file.fd, 0, [content.ljust(size)])
            os.fsync(file.fd)
        except OSError:
            if not had:
                room.unlink()
            raise


def zero_range(fd: int, start: int, end: int) -> None:
    """Makes bytes `start` to `end` read as zeros; their blocks stay allocated if the filesystem supports that."""
    if end <= start:
        return
    if _fallocate(fd, _ZERO_RANGE | _KEEP_SIZE, start, end - start) == 0:
        return
    at = start
    while at < end:  # the filesystem has no ZERO_RANGE (tmpfs, overlay): write zeros over all written data
        try:
            data = _lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        hole = min(_lseek(fd, data, os.SEEK_HOLE), end)
        for piece in range(data, hole, _JOIN_BYTES):
            write_all(fd, piece, [bytes(min(_JOIN_BYTES, hole - piece))])
        at = max(hole, data + 1)


def punch_hole(fd: int, start: int, end: int) -> bool:
    """Returns the blocks wholly within `start` to `end` to the filesystem. False: the filesystem has no holes.

    Raises `StorageFull`, since a more fragmented file may itself need room.
    """
    if _fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, start, end - start) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EOPNOTSUPP, errno.ENOSYS):
        return False
    with full_disk_as_storage_full(Path(os.readlink(f"/proc/self/fd/{fd}"))):
        raise OSError(code, os.strerror(code))


@contextmanager
def keeps_write_time(fd: int) -> Iterator[None]:
    """While in it, changes of a file leave its modification time as it was: records without a timestamp are as old as
    their file."""
    before = os.fstat(fd)
    try:
        yield
    finally:
        set_write_time(fd, before)


def set_write_time(fd: int, times: os.stat_result) -> None:
    """Sets a file's times to those of another, unless the file belongs to another user."""
    with suppress(PermissionError):
        os.utime(fd, ns=(times.st_atime_ns, times.st_mtime_ns))

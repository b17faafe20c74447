"""Threads that write to files without the interpreter's lock (_writer.c)."""

from collections.abc import Sequence
from typing import Generic, TypeVar

Token = TypeVar("Token")

class Writer(Generic[Token]):
    """A queue of writes, first come, first served, and the threads that do them. For one thread of Python at a time."""

    def __init__(self, threads: int, call: int = 0) -> None:
        """At most so many `threads`; the first starts now, others when writes would wait. `call`: the address of what
        stands in for pwritev2: `ssize_t (int, const struct iovec *, int, int64_t, int)`, below 0 an errno.

        Raises OSError where there is no descriptor or no thread left.
        """

    def fileno(self) -> int:
        """Readable while `take` has something."""

    def submit(
        self, fd: int, buffers: Sequence[bytes | bytearray | memoryview], offset: int, flags: int, token: Token, /
    ) -> None:
        """Write `buffers`, 1,024 at most, one behind the other at `offset`, by one call; `flags` as pwritev2 has them.

        Until it is taken, buffers and token are held: so keep alive by the token what keeps `fd` open. Raises
        ValueError, BufferError, MemoryError; then nothing is written.
        """

    def take(self) -> list[tuple[Token, int, float]]:
        """What is done, without waiting: the token, the bytes written or an errno below 0, and the seconds that it
        took."""

    def close(self) -> None:
        """[blocking] Do what is queued, then end the threads. What is not taken by then is not told of."""

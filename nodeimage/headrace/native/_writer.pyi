"""Threads that write to files without the interpreter lock (_writer.c)."""

from collections.abc import Sequence
from typing import Generic, TypeVar

Token = TypeVar("Token")

class Writer(Generic[Token]):
    """A FIFO queue of writes, and the threads that carry them out. For one Python thread at a time."""

    def __init__(self, threads: int, call: int = 0) -> None:
        """`threads`: the most threads; the first starts now, others start when writes would wait. `call`: the address
        of a replacement for pwritev2: `ssize_t (int, const struct iovec *, int, int64_t, int)`, which returns a
        negative errno on failure.

        Raises OSError if no descriptor or no thread is available.
        """

    def fileno(self) -> int:
        """A descriptor that is readable while `take` has results."""

    def submit(
        self, fd: int, buffers: Sequence[bytes | bytearray | memoryview], offset: int, flags: int, token: Token, /
    ) -> None:
        """Queues one call that writes `buffers`, at most 1,024, contiguously at `offset`; `flags` as for pwritev2.

        Buffers and token are referenced until `take` returns the result, so let `token` keep `fd` open. Raises
        ValueError, BufferError, MemoryError, and writes nothing then.
        """

    def take(self) -> list[tuple[Token, int, float]]:
        """The results of completed writes, without waiting: the token, the number of bytes written or a negative errno,
        and the duration in seconds."""

    def close(self) -> None:
        """[blocking] Completes all queued writes, then ends the threads. Discards results that were not taken."""

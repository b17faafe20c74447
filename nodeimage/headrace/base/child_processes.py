"""Child processes of a running node: a thread per child starts it, reads its output and waits for its end.

asyncio would start a process on the loop's thread, and uvloop forks to do so: the kernel copies the page tables, which
blocks the loop for some 50 ms if the node has much memory mapped. `subprocess` uses vfork (on Linux), which copies
none. The thread lives as long as the child, since a child that asks the kernel to end it with its parent
(log/parent_death.py) ends with the thread that started it.

1. When `run` returns or raises, the child is gone and reaped. Only a second cancellation does not wait for that; the
   child is killed and reaped nevertheless.
2. Output beyond the limit is read and discarded: it takes no memory, and does not block the child.
"""

import asyncio
import contextlib
import errno
import os
import subprocess
import threading
from collections.abc import Sequence
from typing import IO, Final, NamedTuple

from headrace.base.errors import OutOfDescriptors

_PIECE_BYTES: Final = 1 << 16
_PUT_OFF: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})
"""Errors that say that no descriptor, memory or process is left for another child."""


class Ended(NamedTuple):
    """The result of a child process."""

    status: int
    """The exit status; -n: signal n ended the child."""
    output: bytes
    """The standard output of the child, up to the limit."""
    is_cut: bool
    """Whether the child wrote more than the limit."""


class ChildProcess:
    """One child process, from before its start until it is gone. For the loop's thread only."""

    def __init__(self, command: Sequence[str], *, output_limit: int = 0) -> None:
        """`output_limit`: the most bytes of standard output that are kept. 0: the child inherits standard output."""
        self._command = tuple(command)
        self._output_limit = output_limit
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_killed = False
        self._gone: asyncio.Future[Ended] | None = None

    async def run(self) -> Ended:
        """Starts the child and waits until it has ended. A cancellation kills the child. Call it only once.

        Raises OSError if the child cannot be started, and `OutOfDescriptors` if it cannot be started for now.
        """
        loop = asyncio.get_running_loop()
        gone: asyncio.Future[Ended] = loop.create_future()
        thread = threading.Thread(target=self._work, args=(loop, gone), name="child", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise self._put_off(str(error)) from error
        self._gone = gone
        try:
            return await asyncio.shield(gone)
        except asyncio.CancelledError:
            await self.stop()
            raise

    def kill(self) -> None:
        """Kills the child, now or as soon as it starts."""
        with self._lock:
            self._is_killed = True
            if self._process is not None:
                self._process.kill()

    async def stop(self) -> None:
        """Kills the child, and returns when it is gone."""
        self.kill()
        if self._gone is not None:
            await asyncio.wait([self._gone])

    # --- in the thread

    def _work(self, loop: asyncio.AbstractEventLoop, gone: asyncio.Future[Ended]) -> None:
        ended: Ended | BaseException
        try:
            ended = self._run()
        except BaseException as error:
            ended = error
        with contextlib.suppress(RuntimeError):  # the loop is closed, so nothing waits any longer
            loop.call_soon_threadsafe(_resolve, gone, ended)

    def _run(self) -> Ended:
        """[blocking]"""
        try:
            process = subprocess.Popen(self._command, stdout=subprocess.PIPE if self._output_limit else None)
        except OSError as error:
            if error.errno in _PUT_OFF:
                raise self._put_off(os.strerror(error.errno)) from error
            raise OSError(error.errno, f"cannot be started: {error.strerror}", self._command[0]) from error
        with process:
            try:
                with self._lock:
                    self._process = process
                    if self._is_killed:
                        process.kill()
                output, is_cut = _read(process.stdout, self._output_limit)
            except BaseException:
                process.kill()
                raise
        return Ended(process.returncode, output, is_cut)

    def _put_off(self, reason: str) -> OutOfDescriptors:
        return OutOfDescriptors(f"{self._command[0]} cannot be started for now: {reason}. It is tried again later.")


def _read(pipe: IO[bytes] | None, limit: int) -> tuple[bytes, bool]:
    """[blocking] Reads a pipe to its end; returns the bytes up to the limit, and whether there were more."""
    kept = bytearray()
    is_cut = False
    while pipe is not None and (piece := pipe.read(_PIECE_BYTES)):
        room = limit - len(kept)
        is_cut = is_cut or len(piece) > room
        kept += piece[:room]
    return bytes(kept), is_cut


def _resolve(gone: asyncio.Future[Ended], ended: Ended | BaseException) -> None:
    if isinstance(ended, BaseException):
        gone.set_exception(ended)
        gone.exception()  # marks it as retrieved, as nothing may be waiting for it
    else:
        gone.set_result(ended)

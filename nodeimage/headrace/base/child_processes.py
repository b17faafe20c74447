"""Child processes of a running node: each is started, read and waited for by a thread of its own.

asyncio starts a process on the loop's thread, and uvloop forks for it: the kernel copies the page tables, at some 50 ms
where a node has much memory mapped, in which the loop stands still. `subprocess` uses vfork (on Linux), which copies
none. The thread stays as long as the child: one that asks the kernel to end it with its parent (`log/parent.py`) ends
with the thread that started it.

1. When `run` is over, however it ends, the child is gone, and no zombie is left of it. Only who cancels it twice does
   not wait for that; the child is killed and reaped all the same.
2. What a child writes beyond the limit is read and dropped: it costs no more memory, and keeps no child waiting.
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
"""No descriptor, no memory, or no process is left for another child."""


class Ended(NamedTuple):
    """How a child ended."""

    status: int
    """Its exit status; -n: signal n ended it."""
    output: bytes
    """What it wrote to its standard output, up to the limit."""
    is_cut: bool
    """It wrote more than that."""


class ChildProcess:
    """One child, from before it starts until it is gone. Used on the loop's thread."""

    def __init__(self, command: Sequence[str], *, output_limit: int = 0) -> None:
        """`output_limit`: bytes of its standard output that are kept. 0: it has this process's own."""
        self._command = tuple(command)
        self._output_limit = output_limit
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_killed = False
        self._gone: asyncio.Future[Ended] | None = None

    async def run(self) -> Ended:
        """Start it, once, and wait until it has ended; when this is cancelled, or times out, it is killed.

        Raises OSError where it cannot be started, and `OutOfDescriptors` where it cannot for now.
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
        """End it, now or as soon as it starts."""
        with self._lock:
            self._is_killed = True
            if self._process is not None:
                self._process.kill()

    async def stop(self) -> None:
        """End it, and return when it is gone."""
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
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_tell, gone, ended)

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
    """[blocking] All that is written to a pipe, up to the limit, and whether there was more."""
    kept = bytearray()
    is_cut = False
    while pipe is not None and (piece := pipe.read(_PIECE_BYTES)):
        room = limit - len(kept)
        is_cut = is_cut or len(piece) > room
        kept += piece[:room]
    return bytes(kept), is_cut


def _tell(gone: asyncio.Future[Ended], ended: Ended | BaseException) -> None:
    if isinstance(ended, BaseException):
        gone.set_exception(ended)
        gone.exception()  # there may be nobody left who waits
    else:
        gone.set_result(ended)

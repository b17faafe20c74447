"""A command in a separate terminal (a pseudo-terminal), and what it has drawn there."""

import fcntl
import os
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from kit.patience import PATIENCE

LIMIT_S: Final = 30.0 * PATIENCE
_CONTROLS: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """The user's side of the terminal."""

    def __init__(self, process: "subprocess.Popen[bytes]", master: int) -> None:
        self.process = process
        self._master = master
        self.written = ""
        """Everything received, including escapes."""

    @property
    def shown(self) -> str:
        """The last frame that was drawn completely, without escapes; "": none was."""
        frames = re.findall(r"\x1b\[H((?:(?!\x1b\[H).)*?)\x1b\[J", self.written, re.DOTALL)
        return _CONTROLS.sub("", frames[-1]).replace("\r\n", "\n") if frames else ""

    @property
    def frames(self) -> int:
        """The number of frames drawn."""
        return self.written.count("\x1b[J")

    def until(self, condition: Callable[["Terminal"], object]) -> None:
        """Read on until the condition holds."""
        deadline = time.monotonic() + LIMIT_S
        while not condition(self):
            assert time.monotonic() < deadline, self.written
            assert self._read(0.2), self.written

    def type(self, keys: str) -> None:
        """Type keys."""
        os.write(self._master, keys.encode())

    def resize(self, rows: int, columns: int) -> None:
        """Resize the terminal."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def ended(self) -> int:
        """Read to the end; returns the exit code."""
        deadline = time.monotonic() + LIMIT_S
        while self._read(0.2):
            assert time.monotonic() < deadline, self.written
        return self.process.wait(LIMIT_S)

    def _read(self, seconds: float) -> bool:
        """Read the available output; returns whether there may be more."""
        if not select.select([self._master], [], [], seconds)[0]:
            return True
        try:
            came = os.read(self._master, 1 << 16)
        except OSError:  # Linux, if the other side is closed
            return False
        self.written += came.decode("utf-8", "replace")
        return bool(came)


@contextmanager
def in_terminal(
    command: Sequence[str], environment: Mapping[str, str], *, rows: int = 40, columns: int = 120
) -> Iterator[Terminal]:
    """Start a command in a terminal. If it still runs afterwards, it is killed."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    told = {name: value for name, value in environment.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        command,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**told, "TERM": "xterm-256color"},
        start_new_session=True,
        preexec_fn=_take_terminal,
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        process.kill()
        process.wait()
        os.close(master)


def _take_terminal() -> None:
    """In the child: make the terminal send it Ctrl-C as a signal."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)

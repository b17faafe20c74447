"""Shows something repeatedly: on a terminal in the same place, elsewhere one after the other.

A frame is written in one piece over the former one, without clearing the screen first, so nothing flickers. It never
scrolls: lines that do not fit are left out, and wide lines continue in the next line.
"""

import contextlib
import io
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from headrace.base.errors import HeadraceError
from headrace.cli.output import flush, is_terminal, note, print_line, write
from headrace.cli.signals import Interrupts
from headrace.cli.text import printable
from headrace.kafka_client.errors import SourceRefuses

T = TypeVar("T")

HOME: Final = "\x1b[H"
END_OF_LINE: Final = "\x1b[K"
BELOW: Final = "\x1b[J"
CLEAR: Final = "\x1b[2J"
HIDE_CURSOR: Final = "\x1b[?25l"
SHOW_CURSOR: Final = "\x1b[?25h"
_STYLES: Final = re.compile(r"\x1b\[[0-9;]*m")


class Screen(io.StringIO):
    """Receives printed text like a terminal: tables are as wide as the terminal, and styled."""

    def isatty(self) -> bool:
        """Always true."""
        return True


def is_live(stream: object) -> bool:
    """Whether a stream is a terminal that can be drawn over."""
    return is_terminal(stream) and os.environ.get("TERM", "") not in ("", "dumb")  # type: ignore[arg-type]


def frame(text: str, *, width: int, height: int) -> str:
    """The output that draws a text over the terminal's contents. Pure."""
    lines = [part for line in text.splitlines() for part in folded(line, width)]
    if len(lines) > height:
        left = len(lines) - height + 1
        lines = [*lines[: height - 1], f"... {left} more line{'' if left == 1 else 's'}"]
    return HOME + "\r\n".join(f"{line}{END_OF_LINE}" for line in lines) + BELOW


def folded(line: str, width: int) -> list[str]:
    """A line as one or more lines that fit. A line with styles is part of a table, which fits already. Pure."""
    from rich.cells import cell_len, chop_cells

    if _STYLES.search(line) or cell_len(line) <= width:
        return [line]
    return chop_cells(line, width)


def captured(draw: Callable[[], None]) -> str:
    """The text that `draw` prints, as for a terminal."""
    screen = Screen()
    with contextlib.redirect_stdout(screen):
        draw()
    return screen.getvalue()


@contextlib.contextmanager
def drawn_over(begin: str = CLEAR + HIDE_CURSOR, end: str = SHOW_CURSOR) -> Iterator[None]:
    """Prepare a terminal for drawing frames, and restore it however that ends."""
    write([begin.encode()])
    try:
        yield
    finally:
        with contextlib.suppress(HeadraceError):
            write([end.encode()])


def put(text: str) -> None:
    """Draw one frame."""
    width, height = shutil.get_terminal_size()
    write([frame(text, width=width, height=height).encode("utf-8", "backslashreplace")])


def watch(gather: Callable[[], T], draw: Callable[[T], None], *, interval_s: float, in_place: bool = True) -> None:
    """Draw what is gathered, every `interval_s`, until an interrupt, which is raised (KeyboardInterrupt).

    `in_place`: draw over the former frame on a terminal; otherwise one after the other, as for JSON documents.

    Raises errors of the first gathering; later failures are shown, since the cluster may be silent for a while.
    """
    live = in_place and is_live(sys.stdout)
    with Interrupts().caught(), drawn_over() if live else contextlib.nullcontext():
        last: T | None = None
        while True:
            began = time.monotonic()
            failure = ""
            try:
                last = gather()
            except SourceRefuses:
                raise
            except HeadraceError as error:
                if last is None:
                    raise
                failure = str(error)
            _show(last, draw, failure, live=live, apart=in_place)
            time.sleep(max(0.0, began + interval_s - time.monotonic()))


def _show(last: T, draw: Callable[[T], None], failure: str, *, live: bool, apart: bool) -> None:
    text = (
        f"no answer at {time.strftime('%H:%M:%S')}, so what is shown is older: {printable(failure)}" if failure else ""
    )
    if live:
        put((f"{text}\n\n" if text else "") + captured(lambda: draw(last)))
    elif text:
        note(text)
    else:
        draw(last)
        if apart:
            print_line()
        flush()

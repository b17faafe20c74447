"""Prints commands' output: results on stdout as a table or as JSON, everything else on stderr.

stdout carries nothing but the result, so that it can be piped; rich is imported only to draw a table. Control
characters in names and messages are escaped, so that they cannot steer the terminal. A result that cannot be written
ends the command; a failed message on stderr does not, since the work under way matters more.
"""

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import IO, Any

import msgspec

from headrace.base.errors import HeadraceError
from headrace.cli.text import exact, for_json, printable

WIDE = 1_000
"""Least width of a table's row, in characters, without a terminal: whole lines suit grep."""


class OutputFormat(StrEnum):
    """How a result is printed."""

    TABLE = "table"
    JSON = "json"


class OutputFailed(HeadraceError):
    """The result cannot be written. This says nothing about the cluster."""


class ReaderGone(OutputFailed):
    """The reader of the result has gone, which needs no message."""


def note(message: str) -> None:
    """Print one line for the reader on stderr. Never fails: a closed terminal, or a full disk, must not end the
    work."""
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr is not None:  # with None, print would use stdout
            print(printable(message), file=sys.stderr, flush=True)


def print_line(line: str = "") -> None:
    """Print one line of the result."""
    with _told_of_failure():
        sys.stdout.write(printable(line) + "\n")


def write(content: Iterable[bytes]) -> None:
    """Write a part of the result as these exact bytes, and flush."""
    with _told_of_failure():
        sys.stdout.buffer.writelines(content)
        sys.stdout.buffer.flush()


def flush() -> None:
    """Flush stdout: the whole result is written when this returns."""
    with _told_of_failure():
        if sys.stdout is not None:
            sys.stdout.flush()


def print_json(result: Any) -> None:
    """Print one JSON document in one line. Text that is not UTF-8 has its bytes beside it, as `<name>_base64`."""
    with _told_of_failure():
        sys.stdout.write(json_text(result) + "\n")
        sys.stdout.flush()


def json_text(result: Any) -> str:
    """The result as one JSON document."""
    try:
        text = msgspec.json.encode(result).decode()
    except UnicodeEncodeError:
        text = msgspec.json.encode(exact(result)).decode()
    return for_json(text)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None, right: Iterable[str] = ()
) -> None:
    """Print a table; columns named in `right` are aligned to the right. None is shown as `-`.

    A terminal folds rows that are too wide; elsewhere each row is one line, whatever the environment says about
    colours.
    """
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table

    aligned = set(right)
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(printable(column), justify="right" if column in aligned else "left", overflow="fold")
    for row in rows:
        table.add_row(*("-" if cell is None else printable(str(cell)) for cell in row))
    console = Console(markup=False, highlight=False)
    if not is_terminal(sys.stdout):
        endless = console.options.update(width=1 << 30, max_width=1 << 30)
        needed = Measurement.get(console, endless, table).maximum
        console = Console(markup=False, highlight=False, width=max(WIDE, needed))
    with _told_of_failure():
        console.print(table)


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print the properties of one thing, one per line."""
    rows = [(printable(name), str(value)) for name, value in fields]
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        print_line(f"{name:<{width}}  {value}")


def is_terminal(stream: IO[Any] | None) -> bool:
    """Whether the stream is a terminal. A closed stream is not."""
    with contextlib.suppress(OSError, ValueError):
        return stream is not None and stream.isatty()
    return False


@contextlib.contextmanager
def _told_of_failure() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise ReaderGone("the reader of the output is gone") from error
    except OSError as error:
        raise OutputFailed(f"the output cannot be written: {error.strerror or error}") from error


def own_standard_streams() -> None:
    """Make stdin, stdout and stderr reliable for a command: open, and UTF-8.

    A stream that was closed, as daemons do, becomes /dev/null. Otherwise the next file or socket that is opened would
    get its number, and output meant for a reader would be written into it.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]


def let_go() -> None:
    """Discard output that could not be written, so that the interpreter does not retry at its end, and complain."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            stream.flush()
        except (OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)
            os.close(nowhere)

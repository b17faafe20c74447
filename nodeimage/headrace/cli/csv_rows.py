"""Reads CSV as it occurs in practice: nobody says which separator, which encoding, and whether the first line is a
header.

The first 64 KiB decide for the whole file: the encoding (by its byte order mark, otherwise UTF-8), the separator
(comma, semicolon, tab, bar: the one that gives rows times, equal widths, and most columns), whether columns have names,
and which columns have numbers with a decimal comma. Quotes are CSV's own, doubled inside; an apostrophe is a letter,
unless it quotes all cells of the first line. Nothing is read twice, so that a pipe works too.
"""

import codecs
import csv
import io
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from headrace.cli.cells import BadReadings, is_number, looks_like_time

HEAD_BYTES: Final = 1 << 16
"""Bytes from which the layout is derived."""
HEAD_ROWS: Final = 50
LARGEST_CELL: Final = 16 << 20
SEPARATORS: Final = ",;\t|"
UTF8: Final = "utf-8-sig"
"""UTF-8 with or without its byte order mark."""
MARKS: Final = (
    (codecs.BOM_UTF8, UTF8),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""Byte order marks and their encodings, longer marks first."""

_SEPARATOR_LINE = re.compile(r"sep=(.)\r?\n", re.IGNORECASE)
"""Matches a first line `sep=X`, which names the separator to spreadsheets."""
_COMMA = re.compile(r"[+-]?(?:[0-9]{1,3}(?:\.[0-9]{3})+|[0-9]+),[0-9]+")
_THOUSANDS = re.compile(r"[+-]?[0-9]{1,3}(?:[.,][0-9]{3})+")
_WHOLE = re.compile(r"[+-]?[0-9]+")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The layout of a file."""

    encoding: str
    dialect: type[csv.Dialect]
    skipped: int
    """Characters before the first row."""
    names: tuple[str, ...]
    """The columns' names; numbers if the first line names none."""
    has_header: bool
    unnamed: frozenset[str]
    """Columns that the header leaves without a name."""
    with_comma: frozenset[int]
    """Columns whose numbers have a decimal comma."""

    @property
    def twice(self) -> frozenset[str]:
        """Names that several columns have."""
        return frozenset(name for name in self.names if self.names.count(name) > 1)


class CsvRows:
    """The rows of a CSV file that is open for reading bytes, from its start. Iterate once.

    A row that is not as wide as the header is yielded as BadReadings. A file that cannot be read at all raises it.
    """

    def __init__(
        self, file: BinaryIO, *, name: str, encoding: str | None = None, time_format: str | None = None
    ) -> None:
        self._name = name
        head = file.read(HEAD_BYTES)
        self.layout = _layout(head, name=name, encoding=encoding, time_format=time_format) if head.strip() else None
        """The file's layout; None: the file is empty."""
        self._file = io.BufferedReader(_Joined(head, file))

    def __iter__(self) -> Iterator[Row | BadReadings]:
        layout, line = self.layout, 0
        if layout is None:
            return
        width, names = len(layout.names), layout.names
        first = {name: names.index(name) for name in names}
        csv.field_size_limit(LARGEST_CELL)
        try:
            text = io.TextIOWrapper(self._file, encoding=layout.encoding, newline="")
            text.read(layout.skipped)
            for number, (line, row) in enumerate(_rows(_Lines(text), layout.dialect)):
                if row is None:
                    yield BadReadings(f"{self._name}, line {line}: a quote that begins there is never closed")
                    continue
                if number == 0 and layout.has_header:
                    continue
                if len(row) > width and not any(cell.strip() for cell in row[width:]):
                    del row[width:]
                if len(row) != width:
                    yield BadReadings(f"{self._name}, line {line}: {len(row)} cells where the header has {width}")
                    continue
                for column in layout.with_comma:
                    row[column] = _with_point(row[column])
                yield {name: row[at] for name, at in first.items()}
        except UnicodeError as error:
            raise _not_text(self._name, layout.encoding, f"after line {line}: {error}") from error
        except csv.Error as error:
            raise BadReadings(f"{self._name} is not CSV, after line {line}: {error}") from error
        except OSError as error:
            raise BadReadings(f"{self._name} cannot be read: {error.strerror or error}") from error


class _Joined(io.RawIOBase):
    """A stream of the bytes that were already read, followed by the rest."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self._head = memoryview(head)
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, room: Any) -> int:
        part = self._head[: len(room)] or memoryview(self._rest.read(len(room)))
        self._head = self._head[len(part) :]
        room[: len(part)] = part
        return len(part)


class _Lines:
    """Lines of text. Keeps the lines of the current row: if its quote is never closed, they are rows of their own."""

    def __init__(self, text: Iterator[str]) -> None:
        self.number = 0
        """Number of the line that was read last; 0: none yet."""
        self.has_ended = False
        self._text = text
        self._again: list[str] = []
        """Lines to read again before the rest, the next one last."""
        self._of_row: list[str] = []

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        line = self._again.pop() if self._again else next(self._text, None)
        if line is None:
            self.has_ended = True
            raise StopIteration
        self.number += 1
        self._of_row.append(line)
        return line

    def row_ends(self) -> None:
        """Note that the next line begins another row."""
        self._of_row.clear()

    def go_back(self) -> None:
        """Go back to just after the first line of the row."""
        again = self._of_row[:0:-1]
        self.number -= len(again)
        self._again += again
        self.has_ended = False


def _rows(lines: _Lines, dialect: type[csv.Dialect]) -> Iterator[tuple[int, list[str] | None]]:
    """Rows that are not blank, with the number of their last line; None for a line with a quote that is never closed,
    which makes `csv` return all that follows as one cell."""
    rows = csv.reader(lines, dialect)
    while (row := next(rows, None)) is not None:
        if lines.has_ended:  # the parser looked for a closing quote up to the end
            lines.go_back()
            rows = csv.reader(lines, dialect)
            yield lines.number, None
        elif any(cell.strip() for cell in row):
            yield lines.number, row
        lines.row_ends()


def _not_text(name: str, encoding: str, what: str) -> BadReadings:
    shown = "UTF-8" if encoding.startswith("utf-8") else encoding
    return BadReadings(f"{name} is not CSV in {shown}, {what}: name its --encoding, for example cp1252")


def _not_blank(rows: Iterator[list[str]]) -> Iterator[list[str]]:
    """The rows without empty lines, and without lines of separators only."""
    return (row for row in rows if any(cell.strip() for cell in row))


def _layout(head: bytes, *, name: str, encoding: str | None, time_format: str | None) -> Layout | None:
    encoding = _encoding(head, encoding)
    try:
        # The last character may be cut off.
        text = codecs.getincrementaldecoder(encoding)().decode(head)
    except UnicodeError as error:
        raise _not_text(name, encoding, f"near its start: {error}") from error
    separator_line = _SEPARATOR_LINE.match(text)
    text = text[separator_line.end() :] if separator_line else text
    whole = len(head) < HEAD_BYTES
    found: tuple[tuple[bool, float, int], type[csv.Dialect], list[list[str]]] | None = None
    for separator in separator_line[1] if separator_line else SEPARATORS:
        dialect = _dialect(text, separator)
        rows = _head_rows(text, dialect, whole=whole)
        if not rows:
            return None
        score = _score(rows, time_format)
        if found is None or score > found[0]:
            found = score, dialect, rows
    assert found is not None
    _, dialect, rows = found
    has_header = not _is_reading(rows[0], rows[1:], time_format)
    numbered = [str(number) for number in range(1, len(rows[0]) + 1)]
    names = [name.strip().removeprefix("\ufeff") for name in rows[0]] if has_header else numbered
    unnamed = {f"column {number}" for number, name in zip(numbered, names, strict=True) if not name}
    return Layout(
        encoding=encoding,
        dialect=dialect,
        skipped=separator_line.end() if separator_line else 0,
        names=tuple(name or f"column {number}" for number, name in zip(numbered, names, strict=True)),
        has_header=has_header,
        unnamed=frozenset(unnamed),
        with_comma=frozenset() if dialect.delimiter == "," else _with_comma(rows[has_header:], len(names)),
    )


def _encoding(head: bytes, asked: str | None) -> str:
    """The requested encoding, otherwise the one that the file's mark names. Raises BadReadings for an unknown one."""
    if asked is None:
        return next((found for mark, found in MARKS if head.startswith(mark)), UTF8)
    try:
        io.TextIOWrapper(io.BytesIO(), encoding=asked)
    except LookupError as error:
        raise BadReadings(f"there is no encoding {asked!r}: write for example utf-16 or cp1252") from error
    return UTF8 if codecs.lookup(asked).name == "utf-8" else asked


def _dialect(text: str, separator: str) -> type[csv.Dialect]:
    line = text.lstrip("\r\n").partition("\n")[0].strip()
    cells = [cell.strip() for cell in line.split(separator)]

    class Found(csv.excel):
        delimiter = separator
        quotechar = "'" if all(len(cell) > 1 and cell[0] == cell[-1] == "'" for cell in cells) else '"'
        skipinitialspace = separator != " " and line.count(separator) == line.count(f"{separator} ") > 0

    return Found


def _head_rows(text: str, dialect: type[csv.Dialect], *, whole: bool) -> list[list[str]]:
    """The first rows, without a last one that may be incomplete."""
    try:
        rows = list(itertools.islice(_not_blank(csv.reader(io.StringIO(text, newline=""), dialect)), HEAD_ROWS))
    except csv.Error:  # reported when the file is read
        return [[""]]
    return rows[:-1] if not whole and 1 < len(rows) < HEAD_ROWS else rows


def _score(rows: Sequence[Sequence[str]], time_format: str | None) -> tuple[bool, float, int]:
    """How well a separator splits rows: whether a column has times, the share of rows as wide as the first, and that
    width."""
    first, *rest = rows
    alike = [row for row in rest if len(row) == len(first)]
    if len(first) < 2:
        return False, 0.0, 1
    has_times = any(all(looks_like_time(row[at], time_format) for row in alike) for at in range(len(first)) if alike)
    return has_times, len(alike) / len(rest) if rest else 1.0, len(first)


def _is_reading(first: Sequence[str], rest: Sequence[Sequence[str]], time_format: str | None) -> bool:
    """Whether the first line is a reading, not a header: it has a time where the others have theirs, or only
    numbers."""
    alike = [row for row in rest if len(row) == len(first)]
    cells = [cell for cell in first if cell.strip()]
    if cells and all(is_number(cell) for cell in cells):
        return True
    return any(
        looks_like_time(cell, time_format) and all(looks_like_time(row[at], time_format) for row in alike)
        for at, cell in enumerate(first)
    )


def _with_comma(rows: Sequence[Sequence[str]], width: int) -> frozenset[int]:
    """Columns of numbers of which some certainly have a decimal comma; `1,234` may be a thousand."""
    found = set()
    for at in range(width):
        cells = [row[at].strip() for row in rows if len(row) == width and row[at].strip()]
        numbers = all(_COMMA.fullmatch(cell) or _WHOLE.fullmatch(cell) or _THOUSANDS.fullmatch(cell) for cell in cells)
        if numbers and any(_COMMA.fullmatch(cell) and not _THOUSANDS.fullmatch(cell) for cell in cells):
            found.add(at)
    return frozenset(found)


def _with_point(cell: str) -> str:
    text = cell.strip()
    if _COMMA.fullmatch(text) or _THOUSANDS.fullmatch(text):
        return text.replace(".", "").replace(",", ".")
    return cell

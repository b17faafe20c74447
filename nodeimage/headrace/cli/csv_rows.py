"""Rows of CSV as people have it: nobody says which separator, which encoding, and whether the first line is a header.

What is found out in the first 64 KiB holds for the whole file: the encoding (by its mark, else UTF-8), the separator
(comma, semicolon, tab, bar: the one by which rows have times, are alike, and are wide), whether columns have names, and
which columns have numbers with a decimal comma. Quotes are CSV's own, doubled within; an apostrophe is a letter, unless
all cells of the first line stand in such. Nothing is read twice, so that a pipe will do.
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
"""What is looked at."""
HEAD_ROWS: Final = 50
LARGEST_CELL: Final = 16 << 20
SEPARATORS: Final = ",;\t|"
UTF8: Final = "utf-8-sig"
"""With its mark or without."""
MARKS: Final = (
    (codecs.BOM_UTF8, UTF8),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""What a file may begin with, longer ones first."""

_SAID = re.compile(r"sep=(.)\r?\n", re.IGNORECASE)
"""The line by which spreadsheets are told the separator."""
_COMMA = re.compile(r"[+-]?(?:[0-9]{1,3}(?:\.[0-9]{3})+|[0-9]+),[0-9]+")
_THOUSANDS = re.compile(r"[+-]?[0-9]{1,3}(?:[.,][0-9]{3})+")
_WHOLE = re.compile(r"[+-]?[0-9]+")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What was found out of a file."""

    encoding: str
    dialect: type[csv.Dialect]
    skipped: int
    """Characters before the first row."""
    names: tuple[str, ...]
    """Of the columns; by number where the first line names none."""
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

    A row that is not as wide as the header comes as BadReadings in its place. What cannot be read at all raises it.
    """

    def __init__(
        self, file: BinaryIO, *, name: str, encoding: str | None = None, time_format: str | None = None
    ) -> None:
        self._name = name
        head = file.read(HEAD_BYTES)
        self.layout = _layout(head, name=name, encoding=encoding, time_format=time_format) if head.strip() else None
        """None: the file is empty."""
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
            rows = csv.reader(text, layout.dialect)
            for number, row in enumerate(_not_blank(rows)):
                line = rows.line_num
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
    """What was read already, and then the rest."""

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


def _not_text(name: str, encoding: str, what: str) -> BadReadings:
    shown = "UTF-8" if encoding.startswith("utf-8") else encoding
    return BadReadings(f"{name} is not CSV in {shown}, {what}: name its --encoding, for example cp1252")


def _not_blank(rows: Iterator[list[str]]) -> Iterator[list[str]]:
    """Without empty lines, and lines of separators alone."""
    return (row for row in rows if any(cell.strip() for cell in row))


def _layout(head: bytes, *, name: str, encoding: str | None, time_format: str | None) -> Layout | None:
    encoding = _encoding(head, encoding)
    try:
        # A character may be cut at the end of what was read.
        text = codecs.getincrementaldecoder(encoding)().decode(head)
    except UnicodeError as error:
        raise _not_text(name, encoding, f"near its start: {error}") from error
    said = _SAID.match(text)
    text = text[said.end() :] if said else text
    whole = len(head) < HEAD_BYTES
    found: tuple[tuple[bool, float, int], type[csv.Dialect], list[list[str]]] | None = None
    for separator in said[1] if said else SEPARATORS:
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
        skipped=said.end() if said else 0,
        names=tuple(name or f"column {number}" for number, name in zip(numbered, names, strict=True)),
        has_header=has_header,
        unnamed=frozenset(unnamed),
        with_comma=frozenset() if dialect.delimiter == "," else _with_comma(rows[has_header:], len(names)),
    )


def _encoding(head: bytes, asked: str | None) -> str:
    """What was asked for, else what the file's mark says. Raises BadReadings for what is no encoding of text."""
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
    """The first rows, without a last one that may be cut off."""
    try:
        rows = list(itertools.islice(_not_blank(csv.reader(io.StringIO(text, newline=""), dialect)), HEAD_ROWS))
    except csv.Error:  # told when the file is read
        return [[""]]
    return rows[:-1] if not whole and 1 < len(rows) < HEAD_ROWS else rows


def _score(rows: Sequence[Sequence[str]], time_format: str | None) -> tuple[bool, float, int]:
    """How well rows are cut: whether a column has times, how many rows are as wide as the first, how wide that is."""
    first, *rest = rows
    alike = [row for row in rest if len(row) == len(first)]
    if len(first) < 2:
        return False, 0.0, 1
    has_times = any(all(looks_like_time(row[at], time_format) for row in alike) for at in range(len(first)) if alike)
    return has_times, len(alike) / len(rest) if rest else 1.0, len(first)


def _is_reading(first: Sequence[str], rest: Sequence[Sequence[str]], time_format: str | None) -> bool:
    """Whether the first line is a row like the others: it has a time where they have theirs, or nothing but numbers."""
    alike = [row for row in rest if len(row) == len(first)]
    cells = [cell for cell in first if cell.strip()]
    if cells and all(is_number(cell) for cell in cells):
        return True
    return any(
        looks_like_time(cell, time_format) and all(looks_like_time(row[at], time_format) for row in alike)
        for at, cell in enumerate(first)
    )


def _with_comma(rows: Sequence[Sequence[str]], width: int) -> frozenset[int]:
    """Columns of numbers some of which have a decimal comma beyond doubt: `1,234` may be a thousand."""
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

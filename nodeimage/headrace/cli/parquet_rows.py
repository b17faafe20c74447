"""Reads rows of a Parquet file of any types. Needs pyarrow, which a storage node does not install.

Moments keep the file's own form (`Instant`), since Python's `datetime` covers only the years 1 to 9999. A cell that
pyarrow cannot convert to a Python value is `Unreadable`; this is reported only where the cell is used.
"""

import importlib
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, Final

from headrace.cli.cells import BadReadings, Instant, Unreadable

MAGIC: Final = b"PAR1"
BATCH_ROWS: Final = 8_192
DAY_S: Final = 86_400
DIGITS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}


class ParquetRows:
    """The rows of an open, seekable Parquet file. Raises BadReadings."""

    def __init__(self, file: BinaryIO, *, name: str) -> None:
        self._name = name
        try:
            self._pa: Any = importlib.import_module("pyarrow")
            parquet: Any = importlib.import_module("pyarrow.parquet")
        except ImportError as error:
            raise BadReadings('Parquet needs pyarrow: pip install "headrace[spark]"') from error
        try:
            self._file: Any = parquet.ParquetFile(file)
            self.names: Sequence[str] = self._file.schema_arrow.names
        except (OSError, ValueError, self._pa.lib.ArrowException) as error:
            raise self._told(error) from error

    @property
    def twice(self) -> frozenset[str]:
        """Names that several columns have."""
        return frozenset(name for name in self.names if self.names.count(name) > 1)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        first = {name: self.names.index(name) for name in self.names}
        try:
            for batch in self._file.iter_batches(batch_size=BATCH_ROWS):
                columns = [_cells(self._pa, batch.column(at)) for at in first.values()]
                for row in zip(*columns, strict=True):
                    yield dict(zip(first, row, strict=True))
        except (OSError, ValueError, self._pa.lib.ArrowException) as error:
            raise self._told(error) from error

    def _told(self, error: Exception) -> BadReadings:
        why = getattr(error, "strerror", None) or (str(error).splitlines() or [type(error).__name__])[0]
        return BadReadings(f"{self._name} is not Parquet, or not whole: {why}")


def _cells(pa: Any, column: Any) -> list[Any]:
    """The column's cells as Python values."""
    while True:
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        elif isinstance(column.type, pa.BaseExtensionType):
            column = column.storage
        else:
            break
    kind = column.type
    if pa.types.is_timestamp(kind):
        return _instants(column.cast(pa.int64()), 1, DIGITS[kind.unit])
    if pa.types.is_date32(kind):
        return _instants(column.cast(pa.int32()), DAY_S, 0)
    if pa.types.is_date64(kind):
        return _instants(column.cast(pa.int64()), 1, 3)
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError, pa.lib.ArrowException):
        return [_cell(each) for each in column]


def _instants(counts: Any, times: int, digits: int) -> list[Instant | None]:
    return [None if count is None else Instant(count * times, digits) for count in counts.to_pylist()]


def _cell(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError as error:
        return bytes(error.object)  # a string that is not valid UTF-8
    except (OverflowError, ValueError, ArithmeticError) as error:
        return Unreadable(f"a {scalar.type} that Python cannot hold ({error})")

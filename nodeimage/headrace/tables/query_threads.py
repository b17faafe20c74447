"""The threads in which queries of the catalog run, each with a connection of its own."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

from headrace.base.errors import OutOfDescriptors
from headrace.tables.outcomes import CatalogFailed
from headrace.tables.sqlite_errors import cannot_open, is_damage

T = TypeVar("T")


class Reading(Protocol):
    """A connection for queries; of one thread at a time."""

    def begin(self) -> None:
        """Fix the moment that queries see, from the first of them on."""

    def end(self) -> None:
        """Let go of that moment."""

    def close(self) -> None:
        """Close the connection."""


R = TypeVar("R", bound=Reading)

READERS: Final = 2


class ReaderThreads(Generic[R]):
    """Of one catalog."""

    def __init__(
        self,
        path: Callable[[], Path],
        reader: Callable[[Path], R],
        *,
        generation: Callable[[], int],
        damaged: Callable[[str], None],
    ) -> None:
        """`generation` of the tables' file: of another one, connections are opened again. `damaged` hears, on the loop,
        what queries meet."""
        self.executor = ThreadPoolExecutor(READERS, thread_name_prefix="catalog-reader")
        """For other work that may take a while, too."""
        self._path = path
        self._open = reader
        self._generation = generation
        self._damaged = damaged
        self._loop = asyncio.get_running_loop()
        self._of_thread = threading.local()
        self._readers: list[R] = []

    async def run(self, fn: Callable[[R], T]) -> T:
        """What `fn` gives of one moment. Raises CatalogFailed where it meets damage."""
        return await self._loop.run_in_executor(self.executor, self._read, fn)

    def close_files(self) -> None:
        """[blocking] Close the connections; no thread is at work any more."""
        for reader in self._readers:
            reader.close()

    def _read(self, fn: Callable[[R], T]) -> T:
        reader = None
        try:
            reader = self._reader()
            reader.begin()
            return fn(reader)
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            if isinstance(error, sqlite3.DatabaseError) and not is_damage(error):
                if cannot_open(error):
                    raise OutOfDescriptors(f"{self._path()} cannot be opened just now: {error}") from error
                raise
            self._loop.call_soon_threadsafe(self._damaged, str(error))
            raise CatalogFailed(f"what was asked for is damaged in the catalog here: {error}") from error
        finally:
            if reader is not None:
                reader.end()

    def _reader(self) -> R:
        """This thread's, of the file that is the live one by now."""
        generation = self._generation()
        reader: R | None = getattr(self._of_thread, "reader", None)
        if reader is None or self._of_thread.generation != generation:
            if reader is not None:
                self._of_thread.reader = None
                self._readers.remove(reader)
                reader.close()
            reader = self._of_thread.reader = self._open(self._path())
            self._of_thread.generation = generation
            self._readers.append(reader)
        return reader

"""The threads that run queries of the catalog, each with its own connection."""

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
    """A connection for queries; used by one thread at a time."""

    def begin(self) -> None:
        """Begin a read transaction: all queries see the state at the first of them."""

    def end(self) -> None:
        """End the read transaction."""

    def close(self) -> None:
        """Close the connection."""


R = TypeVar("R", bound=Reading)

READERS: Final = 2
"""Number of threads."""


class ReaderThreads(Generic[R]):
    """The threads of one catalog, and their connections."""

    def __init__(
        self,
        path: Callable[[], Path],
        reader: Callable[[Path], R],
        *,
        generation: Callable[[], int],
        damaged: Callable[[str], None],
    ) -> None:
        """`generation`: that of the tables' file; when it changes, connections are opened again. `damaged` is called,
        on the loop, with damage that queries meet."""
        self.executor = ThreadPoolExecutor(READERS, thread_name_prefix="catalog-reader")
        """The threads; also used for other work that may take a while."""
        self._path = path
        self._open = reader
        self._generation = generation
        self._damaged = damaged
        self._loop = asyncio.get_running_loop()
        self._of_thread = threading.local()
        self._readers: list[R] = []

    async def run(self, fn: Callable[[R], T]) -> T:
        """Run `fn` on a consistent view of the tables, and return its result. Raises CatalogFailed if it meets
        damage."""
        return await self._loop.run_in_executor(self.executor, self._read, fn)

    def close_files(self) -> None:
        """[blocking] Close the connections; to be called when no thread is running any more."""
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
            raise CatalogFailed(f"the requested rows are damaged in this node's catalog: {error}") from error
        finally:
            if reader is not None:
                reader.end()

    def _reader(self) -> R:
        """This thread's connection to the present live file."""
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

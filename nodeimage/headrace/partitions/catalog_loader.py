"""Loads a component's copy of catalog rows: when the node starts, and again after all rows were replaced.

In between the component follows the applied commands itself, and calls `changed` for each: a read that was under way is
then repeated. A read that fails is retried in the background until it succeeds.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from headrace.base.errors import HeadraceError
from headrace.base.runtime import Runtime
from headrace.catalog.catalog import Catalog
from headrace.catalog.reader import Reader

READ_AGAIN_S: Final = 1.0
"""Seconds until the next attempt after the catalog could not be read."""

T = TypeVar("T")


class CatalogLoader(Generic[T]):
    """Loads the rows of one component. Everything runs on the loop's thread, except `read`."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        catalog: Catalog,
        read: Callable[[Reader], T],
        loaded: Callable[[T], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """`read`: [blocking] reads the rows. `loaded` is called with rows that are up to date, `failed` with the error
        of a failed read."""
        self._runtime = runtime
        self._catalog = catalog
        self._read = read
        self._loaded = loaded
        self._failed = failed
        self._changes = 0

    async def start(self) -> None:
        """Load for the first time. To be called once the component is notified of applied commands."""
        if not await self._try_to_load():
            self._runtime.spawn(self._load())

    def changed(self) -> None:
        """A command was applied that changes the component's rows."""
        self._changes += 1

    def load_again(self) -> None:
        """Load again, since all rows have been replaced."""
        self._changes += 1
        self._runtime.spawn(self._load())

    async def _load(self) -> None:
        while not await self._try_to_load():  # noqa: ASYNC110  # no event tells when the file becomes readable again
            await asyncio.sleep(READ_AGAIN_S)

    async def _try_to_load(self) -> bool:
        try:
            while True:
                known = self._changes
                found = await self._catalog.query(self._read)
                if known == self._changes:
                    break
        except (HeadraceError, sqlite3.Error) as error:
            self._failed(error)
            return False
        self._loaded(found)
        return True

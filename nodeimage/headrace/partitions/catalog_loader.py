"""Loads what a part of a node holds of the catalog: when the node starts, and again after other rows took their place.

In between the part follows the commands that are applied, and counts them here by `changed`: what was read before one
of them is read again. What cannot be read is tried again until it can, in the background.
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
"""After the catalog could not be read."""

T = TypeVar("T")


class CatalogLoader(Generic[T]):
    """Of one part. Everything is on the loop's thread, but for `look`."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        catalog: Catalog,
        look: Callable[[Reader], T],
        take: Callable[[T], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """`look`: [blocking] reads the rows. `take` is called with what is up to date, `failed` with why nothing is
        read."""
        self._runtime = runtime
        self._catalog = catalog
        self._look = look
        self._take = take
        self._failed = failed
        self._changes = 0

    async def start(self) -> None:
        """Load for the first time. Called once the part is told of what is applied."""
        if not await self._try_to_load():
            self._runtime.spawn(self._load())

    def changed(self) -> None:
        """A command was applied that changes what the part holds."""
        self._changes += 1

    def load_again(self) -> None:
        """All rows may be others."""
        self._changes += 1
        self._runtime.spawn(self._load())

    async def _load(self) -> None:
        while not await self._try_to_load():  # noqa: ASYNC110  # of a file that others mend
            await asyncio.sleep(READ_AGAIN_S)

    async def _try_to_load(self) -> bool:
        try:
            while True:
                known = self._changes
                found = await self._catalog.query(self._look)
                if known == self._changes:
                    break
        except (HeadraceError, sqlite3.Error) as error:
            self._failed(error)
            return False
        self._take(found)
        return True

"""Reads a node's tables through again and again, at a bounded rate, so that damage is found that nobody reads.

A pass looks at each row on its own, a few at a time (a long read would keep SQLite from starting its WAL over), then at
the file as a whole: structure, indexes, totals (check.py). The first one begins soon after a start.
"""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from headrace.base.errors import HeadraceError
from headrace.tables.row_checksums import COLUMNS
from headrace.tables.sqlite_errors import is_damage

log = structlog.get_logger(__name__)

FIRST_S: Final = 5.0
"""From a start to the first pass."""
ROWS: Final = 500
PAUSE_S: Final = 0.05
"""Between two pieces of so many rows: 10,000 a second at most."""
REST_S: Final = 60.0
LARGE_REST_S: Final = 600.0
"""Of a file of which a copy is made to be looked at (snapshots.check_live)."""
REST_TIMES: Final = 20
"""Between two passes, and so many times as long as the last one took, whichever is longer."""

CheckRows = Callable[[str, tuple[object, ...], int], Awaitable[tuple[object, ...]]]


class TablesScrub:
    """Of one catalog's tables. The loop thread's."""

    def __init__(
        self,
        *,
        check_rows: CheckRows,
        check_file: Callable[[], Awaitable[None]],
        found: Callable[[str], None],
        is_small: Callable[[], bool],
    ) -> None:
        """`check_rows(table, after, limit)` checks the rows behind a key and gives the last one's, () at the end, and
        itself says what it finds; `check_file` raises what it finds, for `found`. `is_small`: the file is read where it
        lies."""
        self._check_rows = check_rows
        self._check_file = check_file
        self._found = found
        self._is_small = is_small
        self._task = asyncio.get_running_loop().create_task(self._run(), name="catalog-scrub")

    async def close(self) -> None:
        """Read no more."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(FIRST_S)
        while True:
            began = loop.time()
            try:
                await self._pass()
            except (HeadraceError, OSError, sqlite3.Error) as error:
                if isinstance(error, sqlite3.Error) and is_damage(error):
                    self._found(str(error))
                else:
                    log.warning("the catalog's tables are not scrubbed to the end", reason=str(error))
            except Exception:
                log.exception("scrubbing the catalog's tables went wrong")
            rest_s = REST_S if self._is_small() else LARGE_REST_S
            await asyncio.sleep(max(rest_s, REST_TIMES * (loop.time() - began)))

    async def _pass(self) -> None:
        for table in COLUMNS:
            after = await self._check_rows(table, (), ROWS)
            while after:
                await asyncio.sleep(PAUSE_S)
                after = await self._check_rows(table, after, ROWS)
        await self._check_file()

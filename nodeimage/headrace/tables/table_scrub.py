"""Reads all of a node's tables again and again, at a bounded rate, to find damage in rows that are never read
otherwise.

A pass checks each row by itself, a few at a time (a long read would keep SQLite from restarting its WAL), then the file
as a whole: structure, indexes, totals (table_check.py). The first pass begins soon after a start.
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
"""Seconds from a start to the first pass."""
ROWS: Final = 500
"""Number of rows that are checked at a time."""
PAUSE_S: Final = 0.05
"""Seconds between two such checks: 10,000 rows per second at most."""
REST_S: Final = 60.0
"""Least number of seconds between two passes."""
LARGE_REST_S: Final = 600.0
"""Least number of seconds between two passes of a large file, which is copied to be checked (snapshots.check_live)."""
REST_TIMES: Final = 20
"""Least time between two passes, as a multiple of the last pass's duration."""

CheckRows = Callable[[str, tuple[object, ...], int], Awaitable[tuple[object, ...]]]


class TablesScrub:
    """Scrubs the tables of one catalog. Runs on the loop thread."""

    def __init__(
        self,
        *,
        check_rows: CheckRows,
        check_file: Callable[[], Awaitable[None]],
        found: Callable[[str], None],
        is_small: Callable[[], bool],
    ) -> None:
        """`check_rows(table, after, limit)` checks the rows after a key and returns the last one's key, () at the end;
        it reports damage itself. `check_file` raises damage, which is then passed to `found`. `is_small`: whether the
        file is checked in place."""
        self._check_rows = check_rows
        self._check_file = check_file
        self._found = found
        self._is_small = is_small
        self._task = asyncio.get_running_loop().create_task(self._run(), name="catalog-scrub")

    async def close(self) -> None:
        """Stop scrubbing."""
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
                    log.warning("the scrub of the catalog's tables was not completed", reason=str(error))
            except Exception:
                log.exception("the scrub of the catalog's tables failed")
            rest_s = REST_S if self._is_small() else LARGE_REST_S
            await asyncio.sleep(max(rest_s, REST_TIMES * (loop.time() - began)))

    async def _pass(self) -> None:
        for table in COLUMNS:
            after = await self._check_rows(table, (), ROWS)
            while after:
                await asyncio.sleep(PAUSE_S)
                after = await self._check_rows(table, after, ROWS)
        await self._check_file()

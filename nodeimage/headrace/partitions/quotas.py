"""What clients may use, as this node has applied it: limits kept up to date with the catalog, and counts against them.

Counts are this node's own, as each of Kafka's brokers has its own: a client of three nodes may use three times as much.
A command changes the limits on the loop when it is applied here. While the catalog cannot be read the limits stay as
they were, none at the start: what is limited is how much, not who.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, Final

import structlog

from headrace.base.errors import HeadraceError
from headrace.base.runtime import Runtime
from headrace.catalog.catalog import Catalog, Change
from headrace.catalog.quotas import AlterQuotas
from headrace.catalog.reader import Reader
from headrace.catalog.rows import Replaced
from headrace.security.client_quotas import Entity, Quotas, QuotaTable, entity_of

log = structlog.get_logger()

READ_AGAIN_S: Final = 1.0
"""After the catalog could not be read."""

_Limits = dict[tuple[Entity, str], float]


class ClientQuotas:
    """Of one node. Everything is on the loop's thread."""

    def __init__(self, *, runtime: Runtime, catalog: Catalog) -> None:
        self._runtime = runtime
        self._catalog = catalog
        self.quotas = Quotas(QuotaTable(()))
        self._limits: _Limits = {}
        self._on_change: list[Callable[[], None]] = []
        self._changes = 0
        """Of commands that were applied, so that what was read before one of them is read again."""

    @property
    def are_any(self) -> bool:
        """Whether anything is limited at all."""
        return bool(self._limits)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` when limits are others."""
        self._on_change.append(callback)

    async def start(self) -> None:
        """Read what the catalog has. Called once `applied` is told of what is applied."""
        if not await self._try_read():
            self._runtime.spawn(self._read())

    def applied(self, changes: Sequence[Change]) -> None:
        """Commands were applied (Catalog.on_applied)."""
        limits: _Limits | None = None
        for command, _outcome in changes:
            match command:
                case Replaced():
                    self._changes += 1
                    self._runtime.spawn(self._read())
                case AlterQuotas():
                    limits = dict(self._limits) if limits is None else limits
                    _alter(limits, command)
        if limits is not None:
            self._changes += 1
            self._take(limits)

    def _take(self, limits: _Limits) -> None:
        self._limits = limits
        self.quotas.replace(QuotaTable((entity, key, value) for (entity, key), value in limits.items()))
        for callback in self._on_change:
            callback()

    async def _read(self) -> None:
        while not await self._try_read():  # noqa: ASYNC110  # of a file that others mend
            await asyncio.sleep(READ_AGAIN_S)

    async def _try_read(self) -> bool:
        try:
            while True:
                known = self._changes
                limits = await self._catalog.query(_all)
                if known == self._changes:
                    break
        except (HeadraceError, sqlite3.Error) as error:
            log.error("quotas cannot be read, so they stay as they were", reason=str(error))
            return False
        self._take(limits)
        return True


def _all(reader: Reader) -> _Limits:
    return {(entity_of(row.entity), row.key): row.value for row in reader.users.quotas()}


def _alter(limits: dict[tuple[Entity, str], Any], command: AlterQuotas) -> None:
    for item in command.items:
        key = (entity_of(item.entity), item.key)
        if item.value is None:
            limits.pop(key, None)
        else:
            limits[key] = float(item.value)

"""What clients may use, as this node has applied it: limits kept up to date with the catalog, and counts against them.

Counts are this node's own, as each of Kafka's brokers has its own: a client of three nodes may use three times as much.
A command changes the limits on the loop when it is applied here. While the catalog cannot be read the limits stay as
they were, none at the start: what is limited is how much, not who.
"""

from collections.abc import Callable, Sequence
from typing import Any

import structlog

from headrace.base.runtime import Runtime
from headrace.catalog.catalog import Catalog, Change
from headrace.catalog.quotas import AlterQuotas
from headrace.catalog.reader import Reader
from headrace.catalog.rows import Replaced
from headrace.partitions.catalog_loader import CatalogLoader
from headrace.security.client_quotas import Entity, Quotas, QuotaTable, entity_of

log = structlog.get_logger()

_Limits = dict[tuple[Entity, str], float]


class ClientQuotas:
    """Of one node. Everything is on the loop's thread."""

    def __init__(self, *, runtime: Runtime, catalog: Catalog) -> None:
        self._loader = CatalogLoader(
            runtime=runtime, catalog=catalog, look=_all, take=self._take, failed=_tell_of_failure
        )
        self.quotas = Quotas(QuotaTable(()))
        self._limits: _Limits = {}
        self._on_change: list[Callable[[], None]] = []

    @property
    def are_any(self) -> bool:
        """Whether anything is limited at all."""
        return bool(self._limits)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` when limits are others."""
        self._on_change.append(callback)

    async def start(self) -> None:
        """Read what the catalog has. Called once `applied` is told of what is applied."""
        await self._loader.start()

    def applied(self, changes: Sequence[Change]) -> None:
        """Commands were applied (Catalog.on_applied)."""
        limits: _Limits | None = None
        for command, _outcome in changes:
            match command:
                case Replaced():
                    self._loader.load_again()
                case AlterQuotas():
                    limits = dict(self._limits) if limits is None else limits
                    _alter(limits, command)
        if limits is not None:
            self._loader.changed()
            self._take(limits)

    def _take(self, limits: _Limits) -> None:
        self._limits = limits
        self.quotas.replace(QuotaTable((entity, key, value) for (entity, key), value in limits.items()))
        for callback in self._on_change:
            callback()


def _tell_of_failure(error: Exception) -> None:
    log.error("quotas cannot be read, so they stay as they were", reason=str(error))


def _all(reader: Reader) -> _Limits:
    return {(entity_of(row.entity), row.key): row.value for row in reader.users.quotas()}


def _alter(limits: dict[tuple[Entity, str], Any], command: AlterQuotas) -> None:
    for item in command.items:
        key = (entity_of(item.entity), item.key)
        if item.value is None:
            limits.pop(key, None)
        else:
            limits[key] = float(item.value)

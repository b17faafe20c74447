"""Client quotas in force at this node: limits kept up to date with the catalog, and the usage counted against them.

Each node counts usage on its own, as Kafka's brokers do: a client of three nodes may use three times as much. A command
changes the limits on the loop when this node applies it. While the catalog cannot be read the limits stay as they were
(none after a start), since quotas limit how much clients use and not who may connect.
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
    """The client quotas of this node. All methods run on the loop's thread."""

    def __init__(self, *, runtime: Runtime, catalog: Catalog) -> None:
        self._loader = CatalogLoader(
            runtime=runtime, catalog=catalog, read=_read_all, loaded=self._use, failed=_log_failure
        )
        self.quotas = Quotas(QuotaTable(()))
        self._limits: _Limits = {}
        self._on_change: list[Callable[[], None]] = []

    @property
    def are_any(self) -> bool:
        """Whether there is any limit at all."""
        return bool(self._limits)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever limits have changed."""
        self._on_change.append(callback)

    async def start(self) -> None:
        """Read the limits from the catalog. To be called once `applied` is notified of applied commands."""
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
            self._use(limits)

    def _use(self, limits: _Limits) -> None:
        self._limits = limits
        self.quotas.replace(QuotaTable((entity, key, value) for (entity, key), value in limits.items()))
        for callback in self._on_change:
            callback()


def _log_failure(error: Exception) -> None:
    log.error("quotas cannot be read, so they stay as they were", reason=str(error))


def _read_all(reader: Reader) -> _Limits:
    return {(entity_of(row.entity), row.key): row.value for row in reader.users.quotas()}


def _alter(limits: dict[tuple[Entity, str], Any], command: AlterQuotas) -> None:
    for item in command.items:
        key = (entity_of(item.entity), item.key)
        if item.value is None:
            limits.pop(key, None)
        else:
            limits[key] = float(item.value)

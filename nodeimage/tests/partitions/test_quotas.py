"""Limits follow the catalog, and stay as they were while it cannot be read."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headrace.base.ids import Position
from headrace.base.runtime import Runtime
from headrace.catalog.catalog import Catalog, CatalogFailed
from headrace.catalog.quotas import AlterQuotas, Quota
from headrace.catalog.rows import Replaced
from headrace.partitions import catalog_loader
from headrace.partitions.quotas import ClientQuotas
from headrace.security.client_quotas import Key, entity_text
from kit.catalog import MemoryLog, Still

ALICE = entity_text({"user": "alice"})


class Limited:
    """A catalog, and the quotas that follow it."""

    def __init__(self, catalog: Catalog, quotas: ClientQuotas) -> None:
        self.catalog = catalog
        self.quotas = quotas
        self.told = 0
        quotas.on_change(self._count)

    def _count(self) -> None:
        self.told += 1

    async def alter(self, *limits: tuple[str, float | None]) -> None:
        await self.catalog.submit(AlterQuotas([Quota(entity, "producer_byte_rate", value) for entity, value in limits]))

    def limit(self, user: str = "alice") -> float | None:
        found = self.quotas.quotas.table.limit(Key.PRODUCE, user=user, client_id="app")
        return None if found is None else found.value


@pytest.fixture
async def limited(tmp_path: Path) -> AsyncIterator[Limited]:
    catalog = await Catalog.open(tmp_path / "catalog", MemoryLog())
    with ThreadPoolExecutor(1) as executor:
        runtime = Runtime(executor=executor, clock=Still())
        await catalog.submit(AlterQuotas([Quota(ALICE, "producer_byte_rate", 10.0)]))
        found = ClientQuotas(runtime=runtime, catalog=catalog)
        assert not found.are_any
        catalog.on_applied(found.applied)
        await found.start()
        yield Limited(catalog, found)
        await runtime.end_tasks()
        await catalog.close()
        runtime.close()


async def test_a_limit_is_in_force_when_its_submitter_wakes_and_until_it_is_removed(limited: Limited) -> None:
    assert (limited.limit(), limited.quotas.are_any) == (10.0, True)
    await limited.alter((ALICE, 20.0), (entity_text({"user": None}), 5.0))
    assert (limited.limit(), limited.limit("bob"), limited.told) == (20.0, 5.0, 1)
    await limited.alter((ALICE, None))
    assert limited.limit() == 5.0
    await limited.alter((entity_text({"user": None}), None), (ALICE, None))
    assert (limited.limit(), limited.quotas.are_any) == (None, False)


async def test_counts_go_on_when_limits_change(limited: Limited) -> None:
    used = limited.quotas.quotas.used
    assert used(Key.PRODUCE, 1000, user="alice", client_id="a", now=0.0) > 0
    await limited.alter((ALICE, 1e9))
    assert used(Key.PRODUCE, 0, user="alice", client_id="a", now=0.0) == 0
    await limited.alter((ALICE, 10.0))
    assert used(Key.PRODUCE, 0, user="alice", client_id="a", now=0.0) > 0


async def test_rows_that_were_replaced_are_read_again_until_they_can_be(
    limited: Limited, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_loader, "READ_AGAIN_S", 0.001)
    query, failures = limited.catalog.query, iter([True, True])

    async def failing(look: Callable[..., Any]) -> Any:
        if next(failures, False):
            raise CatalogFailed("damaged")
        return await query(look)

    monkeypatch.setattr(limited.catalog, "query", failing)
    limited.quotas._limits = {}
    limited.quotas.applied([(Replaced(Position(1)), None)])
    async with asyncio.timeout(20):
        while not limited.quotas.are_any:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert limited.limit() == 10.0

"""Rows loaded from the catalog are up to date, and a failed read is retried until it succeeds."""

from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headrace.base.runtime import Runtime
from headrace.catalog.catalog import Catalog, CatalogFailed
from headrace.catalog.reader import Reader
from headrace.partitions import catalog_loader
from headrace.partitions.catalog_loader import CatalogLoader
from kit.catalog import MemoryLog, Still, stream
from kit.one_node import until


class Loading:
    """The paths of streams, as they were loaded."""

    def __init__(self, runtime: Runtime, catalog: Catalog) -> None:
        self.catalog = catalog
        self.taken: list[list[str]] = []
        self.failures: list[str] = []
        self.loader = CatalogLoader(
            runtime=runtime, catalog=catalog, read=_paths, loaded=self.taken.append, failed=self._count
        )

    def _count(self, error: Exception) -> None:
        self.failures.append(str(error))


def _paths(reader: Reader) -> list[str]:
    return [row.path for row in reader.streams.page()]


@pytest.fixture
async def loading(tmp_path: Path) -> AsyncIterator[Loading]:
    catalog = await Catalog.open(tmp_path / "catalog", MemoryLog())
    with ThreadPoolExecutor(1) as executor:
        runtime = Runtime(executor=executor, clock=Still())
        await catalog.submit(stream("/a"))
        yield Loading(runtime, catalog)
        await runtime.end_tasks()
        await catalog.close()
        runtime.close()


async def test_the_start_waits_for_what_there_is(loading: Loading) -> None:
    await loading.loader.start()
    assert loading.taken == [["/a"]]


async def test_what_was_read_before_a_change_is_read_again(loading: Loading, monkeypatch: pytest.MonkeyPatch) -> None:
    query = loading.catalog.query

    async def late(look: Callable[[Reader], Any]) -> Any:
        found = await query(look)
        if len(found) == 1:
            await loading.catalog.submit(stream("/b"))
            loading.loader.changed()
        return found

    monkeypatch.setattr(loading.catalog, "query", late)
    await loading.loader.start()
    assert loading.taken == [["/a", "/b"]]


async def test_what_cannot_be_read_is_tried_again_until_it_can(
    loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, damaged = loading.catalog.query, iter([True, True])

    async def failing(look: Callable[[Reader], Any]) -> Any:
        if next(damaged, False):
            raise CatalogFailed("damaged")
        return await query(look)

    monkeypatch.setattr(catalog_loader, "READ_AGAIN_S", 0.001)
    monkeypatch.setattr(loading.catalog, "query", failing)
    await loading.loader.start()
    assert (loading.taken, loading.failures) == ([], ["damaged"])
    await until(lambda: bool(loading.taken))
    assert (loading.taken, loading.failures) == ([["/a"]], ["damaged"] * 2)


async def test_rows_that_took_the_place_of_others_are_loaded(loading: Loading) -> None:
    await loading.loader.start()
    await loading.catalog.submit(stream("/b"))
    loading.loader.load_again()
    await until(lambda: len(loading.taken) == 2)
    assert loading.taken[-1] == ["/a", "/b"]

"""Catalog tables with one stream."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.catalog.policy import StreamPolicy
from headrace.catalog.streams import CreateStream
from kit.catalog import Tables
from kit.catalog_commands import NOW


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[Tables]:
    tables = Tables(tmp_path / "catalog.sqlite")
    tables.apply(CreateStream("/s", StreamPolicy(ttl_ms=1000), NOW))
    yield tables
    tables.close()

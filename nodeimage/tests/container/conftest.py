"""Replicas of one container on several nodes."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kit.log_writes import log_writes
from kit.several_replicas import Several

__all__ = ["log_writes", "three"]


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Several]:
    """Three nodes that run."""
    nodes = Several(tmp_path, 3)
    await nodes.start()
    try:
        yield nodes
    finally:
        await nodes.stop()

"""The bytes that this node's replicas occupy on the disk: their chunks, without holes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from headrace.base.ids import ContainerId
from headrace.base.runtime import Runtime
from headrace.container.replicas import Replicas

_BLOCK: Final = 512
"""The unit of st_blocks, whatever the filesystem's own block size is (stat(2))."""


async def bytes_on_disk(runtime: Runtime, replicas: Replicas) -> Mapping[ContainerId, int]:
    """The bytes that this node's replicas occupy, by container."""
    return await runtime.loop.run_in_executor(runtime.executor, allocated, chunk_paths(replicas))


def chunk_paths(replicas: Replicas) -> dict[ContainerId, list[Path]]:
    """The chunk files of this node's replicas, by container."""
    return {replica.id: [chunk.path for chunk in replica.log.chunks()] for replica in replicas.all()}


def allocated(paths: Mapping[ContainerId, Sequence[Path]]) -> dict[ContainerId, int]:
    """[blocking] The bytes that files occupy, by container."""
    return {container: sum(map(_allocated, chunks)) for container, chunks in paths.items()}


def _allocated(path: Path) -> int:
    """[blocking] The bytes that a file occupies, without holes; 0 if it has just been deleted."""
    try:
        return path.stat().st_blocks * _BLOCK
    except FileNotFoundError:
        return 0

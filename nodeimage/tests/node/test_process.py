"""A node's process: what it does when its own surroundings fail it."""

import contextlib
from pathlib import Path

from headrace.node.process import _Lossy


def test_a_log_on_a_full_disk_loses_lines_and_breaks_nothing() -> None:
    full = Path("/dev/full").open("w", buffering=1)  # noqa: SIM115  # closing it fails, too
    lossy = _Lossy(full)
    for _ in range(3):
        lossy.write("a line\n")
        lossy.flush()
    with contextlib.suppress(OSError):
        full.close()

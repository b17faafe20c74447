"""Merges the metrics of several nodes into one response, for a pod with several shards. Pure."""

from collections.abc import Sequence
from typing import Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_HEAD: Final = "# HELP "


def merged(expositions: Sequence[str]) -> str:
    """One exposition with the samples of all, grouped by metric under one head each."""
    metrics: dict[str, list[str]] = {}
    for each in expositions:
        lines: list[str] = []
        begins = False
        for line in each.split("\n"):  # not `splitlines`: label values may have any other character that ends a line
            if line.startswith(_HEAD):
                name = line.removeprefix(_HEAD).partition(" ")[0]
                begins = name not in metrics
                lines = metrics.setdefault(name, [])
            if line and (begins or not line.startswith("#")):
                lines.append(line)
    return "".join(f"{line}\n" for lines in metrics.values() for line in lines)

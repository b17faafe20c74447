"""Plans which records form a batch, and which task reads which of them: pure functions of offsets and sizes.

Defines the offset that Spark keeps in its log, divides a limit among partitions, and splits ranges into tasks. The
offset at the end of a batch carries the batch's whole plan, so a batch that is run again has the same tasks with the
same ranges in the same order, whatever has changed meanwhile:

    {"group": "spark-1f9a03bc", "positions": {"/factory/sensors:press": {"0": 1200}},
     "tasks": [[["/factory/sensors:press", 0, 1000, 1200]]]}
"""

import heapq
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace_spark.options import Partition

RANGE_COST = 64 << 10
"""Bytes that a range costs besides its records when ranges are distributed over tasks: a request and an Arrow batch."""
SMALLEST_TASK = 1 << 20
"""Bytes per task below which a batch is not distributed further: a task costs some 10 ms."""


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """Records start <= offset < end of one partition."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def records(self) -> int:
        """The number of offsets in the range."""
        return self.end - self.start

    @property
    def key(self) -> Partition:
        """The partition that the range belongs to."""
        return self.topic, self.partition


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """How far a query has read, and the tasks of the batch that ends there."""

    group: str
    positions: Mapping[Partition, int]
    tasks: tuple[tuple[OffsetRange, ...], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain dicts and lists, topics and partitions sorted."""
        return {
            "group": self.group,
            "positions": positions_to_json(self.positions),
            "tasks": [[[one.topic, one.partition, one.start, one.end] for one in task] for task in self.tasks],
        }

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> "StreamOffset":
        """The inverse of `to_json`."""
        return StreamOffset(
            group=raw["group"],
            positions=positions_from_json(raw["positions"]),
            tasks=tuple(tuple(OffsetRange(*one) for one in task) for task in raw["tasks"]),
        )


def positions_to_json(positions: Mapping[Partition, int]) -> dict[str, dict[str, int]]:
    """Return {"topic": {"0": offset}}, sorted."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(positions.items()):
        topics.setdefault(topic, {})[str(partition)] = offset
    return topics


def positions_from_json(raw: Mapping[str, Mapping[str, int]]) -> dict[Partition, int]:
    """The inverse of `positions_to_json`."""
    return {
        (topic, int(partition)): offset for topic, partitions in raw.items() for partition, offset in partitions.items()
    }


def pending(start: Mapping[Partition, int], end: Mapping[Partition, int]) -> list[OffsetRange]:
    """Return the non-empty ranges from `start` to `end`, sorted. Both have the same partitions."""
    return [
        OffsetRange(*partition, start[partition], end[partition])
        for partition in sorted(end)
        if end[partition] > start[partition]
    ]


def limited(ranges: Sequence[OffsetRange], *, weight: Mapping[Partition, float], limit: float) -> list[OffsetRange]:
    """Return the ranges shortened at their end so that together they weigh about `limit`.

    `weight` is the weight of one record of a partition (bytes, or 1). Each range gets a share by its weight, so that no
    partition falls behind; at least one record remains, so that the query progresses.
    """
    total = sum(one.records * weight[one.key] for one in ranges)
    if total <= limit:
        return list(ranges)
    shares = {one: one.records * limit / total for one in ranges}
    kept = {one: int(share) for one, share in shares.items()}
    room = limit - sum(count * weight[one.key] for one, count in kept.items())
    for one in sorted(ranges, key=lambda one: kept[one] - shares[one]):  # distribute what rounding left over
        if weight[one.key] <= room:
            kept[one] += 1
            room -= weight[one.key]
    if not any(kept.values()):
        kept[min(ranges, key=lambda one: weight[one.key])] = 1
    return [
        OffsetRange(one.topic, one.partition, one.start, one.start + count) for one, count in kept.items() if count > 0
    ]


def spread(
    ranges: Sequence[OffsetRange], *, weight: Mapping[Partition, float], bytes_per_task: int, parallel: int
) -> tuple[tuple[OffsetRange, ...], ...]:
    """Return the ranges split and packed into tasks of about equal weight.

    `weight` is bytes per record. There are enough tasks that none exceeds `bytes_per_task`, and up to `parallel` if
    each then still has SMALLEST_TASK. The ranges of a task are sorted.
    """
    total = sum(one.records * weight[one.key] for one in ranges)
    count = max(_ceil(total / bytes_per_task), min(parallel, _ceil(total / SMALLEST_TASK)), 1)
    target = max(total / count, 1.0)
    pieces = [piece for one in ranges for piece in _cut(one, _ceil(one.records * weight[one.key] / target - 0.01))]
    costs = sorted(((piece.records * weight[piece.key] + RANGE_COST, piece) for piece in pieces), reverse=True)
    count = min(count, len(pieces))
    loads = [(0.0, number) for number in range(count)]
    tasks: list[list[OffsetRange]] = [[] for _ in range(count)]
    for cost, piece in costs:
        load, number = heapq.heappop(loads)
        tasks[number].append(piece)
        heapq.heappush(loads, (load + cost, number))
    return tuple(sorted(tuple(sorted(task)) for task in tasks))


def _cut(whole: OffsetRange, pieces: int) -> Iterable[OffsetRange]:
    pieces = max(min(pieces, whole.records), 1)
    borders = [whole.start + whole.records * number // pieces for number in range(pieces + 1)]
    return (OffsetRange(whole.topic, whole.partition, start, end) for start, end in itertools.pairwise(borders))


def _ceil(value: float) -> int:
    return int(-(-value // 1))

"""The location of a partition's records: in which partitionlet, on which node, and up to which offset."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.ids import ContainerId
from headrace.partitions.reads.fetch_planner import AHEAD_BYTES, AHEAD_FROM, FetchPlanner

HERE = object()
OLD = object()


def row(number: int, first: int, end: int, *, container: int, cut: bool = False) -> Any:
    return SimpleNamespace(id=number, first=first, end=end, container=ContainerId(container), cut=cut)


def partition(*, high_watermark: int = 250, cut: bool = False) -> Any:
    """Offsets 0 to 99 lie on another node, 100 to 199 in an older container of this node, and 200 on in the open
    one."""
    chain = (
        row(1, 0, 100, container=7, cut=cut),
        row(2, 100, 200, container=8),
        row(3, 200, -1, container=9),
    )
    return SimpleNamespace(chain=chain, open=3, container=HERE, high_watermark=high_watermark)


def planner() -> FetchPlanner:
    led: Any = {ContainerId(8): OLD}
    nothing: Any = None
    return FetchPlanner(runtime=nothing, led=led, remote_reads=nothing)


@pytest.mark.parametrize(
    ("offset", "partitionlet", "container", "limit"),
    [
        (0, 1, None, 100),
        (99, 1, None, 100),
        (100, 2, OLD, 200),
        (199, 2, OLD, 200),
        (200, 3, HERE, 250),
        (250, 3, HERE, 250),
    ],
)
def test_an_offset_lies_in_the_partitionlet_that_holds_it(
    offset: int, partitionlet: int, container: object, limit: int
) -> None:
    where = planner().locate(partition(), offset)
    assert (where.partitionlet, where.container, where.offset, where.limit) == (partitionlet, container, offset, limit)


def test_nothing_above_the_high_watermark_is_read_wherever_it_lies() -> None:
    where = planner().locate(partition(high_watermark=150), 120)
    assert (where.partitionlet, where.limit, where.high_watermark) == (2, 150, 150)


def test_an_offset_in_none_goes_on_where_the_next_one_begins() -> None:
    held = partition()
    held.chain = (held.chain[0], held.chain[2])
    where = planner().locate(held, 150)
    assert (where.partitionlet, where.offset) == (3, 200)
    held.chain = held.chain[1:]
    assert planner().locate(held, 5).offset == 200


class Logs:
    """This node's logs: the result of each read, and what was read ahead as (partitionlet, offset, read, limit)."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.ahead: list[tuple[int, int, int, int]] = []

    def read(self, partitionlet: int, offset: int, *, limit: int, max_bytes: int) -> list[bytes]:
        return [bytes(self.size)]

    def read_ahead(self, partitionlet: int, offset: int, *, limit: int, read_bytes: int, max_bytes: int) -> int:
        self.ahead.append((partitionlet, offset, read_bytes, max_bytes))
        return max_bytes


@pytest.mark.parametrize("size", [AHEAD_FROM - 1, AHEAD_FROM, 3 << 20])
async def test_who_catches_up_finds_as_much_again_read_ahead_and_no_more_than_a_bound(size: int) -> None:
    logs = Logs(size)
    led: Any = {ContainerId(8): SimpleNamespace(log=logs)}
    with ThreadPoolExecutor(1) as executor:
        runtime: Any = SimpleNamespace(loop=asyncio.get_running_loop(), executor=executor)
        nothing: Any = None
        plan = FetchPlanner(runtime=runtime, led=led, remote_reads=nothing)
        asked = [((name, 0), plan.locate(partition(), 100), 1 << 20) for name in ("t", "u")]
        found = await plan.read_all(asked, 8 << 20)
    assert [sum(map(len, batches)) for batches in found.values() if isinstance(batches, list)] == [size, size]
    match size:
        case 3145728:
            assert logs.ahead == [(2, 100, size, size), (2, 100, size, AHEAD_BYTES - size)]
        case 65536:
            assert logs.ahead == [(2, 100, size, size)] * 2
        case _:
            assert logs.ahead == []


class Reads:
    """Reads from other nodes: the records of each partitionlet, by id."""

    def __init__(self, **has: Any) -> None:
        self.has = {int(name[1:]): what for name, what in has.items()}
        self.asked: list[tuple[int, int, int]] = []

    async def read(self, row: Any, *, offset: int, limit: int, max_bytes: int) -> list[bytes]:
        self.asked.append((row.id, offset, max_bytes))
        found = self.has.get(row.id, [])
        if isinstance(found, Exception):
            raise found
        return list(found)


def asking(reads: Reads) -> FetchPlanner:
    given: Any = reads
    nothing: Any = None
    return FetchPlanner(runtime=nothing, led={}, remote_reads=given)


async def test_others_are_asked_for_no_more_than_fits_in_all() -> None:
    reads = Reads(p1=[b"x" * 60])
    plan = asking(reads)
    where = plan.locate(partition(), 0)
    found = await plan.read_all([(("t", number), where, 60) for number in range(3)], 100)
    assert [asked[2] for asked in reads.asked] == [60, 40]
    assert found == {("t", 0): [b"x" * 60]}, "the second one's batch is longer than what is left"


async def test_at_least_one_batch_is_read_however_small_the_budget() -> None:
    reads = Reads(p1=[b"x" * 60])
    plan = asking(reads)
    assert await plan.read_all([(("t", 0), plan.locate(partition(), 0), 60)], 1) == {("t", 0): [b"x" * 60]}


async def test_an_error_is_the_answer_of_its_range_alone() -> None:
    error = OSError("the disk is gone")
    reads = Reads(p1=error)
    plan = asking(reads)
    found = await plan.read_all([(("t", 0), plan.locate(partition(), 0), 60)], 100)
    assert found == {("t", 0): error}


async def test_behind_a_partitionlet_that_was_cut_and_ends_in_a_gap_the_next_one_is_read() -> None:
    reads = Reads(p2=[b"next"])
    plan = asking(reads)
    assert await plan.read_all([(("t", 0), plan.locate(partition(cut=True), 90), 60)], 100) == {("t", 0): [b"next"]}
    assert [(number, offset) for number, offset, _ in reads.asked] == [(1, 90), (2, 100)]


async def test_records_that_are_missing_where_nothing_was_cut_are_not_passed_over() -> None:
    reads = Reads(p2=[b"next"])
    plan = asking(reads)
    assert await plan.read_all([(("t", 0), plan.locate(partition(), 90), 60)], 100) == {("t", 0): []}

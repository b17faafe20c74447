"""Plans read every offset once, keep to their limits, and survive Spark's log."""

import json

from hypothesis import given
from hypothesis import strategies as st

from headrace_spark.options import Partition
from headrace_spark.plan import SMALLEST_TASK, OffsetRange, StreamOffset, limited, pending, spread

MIB = 1 << 20

ranges_of = st.dictionaries(
    st.tuples(st.sampled_from(["a", "b", "/s:c"]), st.integers(0, 5)),
    st.tuples(st.integers(0, 1 << 40), st.integers(1, 1 << 20), st.floats(1, 5000)),
    min_size=1,
    max_size=12,
)


def built(drawn: dict[Partition, tuple[int, int, float]]) -> tuple[list[OffsetRange], dict[Partition, float]]:
    ranges = [OffsetRange(*key, start, start + size) for key, (start, size, _) in sorted(drawn.items())]
    return ranges, {key: mean for key, (_, _, mean) in drawn.items()}


@given(ranges_of, st.integers(1, 64), st.integers(1, 64))
def test_tasks_cover_every_offset_once(
    drawn: dict[Partition, tuple[int, int, float]], mib_per_task: int, parallel: int
) -> None:
    ranges, weight = built(drawn)
    tasks = spread(ranges, weight=weight, bytes_per_task=mib_per_task * MIB, parallel=parallel)
    pieces = sorted(piece for task in tasks for piece in task)
    joined: list[OffsetRange] = []
    for piece in pieces:
        if joined and joined[-1].key == piece.key and joined[-1].end == piece.start:
            joined[-1] = OffsetRange(*piece.key, joined[-1].start, piece.end)
        else:
            joined.append(piece)
    assert joined == ranges
    assert all(tasks)


@given(ranges_of, st.integers(1, 16))
def test_no_task_is_much_over_its_share(drawn: dict[Partition, tuple[int, int, float]], parallel: int) -> None:
    ranges, weight = built(drawn)
    tasks = spread(ranges, weight=weight, bytes_per_task=32 * MIB, parallel=parallel)
    loads = [sum(piece.records * weight[piece.key] for piece in task) for task in tasks]
    assert max(loads) <= 2 * max(sum(loads) / len(loads), SMALLEST_TASK) + 5000


def test_a_thousand_small_topics_make_few_tasks() -> None:
    ranges = [OffsetRange(f"t{n}", 0, 0, 10) for n in range(1000)]
    tasks = spread(ranges, weight={one.key: 100.0 for one in ranges}, bytes_per_task=32 * MIB, parallel=8)
    assert len(tasks) == 1
    assert sorted(tasks[0]) == sorted(ranges)


@given(ranges_of, st.floats(0, 1e12))
def test_a_limit_is_kept_and_something_always_moves(
    drawn: dict[Partition, tuple[int, int, float]], limit: float
) -> None:
    ranges, weight = built(drawn)
    kept = limited(ranges, weight=weight, limit=limit)
    assert kept
    whole = {one.key: one for one in ranges}
    assert all(one.start == whole[one.key].start and one.start < one.end <= whole[one.key].end for one in kept)
    total = sum(one.records * weight[one.key] for one in kept)
    assert total <= limit or (len(kept) == 1 and kept[0].records == 1)


def test_a_limit_lets_no_partition_fall_behind() -> None:
    ranges = [OffsetRange("a", 0, 0, 9000), OffsetRange("a", 1, 500, 1500)]
    kept = limited(ranges, weight={("a", 0): 1.0, ("a", 1): 1.0}, limit=1000)
    assert kept == [OffsetRange("a", 0, 0, 900), OffsetRange("a", 1, 500, 600)]


def test_only_what_is_new_is_pending() -> None:
    start, end = {("a", 0): 5, ("a", 1): 7}, {("a", 0): 5, ("a", 1): 9}
    assert pending(start, end) == [OffsetRange("a", 1, 7, 9)]


@given(ranges_of)
def test_an_offset_comes_back_from_sparks_log_as_it_was(drawn: dict[Partition, tuple[int, int, float]]) -> None:
    ranges, weight = built(drawn)
    tasks = spread(ranges, weight=weight, bytes_per_task=8 * MIB, parallel=4)
    offset = StreamOffset("g", {one.key: one.end for one in ranges}, tasks)
    text = json.dumps(offset.to_json())
    again = StreamOffset.from_json(json.loads(text))
    assert again == offset
    assert json.dumps(again.to_json()) == text

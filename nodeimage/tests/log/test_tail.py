"""The tail cache gives the same batches as a list of all batches would, or none."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.log.tail import ENTRY_COST, TailCache


@given(
    limit=st.sampled_from([0, ENTRY_COST + 60, 8 * ENTRY_COST, 300 * ENTRY_COST]),
    appends=st.lists(
        st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 100), st.sampled_from([0, 0, 3])), max_size=200
    ),
    reads=st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 300), st.integers(0, 300), st.integers(1, 500)), max_size=20
    ),
)
def test_the_cache_answers_as_the_list_of_batches_would_or_not_at_all(
    limit: int, appends: list[tuple[int, int, int, int]], reads: list[tuple[int, int, int, int]]
) -> None:
    cache = TailCache(limit)
    model: dict[int, list[tuple[int, int, bytes]]] = {}
    for partitionlet, records, size, gap in appends:
        known = model.setdefault(partitionlet, [])
        first = (known[-1][1] + 1 if known else 0) + gap
        batch = (first, first + records - 1, b"%d" % first + bytes(size))
        known.append(batch)
        cache.add(partitionlet, batch[0], batch[1], memoryview(batch[2]))
        assert cache.used <= limit
    for partitionlet, offset, below, max_bytes in reads:
        found = cache.read(partitionlet, offset, limit=below, max_bytes=max_bytes)
        if found is None:
            continue
        expected: list[bytes] = []
        for _, last, raw in model[partitionlet]:
            if last < offset:
                continue
            if last >= below or (expected and sum(map(len, expected)) + len(raw) > max_bytes):
                break
            expected.append(raw)
        assert found == expected


def test_the_newest_batches_stay() -> None:
    cache = TailCache(3 * (ENTRY_COST + 10))
    for row in range(1000):
        cache.add(1, row, row, memoryview(b"%010d" % row))
    assert cache.read(1, 996, limit=2000, max_bytes=1000) is None
    assert cache.read(1, 997, limit=2000, max_bytes=1000) == [b"%010d" % row for row in (997, 998, 999)]
    assert cache.read(1, 1000, limit=2000, max_bytes=1000) == []
    assert cache.read(2, 0, limit=2000, max_bytes=1000) is None

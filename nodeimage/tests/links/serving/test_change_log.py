"""The log of a stream's changes: a reader that continues from a serial misses nothing, or has to start over."""

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.links.serving import change_log
from headrace.links.serving.change_log import COMMITTED_OFFSET, PARTITION, TOPIC, ChangeLog

KINDS = (PARTITION, TOPIC, COMMITTED_OFFSET)
TOPICS = [bytes([n]) * 16 for n in range(4)]
KEYS = (
    [(PARTITION, topic, index) for topic in TOPICS for index in range(2)]
    + [(TOPIC, topic) for topic in TOPICS]
    + [(COMMITTED_OFFSET, "g", topic, 0) for topic in TOPICS]
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("note"), st.sampled_from(KEYS)),
        st.tuples(st.just("read"), st.integers(0, 2), st.integers(1, 6)),
        st.tuples(st.just("forget"), st.integers(0, 12)),
    ),
    max_size=200,
)
WANTED = [KINDS, (PARTITION,), (PARTITION, COMMITTED_OFFSET)]


class Reader:
    """A reader that pages through the log, with what it must know by now."""

    def __init__(self, kinds: tuple[int, ...]) -> None:
        self.kinds = kinds
        self.serial = 0
        self.told: dict[change_log.Key, int] = {}
        self.resets = 0


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_no_change_is_missed_however_notes_reads_and_losses_mix(steps: list[tuple]) -> None:  # type: ignore[type-arg]
    slack, change_log.SLACK = change_log.SLACK, 3
    try:
        _run(steps)
    finally:
        change_log.SLACK = slack


def _run(steps: list[tuple]) -> None:  # type: ignore[type-arg]
    log = ChangeLog(0)
    newest = 0
    truth: dict[change_log.Key, int] = {}
    readers = [Reader(kinds) for kinds in WANTED]

    def read(reader: Reader, limit: int) -> bool:
        if reader.serial < log.floor:
            reader.serial, reader.told = newest, dict(truth)  # the reader lists everything again
            reader.resets += 1
            return False
        page = log.since(reader.serial, newest=newest, limit=limit, kinds=reader.kinds)
        assert len(page.changes) <= limit
        assert len({key for key, _ in page.changes}) == len(page.changes)
        assert reader.serial <= page.serial <= newest
        reader.told.update(page.changes)
        reader.serial = page.serial
        return bool(page.changes)

    for step in steps:
        match step:
            case ("note", key):
                newest += 1
                truth[key] = newest
                log.note(key, newest, newest)
            case ("read", which, limit):
                read(readers[which], limit)
            case ("forget", count):
                before = len(log)
                log.forget(min(count, before))
                assert len(log) == before - min(count, before)
        assert len(log._keys) <= 2 * len(log) + 4 + len(KEYS)
    for reader in readers:
        while read(reader, 3):
            pass
        wanted = {key: value for key, value in truth.items() if key[0] in reader.kinds}
        assert {key: value for key, value in reader.told.items() if key[0] in reader.kinds} == wanted


def test_what_changes_often_is_told_once_and_takes_no_more_room() -> None:
    log = ChangeLog(0)
    for serial in range(1, 50_001):
        log.note(KEYS[serial % 2], serial, serial)
    assert len(log) == 2
    assert len(log._keys) <= change_log.SLACK + 5
    page = log.since(0, newest=50_000, limit=10, kinds=KINDS)
    assert page.changes == [(KEYS[1], 49_999), (KEYS[0], 50_000)]


def test_after_a_loss_those_who_had_seen_what_went_may_go_on() -> None:
    log = ChangeLog(0)
    for serial, key in enumerate(KEYS, 1):
        log.note(key, serial)
    log.forget(5)
    assert log.floor == 5
    assert [key for key, _ in log.since(5, newest=len(KEYS), limit=99, kinds=KINDS).changes] == KEYS[5:]

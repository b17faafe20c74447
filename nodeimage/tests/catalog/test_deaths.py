"""Partitionlets that lose records are reported whichever command causes it, and a later start knows whether all reports
were processed."""

from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import ContainerId, Epoch, LeaderEpoch, Millis, Offset, PartitionletId, Position
from headrace.catalog import chains
from headrace.catalog.catalog import Catalog
from headrace.catalog.chains import (
    LogStart,
    RollDone,
    Rolled,
    RollIntent,
    RollTarget,
    SetLogStart,
    ShortenChains,
    Shortened,
)
from headrace.catalog.deletions import ForgetDeleted
from headrace.catalog.feature_level import RaiseLevel
from headrace.catalog.policy import StreamPolicy
from headrace.catalog.rows import PartitionletRow
from headrace.catalog.streams import CreateStream, DeleteStream
from headrace.catalog.tables import SCHEMA, open_tables
from headrace.catalog.topics import CreateTopics, DeleteTopics, NewTopic
from headrace.tables.deaths import UNKNOWN, DeathReport
from headrace.tables.transactions import apply_all
from kit.catalog import MemoryLog, Tables

NOW = Millis(1)
T, U = b"t" * 16, b"u" * 16


@pytest.fixture(params=[0, 1], ids=["level 0", "level 1"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tables]:
    tables = Tables(tmp_path / "catalog.sqlite")
    if request.param:
        tables.apply(RaiseLevel(1))
    tables.apply(CreateStream("/s", StreamPolicy(), NOW))
    items = [NewTopic("/s", name, id_, 1, {}, [ContainerId(5)], [Epoch(1)]) for name, id_ in (("t", T), ("u", U))]
    tables.apply(CreateTopics(items, NOW))
    yield tables
    tables.close()


def told(tables: Tables) -> list[tuple[int, int]]:
    pairs = tables.connection.deaths.take().pairs
    return sorted({(pairs[at], pairs[at + 1]) for at in range(0, len(pairs), 2)})


def chain(tables: Tables, topic_id: bytes) -> list[PartitionletRow]:
    (topic,) = tables.reader.topics.by_ids([topic_id]).values()
    return tables.reader.chains.chain(topic.number)


def rolled(tables: Tables, *, container: int, end: int) -> PartitionletRow:
    """The partitionlet in which T continues from `end`."""
    opened = chain(tables, T)[-1].id
    (intended,) = tables.apply(RollIntent([RollTarget(T, 0, opened, ContainerId(container))], NOW))
    row = intended.partitionlet
    tables.apply(RollDone([Rolled(T, 0, opened, Offset(end), [(LeaderEpoch(0), Offset(0))], row.id, Epoch(1))], NOW))
    return chain(tables, T)[-1]


def forget_all(tables: Tables) -> None:
    while tables.apply(ForgetDeleted()).more:
        pass


def test_nothing_has_died_of_what_was_made(made: Tables) -> None:
    assert told(made) == []
    assert made.connection.deaths.count == 0


def test_what_is_deleted_has_died_when_its_rows_are_gone(made: Tables) -> None:
    (row,) = chain(made, T)
    made.apply(DeleteTopics([T], NOW))
    forget_all(made)
    assert told(made) == [(5, row.id)]
    (row,) = chain(made, U)
    made.apply(DeleteStream("/s", NOW, force=True))
    forget_all(made)
    assert told(made) == [(5, row.id)]


def test_a_log_start_that_moves_tells_of_what_begins_below_it(made: Tables) -> None:
    (first,) = chain(made, T)
    second = rolled(made, container=6, end=100)
    assert told(made) == []
    made.apply(SetLogStart([LogStart(T, 0, Offset(40))]))
    assert told(made) == [(5, first.id)]
    made.apply(SetLogStart([LogStart(T, 0, Offset(40))]))
    assert told(made) == [], "it has not moved"
    made.apply(SetLogStart([LogStart(T, 0, Offset(100))]))
    assert told(made) == [(5, first.id)], "it left the chain, and of the next one nothing is dead"
    made.apply(SetLogStart([LogStart(T, 0, Offset(130))]))
    assert told(made) == [(6, second.id)]


def test_a_sealed_one_that_lost_all_its_records_has_died(made: Tables) -> None:
    (first,) = chain(made, T)
    rolled(made, container=6, end=100)
    made.apply(ShortenChains([Shortened(T, 0, first.id, Offset(0))]))
    assert (5, first.id) in told(made)


def test_what_a_command_that_is_refused_would_have_killed_lives(made: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(connection: object, partitionlets: list[PartitionletId]) -> None:
        delete(connection, partitionlets)  # type: ignore[arg-type]
        raise KafkaError(Code.POLICY_VIOLATION)

    delete = chains._delete
    rolled(made, container=6, end=100)
    told(made)
    monkeypatch.setattr(chains, "_delete", refused)
    with pytest.raises(KafkaError):
        made.apply(SetLogStart([LogStart(T, 0, Offset(100))]))
    assert told(made) == []
    assert made.connection.deaths.count == 0


def test_a_later_start_has_the_count_of_before_and_hears_what_it_applies_itself(made: Tables, tmp_path: Path) -> None:
    (row,) = chain(made, T)
    made.apply(SetLogStart([LogStart(T, 0, Offset(40))]))
    made.apply(SetLogStart([LogStart(U, 0, Offset(1)), LogStart(T, 0, Offset(50))]))
    assert made.connection.deaths.count == 3
    later = open_tables(tmp_path / "catalog.sqlite")
    assert (later.deaths.count_at_open, list(later.deaths.take().pairs)) == (3, [])
    apply_all(later, [(Position(10_000), SetLogStart([LogStart(T, 0, Offset(60))]))], SCHEMA)
    assert later.deaths.count_at_open == 3
    assert later.deaths.take() == (array("q", [5, row.id]), 4)
    later.close()


def test_where_nothing_counts_that_is_known(made: Tables, tmp_path: Path) -> None:
    made.connection.execute("DROP TABLE deaths")
    made.connection.begin()
    assert made.connection.deaths.count == UNKNOWN
    (row,) = chain(made, T)
    made.apply(SetLogStart([LogStart(T, 0, Offset(40))]))
    assert told(made) == [(5, row.id)]
    assert made.connection.deaths.count == UNKNOWN
    later = open_tables(tmp_path / "catalog.sqlite")
    assert later.deaths.count == 0, "from now on"
    later.close()


async def test_what_died_before_anybody_asked_to_hear_of_it_is_kept(tmp_path: Path) -> None:
    catalog = await Catalog.open(tmp_path, MemoryLog())
    await catalog.submit(CreateStream("/s", StreamPolicy(), NOW))
    (made,) = await catalog.submit(CreateTopics([NewTopic("/s", "t", T, 1, {}, [ContainerId(5)], [Epoch(1)])], NOW))
    (row,) = made.partitionlets
    await catalog.submit(SetLogStart([LogStart(T, 0, Offset(10))]))
    assert (catalog.deaths_at_open, list(catalog.death_report_at_open.pairs), catalog.death_report_at_open.total) == (
        0,
        [5, row.id],
        1,
    )
    heard: list[DeathReport] = []
    catalog.on_dead_records(heard.append)
    await catalog.submit(SetLogStart([LogStart(T, 0, Offset(20))]))
    assert heard == [(array("q", [5, row.id]), 2)]
    assert catalog.death_report_at_open.total == 1
    assert catalog.deaths == 2
    await catalog.close()


async def test_rows_that_were_replaced_before_anybody_asked_are_of_no_count(tmp_path: Path) -> None:
    source = await Catalog.open(tmp_path / "source", MemoryLog())
    await source.submit(CreateStream("/s", StreamPolicy(), NOW))
    position = await source.snapshot()
    (snapshot,) = (tmp_path / "source").glob("snapshot-*")
    catalog = await Catalog.open(tmp_path / "target", MemoryLog(leads=False))
    await catalog.install(snapshot, position)
    assert catalog.deaths_at_open == UNKNOWN
    await catalog.close()
    await source.close()

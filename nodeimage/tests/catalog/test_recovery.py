"""Numbers that are assigned after commands were lost."""

from headrace.base.ids import (
    PARTITIONLET_BITS,
    stream_of,
)
from headrace.catalog.chains import (
    LOST_ROLLS_GAP,
    ROLL_GAP,
    SKIPPED_BITS,
)
from headrace.catalog.policy import StreamPolicy
from headrace.catalog.recovery import SKIPPED_STREAMS, SkipNumbers
from headrace.catalog.streams import CreateStream
from kit.catalog import Tables
from kit.catalog_commands import NOW, chain, create, roll


def test_numbers_that_lost_commands_may_have_given_away_are_left_out_once(tables: Tables) -> None:
    topic_id = create(tables, "t")
    (before,) = chain(tables, topic_id)
    tables.apply(SkipNumbers(1))
    tables.apply(SkipNumbers(1))
    first = roll(tables, topic_id, end=10, epochs=[])
    assert first.id - (stream_of(first.id) << PARTITIONLET_BITS) == 1 << SKIPPED_BITS
    assert first.leader_epoch == before.leader_epoch + LOST_ROLLS_GAP, "rolls that were lost had given some away"
    second = roll(tables, topic_id, end=20, epochs=[])
    assert (second.id, second.leader_epoch) == (first.id + 1, first.leader_epoch + ROLL_GAP)
    stream = tables.apply(CreateStream("/new", StreamPolicy(), NOW)).stream
    assert stream.number > SKIPPED_STREAMS
    tables.apply(SkipNumbers(2))
    assert roll(tables, topic_id, end=30, epochs=[]).id > second.id + 1

"""Rolls, log starts, and the ends of partitionlets that lost records."""

import uuid
from typing import Any

import msgspec
import pytest

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import (
    ContainerId,
    Epoch,
    LeaderEpoch,
    Offset,
    PartitionletId,
)
from headrace.catalog.chains import (
    ROLL_GAP,
    LogStart,
    RetireContainer,
    RollDone,
    Rolled,
    RollIntent,
    RollTarget,
    SetLogStart,
    ShortenChains,
    Shortened,
)
from headrace.catalog.rows import INTENDED
from headrace.catalog.topics import CreatePartitions, CreateTopics
from kit.catalog import Tables
from kit.catalog_commands import NOW, chain, create, new_topic, roll


def test_a_roll_goes_from_intent_to_done_and_each_step_may_be_repeated(tables: Tables) -> None:
    topic_id = create(tables, "t")
    (first,) = chain(tables, topic_id)
    intent = RollIntent([RollTarget(topic_id, 0, first.id, ContainerId(20))], NOW)
    (intended,) = tables.apply(intent)
    assert tables.apply(intent) == [intended]
    assert tables.reader.chains.intended() == [intended.partitionlet]
    assert intended.partitionlet.state == INTENDED
    epochs = [(LeaderEpoch(0), Offset(0)), (LeaderEpoch(2), Offset(50))]
    done = RollDone([Rolled(topic_id, 0, first.id, Offset(100), epochs, intended.partitionlet.id, Epoch(5))], NOW)
    (opened,) = tables.apply(done)
    assert tables.apply(done) == [opened]
    sealed, now_open = chain(tables, topic_id)
    assert (sealed.id, sealed.end, sealed.epochs) == (first.id, 100, ((0, 0), (2, 50)))
    assert now_open == opened.partitionlet
    assert (now_open.first, now_open.container, now_open.container_epoch) == (100, 20, 5)
    assert tables.reader.chains.intended() == []


def test_leader_epochs_strictly_rise_at_every_roll_with_a_gap(tables: Tables) -> None:
    """Invariant 10."""
    topic_id = create(tables, "t")
    highest, end = 0, 0
    for failovers in (0, 4, 0, 300):
        (open_one,) = chain(tables, topic_id)[-1:]
        assert (
            open_one.current_leader_epoch(Epoch(open_one.container_epoch + failovers))
            == open_one.leader_epoch + failovers
        )
        end += 10
        opened = roll(
            tables,
            topic_id,
            end=end,
            epochs=[(open_one.leader_epoch, end - 10), (open_one.leader_epoch + failovers, end - 1)],
        )
        highest = max(highest, open_one.leader_epoch + failovers)
        assert opened.leader_epoch >= highest + ROLL_GAP
        highest = opened.leader_epoch


def test_an_intent_changes_its_target_only_once_the_first_was_sealed(tables: Tables) -> None:
    topic_id = create(tables, "t")
    (first,) = chain(tables, topic_id)
    (intended,) = tables.apply(RollIntent([RollTarget(topic_id, 0, first.id, ContainerId(20))], NOW))
    other = RollTarget(topic_id, 0, first.id, ContainerId(21))
    (refused,) = tables.apply(RollIntent([other], NOW))
    assert (refused.code, refused.partitionlet) == (Code.INVALID_REQUEST, intended.partitionlet)
    moved = RollTarget(topic_id, 0, first.id, ContainerId(21), abandoned=intended.partitionlet.id)
    (instead,) = tables.apply(RollIntent([moved], NOW))
    assert (instead.code, instead.partitionlet.container) == (Code.NONE, 21)
    assert instead.partitionlet.id > intended.partitionlet.id
    assert tables.reader.chains.live([intended.partitionlet.id]) == {}
    stale = Rolled(topic_id, 0, first.id, Offset(5), [], intended.partitionlet.id, Epoch(1))
    assert tables.apply(RollDone([stale], NOW))[0].code is Code.INVALID_REQUEST


def test_an_intent_from_before_a_roll_is_refused(tables: Tables) -> None:
    topic_id = create(tables, "t")
    (first,) = chain(tables, topic_id)
    opened = roll(tables, topic_id, end=5, epochs=[])
    stale, unknown, beyond = tables.apply(
        RollIntent(
            [
                RollTarget(topic_id, 0, first.id, ContainerId(20)),
                RollTarget(uuid.uuid4().bytes, 0, first.id, ContainerId(20)),
                RollTarget(topic_id, 7, first.id, ContainerId(20)),
            ],
            NOW,
        )
    )
    assert (stale.code, stale.partitionlet) == (Code.INVALID_REQUEST, opened)
    assert unknown.code is beyond.code is Code.UNKNOWN_TOPIC_OR_PARTITION


def test_an_empty_partitionlet_does_not_stay_in_the_chain(tables: Tables) -> None:
    topic_id = create(tables, "t")
    for _ in range(5):
        roll(tables, topic_id, end=0, epochs=[])
    (only,) = chain(tables, topic_id)
    assert only.first == 0
    assert only.leader_epoch == 5 * ROLL_GAP


def test_log_starts_never_fall_and_drop_what_lies_wholly_below(tables: Tables) -> None:
    topic_id = create(tables, "t")
    ids = [chain(tables, topic_id)[0].id]
    ids += [roll(tables, topic_id, end=end, epochs=[]).id for end in (10, 20)]

    def set_start(offset: int) -> Any:
        (outcome,) = tables.apply(SetLogStart([LogStart(topic_id, 0, Offset(offset))]))
        return outcome.code, outcome.offset, list(outcome.dropped)

    assert set_start(9) == (Code.NONE, 9, [])
    assert tables.reader.chains.live(ids) == {ids[0]: 9, ids[1]: 10, ids[2]: 20}
    assert set_start(4) == (Code.NONE, 9, [])
    assert set_start(10) == (Code.NONE, 10, [ids[0]])
    assert set_start(25) == (Code.NONE, 25, [ids[1]])
    assert tables.reader.chains.live(ids) == {ids[2]: 25}
    assert tables.reader.chains.owners([ids[2]])[ids[2]] == (1, topic_id, 0, 20, -1, 25)
    assert [row.id for row in chain(tables, topic_id)] == [ids[2]]
    roll(tables, topic_id, end=25, epochs=[])
    assert tables.reader.chains.live(ids) == {}
    unknown, beyond = tables.apply(
        SetLogStart([LogStart(uuid.uuid4().bytes, 0, Offset(1)), LogStart(topic_id, 5, Offset(1))])
    )
    assert unknown.code is beyond.code is Code.UNKNOWN_TOPIC_OR_PARTITION


def test_a_log_start_goes_on_behind_what_was_lost_of_a_sealed_partitionlet(tables: Tables) -> None:
    """Invariant 15. Otherwise retention would wait for ever for records that do not exist."""
    topic_id = create(tables, "t")
    ids = [chain(tables, topic_id)[0].id]
    ids += [roll(tables, topic_id, end=end, epochs=[]).id for end in (10, 20, 30)]

    def shorten(partitionlet: PartitionletId, end: int) -> Any:
        (outcome,) = tables.apply(ShortenChains([Shortened(topic_id, 0, partitionlet, Offset(end))]))
        return outcome.code, outcome.offset, list(outcome.dropped)

    assert shorten(ids[1], 15) == (Code.NONE, 0, [])
    assert shorten(ids[1], 18) == (Code.NONE, 0, []), "an end never rises"
    assert shorten(ids[3], 30) == (Code.NONE, 0, []), "what is open has no end"
    assert [(row.first, row.end) for row in chain(tables, topic_id)] == [(0, 10), (10, 15), (20, 30), (30, -1)]
    (moved,) = tables.apply(SetLogStart([LogStart(topic_id, 0, Offset(15))]))
    assert (moved.offset, list(moved.dropped)) == (20, [ids[0], ids[1]])
    assert shorten(ids[2], 20) == (Code.NONE, 30, [ids[2]])
    assert shorten(ids[2], 20) == (Code.NONE, 30, []), "it may come again"
    assert [row.first for row in chain(tables, topic_id)] == [30]
    unknown = tables.apply(ShortenChains([Shortened(uuid.uuid4().bytes, 0, ids[0], Offset(1))]))
    assert [each.code for each in unknown] == [Code.UNKNOWN_TOPIC_OR_PARTITION]


def test_nothing_is_placed_in_a_container_that_is_about_to_be_deleted(tables: Tables) -> None:
    before = new_topic("before", partitions=2)
    tables.apply(CreateTopics([before], NOW))
    (open_one,) = chain(tables, before.topic_id)
    (intended,) = tables.apply(RollIntent([RollTarget(before.topic_id, 0, open_one.id, ContainerId(11))], NOW))
    for _ in range(2):  # it may be applied twice
        assert tables.apply(RetireContainer(ContainerId(11))) == [Code.NONE]

    items = [new_topic("elsewhere"), new_topic("there", partitions=2), before]
    refused = tables.reader.topics.check_new(items)
    outcomes = tables.apply(CreateTopics(items, NOW))
    assert [each.code for each in outcomes] == [
        Code.NONE,
        Code.LEADER_NOT_AVAILABLE,
        Code.NONE,
    ]  # the last one is a repeat
    assert [each and each.code for each in refused] == [None, Code.LEADER_NOT_AVAILABLE, Code.NONE]
    assert "container 11 no longer accepts new partitions" in outcomes[1].message
    assert [row.name for row in tables.reader.topics.page("/s")] == ["before", "elsewhere"]

    grown = CreatePartitions(before.topic_id, 3, [ContainerId(11)], [Epoch(3)], NOW)
    with pytest.raises(KafkaError, match="container 11 no longer accepts new partitions"):
        tables.apply(grown)
    assert tables.apply(msgspec.structs.replace(grown, container_ids=[ContainerId(12)])).code is Code.NONE

    # An earlier intent is kept; a new one needs another container, and so does one that abandons its target.
    (again,) = tables.apply(RollIntent([RollTarget(before.topic_id, 0, open_one.id, ContainerId(11))], NOW))
    assert again == intended
    target = RollTarget(before.topic_id, 0, open_one.id, ContainerId(11), abandoned=intended.partitionlet.id)
    (outcome,) = tables.apply(RollIntent([target], NOW))
    assert (outcome.code, outcome.partitionlet) == (Code.LEADER_NOT_AVAILABLE, None)
    assert [row.id for row in chain(tables, before.topic_id)] == [open_one.id, intended.partitionlet.id]

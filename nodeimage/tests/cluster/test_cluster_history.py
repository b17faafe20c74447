"""The checker finds what it is for: a history with one planted fault of each kind, and none in one without."""

from collections.abc import Callable

import pytest

from kit.cluster_history import (
    Commit,
    CursorSeen,
    EndSeen,
    History,
    Listed,
    Log,
    Making,
    Outcome,
    Read,
    Where,
    Write,
    faults_of,
)

HERE = Where("/default:orders", 0)
Final = dict[Where, Log]


def sound() -> tuple[History, Final]:
    """Two producers, six records, a group that has read four of them; topics, as two nodes have them."""
    history = History()
    final = [(offset, b"%s-%d" % (b"ab"[offset % 2 : offset % 2 + 1], offset // 2)) for offset in range(6)]
    for offset, value in final:
        producer = value[:1].decode()
        history.writes.append(Write(producer, HERE, value, offset, Outcome.OK, offset + 0.5, offset))
        history.ends.append(EndSeen(HERE, offset + 1, offset + 0.6, offset + 0.7))
    for offset, value in final[:4]:
        history.reads.append(Read("m1", HERE, offset, value, offset + 1.0))
    history.reads.append(Read("m2", HERE, 3, final[3][1], 8.0))
    history.commits.append(Commit("g", HERE, 2, 3.0, Outcome.OK, 3.5))
    history.commits.append(Commit("g", HERE, 4, 9.0, Outcome.OK, 9.5))
    history.committed_offsets.append(CursorSeen("g", HERE, 2, 4.0, 4.5))
    history.committed_offsets.append(CursorSeen("g", HERE, 4, 10.0, 10.5))
    history.topics.append(Making(HERE.topic, 1, 0.0, Outcome.OK, 0.1, "one"))
    history.topics.append(Making("told-nothing", 2, 0.0, Outcome.OK, 0.1))
    history.topics.append(Making("refused", 1, 0.0, Outcome.FAILED, 0.1))
    history.topics.append(Making("in-doubt", 1, 0.0))
    history.topics.append(Making("again", 3, 0.0, Outcome.OK, 0.1, "first", deleted=Outcome.OK))
    history.topics.append(Making("again", 3, 1.0, Outcome.OK, 1.1, "second"))
    listing = {HERE.topic: Listed(1, "one"), "told-nothing": Listed(2, "two"), "again": Listed(3, "second")}
    history.listings = {"node 1": dict(listing), "node 2": dict(listing)}
    for life, incarnation in enumerate(("first", "second")):
        where, value = Where("again", 0, incarnation), b"c-%d" % life
        history.writes.append(Write("c", where, value, life + 0.2, Outcome.OK, life + 0.3, 0))
        history.reads.append(Read("m3", where, 0, value, life + 0.4))
        history.across.append(Read("m4", Where("again", 0), 0, value, life + 0.4))
    return history, {HERE: final}


def lost(history: History, final: Final) -> None:
    history.writes.append(Write("a", HERE, b"a-3", 20.0, Outcome.OK, 20.1, 6))


def lost_without_an_offset(history: History, final: Final) -> None:
    history.writes.append(Write("a", HERE, b"a-3", 20.0, Outcome.OK, 20.1, -1))


def moved(history: History, final: Final) -> None:
    history.writes[5].offset = 4


def duplicate(history: History, final: Final) -> None:
    final[HERE] = [*final[HERE], (6, b"a-0")]


def reorder(history: History, final: Final) -> None:
    log = list(final[HERE])
    log[0], log[2] = (0, log[2][1]), (2, log[0][1])
    history.writes[0].offset, history.writes[2].offset = 2, 0
    history.reads[0], history.reads[2] = (
        history.reads[0]._replace(value=log[0][1]),
        history.reads[2]._replace(value=log[2][1]),
    )
    final[HERE] = log
    history.ends.clear()


def gap(history: History, final: Final) -> None:
    final[HERE] = [*final[HERE], (8, b"c-0")]


def meaning(history: History, final: Final) -> None:
    history.reads[1] = history.reads[1]._replace(value=b"another")


def meaning_in_a_deleted_topic(history: History, final: Final) -> None:
    gone = HERE._replace(incarnation="first")
    history.reads += [Read("m1", gone, 0, b"x", 1.0), Read("m2", gone, 0, b"y", 2.0)]


def acknowledged_elsewhere_in_a_deleted_topic(history: History, final: Final) -> None:
    gone = HERE._replace(incarnation="first")
    history.reads.append(Read("m1", gone, 0, b"x", 1.0))
    history.writes.append(Write("a", gone, b"y", 0.5, Outcome.OK, 0.7, 0))


def refused_and_there(history: History, final: Final) -> None:
    history.writes.append(Write("c", HERE, b"c-0", 20.0, Outcome.FAILED, 20.1))
    final[HERE] = [*final[HERE], (6, b"c-0")]


def refused_and_read_before_the_topic_was_made_again(history: History, final: Final) -> None:
    history.writes.append(Write("c", HERE, b"c-0", 20.0, Outcome.FAILED, 20.1))
    history.reads.append(Read("m1", HERE._replace(incarnation="first"), 0, b"c-0", 21.0))


def uncommitted(history: History, final: Final) -> None:
    history.reads.append(Read("m1", HERE, 6, b"a-3", 11.0))


def committed_offset_back(history: History, final: Final) -> None:
    history.committed_offsets.append(CursorSeen("g", HERE, 2, 11.0, 11.5))


def committed_offset_undone_before_anybody_saw_it(history: History, final: Final) -> None:
    """As by the death of a coordinator that has acknowledged it."""
    history.committed_offsets[1] = history.committed_offsets[1]._replace(offset=2)


def committed_offset_gone(history: History, final: Final) -> None:
    history.committed_offsets.append(CursorSeen("g", HERE, -1, 11.0, 11.5))


def committed_offset_of_nobody(history: History, final: Final) -> None:
    history.committed_offsets.append(CursorSeen("g", HERE, 5, 11.0, 11.5))


def acknowledged_in_an_earlier_life(history: History, final: Final) -> None:
    history.reads.append(Read("m3", Where("again", 0, "second"), 1, b"c-0", 1.5))


def acknowledged_in_an_earlier_life_and_there(history: History, final: Final) -> None:
    final[Where("again", 0, "second")] = [(0, b"c-1"), (1, b"c-0")]


def back_to_an_earlier_life(history: History, final: Final) -> None:
    history.across.append(Read("m4", Where("again", 0), 0, b"c-0", 1.5))


def latest_back(history: History, final: Final) -> None:
    history.ends.append(EndSeen(HERE, 5, 12.0, 12.1))


def skipped(history: History, final: Final) -> None:
    del history.reads[1]


def on_node_2(history: History, topic: str, listed: Listed | None) -> None:
    listing = dict(history.listings["node 2"])
    if listed is None:
        del listing[topic]
    else:
        listing[topic] = listed
    history.listings = {"node 1": history.listings["node 1"], "node 2": listing}


def everywhere(history: History, topic: str, listed: Listed | None) -> None:
    on_node_2(history, topic, listed)
    history.listings["node 1"] = history.listings["node 2"]


def topic_lost(history: History, final: Final) -> None:
    everywhere(history, HERE.topic, None)


def topic_lost_without_an_incarnation(history: History, final: Final) -> None:
    everywhere(history, "told-nothing", None)


def topic_of_another_incarnation(history: History, final: Final) -> None:
    everywhere(history, HERE.topic, Listed(1, "two"))


def topic_with_fewer_partitions(history: History, final: Final) -> None:
    everywhere(history, "told-nothing", Listed(1, "two"))


def topic_refused_and_there(history: History, final: Final) -> None:
    everywhere(history, "refused", Listed(1, "two"))


def topic_deleted_and_there(history: History, final: Final) -> None:
    del history.topics[-1]
    everywhere(history, "again", Listed(3, "first"))


def topic_on_one_node_alone(history: History, final: Final) -> None:
    on_node_2(history, HERE.topic, None)


def topic_in_doubt_on_one_node_alone(history: History, final: Final) -> None:
    on_node_2(history, "in-doubt", Listed(1, "two"))


def error(history: History, final: Final) -> None:
    history.errors.append("producer a: message timed out")


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (lost, "lost"),
        (lost_without_an_offset, "lost"),
        (moved, "moved"),
        (duplicate, "duplicate"),
        (reorder, "reorder"),
        (gap, "gap"),
        (meaning, "meaning"),
        (meaning_in_a_deleted_topic, "meaning"),
        (acknowledged_elsewhere_in_a_deleted_topic, "meaning"),
        (refused_and_there, "aborted"),
        (refused_and_read_before_the_topic_was_made_again, "aborted"),
        (uncommitted, "uncommitted"),
        (committed_offset_back, "cursor"),
        (committed_offset_undone_before_anybody_saw_it, "cursor"),
        (committed_offset_gone, "cursor"),
        (committed_offset_of_nobody, "cursor"),
        (acknowledged_in_an_earlier_life, "life"),
        (acknowledged_in_an_earlier_life_and_there, "life"),
        (back_to_an_earlier_life, "life"),
        (latest_back, "latest"),
        (skipped, "skipped"),
        (topic_lost, "topic"),
        (topic_lost_without_an_incarnation, "topic"),
        (topic_of_another_incarnation, "topic"),
        (topic_with_fewer_partitions, "topic"),
        (topic_refused_and_there, "topic"),
        (topic_deleted_and_there, "topic"),
        (topic_on_one_node_alone, "topic"),
        (topic_in_doubt_on_one_node_alone, "topic"),
        (error, "error"),
    ],
)
def test_a_planted_fault_is_found_and_named(plant: Callable[[History, Final], None], kind: str) -> None:
    history, final = sound()
    plant(history, final)
    assert {line.partition(":")[0] for line in faults_of(history, final)} == {kind}


def test_a_sound_history_has_no_faults() -> None:
    assert faults_of(*sound()) == []


def test_a_write_of_unknown_outcome_may_be_there_or_not() -> None:
    history, final = sound()
    history.writes.append(Write("c", HERE, b"c-0", 20.0))
    assert faults_of(history, final) == []
    final[HERE] = [*final[HERE], (6, b"c-0")]
    assert faults_of(history, final) == []


def test_a_topic_in_doubt_may_be_there_or_not() -> None:
    history, final = sound()
    everywhere(history, "in-doubt", Listed(1, "three"))
    assert faults_of(history, final) == []


def test_what_overlaps_may_be_answered_either_way() -> None:
    history, final = sound()
    history.commits.append(Commit("g", HERE, 4, 9.0, Outcome.UNKNOWN))
    history.committed_offsets.append(CursorSeen("g", HERE, 2, 9.1, 9.2))
    history.ends.append(EndSeen(HERE, 5, 5.4, 5.8))
    assert faults_of(history, final) == []


def test_a_pause_is_measured_to_its_ends() -> None:
    history = History(times=[1.0, 2.0, 7.0, 7.5])
    assert history.longest_pause(0.0, 8.0) == 5.0
    assert history.longest_pause(7.1, 10.0) == 2.5
    assert history.longest_pause(7.1, 10.0, apart=lambda since, until: 2.0 * (since < 9.0 < until)) == 0.5

import random

from headrace.base.ids import Home, Millis, NodeId, Offset
from headrace.links.pull.effects import LookUp, LookUpResult
from headrace.links.pull.lag import (
    CATCHING_UP,
    CAUGHT_UP,
    CONNECTING,
    FAILED,
    PAUSED,
    Counters,
    Lag,
    LinkMetrics,
    combined,
    figures,
    overall,
)
from headrace.links.pull.link_state import LinkState
from headrace.links.source.source import Changes, FeedPlace, SourceTopic, TopicPartition

NODE = NodeId(1)
FIRST, SECOND = TopicPartition(b"a" * 16, 0), TopicPartition(b"b" * 16, 0)


def hears(state: LinkState, now: float, *ends: tuple[TopicPartition, int], serial: int = 1) -> None:
    """The source reports these high watermarks, and the copies are empty."""
    state.effects(now)
    state.changed(now, NODE, Changes(FeedPlace("run", serial), False, [(at, Offset(end)) for at, end in ends], [], []))
    for effect in state.effects(now):
        if isinstance(effect, LookUp):
            state.pulls.looked_up(now, [LookUpResult(at, True, Offset(0)) for at in effect.partitions])


def running() -> LinkState:
    state = LinkState(now=0.0, random=random.Random(1).random)
    state.effects(0.0)
    state.greeted(0.0, [NODE])
    return state


def test_the_lag_is_told_in_records_bytes_and_seconds_and_by_group_of_topics() -> None:
    state, counters = running(), Counters()
    counters.appended(10, 500)
    hears(state, 10.0, (FIRST, 30), (SECOND, 10))
    shown = figures(state, counters, 13.0, group_of=lambda topic_id: "a*" if topic_id == FIRST.topic_id else None)
    assert shown.lag == Lag(records=40, bytes=2000, seconds=3.0, partitions=2)
    assert shown.groups == {"a*": Lag(records=30, bytes=1500, seconds=3.0, partitions=1)}


def test_a_link_has_caught_up_while_records_are_only_on_their_way() -> None:
    state = running()
    hears(state, 10.0, (FIRST, 30))
    assert figures(state, Counters(), 10.5).state == CAUGHT_UP
    assert figures(state, Counters(), 15.0).state == CATCHING_UP
    state.pulls.committed(15.0, FIRST, Offset(30))
    assert figures(state, Counters(), 15.0).state == CAUGHT_UP
    assert figures(state, Counters(), 15.0).lag == Lag()


def test_a_link_that_has_not_looked_at_all_topics_catches_up() -> None:
    state = running()
    state.effects(1.0)
    state.changed(1.0, NODE, Changes(FeedPlace("run", 1), True, [], [], []))
    assert figures(state, Counters(), 1.0).state == CATCHING_UP
    state.effects(1.0)
    topic = SourceTopic("t", FIRST.topic_id, 1, {}, Home(0, "s"), "s", [NODE])
    state.listed(1.0, [topic], None)
    assert figures(state, Counters(), 1.0).state == CATCHING_UP, "its partition has still to be met"
    state.pulls.forget(FIRST)
    assert figures(state, Counters(), 1.0).state == CAUGHT_UP


def test_while_the_source_is_away_what_is_here_grows_older() -> None:
    state = running()
    hears(state, 10.0, (FIRST, 30))
    state.pulls.committed(10.0, FIRST, Offset(30))
    state.lost(20.0, "no connection within 10 s")
    shown = figures(state, Counters(), 80.0, group_of=lambda topic_id: "a*")
    assert (shown.state, shown.lag) == (CONNECTING, Lag(seconds=60.0)), "nobody knows what was written since"
    assert shown.groups == {"a*": Lag(seconds=60.0)}
    assert combined([figures(running(), Counters(), 80.0), shown]) == shown
    state.greeted(81.0, [NODE])
    assert figures(state, Counters(), 81.0).lag == Lag()


def test_states_and_errors_are_told() -> None:
    state, counters = LinkState(now=0.0, random=random.Random(1).random), Counters()
    assert figures(state, counters, 0.0).state == CONNECTING
    counters.failed("no such stream", Millis(7))
    state.not_greeted(1.0, "no such stream", refused=True)
    shown = figures(state, counters, 3.0)
    assert (shown.state, shown.state_s, shown.reason) == (FAILED, 2.0, "no such stream")
    assert (shown.last_error, shown.last_error_ms, shown.failures) == ("no such stream", 7, 1)
    state.pause(4.0)
    assert figures(state, counters, 4.0).state == PAUSED


def test_a_partition_that_is_blocked_is_told_with_its_reason() -> None:
    state = running()
    hears(state, 1.0, (FIRST, 30))
    state.pulls.block(state.pulls.all[FIRST], "a corrupt batch", until=5.0)
    (blocked,) = figures(state, Counters(), 1.0).blocked
    assert (blocked.topic_id, blocked.partition, blocked.reason) == (*FIRST, "a corrupt batch")


def test_the_figures_of_several_nodes_are_added_and_the_worst_state_is_the_links() -> None:
    well, behind = running(), running()
    hears(well, 10.0, (FIRST, 3))
    hears(behind, 1.0, (SECOND, 5))
    counters = Counters()
    counters.appended(2, 20)
    nodes: list[LinkMetrics] = [figures(well, counters, 10.0), figures(behind, counters, 10.0)]
    shown = combined(nodes)
    assert shown is not None
    assert shown.state == CATCHING_UP
    assert shown.lag == Lag(records=8, bytes=80, seconds=9.0, partitions=2)
    assert (shown.records, shown.bytes, shown.tracked) == (4, 40, 2)
    assert combined([]) is None


async def test_what_is_told_again_and_again_is_the_same_in_short() -> None:
    state, counters = running(), Counters()
    counters.appended(10, 500)
    hears(state, 10.0, (FIRST, 30), (SECOND, 10))
    whole = figures(state, counters, 13.0)
    short = await overall(state, counters, time=lambda: 13.0)
    assert (short.state, short.lag, short.blocked) == (whole.state, whole.lag, len(whole.blocked))
    assert (short.records, short.bytes, short.failures) == (10, 500, 0)
    connecting = LinkState(now=0.0, random=random.Random(1).random)
    assert (await overall(connecting, counters, time=lambda: 7.0)).lag == Lag(seconds=7.0)

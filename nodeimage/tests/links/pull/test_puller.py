"""A link on one node: the source's records reach the copies, whatever happens on either side."""

import asyncio

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import NodeId
from headrace.kafka_client.errors import SourceRefuses, SourceUnreachable
from headrace.links.pull.lag import CAUGHT_UP, CONNECTING, FAILED, PAUSED
from headrace.links.pull.limits import Limits
from headrace.links.pull.partition_pull import Status
from headrace.node.parts import NodeParts
from headrace.wire.compression import GZIP, ZSTD
from kit.kept_spans import KeptSpans
from kit.played_source import PlayedSource
from kit.pulled_records import ID, epochless, leader, shown
from kit.pulling import Copies, Pulling, copy, until


async def test_records_arrive_at_the_same_offsets_with_the_same_bytes(
    target: NodeParts, source: PlayedSource, pull: Pulling, copies: Copies
) -> None:
    partitions = source.topic("t", ID, 3)
    await copy(target, "t", partitions)
    sent = {
        at: source.produce(at, b"a", b"b", compression=codec)
        for at, codec in zip(partitions, (0, GZIP, ZSTD), strict=True)
    }
    pull(source)
    await until(lambda: all(copies.end(at) == 2 for at in partitions))
    for at in partitions:
        assert epochless(await copies.bytes(at)) == epochless(sent[at])
        records = await copies.records(at)
        assert [(each.offset, each.timestamp, each.value, each.headers) for each in records] == [
            (0, 1_000_000, b"a", [("h", b"v")]),
            (1, 1_000_001, b"b", [("h", b"v")]),
        ]


async def test_the_states_of_a_link_are_traced(target: NodeParts, source: PlayedSource, pull: Pulling) -> None:
    tracer = KeptSpans()
    puller = pull(source, name="l", tracer=tracer)
    await until(lambda: shown(puller) == CAUGHT_UP)
    puller.pause()
    puller.resume()
    await until(lambda: shown(puller) == CAUGHT_UP)
    source.goes(SourceRefuses("no"))
    await until(lambda: shown(puller) == FAILED)
    await puller.close()
    told = tracer.told("headrace.link.state")
    assert {(each["headrace.link"], each["headrace.path"]) for each in told} == {("l", "/copies")}
    states = [each["headrace.state"] for each in told]
    assert states == ["Connecting", "Running", "Paused", "Connecting", "Running", "Failed"]
    assert [each["headrace.next_state"] for each in told] == [*states[1:], "Ended"]
    assert all(each.took_s >= 0 for each in tracer.spans)


async def test_what_is_produced_while_the_link_runs_follows_without_any_timer(
    target: NodeParts, source: PlayedSource, pull: Pulling, copies: Copies
) -> None:
    (at,) = source.topic("t", ID)
    await copy(target, "t", [at])
    puller = pull(source)
    for number in range(50):
        source.produce(at, b"%d" % number)
        await until(lambda: copies.end(at) == number + 1)  # noqa: B023
    await until(lambda: puller.state.fetching.budget.held == 0)
    await until(lambda: puller.state.wake_at(asyncio.get_running_loop().time()) is None)
    assert shown(puller) == CAUGHT_UP


async def test_a_topic_that_is_made_after_the_link_is_pulled(
    target: NodeParts, source: PlayedSource, pull: Pulling, copies: Copies
) -> None:
    puller = pull(source)
    (at,) = source.topic("t", ID)
    source.produce(at, b"early")
    await until(lambda: at in puller._elsewhere)
    await copy(target, "t", [at])
    puller.touched([at], led_here=True)
    await until(lambda: copies.end(at) == 1)


async def test_a_lost_connection_loses_nothing_and_doubles_nothing(
    target: NodeParts, source: PlayedSource, pull: Pulling, copies: Copies
) -> None:
    partitions = source.topic("t", ID, 4)
    await copy(target, "t", partitions)
    puller = pull(source, limits=Limits(first_pause_s=0.02, longest_pause_s=0.05))
    for round_ in range(20):
        for at in partitions:
            source.produce(at, b"%d" % round_)
        if round_ % 5 == 2:
            source.goes(SourceUnreachable("cut"))
            await until(lambda: shown(puller) == CONNECTING)
        elif round_ % 5 == 4:
            source.goes(None)
            await asyncio.sleep(0)
    source.goes(None)
    await until(lambda: all(copies.end(at) == 20 for at in partitions))
    for at in partitions:
        assert [record.value for record in await copies.records(at)] == [b"%d" % round_ for round_ in range(20)]
        assert source.fetched[at] == 20, "nothing is fetched twice"


async def test_a_partition_that_moves_at_the_source_is_followed(
    target: NodeParts, pull: Pulling, copies: Copies
) -> None:
    source = PlayedSource(nodes=3)
    (at,) = source.topic("t", ID)
    await copy(target, "t", [at])
    pull(source, limits=Limits(first_pause_s=0.02))
    for number in range(12):
        source.move(at, source.nodes[number % 3])
        source.produce(at, b"%d" % number)
        if number % 3 == 0:
            await until(lambda: copies.end(at) == number + 1)  # noqa: B023
    await until(lambda: copies.end(at) == 12)
    assert [record.offset for record in await copies.records(at)] == list(range(12))


async def test_a_node_that_joins_the_source_is_found_when_it_leads(
    target: NodeParts, source: PlayedSource, pull: Pulling, copies: Copies
) -> None:
    (at,) = source.topic("t", ID)
    await copy(target, "t", [at])
    source.produce(at, b"a")
    pull(source, limits=Limits(first_pause_s=0.02))
    await until(lambda: copies.end(at) == 1)
    source.produce(at, b"b")
    joined = NodeId(9)
    source.nodes.append(joined)
    source._runs[joined], source._serials[joined], source._feeds[joined] = 1, 0, {}
    source.partitions[at].leader = joined
    source.partitions[at].epoch += 1
    await until(lambda: copies.end(at) == 2)


async def test_a_paused_link_pulls_nothing_and_goes_on_where_it_was(
    target: NodeParts, source: PlayedSource, pull: Pulling, copies: Copies
) -> None:
    (at,) = source.topic("t", ID)
    await copy(target, "t", [at])
    source.produce(at, b"a")
    puller = pull(source)
    await until(lambda: copies.end(at) == 1)
    puller.pause()
    assert shown(puller) == PAUSED
    await asyncio.sleep(0)
    calls = len(source.calls)
    source.produce(at, b"b")
    await asyncio.sleep(0.05)
    assert len(source.calls) == calls
    puller.resume()
    await until(lambda: copies.end(at) == 2)
    assert source.fetched[at] == 2


async def test_what_had_come_when_a_link_was_paused_is_appended_and_nothing_more_is_fetched(
    target: NodeParts, source: PlayedSource, pull: Pulling, copies: Copies
) -> None:
    (at,) = source.topic("t", ID)
    await copy(target, "t", [at])
    for _ in range(3):
        source.produce(at, b"x" * 1000)
    puller = pull(source, limits=Limits(partition_bytes=1000, fetch_bytes=1000))

    def is_paused_as_it_comes(_wanted: object) -> None:
        asyncio.get_running_loop().call_soon(puller.pause)

    source.before_fetch = is_paused_as_it_comes
    await until(lambda: copies.end(at) == 1 and puller.state.fetching.budget.held == 0)
    await until(lambda: not puller._appends and not puller._tasks and not puller._due)
    assert shown(puller) == PAUSED
    assert source.calls.count("fetch") == 1
    source.before_fetch = lambda _wanted: None
    puller.resume()
    await until(lambda: copies.end(at) == 3)
    assert source.fetched[at] == 3


async def test_a_link_that_is_closed_in_mid_copy_and_made_again_goes_on(
    target: NodeParts, source: PlayedSource, pull: Pulling, copies: Copies
) -> None:
    (at,) = source.topic("t", ID)
    await copy(target, "t", [at])
    for number in range(200):
        source.produce(at, b"%d" % number * 200)

    def is_cut_off(_wanted: object) -> None:
        if copies.end(at) > 20:
            raise SourceUnreachable("the source is away")

    source.before_fetch = is_cut_off
    puller = pull(source, limits=Limits(partition_bytes=4000, fetch_bytes=4000, budget_bytes=20_000))
    await until(lambda: copies.end(at) > 20)
    await puller.close()
    assert copies.end(at) < 200
    source.before_fetch = lambda _wanted: None
    pull(source)
    await until(lambda: copies.end(at) == 200)
    assert [record.offset for record in await copies.records(at)] == list(range(200))


async def test_no_more_is_fetched_than_the_budget_lets_while_the_disk_is_slow(
    target: NodeParts, source: PlayedSource, pull: Pulling, copies: Copies
) -> None:
    partitions = source.topic("t", ID, 8)
    await copy(target, "t", partitions)
    for at in partitions:
        for _ in range(20):
            source.produce(at, b"x" * 10_000)
    limits = Limits(budget_bytes=200_000, fetch_bytes=100_000, partition_bytes=40_000)
    puller = pull(source, limits=limits)
    budget = puller.state.fetching.budget
    most = 0

    def done() -> bool:
        nonlocal most
        most = max(most, budget.held + budget.reserved)
        return all(copies.end(at) == 20 for at in partitions)

    source.before_fetch = lambda _wanted: done() and None
    await until(done)
    assert 0 < most <= limits.budget_bytes + 11_000
    await until(lambda: budget.held == 0)


async def test_a_source_that_refuses_fails_the_link_with_its_reason_until_it_lets_it_in(
    target: NodeParts, source: PlayedSource, pull: Pulling, copies: Copies
) -> None:
    source.goes(SourceRefuses("wrong password"))
    puller = pull(source, limits=Limits(longest_pause_s=0.05))
    await until(lambda: shown(puller) == FAILED)
    assert puller.state.reason == "wrong password"
    assert puller.counters.last_error == "wrong password"
    source.goes(None)
    await until(lambda: shown(puller) == CAUGHT_UP)


async def test_a_source_that_is_the_cluster_itself_is_refused(
    target: NodeParts, source: PlayedSource, pull: Pulling
) -> None:
    source.cluster_id = target.node.cluster_id
    puller = pull(source)
    await until(lambda: shown(puller) == FAILED)
    assert "this cluster itself" in puller.state.reason


async def test_a_source_that_is_another_cluster_than_before_is_refused(
    target: NodeParts, source: PlayedSource, pull: Pulling
) -> None:
    puller = pull(source, expected_cluster="the-first-one")
    await until(lambda: shown(puller) == FAILED)
    assert "the-first-one" in puller.state.reason


async def test_a_topic_that_is_gone_at_the_source_is_blocked_with_that_reason(
    target: NodeParts, source: PlayedSource, pull: Pulling, copies: Copies
) -> None:
    (at,) = source.topic("t", ID)
    await copy(target, "t", [at])
    source.produce(at, b"a")
    puller = pull(source)
    await until(lambda: copies.end(at) == 1)

    def is_deleted(_wanted: object) -> None:
        source.partitions.clear()
        source.names.clear()

    source.before_fetch = is_deleted
    source.produce(at, b"b")
    await until(lambda: puller.state.pulls.all[at].status is Status.BLOCKED)
    assert puller.state.pulls.all[at].reason == "gone at the source"
    await until(lambda: copies.end(at) == 1)


async def test_a_roll_in_mid_copy_loses_and_doubles_nothing(
    target: NodeParts, source: PlayedSource, pull: Pulling, copies: Copies
) -> None:
    (at,) = source.topic("t", ID)
    await copy(target, "t", [at])
    puller = pull(source, limits=Limits(partition_bytes=4000, fetch_bytes=4000))
    for number in range(100):
        source.produce(at, b"%d" % number * 200)
        if number % 25 == 10:
            await until(lambda: copies.end(at) > 0)
            await target.rolls.roll(await leader(target, at))
            puller.touched([at], led_here=True)
    await until(lambda: copies.end(at) == 100)
    offsets: list[int] = []
    partition = await leader(target, at)
    for row in partition.chain:
        end = row.end if row.end >= 0 else partition.high_watermark
        offsets += range(row.first, end)
    assert offsets == list(range(100))
    assert source.fetched[at] >= 100


async def test_a_step_that_fails_unexpectedly_is_tried_again(
    target: NodeParts, source: PlayedSource, pull: Pulling, copies: Copies
) -> None:
    (at,) = source.topic("t", ID)
    await copy(target, "t", [at])
    source.produce(at, b"a")
    failures = [ZeroDivisionError("a fault"), KafkaError(Code.UNKNOWN_SERVER_ERROR)]

    def fails(_wanted: object) -> None:
        if failures:
            raise failures.pop()

    source.before_fetch = fails
    pull(source, limits=Limits(first_pause_s=0.02))
    await until(lambda: copies.end(at) == 1)
    assert not failures


async def test_an_idle_link_over_many_topics_costs_one_poll_per_node(
    target: NodeParts, pull: Pulling, copies: Copies
) -> None:
    source = PlayedSource(nodes=3)
    for number in range(300):
        (at,) = source.topic(f"t-{number}", number.to_bytes(16, "big"))
        if number < 50:
            await copy(target, f"t-{number}", [at])
    puller = pull(source)
    await until(lambda: shown(puller) == CAUGHT_UP and source.calls.count("changes") == 6)
    calls = len(source.calls)
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(source.calls) == calls
    assert puller.state.wake_at(asyncio.get_running_loop().time()) is None
    assert len(puller._tasks) == 3


async def test_a_slow_disk_is_waited_for_with_the_bytes_in_hand(
    target: NodeParts, source: PlayedSource, pull: Pulling, copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    (at,) = source.topic("t", ID)
    await copy(target, "t", [at])
    source.produce(at, b"a")
    await leader(target, at)
    caught_up = asyncio.Event()
    monkeypatch.setattr(type(target.back_pressure), "saturated", property(lambda _pressure: not caught_up.is_set()))
    monkeypatch.setattr(type(target.back_pressure), "not_saturated", lambda _pressure: caught_up.wait())
    puller = pull(source)
    await until(lambda: puller.state.fetching.budget.held > 0)
    assert copies.end(at) == 0
    caught_up.set()
    await until(lambda: copies.end(at) == 1)
    assert source.fetched[at] == 1

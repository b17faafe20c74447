"""Which partitions a link has to pull, and whether a source fits."""

from headrace.base.ids import Home
from headrace.catalog.topics import DeleteTopics
from headrace.links.pull.limits import Limits
from headrace.node.parts import NodeParts
from headrace.partitions.lookups import now
from kit.played_source import HOME, PlayedSource
from kit.pulled_records import ID
from kit.pulling import Copies, Pulling, copy, until


async def test_a_topic_that_is_at_home_here_is_never_pulled(
    target: NodeParts, source: PlayedSource, pull: Pulling, copies: Copies
) -> None:
    (at,) = source.topic("t", ID)
    (other,) = source.topic("u", bytes(16))
    await copy(target, "t", [at], home=target.node.cluster_id)
    await copy(target, "u", [other])
    source.produce(at, b"a")
    source.produce(other, b"a")
    pull(source)
    await until(lambda: copies.end(other) == 1)
    assert at not in source.fetched


async def test_a_source_that_knows_a_lower_home_is_not_pulled_from_and_a_higher_home_is_told(
    target: NodeParts, source: PlayedSource, pull: Pulling, copies: Copies
) -> None:
    (at,) = source.topic("t", ID)
    await copy(target, "t", [at])
    source.produce(at, b"a")
    source.partitions[at].home = Home(0, "a-lower-one")
    higher: list[bytes] = []
    puller = pull(source, limits=Limits(first_pause_s=0.02), on_higher=higher.append)
    await until(lambda: puller.state.pulls.all.get(at) and puller.state.pulls.all[at].failures >= 2)
    assert "not heard" in puller.state.pulls.all[at].reason
    assert not higher
    source.partitions[at].home = Home(1, "third")
    await until(lambda: higher == [ID] or len(higher) > 1)
    assert copies.end(at) in (-1, 0)
    source.partitions[at].home = Home(0, HOME)
    await until(lambda: copies.end(at) == 1)


async def test_a_copy_with_records_of_another_history_is_not_pulled_to_and_that_is_told(
    target: NodeParts, source: PlayedSource, pull: Pulling, copies: Copies
) -> None:
    (at,) = source.topic("t", ID)
    await copy(target, "t", [at])
    source.produce(at, b"a")
    puller = pull(source, limits=Limits(first_pause_s=0.02))
    await until(lambda: copies.end(at) == 1)
    source.partitions[at].origin = "elsewhere"
    source.partitions[at].epoch += 1
    source.produce(at, b"b")
    await until(lambda: puller.state.pulls.all[at].failures >= 2)
    assert "another history from offset 0 on" in puller.state.pulls.all[at].reason
    await until(lambda: copies.end(at) == 1)


async def test_a_topic_that_is_deleted_here_in_mid_copy_is_let_go(
    target: NodeParts, source: PlayedSource, pull: Pulling, copies: Copies
) -> None:
    (at,) = source.topic("t", ID)
    await copy(target, "t", [at])
    source.produce(at, b"a")
    puller = pull(source, limits=Limits(first_pause_s=0.02))
    await until(lambda: copies.end(at) == 1)
    await target.catalog.submit(DeleteTopics(topic_ids=[ID], now=now()))
    source.produce(at, b"b")
    await until(lambda: at not in puller.state.pulls.all)
    assert puller.state.fetching.budget.held == 0

"""All links on one node: which of them run, and which of them pulls which topic."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import Home, Offset
from headrace.catalog.homes import HomeChange, SetHome
from headrace.catalog.link_config import LinkConfig
from headrace.catalog.links import DeleteLink, PutLink, SetLinkState
from headrace.catalog.rows import PAUSED, RUNNING, LinkRow
from headrace.catalog.topics import CreatePartitions
from headrace.kafka_client.errors import SourceUnreachable
from headrace.links.pull import pull_choice, pullers
from headrace.links.pull.lag import CAUGHT_UP
from headrace.links.pull.lag import PAUSED as SHOWN_PAUSED
from headrace.links.pull.pull_choice import Share
from headrace.links.source.source import HomeStart, Source
from headrace.node.parts import NodeParts
from headrace.partitions.lookups import now
from headrace.partitions.topic import Topic
from kit import pulling
from kit.played_source import HOME, PlayedSource
from kit.pulling import STREAM, Copies, copy, until

ID = bytes(range(16))


class Links:
    """Pullers with sources that the test plays, one for each link by name."""

    def __init__(self, broker: NodeParts) -> None:
        self.parts = broker
        self.sources: dict[str, PlayedSource] = {}
        self.opened: list[str] = []
        self.refuses: Exception | None = None
        self.pullers = pulling.pullers(broker, open_source=self.open)

    def open(self, link: LinkRow) -> Source:
        if self.refuses is not None:
            raise self.refuses
        self.opened.append(link.name)
        return self.sources[link.name]

    def source(self, name: str, cluster: str = HOME) -> PlayedSource:
        self.sources[name] = PlayedSource()
        self.sources[name].cluster_id = cluster
        return self.sources[name]

    async def put(self, name: str, *topics: str, create: bool = True, throttle: int = 0) -> None:
        config = LinkConfig(source=["h:1"], source_stream="/s", topics=list(topics) or ["*"], throttle=throttle)
        await self.parts.catalog.submit(PutLink(name, STREAM, config, now(), create))

    def state(self, name: str) -> str | None:
        figures = self.pullers.figures(name)
        return None if figures is None else figures.state


@pytest.fixture
async def links(target: NodeParts) -> AsyncIterator[Links]:
    made = Links(target)
    await made.pullers.start()
    yield made
    await made.pullers.close()


async def test_links_begin_pause_go_on_and_end_as_the_catalog_says(links: Links, copies: Copies) -> None:
    source = links.source("a")
    (at,) = source.topic("t", ID)
    await copy(links.parts, "t", [at])
    await links.put("a")
    source.produce(at, b"1")
    await until(lambda: copies.end(at) == 1)
    await links.parts.catalog.submit(SetLinkState("a", PAUSED))
    await until(lambda: links.state("a") == SHOWN_PAUSED)
    source.produce(at, b"2")
    await links.parts.catalog.submit(SetLinkState("a", RUNNING))
    await until(lambda: copies.end(at) == 2)
    await links.parts.catalog.submit(DeleteLink("a"))
    await until(lambda: links.state("a") is None)
    await until(lambda: source.closed)
    assert links.opened == ["a"]


async def test_a_link_that_is_altered_goes_on_with_what_it_is_now(links: Links, copies: Copies) -> None:
    source = links.source("a")
    (at,), (other,) = source.topic("t", ID), source.topic("u", bytes(16))
    await copy(links.parts, "t", [at])
    await copy(links.parts, "u", [other])
    await links.put("a", "t*")
    source.produce(at, b"1")
    source.produce(other, b"1")
    await until(lambda: copies.end(at) == 1)
    await until(lambda: links.state("a") == CAUGHT_UP)
    assert other not in source.fetched
    again = links.source("a")
    again.names, again.partitions = source.names, source.partitions
    await links.put("a", "t*", "u*", create=False)
    await until(lambda: copies.end(other) == 1)


async def test_copies_that_are_made_and_that_grow_are_pulled_by_themselves(links: Links, copies: Copies) -> None:
    source = links.source("a")
    await links.put("a")
    await until(lambda: links.state("a") == CAUGHT_UP)
    first, second = source.topic("t", ID, 2)
    source.produce(first, b"1")
    source.produce(second, b"1")
    await copy(links.parts, "t", [first])
    await until(lambda: copies.end(first) == 1)
    ((container, epoch),) = links.parts.placement.place(1)
    outcome = await links.parts.catalog.submit(CreatePartitions(ID, 2, [container], [epoch], now()))
    assert outcome.code is Code.NONE
    await until(lambda: copies.end(second) == 1)


async def test_a_partition_that_rolls_is_gone_on_with(links: Links, copies: Copies) -> None:
    source = links.source("a")
    (at,) = source.topic("t", ID)
    await copy(links.parts, "t", [at])
    await links.put("a")
    for number in range(5):
        source.produce(at, b"%d" % number)
        await until(lambda: copies.end(at) == number + 1)  # noqa: B023
        (topic,) = await links.parts.topics.resolve_ids([ID])
        assert isinstance(topic, Topic)
        await links.parts.rolls.roll(await links.parts.partitions.leader(topic, 0))
    assert len((await links.parts.partitions.leader(topic, 0)).chain) == 6


async def test_of_two_links_the_one_to_the_home_pulls_each_record_once(links: Links, copies: Copies) -> None:
    home, mirror = links.source("z-home"), links.source("a-mirror", "another-cluster")
    (at,) = home.topic("t", ID)
    mirror.topic("t", ID)
    await copy(links.parts, "t", [at])
    await links.put("z-home")
    await links.put("a-mirror")
    await until(lambda: links.state("z-home") == links.state("a-mirror") == CAUGHT_UP)
    for number in range(20):
        home.produce(at, b"%d" % number)
        mirror.produce(at, b"%d" % number)
        await until(lambda: copies.end(at) == number + 1)  # noqa: B023
    assert home.fetched == {at: 20}
    assert mirror.fetched == {}


async def test_what_a_home_that_moves_here_lacks_is_asked_of_all_links_since_the_former_home_alone_may_have_it(
    links: Links, copies: Copies
) -> None:
    former, mirror = links.source("z-former"), links.source("a-mirror", "another-cluster")
    (at,) = former.topic("t", ID)
    mirror.topic("t", ID)
    await copy(links.parts, "t", [at])
    await links.put("z-former")
    await links.put("a-mirror")
    await until(lambda: links.state("z-former") == links.state("a-mirror") == CAUGHT_UP)
    own = links.parts.node.cluster_id
    change = HomeChange(ID, 1, own, {0: [(1, own, Offset(3))]})
    assert await links.parts.catalog.submit(SetHome(items=[change])) == [Code.NONE]
    (topic,) = await links.parts.topics.resolve_ids([ID])
    assert isinstance(topic, Topic)
    assert topic.home == Home(1, own)
    assert links.pullers._share("z-former", topic, 0) == Share(chosen=False)
    assert links.pullers._share("a-mirror", topic, 0) == Share()


async def test_what_the_first_of_two_links_that_lead_elsewhere_does_not_bring_the_other_does(
    links: Links, copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pullers, "PATIENCE_S", 1.0)
    first, second = links.source("a", "east"), links.source("b", "west")
    (at,) = first.topic("t", ID)
    second.topic("t", ID)
    await copy(links.parts, "t", [at])
    await links.put("a")
    await links.put("b")
    await until(lambda: links.state("a") == links.state("b") == CAUGHT_UP)
    for number in range(5):
        first.produce(at, b"%d" % number)
        second.produce(at, b"%d" % number)
        await until(lambda: copies.end(at) == number + 1)  # noqa: B023
    await asyncio.sleep(1.5)
    assert (first.fetched, second.fetched) == ({at: 5}, {}), "it waited for what the first one brought"
    began = asyncio.get_running_loop().time()
    second.produce(at, b"5")  # the first link may wait for this one
    await until(lambda: copies.end(at) == 6)
    assert asyncio.get_running_loop().time() - began >= 1.0
    assert links.state("a") == links.state("b") == CAUGHT_UP
    first.produce(at, b"5")
    first.produce(at, b"6")
    second.produce(at, b"6")
    await until(lambda: copies.end(at) == 7)
    assert second.fetched == {at: 1}
    assert [record.value for record in await copies.records(at)] == [b"%d" % number for number in range(7)]


async def test_what_the_link_to_the_home_lacks_of_homes_before_is_asked_of_all(links: Links, copies: Copies) -> None:
    home, relay = links.source("z-home"), links.source("a-relay", "another-cluster")
    (at,) = home.topic("t", ID)
    relay.topic("t", ID)
    for source in (home, relay):
        source.partitions[at].home = Home(1, HOME)
        source.partitions[at].history = [HomeStart(1, HOME, Offset(2))]
    await copy(links.parts, "t", [at])
    change = HomeChange(ID, 1, HOME, {0: [(1, HOME, Offset(2))]})
    assert await links.parts.catalog.submit(SetHome(items=[change])) == [Code.NONE]
    relay.produce(at, b"0")
    relay.produce(at, b"1")
    await links.put("z-home")
    await links.put("a-relay")
    await until(lambda: copies.end(at) == 2)
    assert relay.fetched == {at: 2}
    for value in (b"0", b"1", b"2"):
        home.produce(at, value)
    await until(lambda: copies.end(at) == 3)
    puller = links.pullers.puller("z-home")
    assert puller is not None
    puller.look_again(relist=True)
    await until(lambda: not links.pullers._lacking)


@pytest.mark.parametrize("how", ["paused", "deleted"])
async def test_another_link_takes_over_from_one_that_is_paused_or_deleted(
    links: Links, copies: Copies, how: str
) -> None:
    home, mirror = links.source("z-home"), links.source("a-mirror", "another-cluster")
    (at,) = home.topic("t", ID)
    mirror.topic("t", ID)
    await copy(links.parts, "t", [at])
    await links.put("z-home")
    await links.put("a-mirror")
    await until(lambda: links.state("z-home") == links.state("a-mirror") == CAUGHT_UP)
    mirror.produce(at, b"0")
    if how == "paused":
        await links.parts.catalog.submit(SetLinkState(name="z-home", state=PAUSED))
    else:
        await links.parts.catalog.submit(DeleteLink(name="z-home"))
    await until(lambda: copies.end(at) == 1)


async def test_another_link_takes_over_while_the_home_is_away_and_gives_back(
    links: Links, copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_choice, "TROUBLE_S", 0.1)
    monkeypatch.setattr(pullers, "TROUBLE_S", 0.1)
    home, mirror = links.source("z-home"), links.source("a-mirror", "another-cluster")
    (at,) = home.topic("t", ID)
    mirror.topic("t", ID)
    await copy(links.parts, "t", [at])
    await links.put("z-home")
    await links.put("a-mirror")
    await until(lambda: links.state("z-home") == links.state("a-mirror") == CAUGHT_UP)

    def both(value: bytes) -> None:
        home.produce(at, value)
        mirror.produce(at, value)

    both(b"1")
    await until(lambda: copies.end(at) == 1)
    home.goes(SourceUnreachable("cut"))
    both(b"2")
    await until(lambda: copies.end(at) == 2)
    assert mirror.fetched == {at: 1}
    home.goes(None)
    await until(lambda: links.state("z-home") == CAUGHT_UP and not links.pullers._trouble)
    await until(lambda: links.state("a-mirror") == CAUGHT_UP)
    both(b"3")
    await until(lambda: copies.end(at) == 3)
    assert [record.value for record in await copies.records(at)] == [b"1", b"2", b"3"]
    assert home.fetched == {at: 2}
    assert mirror.fetched == {at: 1}


async def test_a_link_that_cannot_be_opened_says_why_and_is_tried_again(
    links: Links, copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pullers, "RETRY_S", 0.01)
    source = links.source("a")
    (at,) = source.topic("t", ID)
    await copy(links.parts, "t", [at])
    source.produce(at, b"1")
    links.refuses = KafkaError(Code.INVALID_CONFIG, "credentials of another cluster")
    await links.put("a")
    await until(lambda: links.pullers.failed == {"a": "credentials of another cluster"})
    links.refuses = None
    await until(lambda: copies.end(at) == 1)
    assert links.pullers.failed == {}


async def test_a_fault_of_ours_with_one_link_does_not_end_the_following_of_all(
    links: Links, copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pullers, "RETRY_S", 0.01)
    source = links.source("a")
    await links.put("a")
    await until(lambda: links.state("a") == CAUGHT_UP)
    puller = links.pullers.puller("a")
    assert puller is not None
    paused: list[str] = []
    pause = puller.pause

    def fails_first() -> None:
        paused.append("a")
        if len(paused) == 1:
            raise KeyError(7)
        pause()

    monkeypatch.setattr(puller, "pause", fails_first)
    await links.parts.catalog.submit(SetLinkState("a", PAUSED))
    await until(lambda: links.state("a") == SHOWN_PAUSED)
    await links.parts.catalog.submit(DeleteLink("a"))
    await until(lambda: source.closed)


async def test_what_is_led_here_from_now_on_is_pulled_here(links: Links, copies: Copies) -> None:
    source = links.source("a")
    (at,) = source.topic("t", ID)
    await copy(links.parts, "t", [at])
    await links.put("a")
    await until(lambda: links.state("a") == CAUGHT_UP)
    puller = links.pullers.puller("a")
    assert puller is not None
    puller.state.pulls.forget(at)
    puller._elsewhere[at] = None
    source.produce(at, b"1")
    (topic,) = await links.parts.topics.resolve_ids([ID])
    assert isinstance(topic, Topic)
    container = (await links.parts.partitions.leader(topic, 0)).container
    links.pullers.container_led(container)
    await until(lambda: copies.end(at) == 1)

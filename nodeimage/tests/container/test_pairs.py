"""One heartbeat for all resting followers on a node, and what ends that, for one of them or for all."""

import asyncio
from dataclasses import replace

import pytest

from headrace.base.errors import StorageFull
from headrace.container import follower, pairs, replicas
from headrace.container.follower import Follower
from headrace.container.in_sync_writer import InSyncWriter
from headrace.container.leader import Leader
from headrace.container.pair_roster import LeadersRoster
from headrace.peer.messages import PAIRS_VERSION, Commit, PairUp, Resting
from headrace.peer.session import PeerUnreachable, Session
from kit.several_replicas import Several, handed_to, until


async def at_rest(three: Several, container: Leader) -> None:
    """Return once no timer checks any replica of the container."""

    def rests() -> bool:
        found = [three.nodes[number].replicas.replica(container.id) for number in (1, 2)]
        follows = [None if each is None else each.follower for each in found]
        return (
            container.rests and len(container.feeds) == 2 and all(each is not None and each.rests for each in follows)
        )

    await until(lambda: rests() or None)


class _Lost:
    """A session that accepts messages but sends nothing."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def send(self, *_message: object) -> None:
        pass

    async def drained(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Followers rest soon."""
    monkeypatch.setattr(follower, "REST_AFTER_S", 0.05)


async def test_containers_that_nobody_writes_to_are_at_rest_and_stay_in_touch(
    three: Several, monkeypatch: pytest.MonkeyPatch
) -> None:
    containers = [await three.led(await three.create(replicas=3, min_in_sync=2)) for _ in range(5)]
    for container in containers:
        await container.append_command(b"before")
        await at_rest(three, container)
    sent: list[object] = []
    send = Session.send

    def noted(session: Session, message: object, buffers: object = ()) -> None:
        sent.append(message)
        send(session, message, buffers)  # type: ignore[arg-type]

    monkeypatch.setattr(Session, "send", noted)
    heard = {id(pair): pair.roster.vouch.heard for pair in three.nodes[0].replicas._pairs._fed_nodes.values()}
    await until(
        lambda: (
            all(
                pair.roster.vouch.heard > heard[id(pair)] + 1.5
                for pair in three.nodes[0].replicas._pairs._fed_nodes.values()
            )
            or None
        )
    )
    assert not [each for each in sent if isinstance(each, Commit)]
    assert len(sent) < 60  # two pairs, one in each direction
    assert all(container.rests and container.in_touch for container in containers)
    assert all(len(container.state.in_sync) == 3 for container in containers)


async def test_what_is_written_to_a_container_at_rest_is_committed_and_it_rests_again(three: Several) -> None:
    container = await three.led(await three.create(replicas=3, min_in_sync=2))
    for payload in (b"first", b"second", b"third"):
        await at_rest(three, container)
        await asyncio.wait_for(container.append_command(payload), 100)
        assert not container.rests
    await at_rest(three, container)
    assert three.payloads(2, container.id) == [b"first", b"second", b"third"]


async def test_what_no_event_reports_of_a_container_at_rest_is_found_with_few_replicas_too(
    three: Several, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "ROUND_TICKS", 64)
    containers = [await three.led(await three.create(replicas=3, min_in_sync=2)) for _ in range(2)]
    for container in containers:
        await at_rest(three, container)
    with monkeypatch.context() as unsettled:
        unsettled.setattr(InSyncWriter, "is_settled", lambda *_: False)
        for container in containers:
            await until(lambda container=container: not container.rests or None, limit_s=20)  # type: ignore[misc]
    for container in containers:
        await at_rest(three, container)


async def test_a_follower_that_is_stuck_is_let_go_while_its_node_speaks_for_others(
    three: Several, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heartbeats of its node never count for frames sent to it."""
    monkeypatch.setattr("headrace.container.leader_state.STUCK_S", 1.5)
    container, other = [await three.led(await three.create(replicas=3, min_in_sync=2)) for _ in range(2)]
    await at_rest(three, container)
    await at_rest(three, other)

    def never(_frames: memoryview) -> None:
        raise StorageFull("no room for these frames, however often it is tried")

    monkeypatch.setattr(three.replica(2, container.id).log, "append_frames", never)
    await asyncio.wait_for(container.append_command(b"with two"), 100)
    assert {member.node for member in container.state.in_sync} == {each.node_id for each in three.nodes[:2]}
    assert other.rests
    assert len(other.state.in_sync) == 3


async def test_a_connection_that_leads_nowhere_is_found_when_something_is_written(
    three: Several, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its node is still heard, and before the kernel notices."""
    container = await three.led(await three.create(replicas=3, min_in_sync=2))
    await at_rest(three, container)
    half = three.replica(2, container.id).follower
    assert isinstance(half, Follower)
    lost = half._session
    feed = next(each for each in container.feeds if each.member.node == three.nodes[2].node_id)  # type: ignore[attr-defined]
    monkeypatch.setattr(feed, "_session", _Lost(feed._session))  # type: ignore[attr-defined]
    await asyncio.wait_for(container.append_command(b"with two, until it is back"), 100)
    await until(lambda: (half._session is not lost and len(container.state.in_sync) == 3) or None)
    await three.same(container.id, [0, 1, 2], end=container.end)


async def test_a_connection_that_ends_stirs_one_container_alone(three: Several) -> None:
    container, other = [await three.led(await three.create(replicas=3, min_in_sync=2)) for _ in range(2)]
    await at_rest(three, container)
    await at_rest(three, other)
    half = three.replica(2, container.id).follower
    assert isinstance(half, Follower)
    assert half._session is not None
    half._session.abort("cut")
    await until(lambda: not container.rests or None)
    assert other.rests
    await at_rest(three, container)
    assert len(container.state.in_sync) == 3


async def test_a_node_that_falls_silent_is_let_go_by_all_containers(
    three: Several, monkeypatch: pytest.MonkeyPatch
) -> None:
    containers = [await three.led(await three.create(replicas=3, min_in_sync=2)) for _ in range(3)]
    for container in containers:
        await at_rest(three, container)
    silent = three.nodes[2]
    send = Session.send

    def mute(session: Session, message: object, buffers: object = ()) -> None:
        if session not in silent.peers._sessions:
            send(session, message, buffers)  # type: ignore[arg-type]

    monkeypatch.setattr(Session, "send", mute)
    for container in containers:
        await until(lambda container=container: len(container.state.in_sync) == 2 or None)  # type: ignore[misc]
        await asyncio.wait_for(container.append_command(b"with two"), 100)


async def test_a_leaders_node_that_falls_silent_is_asked_anew(three: Several, monkeypatch: pytest.MonkeyPatch) -> None:
    container = await three.led(await three.create(replicas=3, min_in_sync=2))
    await at_rest(three, container)
    before = three.replica(1, container.id).follower
    assert isinstance(before, Follower)
    session = before._session
    monkeypatch.setattr(LeadersRoster, "beat", lambda *_: None)
    monkeypatch.setattr(pairs._LeadersPair, "beat", lambda *_: None)
    await until(lambda: before._session not in (session, None) or None)
    monkeypatch.undo()
    await until(lambda: len(container.state.in_sync) == 3 or None)


async def test_a_new_epoch_stirs_all_its_replicas(three: Several) -> None:
    container = await three.led(await three.create(replicas=3, min_in_sync=2))
    await at_rest(three, container)
    await three.change(container.id, handed_to(1, three))  # type: ignore[arg-type]
    second = await three.led(container.id, by=three.nodes[1])
    assert not container.in_touch
    await asyncio.wait_for(second.append_command(b"after"), 100)
    await until(lambda: second.rests or None)
    assert len(second.state.in_sync) == 3


async def test_a_follower_of_another_epoch_or_incarnation_is_not_spoken_for(three: Several) -> None:
    container = await three.led(await three.create(replicas=3, min_in_sync=2))
    await at_rest(three, container)
    replicas, (feed, _) = three.nodes[0].replicas, container.feeds
    node, incarnation = feed.member  # type: ignore[attr-defined]
    told = Resting(1, container.id, container.epoch, incarnation, container.end)
    assert replicas._fed(node, told) is feed
    assert replicas._fed(node, Resting(1, container.id, container.epoch, "another", container.end)) is None
    assert replicas._fed(node, Resting(1, container.id, container.epoch + 1, incarnation, container.end)) is None  # type: ignore[arg-type]


async def test_nodes_of_an_older_version_do_without(three: Several, monkeypatch: pytest.MonkeyPatch) -> None:
    for node in three.nodes[1:]:
        node.peers._identity = replace(node.peers._identity, versions=(1, PAIRS_VERSION - 1))
    accepted: list[PairUp] = []
    monkeypatch.setattr(pairs.Pairs, "accept", lambda _pairs, asked, _session: accepted.append(asked))
    container = await three.led(await three.create(replicas=3, min_in_sync=2))
    await container.append_command(b"before")
    follows = three.nodes[1].replicas
    await until(lambda: follows._pairs._again.get(container.member.node) or None)
    await until(lambda: not follows._pairs._opening or None)
    await container.append_command(b"after")
    assert not accepted
    assert not container.rests
    assert container.in_touch


async def test_hundreds_of_followers_that_lost_their_leader_knock_a_few_at_a_time(
    three: Several, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = three.nodes[1]
    knocking = most = tried = 0

    async def refuses(_record: object) -> Session:
        nonlocal knocking, most, tried
        knocking, tried = knocking + 1, tried + 1
        most = max(most, knocking)
        await asyncio.sleep(0)
        knocking -= 1
        raise PeerUnreachable("nobody is there", refused=True)

    monkeypatch.setattr(node, "connect", refuses)
    monkeypatch.setattr(pairs, "FAILED_S", 0.01)
    asked = [node.replicas._pairs.connect(three.nodes[0].record) for _ in range(200)]
    first, *others = [asyncio.ensure_future(each) for each in asked]
    with pytest.raises(PeerUnreachable):
        await first
    assert (most, tried) == (pairs.MAX_OPENING, pairs.MAX_OPENING)
    for each in others[:150]:
        each.cancel()  # another leads
    told = await asyncio.gather(*others, return_exceptions=True)
    assert all(isinstance(each, PeerUnreachable) for each in told[150:])
    assert most == pairs.MAX_OPENING

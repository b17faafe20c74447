"""Controllers of several nodes over one store and loopback. Replicas at once report what the records want of them."""

import asyncio
import contextlib
import socket
import time
import uuid
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from msgspec import structs

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.base.ids import ContainerId, NodeId, Position
from headrace.control import controller as controller_module
from headrace.control.controller import Controller
from headrace.control.observations import Settings
from headrace.peer.client import PeerClient
from headrace.peer.messages import Prepare, Prepared, Probe, ProbeAnswer, RollAway, Rolled
from headrace.peer.reports import NodeLoad, ReplicaState
from headrace.peer.server import PeerServer
from headrace.peer.session import PeerUnreachable, Session
from headrace.store import container_records, records
from headrace.store.protocol import ClusterStore, StoreUnavailable
from headrace.store.records import NOBODY, ContainerRecord, LeaseRecord, VolumeRecord
from headrace.store.sqlite import SqliteStore
from headrace.store.view import ClusterView

T = TypeVar("T")


class Wires:
    """A node's connections to others, which can be cut: calls are then not answered."""

    def __init__(self, client: PeerClient) -> None:
        self.client = client
        self.cut = False
        self.rejected: set[tuple[str, int]] = set()

    async def call(self, address: tuple[str, int], message: Any, *, timeout_s: float) -> Any:
        if address in self.rejected:
            raise PeerUnreachable("a firewall rejects it", refused=True)
        if not self.cut:
            return await self.client.call(address, message, timeout_s=timeout_s)
        await asyncio.sleep(timeout_s)
        raise PeerUnreachable("cut", timed_out=True)


class Member:
    """A node as the controller knows it: a record, a peer server, and replicas that always match their records."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.format = uuid.uuid4()
        self.node_id: NodeId | None = None
        self.formats: dict[ContainerId, str] = {}
        self.rolled: list[RollAway] = []
        self.load = NodeLoad()
        self.mute = asyncio.Event()
        self.store_fails: Callable[[], None] | None = None
        self.threads = asyncio.Event()
        """One thread is free for the cluster store."""
        self.threads.set()
        self.refuses: KafkaError | None = None
        """Why it refuses to create folders."""

    async def start(self) -> None:
        self.run = uuid.uuid4()
        self.store = SqliteStore(self.path)
        cluster = records.ensure_cluster(self.store)
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setblocking(False)
        port = listening.getsockname()[1]
        node = records.register_node(
            self.store,
            node_id=self.node_id or records.take_node_id(self.store),
            new=self.node_id is None,
            format=self.format,
            run=self.run,
            host="127.0.0.1",
            port=9092,
            peer_port=port,
            failure_host="here",
        )
        self.node_id = own = node.node_id
        about: dict[str, Any] = {
            "cluster_id": cluster.cluster_id,
            "secret": cluster.secret,
            "node": own,
            "run": self.run,
        }
        handlers: dict[type, Any] = {Probe: self._probed, Prepare: self._prepared, RollAway: self._roll}
        self.server = PeerServer(listening, **about, handlers=handlers)
        await self.server.start()
        self.wires = Wires(PeerClient(**about))
        self.view = ClusterView(self.store)
        await self.view.start()
        self.controller = Controller(
            own=own,
            run=self.run,
            view=self.view,
            store_call=self.store_call,
            peers=self.wires,
            own_probe=self.probe,
            lease_call=self.lease_call,
        )
        self.controller.start()

    async def store_call(self, function: Callable[[ClusterStore], T]) -> T:
        await self.threads.wait()
        return await self.lease_call(function)

    async def lease_call(self, function: Callable[[ClusterStore], T]) -> T:
        result = await asyncio.get_running_loop().run_in_executor(None, function, self.store)
        if self.store_fails is not None:
            self.store_fails()
        return result

    def probe(self, _asked: Probe) -> ProbeAnswer:
        assert self.node_id is not None
        states = []
        for container, record in self.view.containers.items():
            if container in self.formats or self.node_id in record.replicas:
                held = self.formats.setdefault(container, str(uuid.uuid4()))
                leads = record.leader == self.node_id
                at = Position(100 * record.epoch)
                role: Any = "primary" if leads else "follower"
                states.append(ReplicaState(container, role, record.epoch, record.epoch, at, at, format=held))
        return ProbeAnswer(
            node=self.node_id,
            run=self.run,
            replicas=states,
            load=self.load,
            reaches_store=True,
            ready=True,
            heard=sorted(self.controller.heard()),
            clock=self.controller.clocks.own(),
        )

    async def _probed(self, message: Probe, payload: memoryview, session: Session) -> ProbeAnswer:
        if self.mute.is_set():
            await asyncio.Event().wait()
        if message.doubted:
            await self.controller.look_and_tell(message.doubted)
        return self.probe(message)

    async def _prepared(self, message: Prepare, payload: memoryview, session: Session) -> Prepared:
        if self.refuses is not None:
            raise self.refuses
        return Prepared(self.formats.setdefault(message.container, str(uuid.uuid4())))

    async def _roll(self, message: RollAway, payload: memoryview, session: Session) -> Rolled:
        self.rolled.append(message)
        return Rolled(message.most)

    async def stop(self) -> None:
        await self.controller.close()
        await self.kill()

    async def kill(self) -> None:
        """End the node at once: nothing listens, nothing is given back."""
        self.controller._closed = True
        for task in list(self.controller._tasks):
            task.cancel()
        await self.controller._prober.close()
        await self.server.close(grace_s=0)
        await self.wires.client.close()
        await self.view.close()
        self.store.close()


class Cluster:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.members: list[Member] = []
        self.store = SqliteStore(path)

    async def start(self, count: int, *, replicas: int = 1, least: int = 1) -> list[Member]:
        records.ensure_cluster(self.store, first_nodes=count)
        records.ensure_volume(self.store, VolumeRecord("default", replicas, least))
        for _ in range(count):
            member = Member(self.path)
            self.members.append(member)
            await member.start()
        return self.members

    def containers(self) -> list[ContainerRecord]:
        return container_records.containers(self.store)

    def controllers(self) -> list[Member]:
        return [each for each in self.members if each.controller.holds_lease]

    async def controller(self) -> Member:
        """Return the node that holds the lease; on a machine that was suspended, none does until it has renewed it."""
        await self.until(lambda: len(self.controllers()) == 1)
        (holder,) = self.controllers()
        return holder

    async def until(self, condition: Callable[[], object], *, within_s: float = 100) -> float:
        began = time.monotonic()
        async with asyncio.timeout(within_s):
            while not condition():  # noqa: ASYNC110  # of threads and other loops' work
                await asyncio.sleep(0.01)
        return time.monotonic() - began

    async def until_complete(self) -> float:
        """Wait until each node leads an open container and the catalog exists, all with the wanted replicas."""
        count = len(self.members)

        def complete() -> bool:
            found = self.containers()
            return (
                sorted(each.leader for each in found if each.kind == "data") == list(range(1, count + 1))
                and sum(each.kind == "catalog" for each in found) == 1
                and all(len(each.in_sync) == each.wanted for each in found)
            )

        return await self.until(complete)

    def leads(self, member: Member) -> list[ContainerRecord]:
        return [each for each in self.containers() if each.leader == member.node_id]


def with_member(record: ContainerRecord, *, pair: tuple[NodeId, uuid.UUID]) -> ContainerRecord:
    return structs.replace(record, in_sync=tuple(sorted({*record.in_sync, pair})))


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(tmp_path / "cluster.sqlite")
    yield cluster
    for member in cluster.members:
        with contextlib.suppress(Exception):
            await member.kill()
    cluster.store.close()


async def test_a_node_alone_is_in_office_and_has_its_containers_at_once(cluster: Cluster) -> None:
    (member,) = await cluster.start(1)
    assert await cluster.until_complete() < 2
    assert member.controller.holds_lease
    # The change is in the store a moment before its event.
    await cluster.until(lambda: {each.kind for each in member.controller.events} == {"office", "container"})
    status = member.controller.status()
    assert (status.controller, status.term, status.nodes) == (1, 1, {1: "alive"})


async def test_three_nodes_make_their_containers_together_and_one_is_the_controller(cluster: Cluster) -> None:
    await cluster.start(3, replicas=3, least=2)
    assert await cluster.until_complete() < 4
    await cluster.controller()
    assert all(each.epoch == 1 for each in cluster.containers())
    for record in cluster.containers():
        for node, format in record.in_sync:
            assert cluster.members[node - 1].formats[record.container_id] == str(format)


async def test_what_a_killed_node_led_is_led_by_others_in_seconds(cluster: Cluster) -> None:
    members = await cluster.start(3, replicas=3, least=2)
    await cluster.until_complete()
    controller = await cluster.controller()
    victim = next(each for each in members if each is not controller)
    led = [each.container_id for each in cluster.leads(victim)]
    await victim.kill()
    await cluster.until(lambda: not cluster.leads(victim))
    for record in cluster.containers():
        if record.container_id in led:
            assert record.epoch == 2
            assert victim.node_id not in dict(record.in_sync)
    told = controller.controller.events  # a moment after it is in the store
    await cluster.until(lambda: any(each.kind == "primary" and "refuses connections" in each.reason for each in told))


async def test_a_node_that_a_firewall_keeps_from_the_controller_alone_goes_on_and_another_takes_the_office(
    cluster: Cluster,
) -> None:
    """A firewall that rejects looks like a host on which no process runs."""
    members = await cluster.start(3, replicas=3, least=2)
    await cluster.until_complete()
    controller = await cluster.controller()
    victim = next(each for each in members if each is not controller)
    assert victim.node_id is not None
    led = cluster.leads(victim)
    controller.wires.rejected.add(controller.view.nodes[victim.node_id].peer_address)
    await cluster.until(lambda: victim.node_id in controller.controller.gone())
    await cluster.until(lambda: cluster.controllers() not in ([], [controller]))
    assert cluster.leads(victim) == led
    assert not any("refuses" in each.reason for each in controller.controller.events)


async def test_a_killed_controller_has_a_successor_that_hands_over_what_it_led(cluster: Cluster) -> None:
    await cluster.start(3, replicas=3, least=2)
    await cluster.until_complete()
    victim = await cluster.controller()
    await victim.kill()
    cluster.members.remove(victim)
    await cluster.until(lambda: not cluster.leads(victim))
    successor = await cluster.controller()
    assert successor.controller.status().term > 1


async def test_a_silent_node_keeps_its_roles_for_two_seconds(cluster: Cluster) -> None:
    members = await cluster.start(3, replicas=3, least=2)
    await cluster.until_complete()
    controller = await cluster.controller()
    victim = next(each for each in members if each is not controller)
    victim.mute.set()
    victim.wires.cut = True
    took = await cluster.until(lambda: not cluster.leads(victim))
    assert took > 0.9
    assert any("is silent" in each.reason for each in controller.controller.events)


async def test_a_node_that_stops_hands_over_its_roles_and_its_office_first(cluster: Cluster) -> None:
    await cluster.start(3, replicas=3, least=2)
    await cluster.until_complete()
    leaving = await cluster.controller()
    assert leaving.node_id is not None
    records.set_stopping(cluster.store, leaving.node_id)
    assert await cluster.until(lambda: not cluster.leads(leaving)) < 3
    assert not leaving.controller.holds_lease
    assert all(leaving.node_id not in dict(each.in_sync) for each in cluster.containers() if each.epoch > 1)
    await cluster.controller()


async def test_a_controller_that_is_cut_off_leaves_the_office_and_takes_nothing(cluster: Cluster) -> None:
    await cluster.start(3, replicas=3, least=2)
    await cluster.until_complete()
    await cluster.until(lambda: all(len(each.controller.heard()) == 2 for each in cluster.members))
    deaf = await cluster.controller()
    deaf.wires.cut = True
    await cluster.until(lambda: cluster.controllers() and deaf not in cluster.controllers())
    assert all(each.epoch == 1 for each in cluster.containers())
    assert any("gives up the controller lease" in each.reason for each in deaf.controller.events)


async def test_who_is_cut_off_leaves_a_free_office_to_others(cluster: Cluster) -> None:
    """Even to nodes that have just given it up, and that take it a moment later."""
    await cluster.start(3, replicas=3, least=2)
    await cluster.until_complete()
    await cluster.until(lambda: all(len(each.controller.heard()) == 2 for each in cluster.members))
    deaf, *others = sorted(cluster.members, key=lambda each: each.controller.holds_lease)
    deaf.wires.cut = True
    await cluster.until(deaf.controller._is_cut_off)
    deaf.controller._yields_at = float("inf")  # it has left it, and does not do so again soon
    for each in others:
        await each.controller._lease.give_back(hold_off_s=0.6)
    assert not cluster.controllers()
    await cluster.until(cluster.controllers)
    assert deaf not in cluster.controllers()
    for each in others:
        await each.controller._lease.give_back(hold_off_s=60)
    await cluster.until(lambda: deaf.controller.holds_lease)  # where nobody else takes it
    for each in others:
        each.controller._lease._hold_off_until = 0.0
    deaf.controller._yields_at = 0.0  # a while later
    await cluster.until(lambda: any(each.controller.holds_lease for each in others))


async def test_a_process_that_stood_still_takes_nothing_from_others(cluster: Cluster) -> None:
    await cluster.start(3, replicas=3, least=2)
    await cluster.until_complete()
    await cluster.until(lambda: all(len(each.controller.heard()) == 2 for each in cluster.members))
    controller = await cluster.controller()
    time.sleep(3)  # noqa: ASYNC251  # what is tested
    lease = controller.view.lease
    assert lease is not None
    await cluster.until(lambda: (now := controller.view.lease) is not None and now.renewal > lease.renewal + 2)
    assert all(each.epoch == 1 for each in cluster.containers())
    assert await cluster.controller() is controller


async def test_load_moves_unless_that_is_paused(cluster: Cluster) -> None:
    members = await cluster.start(2, replicas=2)
    await cluster.until_complete()
    records.set_balance(cluster.store, paused=True)
    controller = await cluster.controller()
    await cluster.until(lambda: controller.view.balance.paused)
    assert controller.controller.status().balance_paused
    for _ in range(3):  # closed ones, all led by the same node
        container = container_records.take_container_id(cluster.store, "data")
        formats = [uuid.UUID(each.formats.setdefault(container, str(uuid.uuid4()))) for each in members]
        made = container_records.create_container(
            cluster.store,
            kind="data",
            members=[(NodeId(1), formats[0]), (NodeId(2), formats[1])],
            container_id=container,
            wanted=2,
        )
        container_records.change_container(
            cluster.store, made.container_id, lambda was: structs.replace(was, state="closed")
        )

    def led() -> list[int]:
        return sorted(each.leader for each in cluster.containers() if each.state == "closed")

    lease = controller.view.lease
    assert lease is not None
    await cluster.until(lambda: (now := controller.view.lease) is not None and now.renewal > lease.renewal + 4)
    before = led()
    assert before == [1, 1, 1]
    records.set_balance(cluster.store, paused=False)
    await cluster.until(lambda: led() != before)


async def test_a_node_that_comes_back_leads_again(cluster: Cluster) -> None:
    members = await cluster.start(3, replicas=3, least=2)
    await cluster.until_complete()
    controller = await cluster.controller()
    victim = next(each for each in members if each is not controller)
    await victim.kill()
    await cluster.until(lambda: not cluster.leads(victim))
    await victim.start()
    for record in cluster.containers():  # what their leaders do when it has caught up
        assert victim.node_id is not None
        pair = (victim.node_id, uuid.UUID(victim.formats[record.container_id]))
        container_records.change_container(cluster.store, record.container_id, partial(with_member, pair=pair))
    await cluster.until(lambda: len(cluster.leads(victim)) == 1)
    assert len(cluster.containers()) == 4


async def test_a_put_whose_outcome_is_unknown_is_put_again_and_happens_once(cluster: Cluster) -> None:
    members = await cluster.start(3, replicas=3, least=2)
    await cluster.until_complete()
    controller = await cluster.controller()
    victim = next(each for each in members if each is not controller)
    (led,) = cluster.leads(victim)
    failures = 3

    def fail() -> None:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise StoreUnavailable("the answer was lost")

    controller.store_fails = fail
    await victim.kill()
    await cluster.until(lambda: failures < 0 and not cluster.leads(victim))
    found = container_records.get_container(cluster.store, led.container_id)
    assert found is not None
    assert found.epoch == 2
    await cluster.until(lambda: controller.controller.holds_lease)


async def test_a_put_that_landed_though_its_answer_was_lost_is_told(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = await cluster.start(3, replicas=3, least=2)
    await cluster.until_complete()
    controller = await cluster.controller()
    victim = next(each for each in members if each is not controller)
    (led,) = cluster.leads(victim)
    put, lost = container_records.put_container, []

    def land_and_lose(store: ClusterStore, record: ContainerRecord, version: int | None) -> int:
        landed = put(store, record, version)
        if record.container_id == led.container_id and not lost:
            lost.append(record)
            raise StoreUnavailable("the answer was lost")
        return landed

    monkeypatch.setattr(container_records, "put_container", land_and_lose)
    await victim.kill()

    def told() -> list[ContainerId | None]:
        return [each.container for each in controller.controller.events if each.kind == "primary"]

    await cluster.until(lambda: bool(lost) and led.container_id in told())
    assert told().count(led.container_id) == 1


async def test_records_of_deleted_containers_go_after_a_while(cluster: Cluster) -> None:
    (member,) = await cluster.start(1)
    await cluster.until_complete()
    member.controller._settings = Settings(forget_after_s=1.0)
    assert member.node_id is not None
    node = records.get_node(cluster.store, member.node_id)
    made = [container_records.create_container(cluster.store, kind="data", leader=node) for _ in range(3)]
    gone = [each.container_id for each in made[:2]]
    for each in gone:
        container_records.change_container(cluster.store, each, lambda now: structs.replace(now, state="deleted"))
    took = await cluster.until(lambda: not {*gone} & {each.container_id for each in cluster.containers()})
    assert took > 0.9
    assert all(map(member.view.is_deleted, gone))
    assert made[2].container_id in member.view.containers


async def test_a_controller_that_stops_plans_no_more(cluster: Cluster) -> None:
    await cluster.start(3, replicas=3, least=2)
    await cluster.until_complete()
    controller = await cluster.controller()
    assert controller.node_id is not None
    own = controller.node_id
    records.set_stopping(cluster.store, own)
    await cluster.until(lambda: controller.view.nodes[own].stopping)
    assert not controller.controller.holds_lease
    await cluster.until(lambda: any(each is not controller for each in cluster.controllers()))


async def test_a_container_that_nobody_can_lead_is_waited_for_and_said_once(cluster: Cluster) -> None:
    members = await cluster.start(2)
    await cluster.until_complete()
    controller = await cluster.controller()
    victim = next(each for each in members if each is not controller)
    (led,) = cluster.leads(victim)
    await victim.kill()
    await cluster.until(lambda: led.container_id in controller.controller.status().waiting)
    await cluster.until(lambda: controller.view.lease is not None and controller.view.lease.renewal > 4)
    assert [each.container for each in controller.controller.events if each.kind == "wait"] == [led.container_id]
    assert cluster.leads(victim) == [led]


@pytest.mark.parametrize("holder", [NodeId(1), NodeId(77), NOBODY])
async def test_a_lease_of_a_run_that_is_no_longer_registered_is_taken_at_once(cluster: Cluster, holder: NodeId) -> None:
    records.put_lease(cluster.store, LeaseRecord(holder, uuid.uuid4(), 7, 99), None)
    (member,) = await cluster.start(1)
    assert await cluster.until(lambda: member.controller.holds_lease) < 1
    assert member.controller.status().term == 8


async def test_a_lease_that_is_given_back_is_taken_by_another_at_once(cluster: Cluster) -> None:
    members = await cluster.start(2)
    await cluster.until_complete()
    leaving = await cluster.controller()
    (other,) = [each for each in members if each is not leaving]
    await leaving.stop()
    assert await cluster.until(lambda: other.controller.holds_lease) < 1.5


async def test_a_node_makes_its_next_container_without_being_in_office(cluster: Cluster) -> None:
    members = await cluster.start(3, replicas=3, least=2)
    await cluster.until_complete()
    await cluster.until(lambda: all(len(each.controller.heard()) == 2 for each in members))
    asking = next(each for each in members if not each.controller.holds_lease)
    assert asking.node_id is not None
    made = await asking.controller.create(first=asking.node_id, volume=VolumeRecord("default", 3, 2))
    assert asking.view.containers[made.container_id] == made
    assert (made.leader, sorted(made.replicas), made.kind) == (asking.node_id, [1, 2, 3], "data")
    with pytest.raises(HeadraceError, match="no node 77"):
        await asking.controller.create(first=NodeId(77), volume=VolumeRecord("default"))


async def test_the_lease_does_not_wait_behind_other_calls_of_the_store(cluster: Cluster) -> None:
    """Hundreds of changes are made when a node has died: the controller must not lose its lease because of them."""
    await cluster.start(2)
    await cluster.until_complete()
    holder = await cluster.controller()
    holder.threads.clear()
    renewal = holder.view.lease.renewal if holder.view.lease is not None else 0
    await cluster.until(lambda: holder.view.lease is not None and holder.view.lease.renewal > renewal + 5)
    assert await cluster.controller() is holder


async def test_a_container_with_too_few_replicas_is_made_at_the_next_attempt_under_the_same_id(
    cluster: Cluster,
) -> None:
    members = await cluster.start(3, replicas=3, least=2)
    await cluster.until_complete()
    await cluster.until(lambda: all(len(each.controller.heard()) == 2 for each in members))
    asking = members[0]
    assert asking.node_id is not None
    known = {each.container_id for each in cluster.containers()}
    for member in members[1:]:
        member.refuses = KafkaError(Code.KAFKA_STORAGE_ERROR, "no room")
    for _ in range(2):
        with pytest.raises(HeadraceError, match="1 of the 2 replicas"):
            await asking.controller.create(first=asking.node_id, volume=VolumeRecord("default", 3, 2))
    assert {each.container_id for each in cluster.containers()} == known
    members[1].refuses = None
    made = await asking.controller.create(first=asking.node_id, volume=VolumeRecord("default", 3, 2))
    assert asking.formats.keys() - known == {made.container_id}, "each attempt left a folder"


async def test_a_container_that_is_there_though_the_store_did_not_say_so_is_not_made_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later request for another container, maybe much later, must get another one."""
    (member,) = await cluster.start(1)
    await cluster.until_complete()
    assert member.node_id is not None
    put, lost = container_records.put_container, []

    def land_and_lose(store: ClusterStore, record: ContainerRecord, version: int | None) -> int:
        landed = put(store, record, version)
        if version is None and not lost:
            lost.append(record)
            raise StoreUnavailable("the answer was lost")
        return landed

    monkeypatch.setattr(container_records, "put_container", land_and_lose)
    with pytest.raises(StoreUnavailable):
        await member.controller.create(first=member.node_id, volume=VolumeRecord("default"))
    (first,) = lost
    await cluster.until(lambda: first.container_id in member.view.containers)
    made = await member.controller.create(first=member.node_id, volume=VolumeRecord("default"))
    assert made.container_id != first.container_id


async def test_a_call_that_is_refused_does_not_end_the_controller(cluster: Cluster) -> None:
    (member,) = await cluster.start(1)
    await cluster.until_complete()

    def fail() -> None:
        member.store_fails = None
        raise KafkaError(Code.UNKNOWN_SERVER_ERROR, "no")

    member.store_fails = fail
    renewal = member.view.lease.renewal if member.view.lease is not None else 0
    await cluster.until(lambda: member.view.lease is not None and member.view.lease.renewal > renewal + 2)
    assert member.controller.holds_lease


async def test_a_fault_of_who_listens_to_answers_has_no_node_count_as_silent(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[str] = []
    monkeypatch.setattr(controller_module.log, "exception", lambda event, **_: logged.append(event), raising=False)

    def fails(*_: object) -> None:
        raise ValueError("planted")

    members = await cluster.start(2, replicas=2)
    for each in members:
        each.controller.on_answer(fails)
    await cluster.until_complete()
    await cluster.until(lambda: len(logged) > 12)
    for each in members:
        assert each.controller.status().nodes == {1: "alive", 2: "alive"}
    assert set(logged) == {"a node's report of its replicas was not processed"}

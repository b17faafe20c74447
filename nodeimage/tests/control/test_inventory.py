"""An inventory that is updated change by change equals one that is built from everything."""

import dataclasses
import itertools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from nodeimage.tests.control.test_any_cluster import clusters

from headrace.base.ids import ContainerId, Millis, NodeId, Position
from headrace.control.balance import BalanceState, balance
from headrace.control.inventory import Inventory
from headrace.control.lasting_conditions import conditions, forgettable
from headrace.control.level_raise import level_step
from headrace.control.observations import Observed, ProbeResult
from headrace.control.plan import plan
from headrace.peer.reports import ReplicaState
from headrace.store.records import ContainerRecord, FeaturesRecord, VolumeRecord
from kit.world import World


@st.composite
def orderly(draw: st.DrawFn) -> World:
    """A healthy cluster, so that most containers are at rest."""
    world = World()
    count = draw(st.integers(3, 6))
    world.volume(3, 2)
    world.node(*range(1, count + 1))
    for number in range(1, draw(st.integers(2, 8))):
        members = draw(st.permutations(range(1, count + 1)))[:3]
        state = draw(st.sampled_from(["open", "closed"])) if number > 1 else "open"
        world.container(number, members, kind="catalog" if number == 1 else "data", state=state)
    return world


class Kept:
    """An inventory that gets only the changes in a world."""

    def __init__(self) -> None:
        self.inventory = Inventory()
        self._records: dict[ContainerId, tuple[ContainerRecord, int]] = {}
        self._replicas: dict[tuple[NodeId, ContainerId], ReplicaState] = {}

    def follow(self, world: World) -> None:
        records = {key: (record, world.versions[key]) for key, record in world.containers.items()}
        for container in self._records.keys() | records.keys():
            record, version = records.get(container, (None, 0))
            if self._records.get(container) != (record, version):
                self.inventory.put(container, record, version)
        replicas = {
            (node, each.container): each
            for node, result in world.probes.items()
            if result.answer is not None
            for each in result.answer.replicas
        }
        for key in self._replicas.keys() | replicas.keys():
            if self._replicas.get(key) != replicas.get(key):
                self.inventory.tell(*key, replicas.get(key))
        self._records, self._replicas = records, replicas

    def observed(self, world: World) -> Observed:
        whole = world.observed()
        kept = dataclasses.replace(
            whole, kept=self.inventory, containers=self.inventory.containers, versions=self.inventory.versions
        )
        for _ in kept.find_at_rest(world.now):
            pass
        return kept


def compare(world: World, kept: Kept, state: BalanceState) -> BalanceState:
    """Assert that both lead to the same conclusions; return the state for the next round of balancing."""
    kept.follow(world)
    now, whole, part = world.now, world.observed(), kept.observed(world)
    found = conditions(whole, now)
    assert conditions(part, now) == found
    world.since = {each: world.since.get(each, now) for each in found}
    whole, part = (dataclasses.replace(each, since=dict(world.since)) for each in (whole, part))
    assert plan(part, now) == plan(whole, now)
    assert forgettable(part, now) == forgettable(whole, now)
    features = FeaturesRecord(able_since=Millis(1))
    time = Millis(100 * 86_400_000)
    assert level_step(part, features, now=now, time=time) == level_step(whole, features, now=now, time=time)
    moves, after = balance(whole, state, now)
    assert balance(part, state, now) == (moves, after)
    return after


RECORDS: list[dict[str, Any]] = [
    {"state": "closed"},
    {"state": "deleted"},
    {"wanted": 2},
    {"changes": ("1-a", "2-b")},
    {"recovered": 1},
]
REPLICAS: list[dict[str, Any]] = [
    {},
    {"role": "none"},
    {"stalled": True},
    {"cramped": True},
    {"stuck": True},
    {"damaged": True},
    {"change": "3-c"},
    {"format": "another"},
    {"end": Position(5_000_000)},
]


def change(world: World, draw: Any) -> None:
    """Apply one change to the world."""
    containers = sorted(world.containers)
    nodes = sorted(world.nodes)
    node = draw(st.sampled_from(nodes))
    kinds = ["time", "node", "life", "volume", "plan", "catch up", "record", "replica", "primary", "primary", "gone"]
    kind = draw(st.sampled_from(kinds))
    match kind:
        case "time":
            world.pass_time(draw(st.sampled_from([0.5, 3, 15, 700])))
        case "node":
            flag = draw(st.sampled_from(["draining", "stopping", "full"]))
            world.mark(node, **{flag: draw(st.booleans())})
        case "life":
            match draw(st.sampled_from(["well", "silent", "refused", "never", "fall", "deaf"])):
                case "well":
                    world.hears(node)
                case "silent" if world.probes[node].answer is not None:
                    world.silent(node, for_s=draw(st.sampled_from([1.2, 5, 700])))
                case "refused" if world.probes[node].answer is not None:
                    world.refused(node, for_s=draw(st.sampled_from([0, 700])))
                case "never":
                    world.probes[node] = ProbeResult()
                case "fall":
                    world.fell_at = draw(st.sampled_from([float("-inf"), world.now - 1, world.now + 1]))
                case "deaf" if world.probes[node].answer is not None:
                    world.says(node, heard=[], reaches_store=draw(st.booleans()))
        case "volume":
            replicas = draw(st.integers(1, 4))
            world.volumes["default"] = VolumeRecord("default", replicas, draw(st.integers(1, replicas)))
        case "plan":
            world.apply(world.plan())
        case "catch up":
            world.catch_up()
        case "record" if containers:
            key = draw(st.sampled_from(containers))
            record = world.containers[key]
            fields = draw(st.sampled_from([*RECORDS, {"in_sync": record.in_sync[:1]}, {"replicas": (record.leader,)}]))
            if record.kind == "data" or "state" not in fields:
                world.containers[key] = structs.replace(record, **fields)
                world.versions[key] += 1
        case "replica" | "primary" if containers:
            key = draw(st.sampled_from(containers))
            node = world.containers[key].leader if kind == "primary" else node
            if node not in world.probes or world.probes[node].answer is None:
                return
            fields = draw(st.sampled_from(REPLICAS))
            if fields.get("stalled"):  # it hears nobody, and others can go on
                world.says(node, heard=[])
            world.replica(node, key, **fields)
        case "gone" if containers and draw(st.booleans()):
            key = draw(st.sampled_from(containers))
            world.has_no_replica(node, key)
            if draw(st.booleans()) and key != 1:
                del world.containers[key], world.versions[key]


@settings(max_examples=150, deadline=None)
@given(world=st.one_of(clusters(), orderly(), orderly()), data=st.data())
def test_what_is_kept_up_with_is_planned_like_the_whole(world: World, data: st.DataObject) -> None:
    kept = Kept()
    state = compare(world, kept, BalanceState())
    for _ in range(data.draw(st.integers(1, 8))):
        change(world, data.draw)
        state = compare(world, kept, state)


def test_a_container_whose_followers_are_down_is_at_rest_until_its_own_node_dies(world: World) -> None:
    world.volume(3, 2)
    world.node(*range(1, 7))
    world.container(1, (1, 2, 3), kind="catalog")
    for number, first in enumerate(itertools.islice(itertools.cycle(range(1, 7)), 60), 2):
        world.container(number, (first, first % 6 + 1, (first + 1) % 6 + 1), state="open" if number < 8 else "closed")
    kept = Kept()
    kept.follow(world)
    assert set(kept.observed(world).active_containers()) == {1}
    world.silent(4)
    led = {key for key, record in world.containers.items() if record.leader == 4}
    kept.follow(world)
    assert set(kept.observed(world).active_containers()) == {1} | led
    world.apply(world.plan())
    kept.follow(world)
    assert set(kept.observed(world).active_containers()) == {1}, "their replicas on node 4 may yet come back"


def test_a_node_that_has_told_of_half_its_replicas_is_not_taken_to_lack_the_others(three: World) -> None:
    three.silent(1, for_s=2.4)
    for node in (2, 3):
        three.has_no_replica(node, 2)
        result = three.probes[NodeId(node)]
        three.probes[NodeId(node)] = dataclasses.replace(result, partly=True)

    def of_container_2(observed: Observed) -> list[object]:
        return [each for each in plan(observed, three.now) if getattr(each, "container", None) == 2]

    partly = three.observed()
    partly = dataclasses.replace(
        partly, probes={key: dataclasses.replace(each, partly=key != 1) for key, each in partly.probes.items()}
    )
    assert of_container_2(partly) == [], "either may turn out to have it"
    assert not {each for each in conditions(partly, three.now) if each[0] == "idle"}
    for node in (2, 3):
        three.probes[NodeId(node)] = dataclasses.replace(three.probes[NodeId(node)], partly=False)
    assert len(of_container_2(three.observed())) == 1, "once all is told, it waits for node 1"


def test_no_catalog_is_made_before_all_nodes_have_told_of_all_their_replicas(world: World) -> None:
    world.node(1, 2, 3)
    observed = world.observed()
    probes = {key: dataclasses.replace(each, partly=key == 3) for key, each in observed.probes.items()}
    assert plan(dataclasses.replace(observed, probes=probes), world.now) == []
    assert plan(observed, world.now)

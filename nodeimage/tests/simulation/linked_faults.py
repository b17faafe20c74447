"""The faults of several clusters and of the links between them, drawn from the seed beforehand, as in faults.py."""

import asyncio
import random
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from msgspec import structs

from headrace.base.errors import HeadraceError
from headrace.base.ids import ContainerId, Epoch
from headrace.store import container_records
from headrace.store.records import CATALOG_ID
from simulation.faults import Fault
from simulation.linked_cluster import STREAM, Admin, GrowTopic, LinkedCluster, chains_of, topics_of
from simulation.node import Node

if TYPE_CHECKING:
    from simulation.linked import World

_WEIGHTS = {
    "cut": 5,
    "cut one way": 4,
    "away": 3,
    "down": 2,
    "reset": 4,
    "slow": 2,
    "move": 6,
    "move and kill": 6,
    "force": 4,
    "force and kill": 4,
    "force twice": 3,
    "force while away": 4,
    "kill in copy": 4,
    "pause": 3,
    "remake": 3,
    "make topic": 3,
    "grow topic": 3,
}
_PEACEFUL = {kind: weight for kind, weight in _WEIGHTS.items() if "force" not in kind}


def draw_between(chance: random.Random, *, begin: float, length: float, count: int) -> list[Fault]:
    """The faults, by time. In half of the runs no home is taken by force, so that nothing at all may be lost."""
    kinds = _WEIGHTS if chance.random() < 0.5 else _PEACEFUL
    names = list(kinds)
    if chance.random() < 0.3:
        names = chance.sample(names, 4)
    weights = [kinds[name] for name in names]
    found = []
    for _ in range(count):
        kind = chance.choices(names, weights)[0]
        lasts = chance.choice((0.3, 1.0, 3.0, 6.0)) * chance.uniform(0.5, 1.5)
        found.append(Fault(begin + chance.random() * length, kind, lasts, chance.random()))
    if kinds is _WEIGHTS and chance.random() < 0.2:  # drawn last, so that the others stay as they were
        found.append(Fault(begin + chance.random() * length, "give twice", chance.choice((1.0, 3.0)), chance.random()))
    if kinds is _WEIGHTS and chance.random() > 0.7:
        found.append(Fault(begin + chance.random() * length, "lose an end", chance.choice((1.0, 3.0)), chance.random()))
    return sorted(found, key=lambda fault: fault.at)


class Between:
    """Carries these faults out, and ends them."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._clusters = world.clusters
        self._chance = world.chance

    async def apply(self, fault: Fault) -> None:
        """Begin the fault, wait, and end it."""
        await asyncio.sleep(fault.at - self._world.loop.now)
        self._world.trace(f"FAULT {fault}")
        await getattr(self, "_" + fault.kind.replace(" ", "_"))(fault)

    def _any(self, fault: Fault) -> LinkedCluster:
        return self._clusters[int(fault.roll * len(self._clusters))]

    def _pair(self, fault: Fault) -> tuple[str, str]:
        one = self._any(fault)
        others = [each for each in self._clusters if each is not one]
        return one.name, others[int(fault.roll * 1000) % len(others)].name

    # --- ways

    @contextmanager
    def _without(self, ways: list[tuple[str, str]]) -> Iterator[None]:
        for way in ways:
            self._world.wan.cut(*way)
        yield
        for way in ways:
            self._world.wan.heal(*way)

    async def _cut_ways(self, fault: Fault, ways: list[tuple[str, str]]) -> None:
        with self._without(ways):
            await asyncio.sleep(fault.lasts)

    async def _cut(self, fault: Fault) -> None:
        one, other = self._pair(fault)
        await self._cut_ways(fault, [(one, other), (other, one)])

    async def _cut_one_way(self, fault: Fault) -> None:
        await self._cut_ways(fault, [self._pair(fault)])

    def _ways_of(self, name: str) -> list[tuple[str, str]]:
        others = [each.name for each in self._clusters if each.name != name]
        return [(name, each) for each in others] + [(each, name) for each in others]

    async def _away(self, fault: Fault) -> None:
        await self._cut_ways(fault, self._ways_of(self._any(fault).name))

    async def _reset(self, fault: Fault) -> None:
        for _ in range(4):
            self._world.wan.reset(*self._pair(fault))
            await asyncio.sleep(fault.lasts / 4)

    async def _slow(self, fault: Fault) -> None:
        self._world.wan.slow_s += 0.3
        await asyncio.sleep(fault.lasts)
        self._world.wan.slow_s -= 0.3

    async def _down(self, fault: Fault) -> None:
        nodes = list(self._any(fault).nodes)
        for node in nodes:
            node.kill()
        await asyncio.sleep(fault.lasts)
        self._up(*nodes)

    @staticmethod
    def _up(*nodes: Node) -> None:
        for node in nodes:
            if not node.is_up:
                node.start()

    # --- homes

    def _topic(self, fault: Fault) -> str | None:
        names = self._world.names
        return names[int(fault.roll * 997) % len(names)] if names else None

    def _takers(self, topic: str) -> list[LinkedCluster]:
        """Clusters that have the topic, and are not its home as far as they know."""
        found = []
        for cluster in self._clusters:
            state = cluster.topics_here().get(topic)
            if state is not None and state.home.cluster != cluster.name:
                found.append(cluster)
        return found

    def _take(self, fault: Fault, *, force: bool, count: int = 1) -> list[LinkedCluster]:
        """Have homes of a topic moved; returns the clusters that take them."""
        topic = self._topic(fault)
        takers = self._takers(topic) if topic is not None else []
        assert topic is not None or not takers
        chosen = self._chance.sample(takers, min(count, len(takers)))
        for cluster in chosen:
            if force and topic is not None:
                self._world.forced.add(topic)
            self._world.trace(f"the home of {topic} is to move to {cluster.name}{' by force' if force else ''}")
            self._operate(cluster, "home.move", stream=STREAM, topics=[topic], force=force)
        return chosen

    def _operate(self, cluster: LinkedCluster, method: str, **params: Any) -> None:
        """Send a request to a node, without waiting for the result."""
        upper = cluster.some(self._chance)
        if upper is not None:
            handler = upper._sim.host.handlers[Admin]

            async def ask() -> None:
                try:
                    answer = await handler(Admin(method, params), None, None)
                    self._world.trace(f"{cluster.name}: {method} answered {answer}")
                except HeadraceError as error:
                    self._world.trace(f"{cluster.name}: {method}: {error}")

            self._world.loop.spawn(ask(), upper._sim.process)

    async def _move(self, fault: Fault) -> None:
        self._take(fault, force=False)

    async def _force(self, fault: Fault) -> None:
        self._take(fault, force=True)

    async def _force_twice(self, fault: Fault) -> None:
        """Two clusters take a home by force at once, at first without hearing from each other."""
        takers = self._take(fault, force=True, count=2)
        ways = [(one.name, other.name) for one in takers for other in takers if one is not other]
        await self._cut_ways(fault, ways)

    async def _give_twice(self, fault: Fault) -> None:
        """Two clusters take a home by force, without a third one and each other noticing, then both give it to that
        third one.
        """
        topic = self._topic(fault)
        takers = self._take(fault, force=True, count=2)
        others = [each for each in self._clusters if each not in takers and topic in each.topics_here()]
        if len(takers) < 2 or topic is None:
            return
        asked = {each.name: [taker for taker in takers if taker.name in each.sources_of(topic)] for each in others}
        others = [each for each in others if asked[each.name]]  # without a link from a home, it cannot be requested
        if not others:
            return
        third = others[int(fault.roll * 1000) % len(others)]
        with self._without([way for each in takers for way in self._ways_of(each.name)]):
            await asyncio.sleep(fault.lasts)
            for cluster in asked[third.name]:
                state = cluster.topics_here().get(topic)
                if state is not None and state.home.cluster == cluster.name:
                    self._operate(cluster, "home.cede", version=1, topic_ids=[state.topic_id], to=third.name)
            await asyncio.sleep(fault.lasts)

    async def _force_while_away(self, fault: Fault) -> None:
        """A home does not answer while another cluster takes it by force, and works on its own for a while."""
        topic = self._topic(fault)
        home = self._world.home_of(topic) if topic is not None else None
        if home is not None:
            with self._without(self._ways_of(home.name)):
                await asyncio.sleep(fault.lasts / 2)
                self._take(fault, force=True)
                await asyncio.sleep(fault.lasts / 2)

    async def _move_and_kill(self, fault: Fault) -> None:
        home = self._home(fault)
        await self._kill_some(fault, [*self._take(fault, force=False), *home])

    async def _force_and_kill(self, fault: Fault) -> None:
        home = self._home(fault)
        await self._kill_some(fault, [*self._take(fault, force=True), *home])

    def _home(self, fault: Fault) -> list[LinkedCluster]:
        topic = self._topic(fault)
        home = self._world.home_of(topic) if topic is not None else None
        return [home] if home is not None else []

    async def _kill_in_copy(self, fault: Fault) -> None:
        await self._kill_some(fault, [self._any(fault)])

    async def _kill_some(self, fault: Fault, clusters: list[LinkedCluster]) -> None:
        """Soon, kill a node of these clusters that leads the catalog or another container."""
        await asyncio.sleep(self._chance.random() ** 2 * 1.5)
        nodes = []
        for cluster in clusters:
            record = cluster.record(CATALOG_ID)
            leaders = [cluster.by_id(record.leader)] if record is not None else []
            node = self._chance.choice([*leaders, *cluster.nodes])
            node.kill()
            nodes.append(node)
        await asyncio.sleep(fault.lasts / 2)
        self._up(*nodes)

    # --- losses

    async def _lose_an_end(self, fault: Fault) -> None:
        """An operator lets a replica lead that was not in sync: the records that only the others had are given up."""
        for _ in range(25):
            if (found := self._to_lose(fault)) is not None:
                break
            await asyncio.sleep(0.2)
        else:
            return
        cluster, chosen, behind, others = found
        behind.kill()
        for _ in range(80):
            await asyncio.sleep(0.1)
            record = cluster.record(chosen)
            if record is None or behind.node_id not in {node for node, _ in record.in_sync}:
                break
        await asyncio.sleep(fault.lasts)  # records written now will be lost
        for node in others:
            node.kill()
        self._up(behind)
        for _ in range(50):
            await asyncio.sleep(0.1)
            if self._recover(cluster, chosen):
                break
        await asyncio.sleep(fault.lasts / 2)
        self._up(behind, *others)

    def _to_lose(self, fault: Fault) -> tuple[LinkedCluster, ContainerId, Node, list[Node]] | None:
        """A topic's home, a container with the end of a partition there, a node that follows it, and all other nodes
        that do.
        """
        topic = self._topic(fault)
        cluster = self._world.home_of(topic) if topic is not None else None
        state = cluster.topics_here().get(topic) if cluster is not None and topic is not None else None
        if cluster is None or state is None or not cluster.ready():
            return None
        ends_in = sorted({chain[-1].container for chain in chains_of(cluster.ready()[0], state.number).values()})
        chosen = ends_in[int(fault.roll * 1000) % len(ends_in)]
        record = cluster.record(chosen)
        if record is None or record.state != "open":
            return None
        follow = [cluster.by_id(node) for node in record.replicas if node != record.leader]
        behind = next((node for node in follow if node.is_up), None)
        if behind is None:
            return None
        return (
            cluster,
            chosen,
            behind,
            [cluster.by_id(record.leader), *(node for node in follow if node is not behind)],
        )

    def _recover(self, cluster: LinkedCluster, container: ContainerId) -> bool:
        """Let an existing replica lead while no in-sync one is up; returns whether one does."""
        record = cluster.record(container)
        if record is None or record.state != "open":
            return False
        in_sync = {node for node, _ in record.in_sync}
        there = [node for each in record.replicas if (node := cluster.by_id(each)).is_up]
        if any(node.node_id in in_sync for node in there):
            return False
        found = [(node, each) for node in there if node.replicas and (each := node.replicas.replica(container))]
        if not found:
            return False
        node, replica = found[0]
        own = (node.node_id, uuid.UUID(replica.incarnation))
        container_records.change_container(
            cluster.store,
            container,
            lambda now: structs.replace(
                now,
                leader=node.node_id,
                epoch=Epoch(now.epoch + 1),
                in_sync=(own,),
                recovered=now.recovered + 1,
                recovered_epoch=Epoch(now.epoch + 1),
            ),
        )
        self._world.forced.update(self._world.names)
        self._world.lost.update(self._world.names)
        self._world.trace(f"{cluster.name}: container {container} goes on as node {node.number} has it")
        return True

    # --- links and topics

    async def _pause(self, fault: Fault) -> None:
        target, source = self._world.edges[int(fault.roll * len(self._world.edges))]
        self._operate(self._world.by_name[target], "link.pause", name=f"from-{source}")
        await asyncio.sleep(fault.lasts)
        self._operate(self._world.by_name[target], "link.resume", name=f"from-{source}")

    async def _remake(self, fault: Fault) -> None:
        """Delete a link in the middle of its work, and create it again."""
        target, source = self._world.edges[int(fault.roll * len(self._world.edges))]
        self._operate(self._world.by_name[target], "link.delete", name=f"from-{source}")
        await asyncio.sleep(fault.lasts / 2)
        await self._world.link(target, source, tries=1)

    async def _make_topic(self, fault: Fault) -> None:
        await self._world.make_topic(self._any(fault), uuid.UUID(int=self._chance.getrandbits(128)).bytes)

    async def _grow_topic(self, fault: Fault) -> None:
        topic = self._topic(fault)
        home = self._world.home_of(topic) if topic is not None else None
        upper = home.some(self._chance) if home is not None else None
        if upper is not None and topic is not None and home is not None:
            known = topics_of(upper).get(topic)
            if known is not None:
                grown = await home_call(self._world, home, GrowTopic(topic, known.partitions + 1))
                self._world.trace(f"{topic} grows to {known.partitions + 1}: {grown}")
                if grown:
                    self._world.begin_writing(topic, known.partitions)


async def home_call(world: "World", cluster: LinkedCluster, request: object, timeout_s: float = 6.0) -> Any:
    """Ask some node of a cluster; None: no answer."""
    return await world.call(cluster, request, timeout_s=timeout_s)

"""The faults of a run, drawn from the seed beforehand, so that a run can report what was done to it."""

import asyncio
import contextlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from headrace.base.errors import HeadraceError, KafkaError
from headrace.base.ids import ContainerId, Epoch
from headrace.base.levels import NEWEST
from headrace.catalog.chains import RetireContainer
from headrace.partitions.partition import Partition
from headrace.partitions.rolls.rolls import Rolls
from headrace.store import container_records, features, records
from headrace.store.records import CATALOG_ID, CONTAINER_PREFIX
from simulation.broker_side import BrokerSide
from simulation.disk import damage, flip
from simulation.odd_calls import OddError
from simulation.strangers import Papers, knock
from simulation.topics import lives_in

if TYPE_CHECKING:
    from simulation.cluster import Cluster
    from simulation.node import Node


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault at `at` seconds, for `lasts` seconds. `roll` selects from what is available at that moment (a node, a
    leader).
    """

    at: float
    kind: str
    lasts: float
    roll: float

    def __str__(self) -> str:
        return f"{self.at:.2f} s {self.kind} ({self.lasts:.2f} s, {self.roll:.3f})"


_WEIGHTS = {
    "kill": 6,
    "kill leader": 6,
    "kill controller": 3,
    "kill host": 3,
    "kill two": 3,
    "kill all but one": 1,
    "power cut": 2,
    "stop": 3,
    "freeze": 5,
    "freeze leader": 4,
    "cut": 4,
    "cut one way": 4,
    "isolate": 3,
    "reset": 3,
    "slow network": 2,
    "store away": 3,
    "store away from one": 3,
    "store unsure": 4,
    "disk full": 2,
    "disk slow": 3,
    "disk fails": 1,
    "lose folder": 4,
    "damage": 4,
    "add node": 1,
    "drain": 2,
    "flap": 2,
}


AMID_S = 3.0
"""Seconds to wait until two writes of one log are in progress."""

_STRANGE = {"wrong secret": 4, "stale certificate": 4, "secret changes": 3, "stranger": 2}


def draw_strangers(chance: random.Random, *, begin: float, length: float) -> list[Fault]:
    """In some runs, a host is not who it should be, or the secret by which nodes authenticate each other changes."""
    if chance.random() < 0.85:
        return []
    kinds = chance.choices(list(_STRANGE), list(_STRANGE.values()), k=chance.randint(1, 3))
    return [
        Fault(begin + chance.random() * length, kind, chance.choice((0.3, 2.0, 8.0)), chance.random()) for kind in kinds
    ]


_FLIPS = {"flip": 4, "flip live": 4, "scrub": 1}


def draw_flips(chance: random.Random, *, begin: float, length: float) -> list[Fault]:
    """Some flipped bits, once there is data to flip."""
    kinds = chance.choices(list(_FLIPS), list(_FLIPS.values()), k=chance.randint(1, 4))
    return [
        Fault(begin + chance.random() * length, kind, chance.choice((0.1, 1.0, 4.0)), chance.random()) for kind in kinds
    ]


@dataclass(frozen=True, slots=True)
class Jump:
    """A node's wall clock jumps by `by` seconds at `at`, and back after `lasts`; its monotonic clock does not jump."""

    at: float
    node: int
    by: float
    lasts: float

    def __str__(self) -> str:
        return f"{self.at:.2f} s clock jump of node {self.node} by {self.by:.0f} s ({self.lasts:.2f} s)"


def draw_clocks(chance: random.Random, *, nodes: int, begin: float, end: float) -> tuple[dict[int, float], list[Jump]]:
    """By how many seconds the wall clocks of some nodes are ahead or behind, and how they jump.

    In half of the runs the clocks of a minority are minutes off or jump by minutes; in the others all are right.
    """
    if chance.random() < 0.5:
        return {}, []
    wrong = chance.sample(range(1, nodes + 1), chance.randint(1, (nodes - 1) // 2))
    ahead = {node: chance.choice((-1, 1)) * chance.uniform(2, 15) * 60 for node in wrong if chance.random() < 0.7}
    jumps = []
    for _ in range(chance.randint(0, 3)):
        at = chance.uniform(begin, end)
        by = chance.choice((-1, 1)) * chance.uniform(2, 15) * 60
        jumps.append(Jump(at, chance.choice(wrong), by, chance.uniform(0.05, 1) * (end - at)))
    return ahead, jumps


def draw_hang(chance: random.Random, *, begin: float, length: float) -> list[Fault]:
    """In some runs, a disk hangs for longer than it takes until its node no longer leads anything."""
    if chance.random() < 0.8:
        return []
    return [Fault(begin + chance.random() * length, "disk hangs", chance.uniform(8, 20), chance.random())]


def draw_unopened(chance: random.Random, *, begin: float, length: float) -> list[Fault]:
    """In some runs, processes have no file descriptor left, for a moment or for longer than the code waits for one."""
    lasts = (0.2, 2.0, 12.0)
    return _draw_some(chance, "no descriptors", lasts, without=0.7, most=3, begin=begin, length=length)


def draw_holes(chance: random.Random, *, begin: float, length: float) -> list[Fault]:
    """In some runs, processes die while two writes of one log are in progress."""
    lasts = (0.1, 1.0, 4.0)
    return _draw_some(chance, "kill amid writes", lasts, without=0.6, most=4, begin=begin, length=length)


def draw_lost(chance: random.Random, *, begin: float, length: float) -> list[Fault]:
    """In some runs, single connections lead nowhere, and neither side is notified."""
    lasts = (0.0, 0.3, 1.0)
    return _draw_some(chance, "connection lost", lasts, without=0.6, most=4, begin=begin, length=length)


def _draw_some(
    chance: random.Random,
    kind: str,
    lasts: Sequence[float],
    *,
    without: float,
    most: int,
    begin: float,
    length: float,
) -> list[Fault]:
    """Faults of one kind, at most `most`; `without` is the share of runs that have none."""
    if chance.random() < without:
        return []
    return [
        Fault(begin + chance.random() * length, kind, chance.choice(lasts), chance.random())
        for _ in range(chance.randint(1, most))
    ]


def draw_full(chance: random.Random, *, begin: float, length: float) -> list[Fault]:
    """In some runs, the disks of all followers of a container are full at once, for longer than the leader waits for
    them.
    """
    if chance.random() < 0.7:
        return []
    return [Fault(begin + chance.random() * length, "followers full", chance.uniform(8, 20), chance.random())]


_ROLLS = {
    "roll": 4,
    "roll and kill": 6,
    "roll to anywhere": 4,
    "close container": 3,
    "delete container": 3,
    "hand over": 3,
}


def draw_rolls(chance: random.Random, *, begin: float, length: float) -> list[Fault]:
    """Faults of topics, mostly in connection with a roll."""
    kinds = chance.choices(list(_ROLLS), list(_ROLLS.values()), k=chance.randint(2, 8))
    return [
        Fault(begin + chance.random() * length, kind, chance.choice((0.1, 0.5, 2.0)), chance.random()) for kind in kinds
    ]


def draw(chance: random.Random, *, begin: float, length: float, count: int) -> list[Fault]:
    """The faults of a run, by time. Some runs have one kind again and again, most have all kinds."""
    kinds = list(_WEIGHTS)
    if chance.random() < 0.3:
        kinds = chance.sample(kinds, 3)
    weights = [_WEIGHTS[kind] for kind in kinds]
    faults = []
    for _ in range(count):
        kind = chance.choices(kinds, weights)[0]
        lasts = chance.choice((0.05, 0.3, 1.0, 2.5, 6.0)) * chance.uniform(0.5, 1.5)
        faults.append(Fault(begin + chance.random() * length, kind, lasts, chance.random()))
    return sorted(faults, key=lambda fault: fault.at)


class Trouble:
    """Carries faults out, and ends them."""

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        self._nodes = cluster.nodes
        self._deleted_by_hand: set[ContainerId] = set()

    async def apply(self, fault: Fault) -> None:
        """Begin the fault, wait, and end it."""
        await asyncio.sleep(fault.at - self._cluster.loop.now)
        self._cluster.trace(f"FAULT {fault}")
        await getattr(self, "_" + fault.kind.replace(" ", "_"))(fault)

    # --- nodes

    def _any(self, fault: Fault) -> "Node":
        return self._nodes[int(fault.roll * len(self._nodes))]

    def _leader(self, fault: Fault) -> "Node":
        """The leader of some container."""
        containers = self._cluster.containers()
        if not containers:
            return self._any(fault)
        record = self._cluster.record(containers[int(fault.roll * len(containers))])
        assert record is not None
        return self._cluster.by_id(record.leader)

    async def _down(self, fault: Fault, *nodes: "Node", with_host: bool = False) -> None:
        for node in nodes:
            node.kill(with_host=with_host)
        await asyncio.sleep(fault.lasts)
        for node in nodes:
            if not node.is_up:
                node.start()

    async def _kill(self, fault: Fault) -> None:
        await self._down(fault, self._any(fault))

    async def _kill_leader(self, fault: Fault) -> None:
        await self._down(fault, self._leader(fault))

    async def _kill_controller(self, fault: Fault) -> None:
        held = [node for node in self._nodes if node.controller is not None and node.controller.holds_lease]
        await self._down(fault, *held[:1])

    async def _kill_host(self, fault: Fault) -> None:
        await self._down(fault, self._any(fault), with_host=True)

    async def _kill_two(self, fault: Fault) -> None:
        first = self._leader(fault)
        first.kill()
        await asyncio.sleep(fault.roll * 0.003)
        others = [node for node in self._nodes if node is not first]
        await self._down(fault, others[int(fault.roll * 1000) % len(others)])
        if not first.is_up:
            first.start()

    async def _kill_all_but_one(self, fault: Fault) -> None:
        last = self._any(fault)
        killed = [node for node in self._nodes if node is not last]
        for node in killed:
            node.kill()
            await asyncio.sleep(0.3 + fault.roll)
        await asyncio.sleep(fault.lasts)
        for node in killed:
            if not node.is_up:
                node.start()

    async def _power_cut(self, fault: Fault) -> None:
        for node in self._nodes:
            node.kill(with_host=True)
        await asyncio.sleep(fault.lasts / 2)
        for node in self._nodes:
            await asyncio.sleep(self._cluster.chance.random() * 0.5)
            if not node.is_up:
                node.start()

    async def _kill_amid_writes(self, fault: Fault) -> None:
        """Kill a node that has two writes of one log in progress, or all nodes at that moment: a disk may have only the
        second write.
        """
        slow = self._nodes if fault.roll < 0.5 else [self._leader(fault)]
        for node in slow:
            node.disk.slow = 0.05 + fault.roll * 0.3
        until = self._cluster.loop.now + AMID_S
        found: list[Node] = []
        while not found and self._cluster.loop.now < until:
            await asyncio.sleep(0.005)
            found = [node for node in self._nodes if node.writes_beside]
        for node in slow:
            node.disk.slow = 0.0
        await self._down(fault, *(self._nodes if fault.roll < 0.3 else found[:1]), with_host=fault.roll * 10 % 1 < 0.5)

    async def _flap(self, fault: Fault) -> None:
        """Kill a node again and again, before it can catch up."""
        node = self._any(fault)
        for _ in range(4):
            await self._down(Fault(0, "", 0.05 + fault.lasts / 10, 0), node)
            await asyncio.sleep(fault.lasts / 4)

    async def _stop(self, fault: Fault) -> None:
        node = self._any(fault)
        process = node.process
        if process is not None:
            self._cluster.loop.spawn(node.stop(), process)
            await asyncio.sleep(6)
            if node.process is process:
                node.kill()
            if not node.is_up:
                node.start()

    # --- versions (simulation.versions)

    async def _upgrade(self, fault: Fault) -> None:
        await self._change_version([node for node in self._nodes if node.is_old], fault, is_old=False)

    async def _upgrade_all(self, fault: Fault) -> None:
        for _ in self._nodes:
            await self._upgrade(fault)

    async def _downgrade(self, fault: Fault) -> None:
        await self._change_version([node for node in self._nodes if not node.is_old], fault, is_old=True)

    async def _raise_level(self, _fault: Fault) -> None:
        """Raise the level, as an operator may at any time."""
        with contextlib.suppress(KafkaError):
            features.ask_for(self._cluster.store, NEWEST)

    async def _change_version(self, able: "list[Node]", fault: Fault, *, is_old: bool) -> None:
        if not able:
            return
        node = able[int(fault.roll * len(able))]
        process = node.process
        if process is not None and fault.roll * 10 % 1 < 0.7:  # otherwise it has been killed
            self._cluster.loop.spawn(node.stop(), process)
            await asyncio.sleep(2)
        if node.process is process:
            node.kill()
        await asyncio.sleep(fault.lasts)
        if not node.is_up:
            node.is_old = is_old
            node.start()

    async def _freeze(self, fault: Fault, node: "Node | None" = None) -> None:
        node = node or self._any(fault)
        process = node.process
        if process is not None:
            node.freeze()
            await asyncio.sleep(fault.lasts * 2)
            node.thaw(process)

    async def _freeze_leader(self, fault: Fault) -> None:
        await self._freeze(fault, self._leader(fault))

    # --- network

    def _pair(self, fault: Fault) -> tuple[int, int]:
        one = self._any(fault)
        others = [node for node in self._nodes if node is not one]
        return one.number, others[int(fault.roll * 1000) % len(others)].number

    async def _cut_links(self, fault: Fault, links: list[tuple[int, int]]) -> None:
        network = self._cluster.network
        for link in links:
            network.cut(*link)
        await asyncio.sleep(fault.lasts)
        for link in links:
            network.heal(*link)

    async def _cut(self, fault: Fault) -> None:
        one, other = self._pair(fault)
        await self._cut_links(fault, [(one, other), (other, one)])

    async def _cut_one_way(self, fault: Fault) -> None:
        await self._cut_links(fault, [self._pair(fault)])

    async def _isolate(self, fault: Fault) -> None:
        one = self._any(fault).number
        others = [node.number for node in self._nodes if node.number != one]
        await self._cut_links(fault, [(one, each) for each in others] + [(each, one) for each in others])

    async def _reset(self, fault: Fault) -> None:
        for _ in range(5):
            self._cluster.network.reset(*self._pair(fault))
            await asyncio.sleep(fault.lasts / 5)

    async def _slow_network(self, fault: Fault) -> None:
        self._cluster.network.slow_s += 0.3
        await asyncio.sleep(fault.lasts)
        self._cluster.network.slow_s -= 0.3

    # --- papers (simulation.strangers)

    async def _wrong_secret(self, fault: Fault) -> None:
        papers = self._out_of_line(fault)
        papers.wrong += 1
        await asyncio.sleep(fault.lasts)
        papers.wrong -= 1

    async def _stale_certificate(self, fault: Fault) -> None:
        papers = self._out_of_line(fault)
        papers.stale += 1
        await asyncio.sleep(fault.lasts)
        papers.stale -= 1

    def _out_of_line(self, fault: Fault) -> Papers:
        """A node's connections end, or stay open, while it gets no new ones."""
        node, network = self._any(fault), self._cluster.network
        if fault.roll * 1000 % 1 < 0.5:
            for other in self._nodes:
                if other is not node:
                    network.reset(node.number, other.number)
        return network.strangers.of(node.number)

    async def _secret_changes(self, fault: Fault) -> None:
        """Change the secret on one node after the other, with both secrets valid in between."""
        strangers = self._cluster.network.strangers
        if strangers.changing:
            return
        strangers.changing = True
        secret, former = f"another secret, of {fault.at}", strangers.of(self._nodes[0].number).secret
        for node in self._nodes:
            strangers.of(node.number)
        for good in (former, ""):
            strangers.others_go_by(secret, good)
            for node in self._nodes:
                papers = strangers.of(node.number)
                papers.secret, papers.former = secret, good
                self._check_papers()
                await asyncio.sleep(fault.lasts / 10)
        strangers.changing = False

    def _check_papers(self) -> None:
        """Nodes with valid papers accept each other."""
        strangers = self._cluster.network.strangers
        for one in self._nodes:
            for other in self._nodes:
                odd = any(strangers.of(each.number).is_odd for each in (one, other))
                if not odd and (reason := strangers.why_apart(one.number, other.number)):
                    self._cluster.checks.fail(f"node {one.number} does not know node {other.number}: {reason}")

    async def _stranger(self, fault: Fault) -> None:
        """A host from outside, which has overheard the nodes' traffic."""
        strangers = self._cluster.network.strangers
        one, other = self._pair(fault)
        papers = strangers.of(one)
        if not papers.is_odd and (let_in := knock(papers.identity(one), papers.identity(other))):
            self._cluster.checks.fail(f"a stranger was let in by {let_in}")

    # --- store

    async def _store_away(self, fault: Fault) -> None:
        await self._away(fault, self._nodes)

    async def _store_away_from_one(self, fault: Fault) -> None:
        await self._away(fault, [self._any(fault)])

    async def _away(self, fault: Fault, nodes: "list[Node]") -> None:
        nodes = list(nodes)
        for node in nodes:
            node.link.away += 1
        await asyncio.sleep(fault.lasts)
        for node in nodes:
            node.link.away -= 1

    async def _store_unsure(self, fault: Fault) -> None:
        nodes = list(self._nodes)
        for node in nodes:
            node.link.unsure = 0.5
        await asyncio.sleep(fault.lasts * 2)
        for node in nodes:
            node.link.unsure = 0.0

    # --- disks

    async def _disk_full(self, fault: Fault) -> None:
        node = self._any(fault)
        node.disk.full += 1
        await asyncio.sleep(fault.lasts * 2)
        node.disk.full -= 1

    async def _connection_lost(self, fault: Fault) -> None:
        node = self._any(fault)
        ends = list(node.host.ends)
        if ends:
            self._cluster.network.lose(ends[int(fault.roll * 1000) % len(ends)])

    async def _no_descriptors(self, fault: Fault) -> None:
        node = self._any(fault)
        node.disk.unopened += 1
        await asyncio.sleep(fault.lasts)
        node.disk.unopened -= 1

    async def _followers_full(self, fault: Fault) -> None:
        """The disks of one container's followers are full, and they report it."""
        containers = self._cluster.containers()
        if not containers:
            return
        record = self._cluster.record(containers[int(fault.roll * len(containers))])
        assert record is not None
        nodes = [self._cluster.by_id(each) for each in record.replicas if each != record.leader]
        for node in nodes:
            node.disk.full += 1
        until = self._cluster.loop.now + fault.lasts
        while self._cluster.loop.now < until:  # a restarted process has to find out again
            for node in nodes:
                self._set_full(node, True)
            await asyncio.sleep(1.0)
        for node in nodes:
            node.disk.full -= 1
            self._set_full(node, False)

    def _set_full(self, node: "Node", full: bool) -> None:
        node.says_full = full
        try:
            records.set_full(self._cluster.store, node.node_id, full, run=node.record.run)
        except HeadraceError as error:
            self._cluster.trace(f"full: {error}")

    async def _disk_slow(self, fault: Fault) -> None:
        node = self._any(fault)
        node.disk.slow = 0.05 + fault.roll * 0.8
        await asyncio.sleep(fault.lasts)
        node.disk.slow = 0.0

    async def _disk_hangs(self, fault: Fault) -> None:
        node = self._any(fault)
        node.disk.hangs_until = self._cluster.loop.now + fault.lasts
        await asyncio.sleep(fault.lasts)

    async def _disk_fails(self, fault: Fault) -> None:
        node = self._any(fault)
        node.disk.fails = True
        await asyncio.sleep(max(fault.lasts, 1.0))
        node.disk.fails = False
        if not node.is_up:
            node.start()

    async def _lose_folder(self, fault: Fault) -> None:
        node = self._any(fault)
        if self._cluster.can_lose(node):
            node.kill()
            node.lose_folder()
            await self._down(fault)
            if not node.is_up:
                node.start()

    async def _damage(self, fault: Fault) -> None:
        node = self._any(fault)
        if self._cluster.can_lose(node):
            node.kill()
            for folder in sorted(node.folder.iterdir()) if node.folder.exists() else ():  # otherwise it was lost before
                if self._cluster.chance.random() < 0.5:
                    if folder.name.isdigit():
                        self._cluster.damaged.add(node.format_of(ContainerId(int(folder.name))))
                    self._cluster.trace(f"damage of {folder.name}: {damage(folder, self._cluster.chance)}")
            await self._down(fault)
            if not node.is_up:
                node.start()

    async def _flip(self, fault: Fault) -> None:
        """A bit of synced data changes while the node is down."""
        node = self._any(fault)
        node.kill()
        self._flip_some(node, live=False)
        await self._down(fault)
        if not node.is_up:
            node.start()

    async def _flip_live(self, fault: Fault) -> None:
        """A bit of synced data changes while the node runs."""
        self._flip_some(self._any(fault), live=True)

    def _flip_some(self, node: "Node", *, live: bool) -> None:
        chance = self._cluster.chance
        for container_id in self._cluster.containers():
            folder = node.folder / str(container_id)
            format = node.format_of(container_id)
            if format and self._cluster.can_flip(container_id) and (done := flip(folder, chance, live=live)):
                self._cluster.flipped[container_id] = format
                self._cluster.flips[container_id] = done
                self._cluster.trace(f"flip on node {node.number}, container {container_id}: {done.told}")

    async def _damage_tables(self, fault: Fault) -> None:
        """A value in a node's tables changes while it is down."""
        node = self._any(fault)
        node.kill()
        self._cluster.change_tables(node)
        await self._down(fault)
        if not node.is_up:
            node.start()

    async def _damage_tables_live(self, fault: Fault) -> None:
        """A value in a node's tables changes while it runs."""
        node = self._any(fault)
        if node.upper is not None and node.upper.is_ready:
            self._cluster.change_tables(node)

    async def _scrub(self, fault: Fault) -> None:
        """Not a fault: an operator has everything read back."""
        for node in self._nodes:
            node.scrub_all()

    # --- topics

    def _roll_at_leader(self, fault: Fault, to: ContainerId | None) -> "Node | None":
        """Have a partition roll; returns the node that leads it."""
        if to in self._deleted_by_hand and self._is_led(to):
            return None
        led = [
            (node, partition)
            for node in self._nodes
            if node.upper is not None and node.upper.is_ready
            for topic in node.upper.parts.topics.all()
            for partition in topic.partitions.values()
            if not partition.left and not partition.rolling
        ]
        if not led:
            return None
        node, partition = led[int(fault.roll * len(led))]
        assert node.upper is not None
        self._cluster.trace(f"partition {partition.open} is to roll on node {node.number} to {to}")
        self._cluster.loop.spawn(_rolled(node.upper.parts.rolls, partition, to), node.process)
        return node

    async def _roll(self, fault: Fault) -> None:
        """Roll by an operator's command: not a fault itself, but other faults hit the roll."""
        self._roll_at_leader(fault, None)

    async def _roll_and_kill(self, fault: Fault) -> None:
        """At one step of a roll, kill the node that drives it, or any node."""
        records = [self._cluster.record(each) for each in self._cluster.containers() if each != CATALOG_ID]
        targets = [record for record in records if record is not None and record.state == "open"]
        target = self._cluster.chance.choice(targets) if targets else None
        driver = self._roll_at_leader(fault, target.container_id if target is not None else None)
        if driver is None:
            return
        await asyncio.sleep(self._cluster.chance.random() ** 2 * 0.5)
        victims = [driver, self._any(fault)]
        if target is not None:
            victims.append(self._cluster.by_id(target.leader))
        catalog = self._cluster.record(CATALOG_ID)
        if catalog is not None:
            victims.append(self._cluster.by_id(catalog.leader))
        await self._down(fault, self._cluster.chance.choice(victims))

    async def _roll_to_anywhere(self, fault: Fault) -> None:
        """Roll to any container, which may be closed or deleted by now."""
        keys = [versioned.key for versioned in self._cluster.store.list(CONTAINER_PREFIX)]
        ids = {ContainerId(int(key.removeprefix(CONTAINER_PREFIX))) for key in keys} - {CATALOG_ID}
        forgotten = container_records.deleted_containers(self._cluster.store).ranges
        ids |= {ContainerId(each) for first, last in forgotten for each in range(first, last + 1)}
        deleted = ids.difference(self._cluster.containers())
        chosen = sorted(deleted if deleted and self._cluster.chance.random() < 0.6 else ids)
        if chosen:
            self._roll_at_leader(fault, self._cluster.chance.choice(chosen))

    async def _close_container(self, fault: Fault) -> None:
        """Close a small container as if it were full: it is deleted once it is empty, although not all of its chunks
        are dead.
        """
        led = [
            (len(container.log.chunks()), container.id, node)
            for node in self._nodes
            if node.replicas is not None and node.upper is not None and node.upper.is_ready
            for container in node.replicas.led.values()
            if container.id != CATALOG_ID and not container.closing
        ]
        if led:
            _, container_id, node = min(led, key=lambda each: each[:2])
            assert node.upper is not None
            self._cluster.loop.spawn(_closed(node.upper, container_id), node.process)

    async def _delete_container(self, fault: Fault) -> None:
        """Delete a container in which nothing lives or is about to: first closed and retired, as its leader does.

        Or delete it by hand, without informing the catalog, which then still rolls to it; but only once every node
        knows that it is closed, and none is rolling a partition. Partitions roll to it only once nobody leads it, since
        whatever opens in it is lost.
        """
        by_hand = fault.roll < 0.5
        empty = []
        for _ in range(40):
            empty = [each for each in self._cluster.containers() if not lives_in(self._cluster, each)]
            if empty:
                break
            await asyncio.sleep(0.1)
        for container_id in empty[:1]:
            try:
                container_records.change_container(
                    self._cluster.store, container_id, lambda now: replace(now, state="closed")
                )
                retired = [] if by_hand else self._retire(container_id)
                await asyncio.sleep(3.0)
                may_go = self._is_known_to_be_closed(container_id) if by_hand else bool(retired)
                if may_go and not lives_in(self._cluster, container_id):
                    container_records.change_container(
                        self._cluster.store, container_id, lambda now: replace(now, state="deleted")
                    )
                    self._cluster.trace(f"container {container_id} is deleted")
                    if by_hand:
                        self._deleted_by_hand.add(container_id)
                    await asyncio.sleep(0.2 + fault.lasts)
                    self._roll_at_leader(fault, container_id)
            except HeadraceError as error:
                self._cluster.trace(f"container {container_id} is not deleted: {error}")

    def _is_led(self, container_id: ContainerId) -> bool:
        """Whether some node leads the container, even one that has not heard of its deletion."""
        uppers = [node.upper for node in self._nodes]
        return any(each is not None and each.is_ready and container_id in each.parts.containers for each in uppers)

    def _is_known_to_be_closed(self, container_id: ContainerId) -> bool:
        """Whether every node knows that the container is closed, and none is rolling a partition."""
        for node in self._nodes:
            if node.upper is None or not node.upper.is_ready or node.upper.parts.rolls.under_way:
                return False
            record = node.upper.parts.cluster.record(container_id)
            if record is None or record.state == "open":
                return False
        return True

    def _retire(self, container_id: ContainerId) -> list[bool]:
        """Have the catalog place nothing more in a container; the list gets true once the catalog has accepted that."""
        taken: list[bool] = []
        up = [node for node in self._nodes if node.upper is not None and node.upper.is_ready]
        if up:
            node = self._cluster.chance.choice(up)
            assert node.upper is not None
            self._cluster.loop.spawn(_retired(node.upper, container_id, taken), node.process)
        return taken

    async def _hand_over(self, fault: Fault) -> None:
        """Another in-sync replica becomes the leader, as if by the controller, although no node died."""
        if self._cluster.set_back:
            return  # the controller would not do it either
        for container_id in self._cluster.containers():
            record = self._cluster.record(container_id)
            assert record is not None
            others = [each for each, _ in record.in_sync if each != record.leader]
            living = [each for each in others if self._cluster.by_id(each).is_up]
            if living and self._cluster.chance.random() < 0.4:
                candidate = self._cluster.chance.choice(living)
                container_records.change_container(
                    self._cluster.store,
                    container_id,
                    lambda now, candidate=candidate: replace(now, leader=candidate, epoch=Epoch(now.epoch + 1)),  # type: ignore[misc]
                )

    # --- membership

    async def _add_node(self, fault: Fault) -> None:
        if len(self._nodes) < 7:
            self._cluster.add_node().start()

    async def _drain(self, fault: Fault) -> None:
        node = self._any(fault)
        back = fault.roll * 10 % 1 < 0.5
        if len(self._nodes) - len(self._cluster.drained) <= self._cluster.shape.replicas and not back:
            return
        self._cluster.drained.add(node.number)
        self._set_draining(node, True)
        if back:
            await asyncio.sleep(fault.lasts)
            self._cluster.drained.discard(node.number)
            self._set_draining(node, False)

    def _set_draining(self, node: "Node", draining: bool) -> None:
        try:
            records.set_draining(self._cluster.store, node.node_id, draining)
        except HeadraceError as error:
            self._cluster.trace(f"drain: {error}")
            self._cluster.drained.discard(node.number)


async def _rolled(rolls: Rolls, partition: Partition, to: ContainerId | None) -> None:
    with contextlib.suppress(HeadraceError, OddError):
        await rolls.roll(partition, to=to)


async def _closed(upper: BrokerSide, container_id: ContainerId) -> None:
    with contextlib.suppress(HeadraceError, OddError):
        await upper.close_container(container_id)


async def _retired(upper: BrokerSide, container_id: ContainerId, taken: list[bool]) -> None:
    with contextlib.suppress(HeadraceError, OddError):
        await upper.parts.catalog.submit(RetireContainer(container_id))
        taken.append(True)

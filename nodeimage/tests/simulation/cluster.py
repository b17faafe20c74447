"""A whole cluster in one process, and one run of it under a seed."""

import asyncio
import gc
import random
import shutil
import tempfile
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from headrace.base.ids import ContainerId, NodeId
from headrace.container import replica_folder
from headrace.control.cluster_clock import OFF_S
from headrace.log.scrub import Scrubbed, scrub
from headrace.store.container_records import deleted_containers
from headrace.store.records import CATALOG_ID, CONTAINER_PREFIX, ContainerRecord, decode_container
from simulation.broker_side import BrokerSide
from simulation.checks import Checks, Violation
from simulation.clients import Client
from simulation.disk import Flipped
from simulation.faults import (
    Fault,
    Jump,
    Trouble,
    draw,
    draw_clocks,
    draw_flips,
    draw_full,
    draw_hang,
    draw_holes,
    draw_lost,
    draw_rolls,
    draw_strangers,
    draw_unopened,
)
from simulation.loop import SimulatedLoop
from simulation.network import WORLD, Network
from simulation.node import Node
from simulation.odd_calls import Odd, OddCalls, befall_oddly, draw_odd
from simulation.set_back import Operator, SetBack, draw_set_back
from simulation.store import MemoryStore
from simulation.tables import TableChecks, change_row, draw_tables
from simulation.topics import TopicChecks, TopicClient
from simulation.versions import VersionChecks, Versions, draw_versions, found_of_level_0
from simulation.world import patched

MAX_STEPS = 400_000
SCRUB_S = 5.0
"""Virtual seconds that the scrub at the end may take; a node that has just started has not opened all of its replicas.
"""
LOOK_S = 0.5
GO_ON_S = 20.0
"""Virtual seconds after the last fault within which every container has to accept writes again."""
SHAPE = 1_000_000_007
EXTRA = 2_000_000_139
CLOCKS = 3_000_000_019
HANGS = 4_000_000_007
FULL = 5_000_000_029
VERSIONS = 6_000_000_013
UNOPENED = 7_000_000_001
SET_BACK = 7_000_000_003
ODD = 8_000_000_011
TABLES = 9_000_000_011
STRANGERS = 10_000_000_019
HOLES = 11_000_000_003
LOST = 12_000_000_007
"""Added to the seed for the random source of faults that were added later: so all other runs stay as they were."""
WHOLE_S = 60.0
"""Virtual seconds after the last fault within which everything has to be whole again."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The parameters of a run."""

    nodes: int
    replicas: int
    min_in_sync: int
    clients: int
    chunk_bytes: int
    job_s: float
    """The longest time, in seconds, that a disk takes for a sync."""
    hop_s: float
    """The longest time, in seconds, that a message takes."""
    faults_s: float
    faults: int
    topics: int
    """The number of topics, with a catalog and brokers; 0: only replicas."""
    flips: bool
    """Whether bits flip on disks, and clients read the affected records."""


@dataclass(slots=True)
class Outcome:
    """The outcome of a run. `problem` is empty if it succeeded."""

    seed: int
    problem: str = ""
    digest: int = 0
    """A digest of everything that happened: the same seed gives the same digest."""
    faults: list[Fault | Jump | SetBack | Odd] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    shape: Shape | None = None
    simulated_s: float = 0.0
    steps: int = 0
    acknowledged: int = 0


class Cluster:
    """Nodes, clients, network and store under one loop."""

    name = ""
    """The cluster's name among several in one run."""

    def __init__(self, seed: int, folder: Path, *, kept_lines: int) -> None:
        self._lines: deque[str] = deque(maxlen=kept_lines)
        self._digest = 0
        draws = random.Random(seed + SHAPE)
        shape = _shape(draws, random.Random(seed + EXTRA))
        chance = random.Random(seed)
        self._lay_out(seed, folder, shape=shape, chance=chance, loop=SimulatedLoop(chance, most_steps=MAX_STEPS))
        self.faults = draw(draws, begin=2.5, length=self.shape.faults_s, count=self.shape.faults)
        if self.shape.flips:
            flips = draw_flips(random.Random(seed + EXTRA), begin=4.0, length=self.shape.faults_s)
            self.faults = sorted(self.faults + flips, key=lambda fault: fault.at)
        if self.shape.topics:
            rolls = draw_rolls(random.Random(seed + EXTRA + 1), begin=2.5, length=self.shape.faults_s)
            self.faults = sorted(self.faults + rolls, key=lambda fault: fault.at)

        self.clocks_ahead, self.jumps = draw_clocks(
            random.Random(seed + CLOCKS), nodes=self.shape.nodes, begin=2.5, end=max(each.at for each in self.faults)
        )
        hang = draw_hang(random.Random(seed + HANGS), begin=2.5, length=self.shape.faults_s)
        self.faults = sorted(self.faults + hang, key=lambda fault: fault.at)
        if self.shape.nodes > self.shape.replicas and self.shape.min_in_sync > 1:  # otherwise nobody awaits them
            full = draw_full(random.Random(seed + FULL), begin=2.5, length=self.shape.faults_s)
            self.faults = sorted(self.faults + full, key=lambda fault: fault.at)

        unopened = draw_unopened(random.Random(seed + UNOPENED), begin=2.5, length=self.shape.faults_s)
        self.faults = sorted(self.faults + unopened, key=lambda fault: fault.at)

        holes = draw_holes(random.Random(seed + HOLES), begin=2.5, length=self.shape.faults_s)
        self.faults = sorted(self.faults + holes, key=lambda fault: fault.at)

        lost = draw_lost(random.Random(seed + LOST), begin=2.5, length=self.shape.faults_s)
        self.faults = sorted(self.faults + lost, key=lambda fault: fault.at)

        self.versions = draw_versions(
            random.Random(seed + VERSIONS), nodes=self.shape.nodes, begin=2.5, length=self.shape.faults_s
        )
        if self.versions is not None:
            self.faults = sorted([*self.faults, *self.versions.faults], key=lambda fault: fault.at)
            found_of_level_0(self.store, 1 + seed % 1000)

        strangers = draw_strangers(random.Random(seed + STRANGERS), begin=2.5, length=self.shape.faults_s)
        self.faults = sorted(self.faults + strangers, key=lambda fault: fault.at)

        self.table_faults = _table_faults(seed, self.shape)
        self.faults = sorted([*self.faults, *self.table_faults], key=lambda fault: fault.at)
        self.store_set_back = _set_back(seed, self.shape)
        self.oddity = _oddity(seed, self.shape)

    def _lay_out(self, seed: int, folder: Path, *, shape: Shape, chance: random.Random, loop: SimulatedLoop) -> None:
        self.seed = seed
        self.folder = folder
        self.shape = shape
        self.chance = chance
        self.loop = loop
        self.world = WORLD
        self.tracing = True
        self.store = MemoryStore()
        self.odd = OddCalls(random.Random(seed + ODD + 1))
        self.set_back = False
        """Whether the store was set back, and what it lost has not been restored yet."""
        self.network = Network(self.loop, self.chance, self.trace)
        self.network.hop_s = shape.hop_s
        self.checks = Checks(self)
        self.topics = TopicChecks(self)
        self.tables = TableChecks(self)
        self.levels = VersionChecks(self)
        self.versions: Versions | None = None
        self.store.on_put = self.checks.put
        self.nodes: list[Node] = []
        self.drained: set[int] = set()
        self.damaged: set[str] = set()
        """The formats of replicas that were damaged, whose contents may be gone."""
        self.flipped: dict[ContainerId, str] = {}
        """By container, the format of the one replica that was last damaged without anybody noticing."""
        self.flips: dict[ContainerId, Flipped] = {}
        """By container, how that replica was damaged."""
        self.over = False
        self.faults: list[Fault] = []
        self.table_faults: list[Fault] = []
        self.store_set_back: SetBack | None = None
        self.oddity: Odd | None = None
        self.clocks_ahead: dict[int, float] = {}
        self.jumps: list[Jump] = []

    def address(self, number: int) -> tuple[str, int]:
        """The address at which clients of other clusters reach a node."""
        return "simulated", 0

    async def attach(self, upper: BrokerSide) -> Mapping[type, Callable[..., Awaitable[Any]]]:
        """A node's broker runs from now on: registers the other parts of the node, and the requests that it answers."""
        return {}

    def trace(self, line: str) -> None:
        """Record an event of the run."""
        line = f"{self.loop.now:.6f} {line}"
        self._digest = zlib.crc32(line.encode(), self._digest)
        self._lines.append(line)

    def add_node(self) -> Node:
        node = Node(self, len(self.nodes) + 1)
        self.nodes.append(node)
        return node

    # --- what is so

    def by_id(self, node_id: NodeId) -> Node:
        return next(node for node in self.nodes if node.node_id == node_id)

    def record(self, container_id: ContainerId) -> ContainerRecord | None:
        found = self.store.get(f"{CONTAINER_PREFIX}{container_id}")
        return None if found is None else decode_container(found)

    def containers(self) -> list[ContainerId]:
        found = [decode_container(each) for each in self.store.list(CONTAINER_PREFIX)]
        return [record.container_id for record in found if record.state != "deleted"]

    def is_deleted(self, container_id: ContainerId) -> bool:
        record = self.record(container_id)
        return container_id in deleted_containers(self.store) if record is None else record.state == "deleted"

    def open_to_commands(self) -> list[ContainerId]:
        """The containers to which clients append meaningless commands: none in runs with topics, where garbage
        collection would not understand them.
        """
        return [] if self.shape.topics else self.containers()

    def missing(self) -> str:
        """What is not whole yet; "": everything is."""
        off = {node.node_id for node in self.nodes if abs(node.wall_ahead) > OFF_S}
        for node in self.nodes:
            if node.controller is None or node.controller.clocks_off().keys() != off:
                return f"node {node.number} does not see that the clocks of nodes {sorted(off)} are off"
        for container_id in self.containers():
            why = self.checks.quiet(container_id) or self._lagging_catalog(container_id)
            if why:
                return f"container {container_id}: {why}"
            for node in self.nodes:
                if (
                    self.is_flipped(node, container_id)
                    and not self.is_needed(container_id)
                    and not self._is_damage_gone(node, container_id)
                ):
                    return f"container {container_id}: node {node.number} has a damaged replica still"
        for node in self.nodes:
            for container_id in sorted(replica_folder.listed(node.folder)):
                if self.is_deleted(container_id):
                    return f"node {node.number} has a replica still of container {container_id}, which is deleted"
        return ""

    def _unready_node(self) -> str:
        """Which node does not serve yet."""
        for node in self.nodes if self.shape.topics else ():
            if node.upper is None or not node.upper.is_ready:
                return f"node {node.number} does not serve"
        return ""

    def _lagging_catalog(self, container_id: ContainerId) -> str:
        """Which catalog has not applied all commands yet."""
        if self.shape.topics and container_id == CATALOG_ID:
            if unready := self._unready_node():
                return unready
            uppers = [node.upper for node in self.nodes if node.upper is not None]  # all of them: they serve
            replicas = [upper.replicas.replica(CATALOG_ID) for upper in uppers]
            committed = max(0 if replica is None else replica.committed for replica in replicas)
            for node, upper in zip(self.nodes, uppers, strict=True):
                if not committed or upper.catalog.applied < committed:
                    return f"the catalog of node {node.number} is at {upper.catalog.applied} of {committed}"
        return ""

    def can_lose(self, node: Node) -> bool:
        """Whether a node's disk may be lost now: another node has, and will have, everything that it holds.

        The design requires that one in-sync replica keeps its disk.
        """
        if self.set_back:
            return False  # it is unknown who is in sync
        if not all(each.is_up and not each.link.away and not each.link.unsure for each in self.nodes):
            return False
        folders = {int(each.name) for each in node.folder.iterdir() if each.name.isdigit()}
        if self.shape.min_in_sync == 1 and folders.difference(self.containers()):
            return False  # a container that is being created may get a record that names this one folder
        for container_id in self.containers():
            record = self.record(container_id)
            assert record is not None
            others = [
                each
                for each, format in record.in_sync
                if each != node.node_id
                and self.by_id(each).holds(container_id)[0] == str(format) != self.flipped.get(container_id)
                and str(format) not in self.damaged
            ]
            led = node.replicas.led.get(container_id) if node.replicas is not None else None
            if node.node_id in record.replicas and not others:
                return False
            if led is not None and led.state.waits_for != led.state.in_sync:
                return False  # it may be about to remove the others from the set
        return True

    def is_flipped(self, node: Node, container_id: ContainerId) -> bool:
        """Whether a node's replica is one that was damaged by a flipped bit."""
        return node.format_of(container_id) == self.flipped.get(container_id, "none")

    def is_needed(self, container_id: ContainerId) -> bool:
        """Whether no replica may leave the in-sync set, however damaged, because the set is at its minimum."""
        record = self.record(container_id)
        return record is not None and len(record.in_sync) <= record.min_in_sync

    def _is_damage_gone(self, node: Node, container_id: ContainerId) -> bool:
        """Whether the damaged bytes are gone: freed together with their records, or cut off as not committed."""
        if not self.shape.topics and self.flips[container_id].is_there():
            return False
        replica = node.replicas.replica(container_id) if node.replicas is not None else None
        synced = replica.log.synced if replica is not None else 0
        return not any(scrub(node.folder / str(container_id), Scrubbed(), synced=synced))

    def can_flip(self, container_id: ContainerId) -> bool:
        """Whether a replica may be damaged: it is the only damaged one of three that are in sync.

        With a minimum of two, a damaged replica is then never the last one. A replica that was lost does not count,
        even if nobody has noticed yet.
        """
        record = self.record(container_id)
        return (
            record is not None
            and not self.set_back
            and record.min_in_sync >= 2
            and sum(self.by_id(node).holds(container_id)[0] == str(format) for node, format in record.in_sync) >= 3
            and not any(self.is_flipped(node, container_id) for node in self.nodes)
        )

    def change_tables(self, node: Node) -> None:
        """Change a value in a node's tables."""
        if done := change_row(node, self.chance):
            self.tables.changed += 1
            self.trace(f"damage of the tables of node {node.number}: {done}")

    # --- the run

    async def run(self) -> None:
        for number in range(1, self.shape.nodes + 1):
            node = self.add_node()
            if self.versions is not None:
                node.is_old = number in self.versions.old
                node.link.keeps_unknown = self.versions.keeps_unknown
            node.start()
        looking = self.loop.create_task(self._look())
        clients = [Client(self, number) for number in range(0 if self.shape.topics else self.shape.clients)]
        running = [self.loop.create_task(client.run()) for client in clients]
        writers = [
            TopicClient(self, number, f"topic-{number % self.shape.topics}")
            for number in range(self.shape.topics and self.shape.topics + 1)
        ]
        writing = [self.loop.create_task(writer.run()) for writer in writers]
        for jump in self.jumps:  # by the loop's timers: an additional task would change the order of later ones
            self.loop.call_later(jump.at, self._jumps, jump, jump.by)
            self.loop.call_later(jump.at + jump.lasts, self._jumps, jump, -jump.by)
        trouble = Trouble(self)
        more = []
        if self.store_set_back is not None:
            more.append(Operator(self, random.Random(self.seed + SET_BACK + 1)).befall(self.store_set_back))
        if self.oddity is not None:
            more.append(befall_oddly(self, self.oddity))
        await asyncio.gather(*(trouble.apply(fault) for fault in self.faults), *more)
        self.trace("no more faults")
        for node in self.nodes:
            if node.is_old:
                node.kill()
                node.is_old = False
            if not node.is_up:
                node.start()
        await self._containers_accept_writes()
        self.over = True
        await asyncio.gather(*running)
        await self._topics_accept_writes(writers)
        await asyncio.gather(*writing)
        scrubbing = self.loop.create_task(self._scrub_always())
        await self._becomes_whole(self.missing)
        await self._becomes_whole(self.levels.missing)
        await self._becomes_whole(self.tables.missing)
        scrubbing.cancel()
        looking.cancel()
        for node in self.nodes:
            self.checks.look(node)
            self.tables.look(node)
        for container_id in self.containers():
            self.checks.at_the_end(container_id)
            self.checks.scrubbed(container_id)
        if self.shape.topics:
            self.topics.at_the_end()

    def _jumps(self, jump: Jump, by: float) -> None:
        self.trace(f"FAULT clock of node {jump.node} jumps by {by:.0f} s")
        self.nodes[jump.node - 1].wall_ahead += by

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            for node in self.nodes:
                self.checks.look(node)
            if self.shape.topics and round(self.loop.now / LOOK_S) % 3 == 0:
                for node in self.nodes:
                    self.topics.look(node)
                    self.tables.look(node)

    async def _scrub_always(self) -> None:
        while self.shape.flips:
            for node in self.nodes:
                node.scrub_all()
            await asyncio.sleep(SCRUB_S)

    async def _containers_accept_writes(self) -> None:
        """Each container acknowledges a command."""
        begin = self.loop.now
        client = Client(self, 999)
        left = self.open_to_commands()
        while left and self.checks.failure is None:
            if left[0] not in self.containers() or await client.append(left[0]):
                left.pop(0)
                continue
            if self.loop.now > begin + GO_ON_S:
                self.checks.fail(f"container {left[0]} takes no writes {GO_ON_S:g} s after the last fault")
            await asyncio.sleep(0.2)

    async def _topics_accept_writes(self, writers: list[TopicClient]) -> None:
        """Each topic accepts everything that is sent to it."""
        begin = self.loop.now
        while (left := [writer for writer in writers if not writer.is_through]) and self.checks.failure is None:
            if self.loop.now > begin + GO_ON_S:
                self.checks.fail(f"{left[0].topic} takes no records {GO_ON_S:g} s after the last fault")
            await asyncio.sleep(0.2)

    async def _becomes_whole(self, why: Callable[[], str]) -> None:
        begin = self.loop.now
        while (missing := why()) and self.checks.failure is None:
            if self.loop.now > begin + WHOLE_S:
                self.checks.fail(f"not whole after {WHOLE_S:g} s: {missing}")
            await asyncio.sleep(0.25)

    def outcome(self, problem: str) -> Outcome:
        if self.checks.failure is not None:
            problem = str(self.checks.failure)
        problem = self.loop.with_uncaught(problem)
        return Outcome(
            seed=self.seed,
            problem=problem,
            digest=self._digest,
            faults=[*self.faults, *self.jumps, *filter(None, (self.store_set_back, self.oddity))],
            trace=list(self._lines),
            shape=self.shape,
            simulated_s=self.loop.now,
            steps=self.loop.steps,
            acknowledged=sum(map(len, self.checks.acknowledged.values())),
        )


def _shape(chance: random.Random, extra: random.Random) -> Shape:
    nodes = chance.choices((3, 4, 5, 7), (12, 4, 2, 1))[0]
    replicas, min_in_sync = chance.choices(((3, 2), (2, 1), (3, 1), (2, 2)), (8, 1, 2, 1))[0]
    faults_s = chance.uniform(3, 11)
    kind = extra.random()
    return Shape(
        nodes=nodes,
        replicas=replicas,
        min_in_sync=min_in_sync,
        clients=chance.randint(1, 3),
        chunk_bytes=chance.choice((8192, 32768)),
        job_s=chance.choice((0.003, 0.02, 0.08)),
        hop_s=chance.choice((0.001, 0.005, 0.03)),
        faults_s=faults_s,
        faults=chance.randint(2, 3 + int(faults_s)),
        topics=extra.randint(1, 4) if 0.3 < kind < 0.65 else 0,
        flips=kind < 0.4,
    )


def has_topics(seed: int) -> bool:
    """Whether a seed's run has a catalog and brokers."""
    return bool(_shape(random.Random(seed + SHAPE), random.Random(seed + EXTRA)).topics)


def _set_back(seed: int, shape: Shape) -> SetBack | None:
    if has_versions(seed):
        return None  # at first, records have no ids of changes
    return draw_set_back(random.Random(seed + SET_BACK), begin=2.5, length=shape.faults_s)


def _oddity(seed: int, shape: Shape) -> Odd | None:
    return draw_odd(random.Random(seed + ODD), begin=2.5, length=shape.faults_s)


def _table_faults(seed: int, shape: Shape) -> list[Fault]:
    if has_versions(seed) or not shape.topics:
        return []  # at first, rows have no checksums
    return draw_tables(random.Random(seed + TABLES), begin=3.5, length=shape.faults_s)


def has_damaged_tables(seed: int) -> bool:
    """Whether values in the catalog's tables change in a seed's run."""
    return bool(_table_faults(seed, _shape(random.Random(seed + SHAPE), random.Random(seed + EXTRA))))


def is_set_back(seed: int) -> bool:
    """Whether the cluster store of a seed's run is set back to an old copy."""
    return _set_back(seed, _shape(random.Random(seed + SHAPE), random.Random(seed + EXTRA))) is not None


def has_odd_calls(seed: int) -> bool:
    """Whether calls of the store fail unexpectedly in a seed's run."""
    return _oddity(seed, _shape(random.Random(seed + SHAPE), random.Random(seed + EXTRA))) is not None


def has_versions(seed: int) -> bool:
    """Whether the nodes of a seed's run change their version."""
    return draw_versions(random.Random(seed + VERSIONS), nodes=1, begin=0.0, length=0.0) is not None


def run(seed: int, *, kept_lines: int = 300) -> Outcome:
    """One run. The same seed gives the same outcome, in any process with the same hash seed."""
    freeze()
    folder = Path(tempfile.mkdtemp(prefix="headrace-simulation-", dir=in_memory()))
    cluster = Cluster(seed, folder, kept_lines=kept_lines)
    problem = ""
    try:
        with patched(cluster):
            try:
                cluster.loop.run_until_complete(cluster.run())
            except (AssertionError, Exception) as error:
                problem = f"{cluster.loop.now:.3f} s: {type(error).__name__}: {error}"
                if not isinstance(error, Violation | AssertionError):
                    import traceback

                    problem += "\n" + traceback.format_exc()
            return cluster.outcome(problem)
    finally:
        del cluster
        gc.collect()  # nodes and their parts refer to each other, and each holds files open
        shutil.rmtree(folder, ignore_errors=True)


@cache
def freeze() -> None:
    """Each run ends with a garbage collection, which should skip the objects shared by all runs."""
    gc.freeze()


def in_memory() -> Any:
    """A folder in a filesystem in memory, if there is one."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None

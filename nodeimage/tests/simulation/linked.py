"""Several clusters joined by links, in one run under a seed.

Each cluster has nodes, catalog and brokers, as in runs with topics, and links (linked_cluster.py) over a separate
network between clusters (wan.py). The topology is drawn: one way, both ways, chain, ring, star, mesh. Producers write
to topics at their homes; homes move, by agreement and by force. Each cluster has the faults of a single one, and there
are faults of connections, links and moves (linked_faults.py). Then everything is repaired, and the clusters have to
agree.
"""

import asyncio
import gc
import random
import shutil
import sys
import tempfile
import uuid
import zlib
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

from headrace.base.errors import Code, HeadraceError
from simulation.checks import Violation
from simulation.cluster import Outcome, freeze, in_memory
from simulation.faults import Trouble, draw, draw_rolls
from simulation.linked_checks import LinkChecks, LinkedTopicChecks
from simulation.linked_clients import LinkClient, Written
from simulation.linked_cluster import STREAM, Admin, AskEnds, LinkedCluster, MakeTopic, TopicState
from simulation.linked_faults import Between, draw_between
from simulation.linked_shape import draw_links
from simulation.linked_world import linked
from simulation.loop import SimulatedLoop
from simulation.network import PORT
from simulation.node import Node
from simulation.wan import PORT as WAN_PORT
from simulation.wan import Wan
from simulation.world import patched

MAX_STEPS = 4_000_000
LINKS = 4_000_000_007
BEGIN_S = 5.0
"""Virtual seconds after which faults begin: by then nodes are up, links created, and some records written."""
LOOK_S = 1.0
WRITES_S = 90.0
"""Virtual seconds after the last fault within which every partition has to accept writes at its home: a connection
remembers for 60 s that a batch was refused, which may since have been stored, and set aside."""
REST_S = 150.0
"""Virtual seconds after the last fault within which all clusters have to agree."""


class World:
    """All clusters, their producers, and the faults."""

    table_faults = ()
    """No values change in the tables of these clusters."""

    def __init__(self, seed: int, folder: Path, *, kept_lines: int) -> None:
        self.seed = seed
        self.folder = folder
        self.chance = random.Random(seed)
        self.loop = SimulatedLoop(self.chance, most_steps=MAX_STEPS)
        self._lines: deque[str] = deque(maxlen=kept_lines)
        self._digest = 0
        draws = random.Random(seed + LINKS)
        self.links = draw_links(draws)
        self.shape = self.links.shapes[0]
        self.edges = self.links.edges
        self.wan = Wan(self.loop, self.chance)
        self.wan.hop_s = self.links.hop_s
        self.wan.find = self._find
        self.checks = LinkChecks(self)
        self.applied: dict[tuple[str, bytes], int] = {}
        """By cluster and topic, the catalog's applied position at which a home was last seen."""
        self.over = False
        self.forced: set[str] = set()
        """Topics whose home was taken by force."""
        self.lost: set[str] = set()
        """Topics that may have lost records anywhere, because a replica led that was not in sync."""
        self.written: list[Written] = []
        self.writers: list[LinkClient] = []
        self.names: list[str] = []
        self._writing: list[asyncio.Task[None]] = []
        names = sorted({name for edge in self.edges for name in edge})
        self.clusters = []
        for name, shape in zip(names, self.links.shapes, strict=True):
            cluster = LinkedCluster(self, name, shape, folder / name)
            cluster.topics = LinkedTopicChecks(cluster)
            self.clusters.append(cluster)
        self.by_name = {cluster.name: cluster for cluster in self.clusters}
        length = self.links.faults_s
        for cluster in self.clusters:
            faults = draw(draws, begin=BEGIN_S, length=length, count=draws.choice((0, 1, 2, 4)))
            faults += draw_rolls(draws, begin=BEGIN_S, length=length)[: draws.randint(0, 4)]
            cluster.faults = sorted(faults, key=lambda fault: fault.at)
        self.faults = draw_between(draws, begin=BEGIN_S, length=length, count=draws.randint(3, 8))
        self.fetched: dict[str, int] = {}
        """By cluster, the bytes that its links have fetched."""

    def trace(self, line: str) -> None:
        """Record an event of the run."""
        line = f"{self.loop.now:.6f} {line}"
        self._digest = zlib.crc32(line.encode(), self._digest)
        self._lines.append(line)

    @property
    def failed(self) -> bool:
        """Whether the run has failed and need not continue."""
        return self.loop.stopped

    def _find(self, host: str, port: int) -> Node | None:
        cluster = self.by_name.get(host)
        number = port - WAN_PORT
        return cluster.nodes[number - 1] if cluster is not None and 0 < number <= len(cluster.nodes) else None

    def home_of(self, topic: str) -> LinkedCluster | None:
        """The highest home that any cluster names."""
        homes = [state.home for cluster in self.clusters if (state := cluster.topics_here().get(topic)) is not None]
        return self.by_name.get(max(homes).cluster) if homes else None

    def gave_up(self, written: Written) -> bool:
        """Whether a partition no longer exists, because a cluster that did not know of it took the home by force."""
        home = self.home_of(written.topic) if written.topic in self.forced else None
        state = home.topics_here().get(written.topic) if home is not None else None
        return state is not None and written.partition >= state.partitions

    async def call(self, cluster: LinkedCluster, request: object, *, timeout_s: float) -> Any:
        """Ask some node of a cluster; None: no answer."""
        upper = cluster.some(self.chance)
        if upper is None:
            return None
        network = cluster.network
        try:
            answer, _ = await network.call(
                network.hosts[0], ("simulated", PORT + upper._sim.number), request, timeout_s=timeout_s
            )
        except HeadraceError as error:
            self.trace(f"{cluster.name}: {type(request).__name__}: {error}")
            return None
        return answer

    # --- the run

    async def run(self) -> None:
        for cluster in self.clusters:
            for _ in range(cluster.shape.nodes):
                cluster.add_node().start()
        looking = self.loop.create_task(self._look())
        await self._until(lambda: "" if all(each.ready() for each in self.clusters) else "no node serves", 30.0)
        linking = [self.loop.create_task(self.link(*edge, tries=40)) for edge in self.edges]
        await self._make_topics()
        await asyncio.gather(
            *(Trouble(cluster).apply(fault) for cluster in self.clusters for fault in cluster.faults),
            *map(Between(self).apply, self.faults),
        )
        self.trace("no more faults")
        await asyncio.gather(*linking)
        for cluster in self.clusters:
            for node in cluster.nodes:
                if not node.is_up:
                    node.start()
        await self._restore_links()
        self.over = True
        await self._until(self._unwritten, WRITES_S)
        await asyncio.gather(*self._writing)
        await self._rests()
        await self._write_when_quiet()
        looking.cancel()
        self.checks.at_the_end()
        for cluster in self.clusters:
            for node in cluster.nodes:
                cluster.checks.look(node)
            for container_id in cluster.containers():
                cluster.checks.at_the_end(container_id)
                cluster.checks.scrubbed(container_id)

    async def _until(self, why: Callable[[], str] | Callable[[], Awaitable[str]], within_s: float) -> None:
        begin = self.loop.now
        while not self.failed:
            found = why()
            missing = found if isinstance(found, str) else await found
            if not missing:
                return
            if self.loop.now > begin + within_s:
                self.checks.fail(f"after {within_s:g} s: {missing}")
            await asyncio.sleep(0.25)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            for cluster in self.clusters:
                for node in cluster.nodes:
                    cluster.checks.look(node)
                self.checks.look(cluster)

    def _unwritten(self) -> str:
        left = [writer for writer in self.writers if not writer.is_through]
        if not left:
            return ""
        written = left[0].written
        home = self.home_of(written.topic)
        return f"{written.topic}/{written.partition} takes no records, its home is {home and home.name}"

    # --- links and topics

    async def link(self, target: str, source: str, *, tries: int) -> bool:
        """Create a link as the command line does, unless it exists."""
        params = {
            "name": f"from-{source}",
            "source": self.by_name[source].addresses(),
            "source_stream": STREAM,
            "stream": STREAM,
            "if_not_exists": True,
        }
        for _ in range(tries):
            if self.failed:
                break
            if await self.call(self.by_name[target], Admin("link.create", params), timeout_s=10.0) is not None:
                return True
            await asyncio.sleep(0.5)
        return False

    async def _restore_links(self) -> None:
        """All links that were created exist, and run."""
        for target, source in self.edges:
            begin = self.loop.now
            while not self.failed and not await self._link_again(target, source):
                if self.loop.now > begin + WRITES_S:
                    self.checks.fail(f"the link of {target} from {source} cannot be made, or does not go on")
                await asyncio.sleep(0.5)

    async def _link_again(self, target: str, source: str) -> bool:
        made = await self.link(target, source, tries=1)
        resume = Admin("link.resume", {"name": f"from-{source}"})
        return made and await self.call(self.by_name[target], resume, timeout_s=10.0) is not None

    async def _make_topics(self) -> None:
        sources = [source for _, source in self.edges]
        for _ in range(self.links.topics):
            topic_id = uuid.UUID(int=self.chance.getrandbits(128)).bytes
            await self.make_topic(self.by_name[self.chance.choice(sources)], topic_id)

    async def make_topic(self, cluster: LinkedCluster, topic_id: bytes) -> None:
        """Create another topic, with its producers."""
        if len(self.names) >= 5:
            return
        name, partitions = f"topic-{len(self.names)}", self.chance.choice((1, 1, 2))
        self.names.append(name)
        for _ in range(60):
            code = await self.call(cluster, MakeTopic(name, topic_id, partitions), timeout_s=6.0)
            if code in (Code.NONE, Code.TOPIC_ALREADY_EXISTS) or self.failed:
                break
            await asyncio.sleep(0.5)
        for partition in range(partitions):
            self.begin_writing(name, partition)

    def begin_writing(self, topic: str, partition: int) -> None:
        """From now on one producer, and only one, writes to a partition."""
        if any((each.topic, each.partition) == (topic, partition) for each in self.written):
            return
        written = Written(topic, partition)
        self.written.append(written)
        writer = LinkClient(self, len(self.writers), written)
        self.writers.append(writer)
        self._writing.append(self.loop.create_task(writer.run()))

    # --- at rest

    async def _rests(self) -> None:
        for cluster in self.clusters:
            await self._until(lambda cluster=cluster: _named(cluster, cluster.missing()), WRITES_S)  # type: ignore[misc]
        await self._until(self._disagreements, REST_S)

    async def _disagreements(self) -> str:
        """What the clusters do not agree on yet."""
        for target, source in self.edges:  # an operator's request may take effect late
            if source not in {each for _, each in self.by_name[target].links_here()}:
                await self._link_again(target, source)
                return f"the link of {target} from {source} does not run"
        states = {cluster.name: cluster.topics_here() for cluster in self.clusters}
        ends = {}
        for cluster in self.clusters:
            wanted = tuple(
                (state.topic_id, index) for state in states[cluster.name].values() for index in range(state.partitions)
            )
            ends[cluster.name] = await self.call(cluster, AskEnds(wanted), timeout_s=6.0) or {}
        for name in self.names:
            home = self.home_of(name)
            if home is None:
                return f"nobody has {name}"
            for target in self._reached_from(home.name, name):
                why = _missing_in_copy(
                    states[target].get(name), states[home.name].get(name), ends[target], ends[home.name]
                )
                if why:
                    return f"{name} in {target}, home {home.name}: {why}"
            for other in self.clusters:
                if name in states[other.name] and other.name not in self._reached_from(home.name, name):
                    return f"{name} in {other.name} is followed by no link to {home.name}, its home"
        return self._committed_offsets_differ()

    def _reached_from(self, home: str, topic: str) -> set[str]:
        """Clusters that pull a topic from its home, directly or through others."""
        pulls: dict[str, set[str]] = {}
        for cluster in self.clusters:
            for source in cluster.sources_of(topic):
                pulls.setdefault(source, set()).add(cluster.name)
        reached, due = {home}, [home]
        while due:
            for target in sorted(pulls.get(due.pop(), ())):
                if target not in reached:
                    reached.add(target)
                    due.append(target)
        return reached

    def _committed_offsets_differ(self) -> str:
        for writer in self.writers:
            home = self.home_of(writer.written.topic)
            assert home is not None
            wanted = (
                writer.written.committed_offsets.get((home.name, writer.group))
                if writer.committed_offset_counts
                else None
            )
            if wanted is None:
                continue
            for name in sorted(self._reached_from(home.name, writer.written.topic)):
                found = _committed_offset(self.by_name[name], writer)
                if found != wanted:
                    return f"the cursor of {writer.group} is {found} in {name}, and {wanted} at home, {home.name}"
        return ""

    async def _write_when_quiet(self) -> None:
        """No more faults: records written now are fetched once by each cluster, or twice if their partition rolls."""
        for lap in range(2):  # a cluster that has just become a home may fetch once what it already has
            before = dict(self.fetched)
            written_bytes = 0
            for writer in self.writers:
                written_bytes += await writer.once_more()
            await self._rests()
            for name, count in self.fetched.items():
                more = count - before.get(name, 0)
                if lap and more > 3 * written_bytes:
                    self.checks.fail(f"{name} fetched {more} bytes of {written_bytes} that were written")

    def outcome(self, problem: str) -> Outcome:
        failures = [each.failure for each in (self.checks, *(cluster.checks for cluster in self.clusters))]
        for failure in failures:
            if failure is not None:
                problem = str(failure)
                break
        problem = self.loop.with_uncaught(problem)
        faults: list[Any] = [
            *self.faults,
            *(f"{each.name}: {fault}" for each in self.clusters for fault in each.faults),
        ]
        return Outcome(
            seed=self.seed,
            problem=problem,
            digest=self._digest,
            faults=faults,
            trace=list(self._lines),
            shape=self.links,
            simulated_s=self.loop.now,
            steps=self.loop.steps,
            acknowledged=sum(len(each.acknowledged) for each in self.written),
        )


def _named(cluster: LinkedCluster, why: str) -> str:
    return f"{cluster.name}: {why}" if why else ""


def _missing_in_copy(here: TopicState | None, home: TopicState | None, ends: Any, home_ends: Any) -> str:
    """What a copy lacks; "": nothing."""
    if home is None:
        return "the home does not have it"
    if here is None:
        return "it is not there"
    if here.topic_id != home.topic_id or here.home != home.home:
        return f"it names the home {here.home}, the home is {home.home}"
    if here.partitions < home.partitions:
        return f"it has {here.partitions} partitions of {home.partitions}"
    for index in range(home.partitions):
        if home.home.counter and not here.settled.get(index) == home.settled.get(index) == home.home:
            return f"partition {index} is settled for {here.settled.get(index)}, at home for {home.settled.get(index)}"
        end, wanted = ends.get((here.topic_id, index)), home_ends.get((home.topic_id, index))
        if end is None or end != wanted:
            return f"partition {index} ends at {end}, at home at {wanted}"
    return ""


def _committed_offset(cluster: LinkedCluster, writer: LinkClient) -> int | None:
    ready = cluster.ready()
    state = cluster.topics_here().get(writer.written.topic)
    if not ready or state is None:
        return None
    found = (
        ready[0]
        .catalog._connection.execute(
            'SELECT "offset" FROM cursors WHERE "group" = ? AND topic = ? AND partition = ?',
            (writer.group, state.number, writer.written.partition),
        )
        .fetchone()
    )
    return None if found is None else int(found[0])


def _end_all(loop: SimulatedLoop) -> None:
    """Cancel pending work while everything that it may call is still the simulator's."""
    for task in loop.tasks:
        with suppress(Exception):
            task.get_coro().close()  # type: ignore[union-attr]


def _ignore_unraisable(_unraisable: Any) -> None:
    """A coroutine that awaits something during its own clean-up cannot be cleaned up without a loop."""


def run_linked(seed: int, *, kept_lines: int = 300) -> Outcome:
    """One run. The same seed gives the same outcome, in any process with the same hash seed."""
    freeze()
    folder = Path(tempfile.mkdtemp(prefix="headrace-simulation-", dir=in_memory()))
    world = World(seed, folder, kept_lines=kept_lines)
    problem = ""
    try:
        with patched(world), linked(world):
            try:
                world.loop.run_until_complete(world.run())
            except (AssertionError, Exception) as error:
                problem = f"{world.loop.now:.3f} s: {type(error).__name__}: {error}"
                if not isinstance(error, Violation | AssertionError):
                    import traceback

                    problem += "\n" + traceback.format_exc()
            outcome = world.outcome(problem)
            _end_all(world.loop)
            return outcome
    finally:
        del world
        with mock.patch.object(sys, "unraisablehook", _ignore_unraisable):
            gc.collect()
        shutil.rmtree(folder, ignore_errors=True)

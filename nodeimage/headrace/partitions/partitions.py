"""The partitions that this node leads, brought into memory when a client uses them.

Loading: reads in threads (partition_tail.py) load many partitions in one go. While a partition is not in memory nothing
can be appended to it, so what a load finds stays true until the load ends.

Forgetting: partitions in a container that this node no longer leads leave memory at once.

After a promotion the log may hold more than is committed: nothing is loaded before the container serves (invariants 2,
8 in docs/architecture.md). This node's catalog may lag behind the log: a partitionlet that has a seal in the log takes
no batch, whatever the catalog says. The catalog may also lag behind the freeing of expired records: a replica that was
away, or was recreated, receives gaps in place of records and seals that have expired since. So a partitionlet of which
the log holds nothing behind its last gap is loaded only once this node's catalog has everything that was committed
before this node began to lead the container.
"""

import asyncio
import contextlib
from collections.abc import Collection, Sequence, Set

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.base.ids import ContainerId, Epoch, PartitionletId
from headrace.base.runtime import Runtime
from headrace.catalog.catalog import Catalog
from headrace.catalog.rows import PartitionletRow
from headrace.container.commit_wait import committed_to
from headrace.container.leader import Leader
from headrace.partitions.cluster_client import ClusterClient
from headrace.partitions.partition import Feed, Partition
from headrace.partitions.partition_tail import Chain, Key, Tail, read_chain, read_chains, read_tail, read_tails
from headrace.partitions.producer_state import Producers
from headrace.partitions.reads.local_reads import ReadFailed
from headrace.partitions.topics import Topic, Topics
from headrace.partitions.unclean_recovery import UncleanRecoveries

__all__ = ["Chain", "Partitions", "Tail", "read_chain", "read_tail"]

SERVES_S = 5.0
"""Seconds for which requests wait for a container that this node takes over before they get a retriable error: first
until this node leads the container, then as long again until the container serves."""
MIN_S = 0.5
"""Seconds for which a request waits for the catalog in any case, even if SERVES_S have passed since the take-over."""


class Partitions:
    """Loads the leader's state of partitions; each partition has one object in memory at most."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        catalog: Catalog,
        cluster: ClusterClient,
        topics: Topics,
        unclean: UncleanRecoveries,
        feed: Feed,
        read_failed: ReadFailed,
    ) -> None:
        self._runtime = runtime
        self._catalog = catalog
        self._cluster = cluster
        self._led = cluster.replicas.led
        self._topics = topics
        self._unclean = unclean
        self._feed = feed
        self._read_failed = read_failed
        self._loading: dict[Key, asyncio.Future[Partition | KafkaError]] = {}
        self._stale: set[Key] = set()
        """Partitions whose log start or chain changed while they were being loaded, so that they are read again."""
        self._changed_during_update: list[set[Key]] = []
        """For each call of `look_again` under way, the partitions that have changed since it began."""
        self._moved_away: dict[ContainerId, set[PartitionletId]] = {}
        """Partitionlets that were created in the present epoch of their container, which this node leads, and whose
        partition has left memory since: they may have been written to."""
        self._led_at: dict[ContainerId, float] = {}
        """Loop time at which each container that this node leads was taken over."""
        self._requested_at: dict[ContainerId, float] = {}
        """Containers that this node is about to lead, and the loop time of the first request for each."""
        self._leaders_changed = asyncio.Event()
        """Set, and replaced, whenever the leader of a container changes."""
        self._caught_up: set[Leader] = set()
        """Containers led here for which this node's catalog has caught up with all that was committed at the
        take-over."""
        self._catching_up: asyncio.Task[None] | None = None
        self._replacements = self._known_replacements = 0
        """The number of times that all rows were replaced, perhaps by older ones: until now, and until the catalog last
        caught up."""

    async def leader(self, topic: Topic, index: int) -> Partition:
        """The leader's state of one partition. Raises `KafkaError`."""
        partition = topic.partitions.get(index)
        if partition is None:
            (found,) = await self.leaders([(topic, index)])
            if isinstance(found, KafkaError):
                raise found
            partition = found
        return partition

    async def leaders(self, wanted: Sequence[tuple[Topic, int]]) -> list[Partition | KafkaError]:
        """The leaders' states of these partitions, loaded unless they are in memory; or why a partition has none here.

        A partition has one object, in the one `Topic` that is in the cache: partitions of a topic that was forgotten
        since it was looked up get LEADER_NOT_AVAILABLE, and the client tries again.
        """
        mine: list[tuple[Topic, int]] = []
        loop = self._runtime.loop
        for topic, index in wanted:
            key = (topic.topic_id, index)
            if index not in topic.partitions and key not in self._loading and self._in_memory(topic):
                self._loading[key] = loop.create_future()
                topic.loading += 1
                mine.append((topic, index))
        # The futures are collected before the load begins, since the load removes them when it ends.
        loading = {(topic.topic_id, index): self._loading.get((topic.topic_id, index)) for topic, index in wanted}
        if mine:
            # The load continues for others who wait for it, even if this caller's connection goes away.
            await asyncio.shield(self._runtime.spawn(self._load(mine)))
        for future in loading.values():
            if future is not None:
                await asyncio.shield(future)
        found: list[Partition | KafkaError] = []
        for topic, index in wanted:  # all at one moment: during the wait for one, another may have been forgotten
            future = loading[topic.topic_id, index]
            outcome = future.result() if future is not None else topic.partitions.get(index)
            if not self._in_memory(topic):
                code = Code.UNKNOWN_TOPIC_OR_PARTITION if topic.deleted else Code.LEADER_NOT_AVAILABLE
                outcome = KafkaError(code)
            elif outcome is None or (isinstance(outcome, Partition) and outcome.left):
                outcome = KafkaError(Code.NOT_LEADER_OR_FOLLOWER, "the partition's leader has just changed")
            found.append(outcome)
        return found

    def _in_memory(self, topic: Topic) -> bool:
        return self._topics.cached_id(topic.topic_id) is topic

    def log_start_moved(self, topic_id: bytes, index: int) -> None:
        """A committed command has moved a log start; bytes below it may be freed from now on."""
        self.chain_changed(topic_id, index)

    def rows_replaced(self) -> None:
        """The catalog's tables were replaced, perhaps by older ones."""
        self._replacements += 1
        self._stale.update(self._loading)

    def chain_changed(self, topic_id: bytes, index: int) -> None:
        """The catalog's rows of this partition have changed: reads of them that are under way are repeated."""
        key = (topic_id, index)
        if key in self._loading:
            self._stale.add(key)
        for changed in self._changed_during_update:
            changed.add(key)

    # --- who leads

    def container_led(self, container: Leader) -> None:
        """This node leads a container from now on."""
        self._led_at[container.id] = self._runtime.loop.time()
        self._requested_at.pop(container.id, None)
        self.records_changed()

    def records_changed(self) -> None:
        """The leaders of containers that requests wait for may have changed."""
        self._leaders_changed.set()
        self._leaders_changed = asyncio.Event()

    def container_left(self, container: Leader) -> None:
        """This node no longer leads a container: forget its partitions, whose state in memory is out of date."""
        self._led_at.pop(container.id, None)
        self._moved_away.pop(container.id, None)
        self._caught_up.discard(container)
        for topic in self._topics.all():
            gone = [index for index, partition in topic.partitions.items() if partition.container is container]
            for index in gone:
                topic.partitions.pop(index).leave()

    def moved_away(self, topic: Topic, index: int) -> None:
        """The partition continues in another container, which another node may lead: forget it, to be loaded again."""
        topic.encoded = None
        partition = topic.partitions.pop(index, None)
        if partition is not None:
            if partition.chain[-1].container_epoch == partition.container.epoch:
                self._moved_away.setdefault(partition.container.id, set()).add(partition.open)
            partition.leave()
        self.chain_changed(topic.topic_id, index)

    def elsewhere(self, container_id: ContainerId) -> KafkaError:
        """The error for a request that concerns a partition in a container that this node does not lead."""
        leader = self._cluster.leader(container_id)
        if leader is None:
            return KafkaError(Code.LEADER_NOT_AVAILABLE, f"nobody leads container {container_id}")
        if leader[0] == self._cluster.node_id:
            return KafkaError(Code.LEADER_NOT_AVAILABLE, f"this node is about to lead container {container_id}")
        return KafkaError(Code.NOT_LEADER_OR_FOLLOWER, f"node {leader[0]} leads container {container_id}")

    async def _wait_until_led(self, containers: Collection[ContainerId]) -> None:
        """Wait until this node leads those of the containers that it is about to lead, or until SERVES_S have passed
        since the first request for one of them."""
        loop = self._runtime.loop
        while soon := [each for each in containers if self._is_about_to_lead(each)]:
            deadline = min(self._requested_at.setdefault(each, loop.time()) for each in soon) + SERVES_S
            if deadline <= loop.time():
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._leaders_changed.wait()

    def _is_about_to_lead(self, container_id: ContainerId) -> bool:
        if container_id in self._led:
            return False
        leader = self._cluster.leader(container_id)
        if leader is None or leader[0] != self._cluster.node_id:
            self._requested_at.pop(container_id, None)
            return False
        return True

    async def look_again(self, topics: Sequence[Topic]) -> None:
        """Update these topics' partitions in memory, after the catalog's rows were replaced."""
        changed: set[Key] = set()
        self._changed_during_update.append(changed)
        try:
            wanted = [(topic, index) for topic in topics for index in topic.partitions]
            chains = await self._catalog.query(lambda reader: read_chains(reader, wanted))
        finally:
            self._changed_during_update = [each for each in self._changed_during_update if each is not changed]
        for topic, index in wanted:
            key = (topic.topic_id, index)
            partition = topic.partitions.get(index)
            if partition is None or partition.rolling or key in changed:
                continue
            chain = chains.get(key)
            if chain is None or chain.rows[-1].id != partition.open:
                self.moved_away(topic, index)
                continue
            partition.chain = chain.rows
            partition.log_start = max(partition.log_start, chain.log_start)
            partition.set_home(chain.settled)
            partition.wake_all()

    async def _wait_until_serving(self, containers: Collection[Leader]) -> dict[Leader, KafkaError]:
        """Wait until these containers serve (invariant 8), and this node's catalog has caught up with what they may
        have lost (invariant 15). Returns the error for each container that is not ready in time."""
        refused: dict[Leader, KafkaError] = {}

        async def served(container: Leader) -> None:
            led_at = self._led_at.get(container.id, 0.0)
            left_s = max(0.0, led_at + SERVES_S - self._runtime.loop.time())
            try:
                await committed_to(container, container.state.epoch_start, timeout_s=left_s)
                await self._unclean.caught_up(container, timeout_s=left_s)
            except KafkaError as error:
                refused[container] = error

        behind = self._unclean.is_behind
        waiting = [container for container in containers if not container.serves or behind(container)]
        if waiting:
            await asyncio.gather(*map(served, waiting))
        return refused

    def _is_uncertain(self, tail: Tail | Exception, chain: Chain, container: Leader) -> bool:
        """Whether the catalog has to catch up before a partitionlet without a seal is loaded: all rows were replaced,
        perhaps by older ones; or only the catalog knows where the partitionlet ends, and this node's may be behind."""
        if not isinstance(tail, Tail) or tail.seal is not None or container.lost:
            return False
        if self._replacements != self._known_replacements:
            return True
        certain = tail.certain or chain.rows[-1].container_epoch == container.epoch
        return not certain and container not in self._caught_up

    async def _catch_up(self, containers: Set[Leader]) -> KafkaError | None:
        """Wait until this node's catalog has everything that was committed when this node began to lead these
        containers. Returns the error if that takes too long or fails."""
        led_at = max(self._led_at.get(each.id, 0.0) for each in containers)
        try:
            async with asyncio.timeout_at(max(led_at + SERVES_S, self._runtime.loop.time() + MIN_S)):
                while self._replacements != self._known_replacements or any(
                    not each.lost and each not in self._caught_up for each in containers
                ):
                    if self._catching_up is None:
                        self._catching_up = self._runtime.spawn(self._apply_all())
                    await asyncio.shield(self._catching_up)
        except TimeoutError:
            return KafkaError(Code.LEADER_NOT_AVAILABLE, "the catalog of this node is behind")
        except HeadraceError as error:
            return KafkaError(Code.LEADER_NOT_AVAILABLE, f"the catalog of this node may be behind: {error}")
        return None

    async def _apply_all(self) -> None:
        """Let this node's catalog apply all commands that are committed by now."""
        led = list(self._led.values())
        replacements = self._replacements
        try:
            await self._catalog.catch_up()
        finally:
            self._catching_up = None
        self._known_replacements = replacements
        self._caught_up.update(each for each in led if self._led.get(each.id) is each)

    # --- loading

    def add_fresh(self, topic: Topic, row: PartitionletRow) -> None:
        """Bring a partition into memory without reading from disk, if that is possible."""
        if row.partition not in topic.partitions and (topic.topic_id, row.partition) not in self._loading:
            partition = self._fresh(topic, row)
            if partition is not None:
                topic.partitions[row.partition] = partition

    def _fresh(self, topic: Topic, row: PartitionletRow) -> Partition | None:
        """The partition whose first partitionlet is `row`, if it was created in its container's present epoch and
        cannot have been written to; else None."""
        container = self._led.get(row.container)
        if (
            container is None
            or row.first != 0
            or topic.home is not None
            or row.container_epoch != container.epoch
            or row.id in self._moved_away.get(container.id, ())
            or self._topics.forgot
            or topic.deleted
        ):
            return None
        return Partition(
            topic_id=topic.topic_id,
            index=row.partition,
            chain=(row,),
            container=container,
            next_offset=0,
            log_start=0,
            producers=Producers(),
            size=0,
            feed=self._feed,
        )

    async def _load(self, wanted: list[tuple[Topic, int]]) -> None:
        outcomes: dict[Key, Partition | KafkaError] = {}
        left = wanted
        try:
            while left:
                for topic, index in left:
                    self._stale.discard((topic.topic_id, index))
                    outcomes.pop((topic.topic_id, index), None)
                outcomes |= await self._read(left)
                left = [(topic, index) for topic, index in wanted if (topic.topic_id, index) in self._stale]
        finally:
            for topic, index in wanted:
                key = (topic.topic_id, index)
                topic.loading -= 1
                self._stale.discard(key)
                if not self._in_memory(topic) and not topic.deleted:
                    outcomes.pop(key, None)
                outcome = outcomes.get(key) or KafkaError(Code.LEADER_NOT_AVAILABLE, "the partition was not loaded")
                if isinstance(outcome, Partition) and outcome.container.lost:
                    outcome = self.elsewhere(outcome.container.id)
                if isinstance(outcome, Partition):
                    if topic.deleted:
                        outcome.deleted = True
                    topic.partitions[index] = outcome
                self._loading.pop(key).set_result(outcome)

    async def _read(self, wanted: list[tuple[Topic, int]]) -> dict[Key, Partition | KafkaError]:
        outcomes: dict[Key, Partition | KafkaError] = {}
        numbers = {topic.row.number for topic, _ in wanted}
        opened = await self._catalog.query(lambda reader: reader.chains.open_of(numbers))
        rows = {(row.topic, row.partition): row for found in opened.values() for row in found}
        asked = [rows.get((topic.row.number, index)) for topic, index in wanted]
        await self._wait_until_led({row.container for row in asked if row is not None})
        older: list[tuple[Topic, int]] = []
        for topic, index in wanted:
            row = rows.get((topic.row.number, index))
            partition = self._fresh(topic, row) if row is not None else None
            if partition is not None:
                outcomes[topic.topic_id, index] = partition
            else:
                older.append((topic, index))
        if older:
            outcomes.update(await self._read_older(older))
        return outcomes

    async def _read_older(self, wanted: list[tuple[Topic, int]]) -> dict[Key, Partition | KafkaError]:
        chains = await self._catalog.query(lambda reader: read_chains(reader, wanted))
        outcomes: dict[Key, Partition | KafkaError] = {}
        asked: list[tuple[Key, Chain, Leader]] = []
        for topic, index in wanted:
            key = (topic.topic_id, index)
            chain = chains.get(key)
            if chain is None:
                outcomes[key] = KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION)
                continue
            container = self._led.get(chain.rows[-1].container)
            if container is None:
                outcomes[key] = self.elsewhere(chain.rows[-1].container)
                continue
            asked.append((key, chain, container))
        refused = await self._wait_until_serving({container for _, _, container in asked})
        if refused:
            outcomes |= {key: refused[container] for key, _, container in asked if container in refused}
            asked = [each for each in asked if each[2] not in refused]
        tails = await self._runtime.loop.run_in_executor(self._runtime.executor, read_tails, asked)
        uncertain = {
            key: container for key, chain, container in asked if self._is_uncertain(tails[key], chain, container)
        }
        if uncertain:
            behind = await self._catch_up(set(uncertain.values()))
            if behind is None:
                self._stale |= uncertain.keys()  # read these again
            else:
                outcomes |= dict.fromkeys(uncertain, behind)
        for key, chain, container in asked:
            if key in uncertain:
                continue
            tail = tails[key]
            if not isinstance(tail, Tail):
                if container.lost:  # its log may have been cut or closed under the reader
                    outcomes[key] = self.elsewhere(container.id)
                    continue
                self._read_failed(tail, container.id)
                outcomes[key] = KafkaError(Code.KAFKA_STORAGE_ERROR, str(tail))
                continue
            row = chain.rows[-1]
            outcomes[key] = Partition(
                topic_id=key[0],
                index=key[1],
                chain=chain.rows,
                container=container,
                next_offset=tail.next_offset,
                log_start=chain.log_start,
                producers=tail.producers,
                size=tail.size,
                epochs=tuple((row.current_leader_epoch(Epoch(epoch)), first) for epoch, first in tail.epochs),
                feed=self._feed,
                seal=tail.seal,
                settled=chain.settled,
            )
        return outcomes

"""Keeps the topics, homes and committed offsets of one link in line with its source, on the node that leads the
catalog.

Level-triggered: a change at the source (its feed) or here (applied commands) only determines which topics to look at
again; what is done follows from their present state (topic_plan.py), by steps that may be repeated (topic_apply.py).
All topics are looked at when the topic syncer starts, when the feed starts over, and every few minutes. So a crash at
any await, a lost answer, a topic syncer that runs a moment longer than it should, or two at the same time cost one more
look, and nothing else.

While the source is away the topic syncer retries, with back-off from 0.2 s to 15 s; what was due stays due.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Final

import structlog

from headrace.base.backoff import pause_s
from headrace.base.errors import HeadraceError
from headrace.base.ids import NodeId
from headrace.catalog.catalog import Catalog
from headrace.catalog.links import SetLinkSource
from headrace.catalog.reader import Reader
from headrace.catalog.rows import LinkRow, TopicRow
from headrace.links.source.source import MIN_WAIT_MS, FeedPlace, Source, SourceTopic, longer_wait
from headrace.links.topics.committed_offsets import CommittedOffsets
from headrace.links.topics.topic_apply import PlanResult, TopicApplier
from headrace.links.topics.topic_plan import Plan, gone_at_source, is_copied, plan, source_problem
from headrace.partitions.lookups import now
from headrace.partitions.partition_states import PartitionStates
from headrace.tracing.spans import LINK_TOPICS, Span, Value, error_type
from headrace.tracing.tracer import NO_TRACER, Tracer

log = structlog.get_logger(__name__)

PAGE: Final = 1_000
SWEEP_S: Final = 600.0
"""Mean time between two looks at all topics, in seconds, which make up for changes that no feed reported."""
RETRY_S: Final = 0.25
"""First delay before a topic that could not be finished is looked at again, in seconds; it doubles each time."""
LONGEST_RETRY_S: Final = 30.0
RELAY_S: Final = 20.0
"""How long, in seconds, a third cluster has to announce its home to the source before this cluster does it instead."""
FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 15.0
MAX_REFUSED: Final = 10_000
"""The maximum number of refused topics that are remembered by name."""
CHANGES: Final = 10_000
TOPICS, FEED, CURSORS = "topics", "the feed", "cursors"
"""The steps that run at the same time, each retried by itself, as logs name them."""


class TopicSyncer:
    """Syncs the topics of one link. `run` it until the link is deleted, paused, or synced on another node."""

    def __init__(
        self,
        link: LinkRow,
        source: Source,
        *,
        catalog: Catalog,
        states: PartitionStates,
        applier: TopicApplier,
        own_cluster: str,
        bootstrap: Callable[[], Sequence[str]],
        copies_committed_offsets: Callable[[str], bool] = lambda _home: True,
        randomness: random.Random | None = None,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        """`bootstrap` returns this cluster's addresses as the source can reach them; `copies_committed_offsets` returns
        whether this link is the one that copies the committed offsets of topics with that home."""
        self.link = link
        self._source = source
        self._catalog = catalog
        self._applier = applier
        self._bootstrap = bootstrap
        self._random = randomness or random.Random()
        self._own = own_cluster
        self._tracer = tracer
        self.refused: dict[str, str] = {}
        """By topic or pattern, what cannot be done and what to do about it."""
        self._errors: dict[str, tuple[int, str]] = {}
        """By step that does not work at present, the time in milliseconds and the text of its last error."""
        self.source_cluster = link.config.source_cluster
        self.swept = asyncio.Event()
        """Set once all topics of the source have been looked at."""
        self.committed_offsets = CommittedOffsets(
            source,
            catalog=catalog,
            states=states,
            stream=link.stream,
            own_cluster=own_cluster,
            copies_home=copies_committed_offsets,
            on_caught_up=partial(self._works, CURSORS),
        )
        self._nodes: list[NodeId] = []
        self._due: dict[bytes, None] = {}
        """Topics to look at, in order."""
        self._later: dict[bytes, float] = {}
        """Topics to look at again, with the loop's time at which each is due."""
        self._tries: dict[bytes, int] = {}
        self._behind: dict[bytes, float] = {}
        """Topics whose home, in a third cluster, is not known to the source, with the loop's time at which that was
        found."""
        self._followed: set[bytes] = set()
        """Topics that moved here, and whose new home was announced to the source, so that it copies them from here."""
        self._ids: dict[str, bytes] = {}
        """Ids of the source's refused topics, by name."""
        self._unmatched: set[str] = set()
        """Patterns that no topic of the source matched."""
        self._still_refused: set[str] = set()
        """What was refused since the last look at all topics began."""
        self._sweep_at = 0.0
        self._wake = asyncio.Event()

    @property
    def last_error(self) -> str | None:
        """The last error of the steps that have failed and not worked since; None if all work."""
        return max(self._errors.values())[1] if self._errors else None

    @property
    def last_error_ms(self) -> int | None:
        """The time of `last_error`, in milliseconds."""
        return max(self._errors.values())[0] if self._errors else None

    # --- notifications

    def changed_here(self, topic_ids: Collection[bytes]) -> None:
        """Handle that these topics' homes, or the homes their partitions are settled for, have changed in this
        cluster."""
        self._due.update(dict.fromkeys(topic_ids))
        self._wake.set()

    def deleted_here(self, names: Iterable[str]) -> None:
        """Handle that topics with these names were deleted here: they may have been in the way."""
        self.changed_here([self._ids[name] for name in names if name in self._ids])

    def look_at_all(self) -> None:
        """Look at all topics again: the catalog's rows were replaced, or the source's feed starts over."""
        self._sweep_at = 0.0
        self._wake.set()

    # --- run

    async def run(self) -> None:
        """Sync until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._retry(self._work, TOPICS))
            tasks.create_task(self._retry(self._follow, FEED))
            tasks.create_task(self._retry(self.committed_offsets.run, CURSORS))

    async def _retry(self, step: Callable[[], Awaitable[None]], what: str) -> None:
        pause = FIRST_PAUSE_S
        while True:
            begun = asyncio.get_running_loop().time()
            try:
                await step()
            except HeadraceError as error:
                self._errors[what] = int(now()), str(error)
                log.info("a link's step failed, and is retried", link=self.link.name, at=what, reason=str(error))
            if asyncio.get_running_loop().time() - begun > LONGEST_PAUSE_S:
                pause = FIRST_PAUSE_S
            await asyncio.sleep(pause * self._random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _works(self, what: str) -> None:
        """Forget the last error of a step, which works."""
        self._errors.pop(what, None)

    # --- the source's feed

    async def _follow(self) -> None:
        """Take in changes from the feed of one of the source's nodes, until the first error."""
        if not self._nodes:
            await self._greet()
        node = self._random.choice(self._nodes)
        place: FeedPlace | None = None
        wait_ms = MIN_WAIT_MS
        try:
            while True:
                changes = await self._source.changes(
                    node, place, topics=True, committed_offsets=True, wait_ms=wait_ms, limit=CHANGES
                )
                self._works(FEED)
                quiet = not (changes.reset or changes.topics or changes.committed_offsets)
                wait_ms = longer_wait(wait_ms) if quiet else MIN_WAIT_MS
                if changes.reset:
                    self.look_at_all()
                    self.committed_offsets.look_at_all()
                place = changes.place
                if changes.topics:
                    self._due.update(dict.fromkeys(changes.topics))
                    self._wake.set()
                if changes.committed_offsets:
                    self.committed_offsets.changed(changes.committed_offsets)
        finally:
            self._nodes = []

    async def _greet(self) -> None:
        """Say hello to the source. Raises HeadraceError if it is the wrong cluster or lacks the stream."""
        hello = await self._source.hello()
        problem = source_problem(
            cluster_id=hello.cluster_id,
            expected=self.link.config.source_cluster,
            own_cluster=self._own,
            problem=hello.problem,
        )
        if problem is not None:
            raise problem
        self._nodes = [node.node_id for node in hello.nodes]
        self.source_cluster = hello.cluster_id
        self.committed_offsets.greeted(hello.cluster_id)
        if not self.link.config.source_cluster:
            command = SetLinkSource(
                name=self.link.name,
                link=self.link.id,
                source=self.link.config.source,
                source_cluster=hello.cluster_id,
            )
            self.link = (await self._catalog.submit(command)).link

    # --- topics

    async def _work(self) -> None:
        """Look at due topics, until the first error."""
        loop = asyncio.get_running_loop()
        await self._greet()
        while True:
            if loop.time() >= self._sweep_at:
                # Set before the sweep: meanwhile the feed may start over, after the pages were read.
                self._sweep_at = loop.time() + SWEEP_S * self._random.uniform(0.8, 1.2)
                try:
                    await self._sweep()
                except BaseException:
                    self.look_at_all()
                    raise
                self.swept.set()
            ripe = [topic_id for topic_id, at in self._later.items() if at <= loop.time()]
            for topic_id in ripe:
                self._due[topic_id] = None
                del self._later[topic_id]
            if self._due:
                await self._look_at(list(self._due)[:PAGE])
                continue
            self._works(TOPICS)
            until = min([self._sweep_at, *self._later.values()])
            self._wake.clear()
            try:
                async with asyncio.timeout_at(until):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _look_at(self, ids: Sequence[bytes]) -> None:
        """Look at these topics. They become due again if that fails, or if they change meanwhile."""
        for topic_id in ids:
            self._due.pop(topic_id, None)
        try:
            topics = await self._source.topics_by_id(ids)
            listed = {topic.topic_id for topic in topics}
            gone = [topic_id for topic_id in ids if topic_id not in listed]
            if gone:
                rows = await self._catalog.query(lambda reader: reader.topics.by_ids(gone))
                self._refuse_deleted(row for row in rows.values() if row.stream == self.link.stream)
            await self._bring_in_line(topics)
        except BaseException:
            self._due.update(dict.fromkeys(ids))
            raise

    async def _sweep(self) -> None:
        """Look at all topics of the source, and at the copies here that the source no longer has."""
        patterns = self.link.config.topics
        unmatched = {pattern for pattern in patterns if pattern != "*"}
        before = set(self.refused)
        self._still_refused.clear()
        listed: set[bytes] = set()
        after: str | None = None
        while True:
            page = await self._source.topics(after=after, limit=PAGE)
            for topic in page.topics:
                listed.add(topic.topic_id)
                unmatched = {pattern for pattern in unmatched if not is_copied(topic.name, [pattern])}
            await self._bring_in_line(page.topics)
            after = page.after
            if after is None:
                break
        self._unmatched = unmatched
        for pattern in sorted(unmatched):
            self._refuse(pattern, "no topic of the source matches it now")
        await self._find_deleted(listed)
        for name in before - self._still_refused:
            self._allow(name)

    async def _find_deleted(self, listed: Collection[bytes]) -> None:
        after = ""
        while True:
            rows = await self._catalog.query(partial(self._copies, after=after))
            self._refuse_deleted(row for row in rows if row.topic_id not in listed)
            if len(rows) < PAGE:
                return
            after = rows[-1].name

    def _copies(self, reader: Reader, after: str) -> list[TopicRow]:
        """[blocking] A page of the stream's copies, after the name `after`."""
        return reader.homes.copies(self.link.stream, self._own, after=after, limit=PAGE)

    def _refuse_deleted(self, rows: Iterable[TopicRow]) -> None:
        for row in rows:
            reason = gone_at_source(row, own_cluster=self._own, source_cluster=self.source_cluster)
            if reason and is_copied(row.name, self.link.config.topics):
                self._refuse(row.name, reason)

    async def _bring_in_line(self, topics: Sequence[SourceTopic]) -> None:
        found = await self._plan(topics)
        at = asyncio.get_running_loop().time()
        relayed = {row.topic_id for row in found.relay}
        for row in found.relay:
            if at - self._behind.setdefault(row.topic_id, at) >= RELAY_S:
                found.announce.append(row)
        found.announce += [row for row in found.follow if row.topic_id not in self._followed]
        done = await self._carry_out(found)
        self._followed.update(row.topic_id for row in found.follow if row.topic_id not in done.later)
        for pattern in [each for each in self._unmatched if any(is_copied(topic.name, [each]) for topic in topics)]:
            self._unmatched.discard(pattern)
            self._allow(pattern)
        for name in found.fine:
            self._allow(name)
        self._ids.update((topic.name, topic.topic_id) for topic in topics if topic.name in found.refused)
        for name, reason in (found.refused | done.refused).items():
            self._refuse(name, reason)
        for topic in topics:
            topic_id = topic.topic_id
            if topic_id not in relayed:
                self._behind.pop(topic_id, None)
            if topic_id not in done.later:
                self._tries.pop(topic_id, None)
                continue
            tries = self._tries[topic_id] = self._tries.get(topic_id, -1) + 1
            retry_s = pause_s(tries, first_s=RETRY_S, longest_s=LONGEST_RETRY_S)
            delay = RELAY_S if topic_id in relayed else retry_s
            self._later[topic_id] = at + delay

    async def _carry_out(self, found: Plan) -> PlanResult:
        """Carry out a plan (see TopicApplier), in a span if there is something to do."""
        carry_out = self._applier.carry_out(self._source, found, stream=self.link.stream, bootstrap=self._bootstrap())
        if not self._tracer.is_on:
            return await carry_out
        begun, error, done = asyncio.get_running_loop().time(), "", PlanResult({}, set())
        try:
            done = await carry_out
        except BaseException as raised:
            error = error_type(raised)
            raise
        finally:
            asked = {
                "headrace.made": len(found.make),
                "headrace.grown": len(found.grow),
                "headrace.configured": len(found.configure),
                "headrace.moved": len(found.homes),
                "headrace.announced": len(found.announce),
            }
            if any(asked.values()):
                told: dict[str, Value | None] = {"headrace.link": self.link.name, "headrace.path": self.link.stream}
                came = {"headrace.refused": len(found.refused | done.refused), "headrace.later": len(done.later)}
                took_s = asyncio.get_running_loop().time() - begun
                self._tracer.ended(Span(LINK_TOPICS, took_s, told | asked | came, error=error))
        return done

    async def _plan(self, topics: Sequence[SourceTopic]) -> Plan:
        ids, names = [topic.topic_id for topic in topics], [topic.name for topic in topics]
        by_id, by_name = await self._catalog.query(lambda reader: _rows(reader, self.link.stream, ids, names))
        return plan(
            topics,
            by_id=by_id,
            by_name=by_name,
            patterns=self.link.config.topics,
            stream=self.link.stream,
            own_cluster=self._own,
        )

    def _refuse(self, name: str, reason: str) -> None:
        if name in self._still_refused or len(self._still_refused) < MAX_REFUSED:
            if self.refused.get(name) != reason:
                log.warning("a link cannot copy a topic as it is", link=self.link.name, topic=name, reason=reason)
            self.refused[name] = reason
            self._still_refused.add(name)

    def _allow(self, name: str) -> None:
        self.refused.pop(name, None)
        self._still_refused.discard(name)
        self._ids.pop(name, None)


def _rows(
    reader: Reader, stream: str, ids: Sequence[bytes], names: Sequence[str]
) -> tuple[dict[bytes, TopicRow], dict[str, TopicRow]]:
    """[blocking] This cluster's topics with these ids, and those with these names."""
    return reader.topics.by_ids(ids), reader.topics.named(stream, names)

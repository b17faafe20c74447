"""Carries out what the state machine of a link on one node (link_state.py) decides, over a `Source`.

Responsible for the tasks: each effect is a task, ends with one event, and is cancelled when the state machine cancels
everything in progress, or the puller is closed. Appends are separate: they continue through a lost connection and a
pause. Nothing runs while nothing happens: the puller wakes up for an answer of the source, a commit here, a change of
the catalog or of leadership, and the node's one timer.

When it is cancelled at any await: appended records stay; fetched records that are not appended are dropped and their
bytes released; the next puller begins at the end of the copy.
"""

import asyncio
import random
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Final

import structlog

from headrace.base.deadlines import Deadline
from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.base.ids import Millis, NodeId, Offset
from headrace.base.runtime import Runtime
from headrace.catalog.catalog import Catalog
from headrace.kafka_client.errors import SourceRefuses
from headrace.links.pull.append import Appender, FetchedBatches, Outdated
from headrace.links.pull.effects import (
    Arrived,
    Connect,
    Effect,
    Fetch,
    FillGap,
    ListTopics,
    Locate,
    LookUp,
    LookUpResult,
    Meet,
    Poll,
)
from headrace.links.pull.gap_fill import GapFill
from headrace.links.pull.lag import Counters
from headrace.links.pull.limits import Limits
from headrace.links.pull.link_state import LinkState, Phase
from headrace.links.pull.partition_state import CopyStates
from headrace.links.pull.pull_choice import Share
from headrace.links.source.source import Changes, Fetched, Source, TopicPartition
from headrace.partitions.partitions import Partitions
from headrace.partitions.topic import Topic
from headrace.partitions.topics import Topics
from headrace.tracing.spans import LINK_STATE, Span
from headrace.tracing.tracer import NO_TRACER, Tracer

log = structlog.get_logger(__name__)

MAX_CHANGES: Final = 10_000
"""The maximum number of changes in one answer of a feed."""
TOPICS_PER_PAGE: Final = 1_000
"""Topics in one page of the source's list."""
ENDED: Final = "Ended"
"""The next state in a span for a link that has ended."""
MAX_ELSEWHERE: Final = 100_000
"""The maximum number of partitions that are remembered as not pulled on this node."""

REFUSALS: Final = frozenset(
    {
        Code.INVALID_CONFIG,
        Code.UNSUPPORTED_VERSION,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.CLUSTER_AUTHORIZATION_FAILED,
        Code.TOPIC_AUTHORIZATION_FAILED,
        Code.GROUP_AUTHORIZATION_FAILED,
    }
)
"""Errors that a source keeps returning until somebody changes something."""

Event = Callable[[], object]


class Puller:
    """One link on one node. It runs from construction until `close`."""

    def __init__(
        self,
        *,
        name: str,
        stream: str,
        source: Source,
        catalog: Catalog,
        topics: Topics,
        partitions: Partitions,
        appender: Appender,
        gap_fill: GapFill,
        runtime: Runtime,
        own_cluster: str,
        share: Callable[[Topic, int], Share | None],
        expected_cluster: str = "",
        throttle: int = 0,
        paused: bool = False,
        limits: Limits | None = None,
        randomness: Callable[[], float] = random.random,
        on_higher: Callable[[bytes], None] = lambda _topic_id: None,
        on_trouble: Callable[["Puller"], None] = lambda _puller: None,
        on_lacking: Callable[[TopicPartition, bool], None] = lambda _at, _lacks: None,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        """`share`: see partition_state.py; call `look_again` when it changes. `expected_cluster`: the cluster that the
        source must be; empty: any but this one.

        `on_trouble` is called when the source can no longer be reached, and when it can be again.
        """
        self.name = name
        self.stream = stream
        self.source_cluster = expected_cluster
        """The source's cluster id; empty until it is known."""
        self.counters = Counters()
        self._source = source
        self._appender = appender
        self._gap_fill = gap_fill
        self._runtime = runtime
        self._own = own_cluster
        self._loop = asyncio.get_running_loop()
        self._on_trouble = on_trouble
        self._tracer = tracer
        self.state = LinkState(
            now=self._loop.time(),
            random=randomness,
            limits=limits or Limits(),
            throttle=throttle,
            on_phase=self._phase_changed,
        )
        if paused:
            self.state.pause(self._loop.time())
        self._copy_states = CopyStates(
            catalog=catalog,
            topics=topics,
            partitions=partitions,
            own_cluster=own_cluster,
            stream=stream,
            share=share,
            on_higher=on_higher,
            on_lacking=on_lacking,
        )
        self._elsewhere: OrderedDict[TopicPartition, None] = OrderedDict()
        self._interruptions = self.state.interruptions
        self._tasks: set[asyncio.Task[None]] = set()
        self._appends: set[asyncio.Task[None]] = set()
        self._timer: Deadline | None = None
        self._due = False
        self._trouble = True
        self._closed = False
        self._wake()

    # --- for its owner

    def pause(self) -> None:
        """Fetch nothing until `resume`; what has arrived is appended."""
        self.state.pause(self._loop.time())
        self._wake()

    def resume(self) -> None:
        """Continue after `pause`."""
        self.state.resume(self._loop.time())
        self._wake()

    async def close(self) -> None:
        """Cancel everything in progress. Closing the source is left to its owner."""
        if not self._closed:
            self._phase_ended(self.state.phase.value, ENDED, self._loop.time() - self.state.since)
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        tasks = [*self._tasks, *self._appends]
        self._cancel(tasks)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _phase_changed(self, left: Phase, entered: Phase, seconds: float) -> None:
        self._phase_ended(left.value, entered.value, seconds)

    def _phase_ended(self, left: str, entered: str, seconds: float) -> None:
        if self._tracer.is_on:
            told = {"headrace.link": self.name, "headrace.path": self.stream}
            states = {"headrace.state": left, "headrace.next_state": entered}
            self._tracer.ended(Span(LINK_STATE, seconds, told | states))

    @property
    def is_in_trouble(self) -> bool:
        """Whether the source, or a part of it, cannot be reached."""
        return self.state.trouble

    # --- what changes here

    def touched(self, partitions: Iterable[TopicPartition], *, led_here: bool) -> None:
        """Handle that the chain, home or leader of these partitions has changed. `led_here`: this link may have to pull
        them."""
        now = self._loop.time()
        for at in partitions:
            self._elsewhere.pop(at, None)
            self.state.pulls.touched(now, at, track=led_here)
        self._wake()

    def look_again(self, *, relist: bool = False) -> None:
        """Look up all partitions again, since leaders or shares have changed. `relist`: untracked ones may have to be
        pulled too."""
        now = self._loop.time()
        self._elsewhere.clear()
        for at in list(self.state.pulls.all):
            self.state.pulls.touched(now, at, track=False)
        if relist:
            self.state.relist(now)
        self._wake()

    # --- steps

    def _wake(self) -> None:
        if not self._due and not self._closed:
            self._due = True
            self._loop.call_soon(self._step)

    def _step(self) -> None:
        self._due = False
        if self._closed:
            return
        if self._interruptions != self.state.interruptions:
            self._interruptions = self.state.interruptions
            self._cancel(self._tasks)
        now = self._loop.time()
        for effect in self.state.effects(now):
            self._spawn(self._tasks, self._carry_out(effect, self._interruptions))
        self._wake_later(self.state.wake_at(now))
        self._copy_states.keep(self.state.pulls.all)
        if self.state.trouble != self._trouble:
            self._trouble = self.state.trouble
            self._on_trouble(self)

    def _wake_later(self, at: float | None) -> None:
        if self._timer is not None:
            if self._timer.live and self._timer.when == at:
                return
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer = self._runtime.deadlines.at(at, self._wake)

    def _spawn(self, tasks: "set[asyncio.Task[None]]", coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    @staticmethod
    def _cancel(tasks: "Iterable[asyncio.Task[None]]") -> None:
        for task in list(tasks):
            task.cancel()

    async def _carry_out(self, effect: Effect, interruptions: int) -> None:
        """Carry out an effect and apply its event. `interruptions`: the state machine's count when it returned the
        effect."""
        try:
            event = await self._execute(effect)
        except HeadraceError as error:
            event = self._failed(effect, error)
        except Exception as error:
            log.exception("a link's step failed", link=self.name, step=type(effect).__name__)
            event = self._failed(effect, error)
        if interruptions == self.state.interruptions and not self._closed:
            event()
            self._wake()

    async def _execute(self, effect: Effect) -> Event:
        """Carry out an effect and return the event that reports its result. Raises HeadraceError."""
        state, now = self.state, self._loop.time
        match effect:
            case Poll(node, since, wait_ms):
                changes = await self._source.changes(
                    node, since, topics=False, committed_offsets=False, wait_ms=wait_ms, limit=MAX_CHANGES
                )
                return partial(self._changed, node, changes)
            case Fetch(number, node, wanted, max_bytes):
                fetched = await self._source.fetch(node, wanted, max_bytes=max_bytes)
                return partial(self._arrived, number, fetched)
            case Connect():
                return await self._connected()
            case LookUp(partitions):
                looked = await self._copy_states.look(partitions)
                return partial(self._looked, looked)
            case Locate(topic_ids):
                located = await self._source.topics_by_id(topic_ids)
                return lambda: state.pulls.located(now(), located)
            case Meet(node, partitions):
                meetings = await self._source.meet(node, partitions)
                return lambda: state.met(now(), node, [self._copy_states.judge(each) for each in meetings])
            case ListTopics(after):
                page = await self._source.topics(after=after, limit=TOPICS_PER_PAGE)
                return lambda: state.listed(now(), page.topics, page.after)
            case FillGap(at):
                await self._gap_fill.fill(self.name, effect, self._copy_states.of(at), committed=self.committed)
                return lambda: state.pulls.gap_filled(now(), at)

    def _failed(self, effect: Effect, error: Exception) -> Event:
        state, now = self.state, self._loop.time
        reason = str(error) or type(error).__name__
        self.counters.failed(reason, Millis(self._runtime.now()))
        match effect:
            case Poll(node):
                return lambda: state.poll_failed(now(), node, reason)
            case Fetch(number):
                return lambda: state.fetch_failed(now(), number, reason)
            case Connect():
                refused = isinstance(error, SourceRefuses) or (isinstance(error, KafkaError) and error.code in REFUSALS)
                return lambda: state.not_greeted(now(), reason, refused=refused)
            case LookUp(partitions):
                looked = [LookUpResult(at, True, reason=reason) for at in partitions]
                return lambda: state.pulls.looked_up(now(), looked)
            case Locate():
                return lambda: state.pulls.not_located(now(), reason)
            case Meet(node, partitions):
                return lambda: state.not_met(now(), node, partitions, reason)
            case ListTopics():
                return lambda: state.not_listed(now(), reason)
            case FillGap(at):
                return lambda: state.pulls.gap_filled(now(), at, reason)

    # --- results

    async def _connected(self) -> Event:
        hello = await self._source.hello()
        problem = hello.problem
        if hello.cluster_id == self._own:
            problem = "the source is this cluster itself"
        elif self.source_cluster not in ("", hello.cluster_id):
            problem = f"the source is cluster {hello.cluster_id} now, and was {self.source_cluster}"
        if problem:
            raise KafkaError(Code.INVALID_CONFIG, problem)
        nodes = [node.node_id for node in hello.nodes]

        def greeted() -> None:
            self.source_cluster = hello.cluster_id
            self.state.greeted(self._loop.time(), nodes)

        return greeted

    def _changed(self, node: NodeId, changes: Changes) -> None:
        if self._elsewhere:
            kept = [each for each in changes.partitions if each[0] not in self._elsewhere]
            changes = Changes(changes.place, changes.reset, kept, (), ())
        self.state.changed(self._loop.time(), node, changes)

    def _looked(self, looked: Iterable[LookUpResult]) -> None:
        self.state.pulls.looked_up(self._loop.time(), looked)
        for answer in looked:
            if not answer.pulled and answer.at not in self.state.pulls.all:
                self._elsewhere[answer.at] = None
        while len(self._elsewhere) > MAX_ELSEWHERE:
            self._elsewhere.popitem(last=False)

    def _arrived(self, number: int, fetched: Iterable[Fetched]) -> None:
        fetched = list(fetched)
        arrived = [
            Arrived(
                each.at,
                each.code,
                sum(map(len, each.records)),
                each.high_watermark,
                each.log_start,
                each.resume,
                each.ask,
            )
            for each in fetched
        ]
        now = self._loop.time()
        kept = set(self.state.fetching.arrived(now, number, arrived))
        if kept:
            self._spawn(self._appends, self._append_all([each for each in fetched if each.at in kept]))

    async def _append_all(self, fetched: list[Fetched]) -> None:
        """Append the records of several partitions concurrently, so that one that waits for a roll does not stop
        others."""
        loop = self._loop
        await asyncio.gather(*(loop.create_task(self._append(each)) for each in fetched))

    async def _append(self, fetched: Fetched) -> None:
        at = fetched.at
        copy = self._copy_states.of(at)
        pulls = self.state.pulls
        try:
            if copy is None:
                self.released(sum(map(len, fetched.records)))
                raise Outdated
            before, count = copy.end, sum(map(len, fetched.records))
            copy.end = await self._appender.append(FetchedBatches(at, fetched.records, before, copy.home), self)
            self.counters.appended(copy.end - before, count)
            pulls.appended(self._loop.time(), at, copy.end, Offset(max(copy.end, fetched.resume)))
        except Outdated:
            pulls.outdated(at)
        except HeadraceError as error:
            self._refused(at, str(error))
        except asyncio.CancelledError:
            pulls.outdated(at)
            raise
        except Exception as error:
            log.exception("a link could not append", link=self.name, topic=at.topic_id.hex(), partition=at.partition)
            self._refused(at, repr(error))
        self._wake()

    def _refused(self, at: TopicPartition, reason: str) -> None:
        self.counters.failed(reason, Millis(self._runtime.now()))
        self.state.pulls.refused(self._loop.time(), at, reason)
        log.warning(
            "a link blocks a partition", link=self.name, topic=at.topic_id.hex(), partition=at.partition, reason=reason
        )

    # --- see append.AppendProgress

    def released(self, count: int) -> None:
        """Handle that `count` of the arrived bytes are committed or dropped."""
        self.state.fetching.released(count)
        self._wake()

    def committed(self, at: TopicPartition, offset: Offset) -> None:
        """Handle that everything below `offset` is committed here."""
        self.state.pulls.committed(self._loop.time(), at, offset)

"""All links of a cluster on one node: a puller for each.

Responsible for keeping the pullers in line with the catalog's links, for notifying them of changes in the catalog and
of leadership (only the pullers of the stream that changed), and for choosing which of a stream's links pulls a topic
(pull_choice.py). Level-triggered: when this node begins to lead a container, its partitions are looked up; when the
catalog is replaced, everything is looked up again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec
import structlog

from headrace.base.errors import Code, HeadraceError
from headrace.base.ids import ContainerId, PartitionletId, StreamNumber, stream_of
from headrace.base.runtime import Runtime
from headrace.catalog.catalog import Catalog, CatalogFailed, Change
from headrace.catalog.chains import RollDone, RollOutcome
from headrace.catalog.homes import SetHome
from headrace.catalog.link_config import matches
from headrace.catalog.links import DeleteLink, PutLink, SetLinkSource, SetLinkState
from headrace.catalog.reader import Reader
from headrace.catalog.rows import PAUSED, LinkRow, Replaced
from headrace.catalog.topics import CreatePartitions, CreateTopics, DeleteTopics, TopicOutcome
from headrace.container.leader import Leader
from headrace.links.pull.append import Appender, BackPressure
from headrace.links.pull.gap_fill import GapFill
from headrace.links.pull.home_links import HomeLinks
from headrace.links.pull.lag import LinkMetrics, Overall, figures, overall
from headrace.links.pull.pull_choice import PATIENCE_S, TROUBLE_S, Candidate, Share, choose
from headrace.links.pull.puller import Puller
from headrace.links.source.source import Source, TopicPartition
from headrace.partitions.home_check import HomeCheck
from headrace.partitions.partitions import Partitions
from headrace.partitions.rolls.rolls import Rolls
from headrace.partitions.topic import Topic
from headrace.partitions.topics import Topics
from headrace.tracing.tracer import NO_TRACER, Tracer

log = structlog.get_logger(__name__)

RETRY_S: Final = 1.0
PAGE: Final = 1_000


class Running(NamedTuple):
    """A link on this node."""

    link: LinkRow
    number: StreamNumber
    puller: Puller
    source: Source


class Pullers:
    """The pullers of one node. `start` starts them, `close` ends them."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        topics: Topics,
        partitions: Partitions,
        rolls: Rolls,
        led: Mapping[ContainerId, Leader],
        home_check: HomeCheck,
        back_pressure: BackPressure,
        runtime: Runtime,
        own_cluster: str,
        home_links: HomeLinks,
        open_source: Callable[[LinkRow], Source],
        on_higher: Callable[[str, bytes], None] = lambda _link, _topic_id: None,
        on_ended: Callable[[str], Awaitable[None]] | None = None,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        """`led`: every container that this node leads. `home_links` is kept up to date. `open_source` may raise
        HeadraceError. `on_higher` is called with the link that found a higher home (partition_state.py), `on_ended`
        with a link that has ended here or is restarted."""
        self._catalog = catalog
        self._topics = topics
        self._partitions = partitions
        self._led = led
        self._runtime = runtime
        self._own = own_cluster
        self._home_links = home_links
        self._appender = Appender(topics=topics, rolls=rolls, home_check=home_check, back_pressure=back_pressure)
        self._gap_fill = GapFill(topics=topics, partitions=partitions, rolls=rolls, appender=self._appender)
        self._open_source = open_source
        self._on_higher = on_higher
        self._on_ended = on_ended
        self._tracer = tracer
        self._by_name: dict[str, Running] = {}
        self._by_stream: dict[StreamNumber, list[Running]] = {}
        self._lacking: set[TopicPartition] = set()
        """Partitions that lack records of their former homes, which the link that pulls them could not deliver."""
        self._trouble: dict[str, float] = {}
        """Links in trouble, with the loop's time at which the trouble began."""
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.failed: dict[str, str] = {}
        """Links that could not be opened here, with the reasons."""

    async def start(self) -> None:
        """Begin to pull the catalog's links."""
        self._catalog.on_applied(self._applied)
        self._changed.set()
        self._task = self._runtime.spawn(self._follow_links())

    async def close(self) -> None:
        """End all pullers."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for running in list(self._by_name.values()):
            await self._end(running)

    def puller(self, name: str) -> Puller | None:
        """The link's puller on this node, or None."""
        running = self._by_name.get(name)
        return None if running is None else running.puller

    async def overall(self) -> dict[str, Overall]:
        """The overall figures of each link on this node."""
        found = {}
        for name, running in list(self._by_name.items()):
            puller = running.puller
            found[name] = await overall(puller.state, puller.counters, time=self._runtime.loop.time)
        return found

    def figures(self, name: str) -> LinkMetrics | None:
        """The state and figures of a link on this node; None if it does not run here."""
        running = self._by_name.get(name)
        if running is None:
            return None
        patterns = running.link.config.topics

        def group_of(topic_id: bytes) -> str | None:
            topic = self._topics.cached_id(topic_id)
            if topic is None:
                return None
            return next((pattern for pattern in patterns if matches([pattern], topic.name)), None)

        puller = running.puller
        return figures(puller.state, puller.counters, self._runtime.loop.time(), group_of=group_of)

    # --- the links

    async def _follow_links(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._keep_up()
            except CatalogFailed:
                return  # this node ends
            except HeadraceError as error:
                log.warning("links could not be looked up yet", reason=str(error))
                self._changed.set()
            except Exception:
                log.exception("starting and stopping pullers failed")
                self._changed.set()
            if self.failed or self._changed.is_set():
                await asyncio.sleep(RETRY_S)
                self._changed.set()

    async def _keep_up(self) -> None:
        rows = await self._catalog.query(_links)
        wanted = {link.name: (link, number) for link, number in rows}
        self._home_links.looked_up(rows)
        for name, running in list(self._by_name.items()):
            found = wanted.get(name)
            if found is None or _differs(found[0], running.link):
                await self._end(running)
        self.failed = {}
        for name, (link, number) in wanted.items():
            known = self._by_name.get(name)
            if known is None:
                self._begin(link, number)
            elif known.link.state != link.state:
                (known.puller.pause if link.state == PAUSED else known.puller.resume)()
                self._put(known._replace(link=link))
                self._choose_again(number, beside=name)

    def _begin(self, link: LinkRow, number: StreamNumber) -> None:
        try:
            source = self._open_source(link)
        except HeadraceError as error:
            self.failed[link.name] = str(error)
            return
        puller = Puller(
            name=link.name,
            stream=link.stream,
            source=source,
            catalog=self._catalog,
            topics=self._topics,
            partitions=self._partitions,
            appender=self._appender,
            gap_fill=self._gap_fill,
            runtime=self._runtime,
            own_cluster=self._own,
            share=partial(self._share, link.name),
            expected_cluster=link.config.source_cluster,
            throttle=link.config.throttle,
            paused=link.state == PAUSED,
            on_higher=partial(self._on_higher, link.name),
            on_trouble=self._trouble_changed,
            on_lacking=partial(self._lacks, link.name, number),
            tracer=self._tracer,
        )
        self._trouble[link.name] = self._runtime.loop.time()
        self._home_links.began(link.name, puller)
        self._put(Running(link, number, puller, source))
        self._choose_again(number, beside=link.name)

    def _put(self, running: Running) -> None:
        self._by_name[running.link.name] = running
        others = [each for each in self._by_stream.get(running.number, []) if each.link.name != running.link.name]
        self._by_stream[running.number] = [*others, running]

    async def _end(self, running: Running) -> None:
        del self._by_name[running.link.name]
        self._home_links.ended(running.link.name)
        self._trouble.pop(running.link.name, None)
        left = [each for each in self._by_stream[running.number] if each.link.name != running.link.name]
        if left:
            self._by_stream[running.number] = left
        else:
            del self._by_stream[running.number]
        for each in left:
            each.puller.look_again(relist=True)
        await running.puller.close()
        await running.source.close()
        if self._on_ended is not None:
            await self._on_ended(running.link.name)

    # --- which one pulls

    def _share(self, name: str, topic: Topic, partition: int) -> Share | None:
        """The share of the link `name` in the work on a partition; None if it has none."""
        home, candidates = topic.home, self._candidates(topic)
        if home is None or all(each.name != name for each in candidates):
            return None
        chosen = choose(candidates, home=home.cluster, now=self._runtime.loop.time())
        if chosen is None or chosen.name == name:
            return Share()
        if home.cluster == self._own or TopicPartition(topic.topic_id, partition) in self._lacking:
            # The home is moving here, or the partition lacks records that only a former home may have. All links
            # request them; the first to get them appends them, and the others find their own answers outdated.
            return Share(chosen=False)
        return None if chosen.cluster == home.cluster else Share(PATIENCE_S, chosen=False)

    def _candidates(self, topic: Topic) -> list[Candidate]:
        return [
            Candidate(each.link.name, each.puller.source_cluster, self._trouble.get(each.link.name))
            for each in self._by_stream.get(StreamNumber(topic.stream_number), ())
            if each.link.state != PAUSED and matches(each.link.config.topics, topic.name)
        ]

    def _lacks(self, name: str, number: StreamNumber, at: TopicPartition, lacks: bool) -> None:
        """Handle that a partition lacks records of former homes, or no longer does, as the link `name` found."""
        if not lacks:
            self._lacking.discard(at)
        elif at not in self._lacking:
            self._lacking.add(at)
            for each in self._by_stream.get(number, ()):
                if each.link.name != name:
                    each.puller.touched([at], led_here=True)

    def _trouble_changed(self, puller: Puller) -> None:
        running = self._by_name.get(puller.name)
        if running is None:
            return
        if puller.is_in_trouble:
            self._trouble.setdefault(puller.name, self._runtime.loop.time())
            self._runtime.deadlines.after(TROUBLE_S, partial(self._choose_again, running.number))
        else:
            self._trouble.pop(puller.name, None)
            self._choose_again(running.number)

    def _choose_again(self, number: StreamNumber, *, beside: str = "") -> None:
        """Have a stream's links look at all partitions again, except the link `beside`, since the choice between the
        links may have changed."""
        of_stream = self._by_stream.get(number, ())
        if len(of_stream) > 1:
            for each in of_stream:
                if each.link.name != beside:
                    each.puller.look_again(relist=True)

    # --- what changes here

    def container_led(self, container: Leader) -> None:
        """Handle that this node has become the leader of a container, which `led` contains by now."""
        if self._by_name:
            for each in self._by_name.values():
                each.puller.look_again()
            self._runtime.spawn(self._look_into(container))

    def container_left(self, _container: Leader) -> None:
        """Handle that this node no longer leads a container, which `led` no longer contains."""
        self._lacking.clear()  # partitions that still lack records are found again
        for each in self._by_name.values():
            each.puller.look_again()

    async def _look_into(self, container: Leader) -> None:
        """Notify the pullers of the partitions in a container."""
        after = 0
        while not container.lost:
            try:
                found, after = await self._catalog.query(
                    partial(_open_in, container=container.id, streams=set(self._by_stream), after=after)
                )
            except CatalogFailed:
                return  # this node ends
            except HeadraceError as error:
                log.warning("copies could not be looked up yet", container=container.id, reason=str(error))
                await asyncio.sleep(RETRY_S)
                continue
            for number, partitions in found.items():
                self._tell(number, partitions, led_here=True)
            if not after:
                return

    def _tell(self, number: StreamNumber, partitions: Collection[TopicPartition], *, led_here: bool) -> None:
        for each in self._by_stream.get(number, ()):
            each.puller.touched(partitions, led_here=led_here)

    def _applied(self, changes: Sequence[Change]) -> None:
        for command, outcome in changes:
            match command:
                case Replaced():
                    self._changed.set()
                    for each in self._by_name.values():
                        each.puller.look_again(relist=True)
                case PutLink() | SetLinkState() | SetLinkSource() | DeleteLink():
                    self._changed.set()
                case CreateTopics() | CreatePartitions() | DeleteTopics():
                    outcomes = outcome if isinstance(outcome, list) else [outcome]
                    for made in outcomes:
                        if isinstance(made, TopicOutcome) and made.topic is not None and made.topic.home is not None:
                            self._topic_changed(made)
                case RollDone() if isinstance(outcome, list):
                    for item, result in zip(command.items, outcome, strict=True):
                        if isinstance(result, RollOutcome) and result.partitionlet is not None:
                            opened = result.partitionlet
                            at = TopicPartition(item.topic_id, item.partition)
                            self._tell(stream_of(opened.id), [at], led_here=self._leads(opened.container))
                case SetHome() if isinstance(outcome, list):
                    for change, code in zip(command.items, outcome, strict=True):
                        topic = self._topics.cached_id(change.topic_id)
                        if code is Code.NONE and topic is not None:
                            partitions = [TopicPartition(topic.topic_id, index) for index in topic.partitions]
                            self._tell(StreamNumber(topic.stream_number), partitions, led_here=True)
                case _:
                    pass

    def _topic_changed(self, made: TopicOutcome) -> None:
        assert made.topic is not None
        for led_here in (True, False):
            partitions = [
                TopicPartition(made.topic.topic_id, row.partition)
                for row in made.partitionlets
                if self._leads(row.container) == led_here
            ]
            self._lacking.difference_update(partitions)
            if partitions:
                self._tell(made.topic.stream_number, partitions, led_here=led_here)

    def _leads(self, container: ContainerId) -> bool:
        return container in self._led


def _differs(new: LinkRow, old: LinkRow) -> bool:
    """Whether a link has to be restarted. A source's cluster id that became known does not count."""
    return new._replace(state=old.state, config=old.config) != old or not _same_config(new, old)


def _same_config(new: LinkRow, old: LinkRow) -> bool:
    return msgspec.structs.replace(new.config, source_cluster=old.config.source_cluster) == old.config


def _links(reader: Reader) -> list[tuple[LinkRow, StreamNumber]]:
    """[blocking] All links, with the numbers of their streams."""
    numbers: dict[str, StreamNumber] = {}
    found: list[tuple[LinkRow, StreamNumber]] = []
    for link in reader.links.all():
        if link.stream not in numbers and (stream := reader.streams.at(link.stream)) is not None:
            numbers[link.stream] = stream.number
        if link.stream in numbers:
            found.append((link, numbers[link.stream]))
    return found


def _open_in(
    reader: Reader, *, container: ContainerId, streams: set[StreamNumber], after: int
) -> tuple[dict[StreamNumber, list[TopicPartition]], int]:
    """[blocking] By stream, the partitions of a page of the container's open partitionlets; where to continue, or 0."""
    rows = reader.chains.open_in(container, after=after, limit=PAGE)
    wanted: list[PartitionletId] = [row.id for row in rows if stream_of(row.id) in streams]
    found: dict[StreamNumber, list[TopicPartition]] = {}
    for id_, owner in reader.chains.owners(wanted).items():
        found.setdefault(stream_of(id_), []).append(TopicPartition(owner.topic_id, owner.partition))
    return found, rows[-1].id if len(rows) == PAGE else 0

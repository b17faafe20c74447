"""All parts of links on one node: pullers, the home applier, forwarding of writes, and, on the node that leads the
catalog, a topic syncer for each link. `start` starts them; the node reports changes of leadership.

Topic syncers run on the node that leads the catalog. When the catalog moves, the old node's topic syncers end as soon
as it notices, and two at the same time do no harm (topics/topic_syncer.py). A link that cannot be opened has no topic
syncer until the links or the leader change; one whose topic syncer fails unexpectedly is restarted after a moment. The
other links continue.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
import structlog

from headrace.base.addresses import parse_addresses
from headrace.base.errors import HeadraceError
from headrace.base.ids import ContainerId, NodeId
from headrace.base.runtime import Runtime
from headrace.catalog.catalog import Catalog, CatalogFailed, Change
from headrace.catalog.chains import RollDone
from headrace.catalog.homes import SetHome
from headrace.catalog.links import DeleteLink, PutLink, SetLinkSource, SetLinkState
from headrace.catalog.rows import RUNNING, LinkRow, Replaced, TopicRow
from headrace.catalog.topics import DeleteTopics, TopicOutcome
from headrace.container.leader import Leader
from headrace.kafka_client.client import Client
from headrace.links.config import is_kafka, unseal
from headrace.links.failover.forwarding import Forwarding
from headrace.links.failover.home_apply import HomeApplier
from headrace.links.failover.quarantine import OnceAppender
from headrace.links.pull.append import BackPressure
from headrace.links.pull.home_links import HomeLinks
from headrace.links.pull.lag import LinkMetrics
from headrace.links.pull.link_state import LinkState, Phase
from headrace.links.pull.partition_pull import Status
from headrace.links.pull.pullers import Pullers
from headrace.links.source.headrace_source import HeadraceSource
from headrace.links.source.kafka_source import KafkaSource
from headrace.links.source.source import NO_OFFSET, Source
from headrace.links.topics.topic_apply import TopicApplier
from headrace.links.topics.topic_syncer import TopicSyncer
from headrace.partitions.cluster_client import ClusterClient
from headrace.partitions.home_check import HomeCheck
from headrace.partitions.partition_states import PartitionStates
from headrace.partitions.partitions import Partitions
from headrace.partitions.rolls.rolls import Rolls
from headrace.partitions.topics import Topics
from headrace.peer.messages import AppendedOnce, AppendOnce, LinksAsked, LinksTold, Message
from headrace.peer.server import Handler
from headrace.peer.session import Session
from headrace.security.client_security import security_of
from headrace.tracing.tracer import NO_TRACER, Tracer

__all__ = ["LinkReport", "Links", "open_client"]

log = structlog.get_logger(__name__)

RETRY_S: Final = 1.0
ASK_S: Final = 2.0
MAX_BEHIND: Final = 200_000
"""The maximum number of topics for which a node reports how far they are behind."""
UNKNOWN: Final = -1


class LinkReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one node reports about a link."""

    figures: LinkMetrics | None = None
    failed: str | None = None
    kept: bool = False
    """Whether this node runs the link's topic syncer, and so reports the next four fields."""
    source_cluster: str = ""
    refused: dict[str, str] = {}
    last_error: str | None = None
    last_error_ms: int | None = None
    behind: dict[bytes, int] = {}
    """By topic id: how many records are known to be missing; UNKNOWN if nothing is known of one of its partitions."""
    settling: bool = False
    """Whether partitions of its stream are being brought in line with their homes, or records of them quarantined."""
    heard: bool = False
    """Whether the source has reported all of this node's partitions since its puller started: a topic that is not in
    `behind` lacked nothing when the source last answered."""


_reports = msgspec.msgpack.Decoder(dict[str, LinkReport])


class Links:
    """Runs this node's part of all links."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        cluster: ClusterClient,
        led: Mapping[ContainerId, Leader],
        topics: Topics,
        partitions: Partitions,
        rolls: Rolls,
        home_check: HomeCheck,
        back_pressure: BackPressure,
        states: PartitionStates,
        once: OnceAppender,
        home_applier: HomeApplier,
        applier: TopicApplier,
        home_links: HomeLinks,
        forwarding: Forwarding,
        runtime: Runtime,
        node_id: NodeId,
        own_cluster: str,
        secret: str,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        """`led`: every container that this node leads. This object runs `home_applier` and notifies it of changes; it
        notifies `forwarding` of links that ended, and closes it. `secret`: the cluster's secret, which seals
        credentials.
        """
        self.secret = secret
        self.home_applier = home_applier
        self.forwarding = forwarding
        self._catalog = catalog
        self._cluster = cluster
        self._led = led
        self._states = states
        self._once = once
        self._applier = applier
        self._runtime = runtime
        self._node_id = node_id
        self._own = own_cluster
        self._tracer = tracer
        self.pullers = Pullers(
            catalog=catalog,
            topics=topics,
            partitions=partitions,
            rolls=rolls,
            led=led,
            home_check=home_check,
            back_pressure=back_pressure,
            runtime=runtime,
            own_cluster=own_cluster,
            home_links=home_links,
            open_source=self.open_source,
            on_higher=self._higher_found,
            on_ended=forwarding.link_ended,
            tracer=tracer,
        )
        self._topic_syncers: dict[str, tuple[LinkRow, TopicSyncer, asyncio.Task[None]]] = {}
        self._changed = asyncio.Event()
        self._following: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start all parts. The node must be serving already."""
        self._catalog.on_applied(self._applied)
        for container in list(self._led.values()):
            self.container_led(container)
        self._runtime.spawn(self.home_applier.run())
        await self.pullers.start()
        self._changed.set()
        self._following = self._runtime.spawn(self._follow())

    async def close(self) -> None:
        """Stop everything that is running."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        for name in list(self._topic_syncers):
            await self._end(name)
        await self.forwarding.close()
        await self.pullers.close()

    def open_source(self, link: LinkRow) -> Source:
        """A newly opened connection to the link's source. Raises KafkaError for credentials that cannot be used."""
        client = open_client(link, secret=self.secret)
        return KafkaSource(client) if is_kafka(link.config) else HeadraceSource(client, link.config.source_stream)

    def bootstrap(self, link: LinkRow) -> list[str]:
        """This cluster's addresses as the source can reach them."""
        if link.config.bootstrap:
            return list(link.config.bootstrap)
        return [f"{node.host}:{node.port}" for node in self._cluster.nodes()][:16]

    # --- changes

    def container_led(self, container: Leader) -> None:
        """Handle that this node has become the leader of a container."""
        self.home_applier.container_led()
        self.pullers.container_led(container)
        self._changed.set()

    def container_left(self, container: Leader) -> None:
        """Handle that this node no longer leads a container."""
        self.pullers.container_left(container)
        self._changed.set()

    def _applied(self, changes: Sequence[Change]) -> None:
        self.home_applier.applied(changes)
        for command, outcome in changes:
            match command:
                case PutLink() | SetLinkState() | SetLinkSource() | DeleteLink():
                    self._changed.set()
                case Replaced():
                    self._changed.set()
                    for _, syncer, _ in self._topic_syncers.values():
                        syncer.look_at_all()
                case DeleteTopics() if isinstance(outcome, list):
                    self._tell_deleted(
                        [made.topic for made in outcome if isinstance(made, TopicOutcome) and made.topic]
                    )
                case SetHome():
                    self._tell([item.topic_id for item in command.items])
                case RollDone():
                    self._tell([item.topic_id for item in command.items if item.home is not None])
                case _:
                    pass

    def _tell(self, topic_ids: Sequence[bytes]) -> None:
        if topic_ids:
            for _, syncer, _ in self._topic_syncers.values():
                syncer.changed_here(topic_ids)

    def _tell_deleted(self, rows: Sequence[TopicRow]) -> None:
        for _, syncer, _ in self._topic_syncers.values():
            syncer.deleted_here(row.name for row in rows if row.stream == syncer.link.stream)

    def _higher_found(self, link: str, topic_id: bytes) -> None:
        """Handle that a puller found a higher home at the source."""
        held = self._topic_syncers.get(link)
        if held is not None:
            held[1].changed_here([topic_id])

    # --- topic syncers

    def topic_syncer(self, name: str) -> TopicSyncer | None:
        """The link's topic syncer, or None if it does not run on this node."""
        held = self._topic_syncers.get(name)
        return None if held is None else held[1]

    async def _follow(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._keep_up()
            except CatalogFailed:
                return  # this node ends
            except Exception as error:  # no error may stop the other links
                if isinstance(error, HeadraceError):
                    log.warning("links could not be started yet", reason=str(error))
                else:
                    log.exception("starting and stopping topic syncers failed")
                await asyncio.sleep(RETRY_S)
                self._changed.set()

    async def _keep_up(self) -> None:
        leads = self._cluster.catalog_container is not None
        rows = await self._catalog.query(lambda reader: reader.links.all()) if leads else []
        wanted = {row.name: row for row in rows if row.state == RUNNING}
        for name, (row, _, task) in list(self._topic_syncers.items()):
            if name not in wanted or task.done() or not _same(row, wanted[name]):
                await self._end(name)
        for name, row in wanted.items():
            if name not in self._topic_syncers:
                try:
                    source = self.open_source(row)
                except HeadraceError as error:
                    log.warning("a link cannot be opened", link=name, reason=str(error))
                    continue
                syncer = TopicSyncer(
                    row,
                    source,
                    catalog=self._catalog,
                    states=self._states,
                    applier=self._applier,
                    own_cluster=self._own,
                    bootstrap=partial(self.bootstrap, row),
                    copies_committed_offsets=partial(self._copies_committed_offsets, name),
                    tracer=self._tracer,
                )
                task = self._runtime.spawn(self._run_syncer(syncer, source))
                self._topic_syncers[name] = (row, syncer, task)

    def _copies_committed_offsets(self, name: str, home: str) -> bool:
        """Whether this link copies the committed offsets of topics with this home: the link from the home itself does
        while it works, since they arrive later by way of other clusters."""
        held = self._topic_syncers.get(name)
        if held is None or held[1].source_cluster == home:
            return True
        return not any(
            other is not held[1]
            and row.stream == held[0].stream
            and other.source_cluster == home
            and other.last_error is None
            for row, other, _ in self._topic_syncers.values()
        )

    async def _run_syncer(self, syncer: TopicSyncer, source: Source) -> None:
        try:
            await syncer.run()
        except Exception:
            log.exception("a link's topic syncer failed", link=syncer.link.name)
            await asyncio.sleep(RETRY_S)
        finally:
            await source.close()
        self._changed.set()  # last, so that this task is done when `_follow` looks

    async def _end(self, name: str) -> None:
        _, _, task = self._topic_syncers.pop(name)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    # --- reports

    def handlers(self) -> Mapping[type[Message], Handler]:
        """The handlers of other nodes' requests, by message type."""
        return {AppendOnce: self._append_once, LinksAsked: self._links_asked}

    async def _append_once(self, asked: AppendOnce, payload: memoryview, _session: Session) -> AppendedOnce:
        return AppendedOnce(await self._once.append(asked.topic_id, asked.partition, bytearray(payload)))

    async def _links_asked(
        self, asked: LinksAsked, _payload: memoryview, _session: Session
    ) -> tuple[LinksTold, list[bytes]]:
        return LinksTold(), [msgspec.msgpack.encode(self.own_reports(asked.links, behind=asked.behind))]

    def own_reports(self, names: Sequence[str], *, behind: bool = False) -> dict[str, LinkReport]:
        """What this node reports about these links, by name."""
        found: dict[str, LinkReport] = {}
        applying = set(self.home_applier.unsettled.values())
        for name in names:
            syncer = self.topic_syncer(name)
            puller = self.pullers.puller(name)
            lacking = _behind(puller.state) if behind and puller is not None else {}
            report = LinkReport(
                figures=self.pullers.figures(name),
                failed=self.pullers.failed.get(name),
                behind=lacking,
                settling=puller is not None and puller.stream in applying,
                heard=puller is not None and _has_heard(puller.state) and len(lacking) < MAX_BEHIND,
            )
            if syncer is not None:
                report = msgspec.structs.replace(
                    report,
                    kept=True,
                    source_cluster=syncer.source_cluster,
                    refused=dict(syncer.refused),
                    last_error=syncer.last_error,
                    last_error_ms=syncer.last_error_ms,
                )
            found[name] = report
        return found

    async def reports(self, names: Sequence[str], *, behind: bool = False) -> list[dict[str, LinkReport]]:
        """What each node that answers reports about these links, by name."""
        asked = LinksAsked(list(names), behind)

        async def one(node: Any) -> dict[str, LinkReport]:
            if node.node_id == self._node_id:
                return self.own_reports(names, behind=behind)
            try:
                _, payload = await self._cluster.ask(node, asked, timeout_s=ASK_S)
                return _reports.decode(payload)
            except (HeadraceError, OSError, msgspec.DecodeError) as error:
                log.info("a node does not report its links", node=node.node_id, reason=str(error))
                return {}

        return list(await asyncio.gather(*map(one, self._cluster.nodes())))


def open_client(link: LinkRow, *, secret: str) -> Client:
    """A client of the link's source, with its credentials. Raises KafkaError for credentials that cannot be used."""
    return Client(parse_addresses(link.config.source), security=security_of(unseal(link.config.credentials, secret)))


def _same(old: LinkRow, new: LinkRow) -> bool:
    """Whether a topic syncer can keep running with the new row. The source's cluster id is ignored: it is the topic
    syncer that sets it."""
    config = msgspec.structs.replace(new.config, source_cluster=old.config.source_cluster)
    return config == old.config and new._replace(config=old.config) == old


def _has_heard(state: LinkState) -> bool:
    return state.has_heard and state.phase is not Phase.PAUSED


def _behind(state: LinkState) -> dict[bytes, int]:
    found: dict[bytes, int] = {}
    for pull in () if state.phase is Phase.PAUSED else state.pulls.all.values():
        if pull.status is Status.WAITS:
            continue  # another link pulls it
        records = pull.lag_records() if pull.known != NO_OFFSET else UNKNOWN
        before = found.get(pull.at.topic_id, 0)
        if records and len(found) < MAX_BEHIND:
            found[pull.at.topic_id] = UNKNOWN if UNKNOWN in (records, before) else before + records
    return found

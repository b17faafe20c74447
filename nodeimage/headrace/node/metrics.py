"""A node's metrics for Prometheus: the readings of its parts, assembled for its HTTP port.

Imported only when a scrape arrives.
"""

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

from headrace.admin import kafka_exporter, metrics
from headrace.admin.group_metrics import GroupMetrics
from headrace.admin.link_metrics import LinkReadings
from headrace.control.controller import Controller
from headrace.links.links import Links
from headrace.metrics import declarations as declared
from headrace.metrics.exposition import NodeMetrics
from headrace.metrics.log_times import LogTimes
from headrace.metrics.readings import Reading
from headrace.node.parts import NodeParts
from headrace.node.tracing import Tracing
from headrace.peer.client import PeerClient

Status = Callable[[], Awaitable[dict[str, Any]]]


class NodeScrape:
    """Answers scrapes for one node."""

    def __init__(
        self,
        parts: NodeParts,
        *,
        status: Status,
        log_times: LogTimes,
        links: Links,
        peers: PeerClient,
        controller: Controller,
        tracing: Tracing,
    ) -> None:
        self._parts = parts
        self._status = status
        self._controller = controller
        self._tracing = tracing
        self._applier = links.home_applier
        self._groups = GroupMetrics(
            runtime=parts.runtime,
            catalog=parts.catalog,
            coordination=parts.coordination,
            states=parts.partition_states,
        )
        self._links = LinkReadings(runtime=parts.runtime, look=links.pullers.overall)
        self._metrics = NodeMetrics(declared.ALL, node=str(parts.node.node_id))
        for source in (
            partial(metrics.of_requests, parts.dispatcher.times),
            partial(metrics.of_log, log_times),
            partial(metrics.of_loop, parts.loop_lag),
            partial(metrics.of_peers, peers.times),
            partial(metrics.of_traffic, parts.traffic),
            self._groups.readings,
            self._links.readings,
            self._of_parts,
        ):
            self._metrics.add(source)
        self._kafka = NodeMetrics(kafka_exporter.DECLARED, node=None)
        self._kafka.add(partial(kafka_exporter.of_groups, lambda: self._groups.looked))
        self._kafka.add(partial(kafka_exporter.of_topics, parts.topics))
        self._kafka.add(self._brokers)

    def start(self) -> None:
        """Start sampling what is not counted as it happens; this ends with the parts."""
        self._groups.start()
        self._links.start()

    async def text(self) -> bytes:
        """The text of `/metrics`."""
        return await self._metrics.text(metrics.of_status(await self._status()))

    async def kafka_text(self) -> bytes:
        """The text of `/metrics/kafka`."""
        return await self._kafka.text()

    def _of_parts(self) -> Iterator[Reading]:
        parts, controller = self._parts, self._controller
        status = controller.status() if controller.holds_lease else None
        waiting = 0 if status is None else len(status.waiting)
        if status is not None:
            yield from metrics.of_nodes(status.nodes.values())
        yield from metrics.of_containers(parts.containers, parts.cluster.view.containers, waiting=waiting)
        yield from metrics.counts(declared.TRACE_SPANS, self._tracing.outcomes)
        yield from metrics.counts(declared.THROTTLED_SECONDS, parts.throttle.throttled_s)
        yield from metrics.counts(declared.LOGINS, parts.logins.succeeded)
        yield from metrics.counts(declared.LOGINS_REFUSED, parts.logins.refused)
        for metric, value in (
            (declared.CHUNKS_DROPPED, parts.maintenance.dropped),
            (declared.SCRUB_FINDINGS, parts.scrub.found),
            (declared.ROLLS, parts.rolls.ended),
            (declared.FAILOVERS, controller.events.failovers),
            (declared.HAND_OVERS, controller.events.hand_overs),
            (declared.BALANCE_MOVES, controller.events.balance_moves),
            (declared.SET_ASIDE, self._applier.quarantined),
        ):
            yield Reading(metric, float(value))

    def _brokers(self) -> Iterator[Reading]:
        yield Reading(kafka_exporter.BROKERS, float(self._parts.cluster.node_count))

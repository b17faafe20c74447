"""What a node tells Prometheus: the readings of its parts, put together for its HTTP port.

Loaded where there is such a port: prometheus-client is of no use to other nodes.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from headrace.admin import metrics
from headrace.admin.group_metrics import GroupMetrics
from headrace.metrics.declarations import ALL
from headrace.metrics.exposition import NodeMetrics
from headrace.metrics.log_times import LogTimes
from headrace.node.parts import NodeParts

Status = Callable[[], Awaitable[dict[str, Any]]]


class NodeScrape:
    """Answers scrapes of one node."""

    def __init__(self, parts: NodeParts, *, status: Status, log_times: LogTimes) -> None:
        self._status = status
        self._groups = GroupMetrics(
            runtime=parts.runtime,
            catalog=parts.catalog,
            coordination=parts.coordination,
            states=parts.partition_states,
        )
        self._metrics = NodeMetrics(ALL, node=str(parts.node.node_id))
        for source in (
            partial(metrics.of_requests, parts.dispatcher.times),
            partial(metrics.of_log, log_times),
            partial(metrics.of_loop, parts.loop_lag),
            partial(metrics.of_traffic, parts.traffic),
            self._groups.readings,
        ):
            self._metrics.add(source)

    def start(self) -> None:
        """Look at what is not counted as it happens, from now on, for as long as the parts run."""
        self._groups.start()

    async def text(self) -> bytes:
        """What `/metrics` answers."""
        return await self._metrics.text(metrics.of_status(await self._status()))

    async def kafka_text(self) -> bytes:
        """What `/metrics/kafka` answers."""
        return b""

"""A probe's measurements for Prometheus: served over HTTP while the probe runs."""

from collections.abc import Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server

from headrace.base.errors import HeadraceError
from headrace.cli.probing import Result

BUCKETS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class ProbeMetrics:
    """Counts results, by node. A node that is no longer there has no series."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._produce = Histogram(
            "headrace_probe_produce_seconds",
            "Time from sending a record to a node until it is acknowledged.",
            ["node"],
            registry=self.registry,
            buckets=BUCKETS_S,
        )
        self._roundtrip = Histogram(
            "headrace_probe_roundtrip_seconds",
            "Time from sending a record to a node until it is read back from there.",
            ["node"],
            registry=self.registry,
            buckets=BUCKETS_S,
        )
        self._probes = Counter("headrace_probe_probes", "Number of probes of a node.", ["node"], registry=self.registry)
        self._failures = Counter(
            "headrace_probe_failures", "Number of probes of a node that failed.", ["node"], registry=self.registry
        )
        self._nodes: set[int] = set()

    def add(self, results: Sequence[Result]) -> None:
        """Count one round's results."""
        now = {result.node for result in results}
        if now:
            for gone in self._nodes - now:
                for metric in (self._produce, self._roundtrip, self._probes, self._failures):
                    metric.remove(str(gone))
            self._nodes = now
        for result in results:
            node = str(result.node)
            self._probes.labels(node).inc()
            self._failures.labels(node).inc(bool(result.error))
            for metric, latency in ((self._produce, result.produce_s), (self._roundtrip, result.roundtrip_s)):
                series = metric.labels(node)
                if latency is not None:
                    series.observe(latency)

    def serve(self, host: str, port: int) -> int:
        """Serve the metrics in a thread, and return the port. Raises HeadraceError."""
        try:
            server, _ = start_http_server(port, addr=host, registry=self.registry)
        except (OSError, OverflowError) as error:
            raise HeadraceError(f"metrics cannot be served on {host}:{port}: {error}") from error
        return int(server.server_port)

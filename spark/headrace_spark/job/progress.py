"""A job's progress, from its queries' reports and the cluster's offsets, served over HTTP.

    /livez    200 while the driver's process answers
    /readyz   200 while queries run
    /status   JSON, from `Progress.status`: what the operator shows in the StreamJob's status
    /metrics  the same in Prometheus's text format

The lag is read from the cluster every few seconds rather than from Spark's reports, which arrive only when a batch is
done: so a batch that takes long, or hangs, is noticed. Queries are tracked from their start, so that one that fails at
once is not missed.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from headrace_spark.cursors import _sources, lag
from headrace_spark.errors import SourceError
from headrace_spark.job import Job
from headrace_spark.job.ends import one_line
from headrace_spark.job.exposition import CONTENT_TYPE, JobMetrics
from headrace_spark.job.metrics import Lag, Rate
from headrace_spark.offsets import committed_cursors
from headrace_spark.options import Partition, ReadOptions, read_options
from headrace_spark.plan import positions_from_json
from headrace_spark.subscription import Subscription

log = logging.getLogger(__name__)

PORT: Final = 4041
LOOK_S: Final = 2.0
LOOK_SHARE: Final = 20
"""The next look starts no sooner than after this multiple of the last look's duration."""
LONGEST_PAUSE_S: Final = 20.0
"""The maximum number of seconds between two looks: a look that was slow because the cluster was slow does not delay the
next for minutes.
"""
LOOK_TIMEOUT: Final = "5"
LAST_LOOK_S: Final = 15.0
"""Seconds that a finished job waits for the last look; if that takes longer, the last report has the look before."""


class Progress(StreamingQueryListener):
    """The progress of all queries of a session. Called by Spark's thread, the looker's and those of HTTP."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._running: dict[str, str | None] = {}
        self._reported_lag: dict[str, int] = {}
        self._lags: dict[str, Lag] = {}
        self._positions: dict[str, dict[Partition, int]] = {}
        self._rate = Rate()
        self._batches = 0
        self._at_ms = 0
        self._ended: set[str] = set()
        self.started = 0
        self.executors = 0
        self.wanted_executors: int | None = None
        self.failure = ""
        """One line, from the first query that failed."""

    # --- Spark's side

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Record a query's start; Spark waits for this before `start()` returns."""
        with self._lock:
            self.started += 1
            self._running[str(event.runId)] = event.name
            self._rate.start(now=self._clock())

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Record a finished batch."""
        progress = event.progress
        with self._lock:
            self._batches += bool(progress.numInputRows)
            self._rate.batch(progress.numInputRows, progress.batchDuration / 1000, now=self._clock())
            self._at_ms = time.time_ns() // 1_000_000
            self._reported_lag[str(progress.runId)] = lag(progress)
            for end, _ in _sources(progress):
                self._positions.setdefault(end["group"], {}).update(positions_from_json(end["positions"]))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Record that there is nothing to read."""
        with self._lock:
            self._reported_lag[str(event.runId)] = 0

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Record a query's end."""
        with self._lock:
            self._running.pop(str(event.runId), None)
            self._reported_lag.pop(str(event.runId), None)
            self._ended.add(str(event.runId))
            if event.exception and not self.failure:
                self.failure = one_line(event.exception)

    def again(self) -> None:
        """Reset what is known of queries: all have ended, and are started again."""
        with self._lock:
            self.failure = ""
            self.started = 0
            self._ended.clear()

    @property
    def over(self) -> bool:
        """Whether the end of every started query has been reported."""
        with self._lock:
            return len(self._ended) >= self.started

    # --- the cluster's side

    def looked(self, group: str, ends: Mapping[Partition, int], cursors: Mapping[Partition, int]) -> None:
        """Note where an input's partitions end; `cursors` are the group's committed offsets at this driver's start."""
        with self._lock:
            positions = {**cursors, **self._positions.get(group, {})}
            self._lags.setdefault(group, Lag()).look(ends, positions, now=self._clock())

    def status(self) -> dict[str, Any]:
        """Return the content of `/status`."""
        with self._lock:
            state = "Failed" if self.failure else "Running" if self._running else "Done" if self.started else "Starting"
            if self._lags:
                records = sum(each.records for each in self._lags.values())
            else:
                records = sum(self._reported_lag.values())
            return {
                "state": state,
                "failure": self.failure,
                "queries": sorted(name or "" for name in self._running.values()),
                "lag_known": bool(self._lags),
                "lag_records": records,
                "lag_s": round(max((each.seconds for each in self._lags.values()), default=0.0), 1),
                "records": self._rate.records,
                "records_per_s": round(self._rate.per_second(now=self._clock()), 1),
                "batch_s": round(self._rate.batch_s, 3),
                "batches": self._batches,
                "last_progress_ms": self._at_ms,
                "executors": self.executors,
                "wanted_executors": self.wanted_executors,
            }

    def batch_times(self) -> tuple[Sequence[int], float]:
        """Return the numbers of batches with records by duration, as `Rate` counts them, and their total seconds."""
        with self._lock:
            return list(self._rate.batch_counts), self._rate.batches_s


class Looker:
    """Reads, in a separate thread, where the job's inputs end in the cluster, until it is stopped."""

    def __init__(self, job: Job, progress: Progress, *, every_s: float = LOOK_S) -> None:
        self._job = job
        self._progress = progress
        self._every_s = every_s
        self._stop = threading.Event()
        self._once_more = False
        self._cursors: dict[str, dict[Partition, int]] = {}
        self._thread = threading.Thread(target=self._run, name="lag", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Make the thread stop."""
        self._stop.set()

    def finish(self) -> None:
        """Look once more, since the last look was before the end of the last batch; then stop."""
        self._once_more = True
        self._stop.set()
        self._thread.join(LAST_LOOK_S)

    def _run(self) -> None:
        inputs = []
        for each in self._job.inputs:
            reading = self._job.reading(each.name)
            options = read_options(reading | {"timeout": LOOK_TIMEOUT})
            inputs.append((reading["group"], options, Subscription(options)))
        took = 0.0
        stopped = False
        while not stopped:
            stopped = self._stop.wait(pause_after(took, every_s=self._every_s))
            if stopped and not self._once_more:
                return
            began = time.monotonic()
            for group, options, subscription in inputs:
                self._look(group, options, subscription)
            took = time.monotonic() - began

    def _look(self, group: str, options: ReadOptions, subscription: Subscription) -> None:
        try:
            partitions = subscription.partitions()
            ends = subscription.latest(partitions)
            if group not in self._cursors:
                self._cursors[group] = self._begin(group, options, subscription, partitions)
            self._progress.looked(group, ends, self._cursors[group])
        except SourceError as error:
            log.warning("the lag cannot be read at present: %s", error)

    def _begin(
        self, group: str, options: ReadOptions, subscription: Subscription, partitions: list[Partition]
    ) -> dict[Partition, int]:
        """Return the group's committed offsets when this driver started; without one, the input's starting offset."""
        from headrace_spark.cluster import Cluster

        with Cluster(options.connection) as cluster:
            cursors = committed_cursors(cluster, group, partitions)
        return subscription.at(options.starting, partitions) | cursors


def pause_after(took_s: float, *, every_s: float = LOOK_S) -> float:
    """Return the seconds until the next look, after one that took `took_s`."""
    return max(every_s, min(took_s * LOOK_SHARE, LONGEST_PAUSE_S))


def serve(progress: Progress, *, job: str, port: int = PORT) -> ThreadingHTTPServer:
    """Start to serve the progress of the StreamJob `job`, in separate threads. Close the server with `shutdown`."""
    metrics = JobMetrics(progress, job=job)
    types = {"/status": "application/json", "/metrics": CONTENT_TYPE}

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, body = 200, b"ok"
            match self.path:
                case "/status":
                    body = json.dumps(progress.status()).encode()
                case "/metrics":
                    body = metrics.text()
                case "/livez":
                    pass
                case "/readyz":
                    state = progress.status()["state"]
                    code, body = (200 if state == "Running" else 503), state.encode()
                case _:
                    code, body = 404, b"not found"
            self.send_response(code)
            self.send_header("Content-Type", types.get(self.path, "text/plain"))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Do not log probes."""

    server = ThreadingHTTPServer(("", port), Answer)
    threading.Thread(target=server.serve_forever, name="progress", daemon=True).start()
    return server

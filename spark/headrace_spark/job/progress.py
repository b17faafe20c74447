"""How a job's queries get on, told over HTTP: what `kubectl get streamjobs` shows.

    /livez    200 while no query has failed
    /status   JSON: state, lag_records, lag_s, records_per_s, batch_s, queries, executors, last_progress_ms
"""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from headrace_spark.cursors import lag

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PORT: Final = 4041


class Progress(StreamingQueryListener):
    """Of all queries of a session."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: dict[str, dict[str, Any]] = {}
        self._behind_since: dict[str, float] = {}
        self.failure = ""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """See StreamingQueryListener."""
        with self._lock:
            self._queries[str(event.id)] = {"name": event.name, "lag": 0, "rate": 0.0, "batch_s": 0.0}

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """See StreamingQueryListener."""
        progress = event.progress
        behind = lag(progress)
        with self._lock:
            key = str(progress.id)
            self._queries[key] = {
                "name": progress.name,
                "lag": behind,
                "rate": float(progress.processedRowsPerSecond or 0.0),
                "batch_s": progress.batchDuration / 1000,
                "at_ms": int(time.time() * 1000),
            }
            if behind:
                self._behind_since.setdefault(key, time.monotonic())
            else:
                self._behind_since.pop(key, None)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """See StreamingQueryListener."""
        with self._lock:
            key = str(event.id)
            self._behind_since.pop(key, None)
            if key in self._queries:
                self._queries[key] |= {"lag": 0, "rate": 0.0}

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """See StreamingQueryListener."""
        with self._lock:
            self._queries.pop(str(event.id), None)
            self._behind_since.pop(str(event.id), None)
            if event.exception:
                self.failure = str(event.exception).splitlines()[0][:500]

    def status(self) -> dict[str, Any]:
        """What `/status` answers. `lag_s`: how long the slowest query has been behind, or needs at its rate."""
        now = time.monotonic()
        with self._lock:
            queries = list(self._queries.values())
            waits = [now - since for since in self._behind_since.values()]
        needs = [each["lag"] / each["rate"] for each in queries if each["rate"]]
        return {
            "state": "Failed" if self.failure else "Running" if queries else "Starting",
            "failure": self.failure,
            "queries": [each["name"] for each in queries],
            "lag_records": sum(each["lag"] for each in queries),
            "lag_s": round(min(max(waits, default=0.0), max(needs, default=0.0)), 3) if needs else 0.0,
            "records_per_s": round(sum(each["rate"] for each in queries), 1),
            "batch_s": max((each["batch_s"] for each in queries), default=0.0),
            "last_progress_ms": max((each.get("at_ms", 0) for each in queries), default=0),
        }


def serve(progress: Progress, spark: "SparkSession", *, port: int = PORT) -> ThreadingHTTPServer:
    """Answer in a thread of its own."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/status":
                executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
                body, code = json.dumps(progress.status() | {"executors": executors}).encode(), 200
            elif self.path == "/livez":
                body, code = (progress.failure or "ok").encode(), 500 if progress.failure else 200
            else:
                body, code = b"not found", 404
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("", port), Answer)
    threading.Thread(target=server.serve_forever, name="progress", daemon=True).start()
    return server

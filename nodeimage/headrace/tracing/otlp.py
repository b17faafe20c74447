"""Exports spans to a collector by OpenTelemetry's SDK and its OTLP/HTTP exporter. Loaded only if there is an endpoint,
since it needs `pip install headrace[tracing]`.

A thread of the SDK batches and posts spans, and no other thread ever waits for it. At most `MAX_WAITING` spans wait or
are being posted; further spans are dropped, and so is a batch that the collector does not accept within the timeout.
Both are counted. A collector that is unreachable, hangs or is slow has no other effect.

The timeout of a post, headers, certificates, compression, sampling and attributes of the resource are set by
OpenTelemetry's own environment variables (OTEL_EXPORTER_OTLP_TIMEOUT and so on).
"""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import requests
import structlog
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind as OtelKind
from opentelemetry.trace import StatusCode

from headrace import __version__
from headrace.tracing.spans import ADMIN, Span

log = structlog.get_logger()

MAX_WAITING: Final = 2048
AT_ONCE: Final = 256
"""The most spans in one post."""
DELAY_S: Final = 2.0
"""Seconds for which spans are gathered before a post."""
CLOSE_S: Final = 1.0
"""Seconds for which a node that ends waits until the remaining spans are posted."""
SERVICE: Final = "headrace"

logging.getLogger("opentelemetry").addHandler(logging.NullHandler())  # `_Exporter` logs what matters, once


class OtlpTracer:
    """The Tracer of one node, which also counts exported and dropped spans."""

    is_on: Final = True

    def __init__(
        self,
        endpoint: str,
        *,
        resource: Mapping[str, str],
        most_waiting: int = MAX_WAITING,
        at_once: int = AT_ONCE,
        delay_s: float = DELAY_S,
    ) -> None:
        """[blocking] `endpoint`: the complete address. `resource`: the node's attributes, in addition to those from the
        environment."""
        self._exporter = _Exporter(endpoint)
        self._batches = BatchSpanProcessor(
            self._exporter,
            max_queue_size=most_waiting,
            max_export_batch_size=at_once,
            schedule_delay_millis=delay_s * 1000,
        )
        self._handed = _Handed(self._batches)
        self._most = most_waiting
        self._dropped = 0
        provider = TracerProvider(resource=_resource(resource), shutdown_on_exit=False)
        provider.add_span_processor(self._handed)
        self._tracer = provider.get_tracer(SERVICE, __version__)
        self._failed = False

    def ended(self, span: Span, /) -> None:
        """See Tracer."""
        if self._waiting >= self._most:  # else the SDK's queue would silently drop the oldest span
            self._dropped += 1
            return
        try:
            self._make(span)
        except Exception:  # tracing must not end anything in the node, whatever the error
            self._dropped += 1
            if not self._failed:
                self._failed = True
                log.exception("a span could not be created", span=span.kind.name)

    def _make(self, span: Span) -> None:
        now = time.time_ns()
        made = self._tracer.start_span(
            span.name,
            context=Context(),  # no parent, whatever task this runs in
            kind=OtelKind.SERVER if span.kind is ADMIN else OtelKind.INTERNAL,
            attributes=span.told(),
            start_time=now - int(span.took_s * 1e9),
        )
        if span.error:
            made.set_status(StatusCode.ERROR)
        made.end(now)

    @property
    def outcomes(self) -> Mapping[str, int]:
        """The numbers of exported and of dropped spans since the start."""
        return {"exported": self._exporter.exported, "dropped": self._dropped + self._exporter.failed}

    @property
    def _waiting(self) -> int:
        """Spans that wait or are being posted. Each of the three counters is changed by one thread only."""
        return self._handed.count - self._exporter.exported - self._exporter.failed

    @property
    def problem(self) -> str:
        """The reason why the collector did not accept the last batch; "" if it did, or there was no batch."""
        return self._exporter.problem

    async def close(self) -> None:
        """Posts the remaining spans for `CLOSE_S` seconds at most, and drops the rest."""
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def shut_down() -> None:
            self._batches.shutdown()  # type: ignore[no-untyped-call]
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(done.set)

        # A daemon thread, like the SDK's own: the end of the process does not wait for it.
        threading.Thread(target=shut_down, name="end of traces", daemon=True).start()
        try:
            async with asyncio.timeout(CLOSE_S):
                await done.wait()
        except TimeoutError:
            self._exporter.shutdown()
        if lost := self._waiting:
            log.warning("spans were dropped at shutdown: the collector did not accept them in time", count=lost)


class _Handed(SpanProcessor):
    """Passes sampled spans to the SDK for export, and counts them."""

    def __init__(self, batches: BatchSpanProcessor) -> None:
        self._batches = batches
        self.count = 0

    def on_end(self, span: ReadableSpan) -> None:
        """See SpanProcessor."""
        if span.context.trace_flags.sampled:
            self.count += 1
            self._batches.on_end(span)


class _Exporter(SpanExporter):
    """Posts batches and counts spans. Runs in the SDK's thread."""

    def __init__(self, endpoint: str) -> None:
        self._session = _Session()
        self._posts = OTLPSpanExporter(endpoint=endpoint, session=self._session)
        self._endpoint = endpoint
        self._closed = False
        self.exported = 0
        self.failed = 0
        self.problem = ""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See SpanExporter."""
        result = SpanExportResult.FAILURE
        try:
            result = self._posts.export(spans)
        finally:
            if result is SpanExportResult.SUCCESS:
                self.exported += len(spans)
                self._tell("")
            else:
                self.failed += len(spans)
                self._tell(self._session.problem or "it did not accept them")
        return result

    def _tell(self, problem: str) -> None:
        if problem and not self.problem and not self._closed:
            log.warning("traces are dropped, as the collector does not accept them", to=self._endpoint, reason=problem)
        elif self.problem and not problem:
            log.info("the collector accepts traces again", to=self._endpoint)
        self.problem = problem

    def shutdown(self) -> None:
        """See SpanExporter. May be called again."""
        if not self._closed:
            self._closed = True
            self._posts.shutdown()  # type: ignore[no-untyped-call]

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """See SpanExporter."""
        return True


class _Session(requests.Session):
    """Posts, and knows why the last post failed. The body of a response is not read, since it may never end."""

    def __init__(self) -> None:
        super().__init__()
        self.problem = ""

    def request(self, *args: Any, **more: Any) -> requests.Response:
        """See requests.Session."""
        try:
            response = super().request(*args, **{**more, "stream": True})
        except requests.RequestException as error:
            self.problem = _why(error)
            raise
        response.close()
        self.problem = "" if response.ok else f"it answers {response.status_code}"
        return response


def _why(error: requests.RequestException) -> str:
    """The reason of a failed post, without the address and without headers."""
    if isinstance(error, requests.Timeout):
        return "it does not answer in time"
    told = next((cause.errno for cause in _causes(error) if isinstance(cause, OSError) and cause.errno), None)
    return type(error).__name__ if told is None else os.strerror(told)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and its causes: urllib3 keeps them in `reason`, requests in `args`."""
    for _ in range(10):
        if error is None:
            return
        yield error
        inside = [getattr(error, "reason", None), *error.args, error.__cause__, error.__context__]
        error = next((each for each in inside if isinstance(each, BaseException)), None)


def _resource(given: Mapping[str, str]) -> Resource:
    made = Resource.create(dict(given))
    if str(made.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):  # the environment sets no name
        made = made.merge(Resource({SERVICE_NAME: SERVICE}))
    return made

"""Spans reach a collector, and a collector that does not accept them blocks nothing."""

import asyncio
from collections.abc import Iterator

import pytest
import structlog.testing

from headrace import __version__
from headrace.tracing import otlp
from headrace.tracing.otlp import CLOSE_S, OtlpTracer
from headrace.tracing.spans import ADMIN, ROLL, Span
from kit.collector import PATH, Collector, Manner
from kit.loop_time import passed_ms
from kit.patience import PATIENCE
from kit.storage import until

RESOURCE = {"service.version": __version__, "headrace.node": "3"}
QUICK = 0.05
POST_S = 30 * PATIENCE
"""Seconds that a post may take, and so the time that anything would lose that waited for a post that hangs."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as made:
        yield made


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", str(POST_S))


def tracer_of(collector: Collector, **options: int) -> OtlpTracer:
    return OtlpTracer(collector.endpoint + PATH, resource=RESOURCE, delay_s=QUICK, **options)


def rolled(number: int = 0) -> Span:
    return Span(ROLL, 0.5, {"headrace.partition": number})


def outcomes(tracer: OtlpTracer) -> tuple[int, int]:
    return tracer.outcomes["exported"], tracer.outcomes["dropped"]


async def test_spans_come_as_they_are_with_what_the_node_is(collector: Collector) -> None:
    tracer = tracer_of(collector)
    tracer.ended(Span(ROLL, 2.5, {"headrace.partition": 7, "headrace.is_home_roll": True, "headrace.path": "/a:b"}))
    tracer.ended(Span(ADMIN, 0.1, {"headrace.paths": 2}, detail="CreateTopics", error="INVALID_CONFIG"))
    await until(lambda: len(collector.spans) == 2)
    roll, call = collector.spans
    assert roll.name == "headrace.roll"
    assert roll.attributes == {"headrace.partition": 7, "headrace.is_home_roll": True, "headrace.path": "/a:b"}
    assert abs(roll.took_s - 2.5) < 0.001
    assert not roll.is_error
    assert call.name == "headrace.admin/CreateTopics"
    assert call.attributes == {"headrace.paths": 2, "error.type": "INVALID_CONFIG"}
    assert call.is_error
    assert roll.is_root
    assert call.is_root
    assert roll.trace != call.trace
    assert roll.resource["service.name"] == "headrace"
    assert RESOURCE.items() <= roll.resource.items()
    await until(lambda: outcomes(tracer) == (2, 0))
    await tracer.close()


async def test_the_environment_says_headers_and_names(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-token=hunter2")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "plant")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    tracer = tracer_of(collector)
    tracer.ended(rolled())
    await until(lambda: outcomes(tracer) == (1, 0))
    await tracer.close()
    (span,) = collector.spans
    assert span.resource["service.name"] == "plant"
    assert span.resource["deployment.environment.name"] == "test"
    assert collector.headers[0]["x-token"] == "hunter2"


async def test_what_is_left_is_posted_at_the_end(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "CLOSE_S", POST_S)
    tracer = OtlpTracer(collector.endpoint + PATH, resource=RESOURCE, delay_s=3600)
    for number in range(1000):
        tracer.ended(rolled(number))
    await tracer.close()
    assert sorted(each.attributes["headrace.partition"] for each in collector.spans) == list(range(1000))
    assert outcomes(tracer) == (1000, 0)


async def test_a_collector_that_is_away_is_told_once_and_found_again(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")  # else it retries for as long as the timeout
    tracer = tracer_of(collector)

    def arrives() -> bool:
        tracer.ended(rolled())
        return tracer.outcomes["exported"] > 0

    with structlog.testing.capture_logs() as told:
        with collector.away():
            for number in range(3):
                before = tracer.outcomes["dropped"]
                tracer.ended(rolled(number))
                await until(lambda: tracer.outcomes["dropped"] > before)  # noqa: B023
            assert tracer.problem == "Connection refused"
        await until(arrives)
        assert tracer.problem == ""
        await tracer.close()
    assert [(each["log_level"], each["event"]) for each in told] == [
        ("warning", "traces are dropped, as the collector does not accept them"),
        ("info", "the collector accepts traces again"),
    ]
    assert told[0]["reason"] == "Connection refused"


async def test_a_collector_that_refuses_is_told_with_what_it_answers(collector: Collector) -> None:
    collector.manner = Manner.REFUSES
    tracer = tracer_of(collector)
    tracer.ended(rolled())
    await until(lambda: outcomes(tracer) == (0, 1))
    assert tracer.problem == "it answers 400"
    await tracer.close()


async def test_a_collector_that_hangs_costs_a_bounded_number_of_spans_and_no_time(collector: Collector) -> None:
    collector.manner = Manner.HANGS
    tracer = tracer_of(collector, most_waiting=100, at_once=10)
    loop = asyncio.get_running_loop()
    tracer.ended(rolled())
    await until(lambda: collector.requests == 1)
    for number in range(1000):
        tracer.ended(rolled(number))
    assert outcomes(tracer) == (0, 901)
    assert collector.requests == 1
    began = loop.time()
    with structlog.testing.capture_logs() as told:
        await tracer.close()
    assert CLOSE_S * 1000 <= passed_ms(began) < POST_S * 1000
    assert [each["event"].partition(":")[0] for each in told] == ["spans were dropped at shutdown"]


async def test_a_collector_that_is_slow_gets_what_it_can_take(collector: Collector) -> None:
    collector.manner = Manner.SLOW
    tracer = tracer_of(collector, most_waiting=40, at_once=10)
    tracer.ended(rolled())
    await until(lambda: collector.requests == 1)
    for number in range(500):
        tracer.ended(rolled(number))
    assert tracer.outcomes["dropped"] >= 461 - tracer.outcomes["exported"]
    await until(lambda: sum(outcomes(tracer)) == 501)
    assert tracer.outcomes["exported"] == len(collector.spans) >= 40
    assert tracer.problem == ""
    await tracer.close()


async def test_an_answer_without_end_is_not_read(collector: Collector) -> None:
    collector.manner = Manner.ENDLESS
    tracer = tracer_of(collector)
    for number in range(3):
        tracer.ended(rolled(number))
        await until(lambda: tracer.outcomes["exported"] == number + 1)  # noqa: B023
    await tracer.close()


async def test_a_span_that_cannot_be_made_ends_nothing(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    tracer = tracer_of(collector)
    monkeypatch.setattr(tracer, "_tracer", None)
    with structlog.testing.capture_logs() as told:
        tracer.ended(rolled())
        tracer.ended(rolled())
    assert [each["event"] for each in told] == ["a span could not be created"]
    assert outcomes(tracer) == (0, 2)
    await tracer.close()


async def test_what_is_not_sampled_goes_nowhere(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    tracer = tracer_of(collector)
    tracer.ended(rolled())
    await tracer.close()
    assert (outcomes(tracer), collector.requests) == ((0, 0), 0)


def test_why_a_post_failed_is_said_without_what_it_asked_for() -> None:
    refused = otlp.requests.ConnectionError(OSError(111, "Connection refused"))
    assert otlp._why(refused) == "Connection refused"
    assert otlp._why(otlp.requests.ReadTimeout("http://here?token=hunter2")) == "it does not answer in time"
    assert otlp._why(otlp.requests.exceptions.InvalidHeader("token=hunter2")) == "InvalidHeader"

"""A node's traces: a real node and a real client, with a collector that works, is unreachable, or cannot be used."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from headrace.base.errors import Code, KafkaError
from headrace.node import Options, tracing
from headrace.node.metrics import NodeScrape
from headrace.node.tracing import Tracing
from headrace.partitions.cluster_layout import NodeSettings
from headrace.tracing import otlp
from headrace.tracing.endpoint import MISSING
from headrace.tracing.tracer import NO_TRACER
from headrace.wire.api_keys import ApiKey
from kit.collector import Collector, Manner
from kit.storage import MIB, Running, until


class Traced(Running):
    """A node with an endpoint for traces."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        super().__init__(folder, NodeSettings(chunk_bytes=MIB, disk_reserve=0, fsync=False, rebalance_delay_ms=0))
        self.endpoint = endpoint
        folder.mkdir()

    def options(self) -> Options:
        return replace(super().options(), tracing_endpoint=self.endpoint)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as made:
        yield made


async def flushed(running: Running) -> None:
    """Wait until all spans have been posted."""
    made = running.node._tracing._otlp
    assert made is not None
    await asyncio.to_thread(made._batches.force_flush)


async def test_calls_of_administrators_are_traced_and_others_are_not(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "CLOSE_S", 100.0)
    node = Traced(tmp_path / "node", collector.endpoint)
    await node.start()
    try:
        await node.call("admin", "stream.create", path="/plant")
        await node.call("admin", "stream.create", path="/other", policy={"ttl_ms": 1000})
        with pytest.raises(KafkaError):
            await node.call("admin", "stream.show", path="/absent")
        await node.call("admin", "user.create", name="me", password="hunter2-hunter2")
        with pytest.raises(KafkaError):
            await node.call("admin", "no.such.method", path="/plant")
        await node.call("create", "/plant:t", "u")
        topics = [{"name": "u", "num_partitions": 1, "replication_factor": -1}]
        answer = await node.call("ask", ApiKey.CREATE_TOPICS, 4, topics=topics, timeout_ms=1000)
        assert answer.topics[0].error_code == Code.TOPIC_ALREADY_EXISTS
        resources = [{"resource_type": 2, "resource_name": "u", "configuration_keys": None}]
        await node.call("ask", ApiKey.DESCRIBE_CONFIGS, 1, resources=resources)
        await node.call("put", "u", b"hunter2")
        await node.call("fetch", ("u", 0, 0))
        await node.call("admin", "roll", topic="u", partition=0)
        await flushed(node)
        spans = {each.name: each for each in collector.spans if not each.is_error}
        for api, path, count in (
            ("stream.create", "/other", 1),
            ("CreateTopics", "/plant:t", 2),
            ("DescribeConfigs", "/default:u", 1),
            ("roll", "/default:u", 1),
        ):
            told = {"headrace.path": path, "headrace.paths": count}
            assert spans[f"headrace.admin/{api}"].attributes == told
        assert spans["headrace.admin/user.create"].attributes == {}
        roll = spans["headrace.roll"].attributes
        assert (roll["headrace.path"], roll["headrace.partition"]) == ("/default:u", 0)
        steps = [roll[f"headrace.{step}_seconds"] for step in ("intent", "seal", "open", "record")]
        assert all(took_s >= 0 for took_s in steps)
        assert sum(steps) <= spans["headrace.roll"].took_s + 0.001
        failed = {each.name: each.attributes for each in collector.spans if each.is_error}
        assert failed == {
            "headrace.admin/stream.show": {
                "headrace.path": "/absent",
                "headrace.paths": 1,
                "error.type": "UNKNOWN_TOPIC_OR_PARTITION",
            },
            "headrace.admin/unknown": {"headrace.path": "/plant", "headrace.paths": 1, "error.type": "INVALID_REQUEST"},
            "headrace.admin/CreateTopics": {
                "headrace.path": "/default:u",
                "headrace.paths": 1,
                "error.type": "TOPIC_ALREADY_EXISTS",
            },
        }
        names = {each.name for each in collector.spans}
        assert names & {f"headrace.admin/{api}" for api in ("Produce", "Fetch", "Metadata", "ApiVersions")} == set()
        assert "hunter2" not in repr(collector.spans)
        resource = collector.spans[0].resource
        assert resource["headrace.node"] == "1"
        assert resource["headrace.cluster"] == node.parts.node.cluster_id
        status = (await node.call("admin", "status"))["tracing"]
        assert status["endpoint"] == f"{collector.endpoint}/v1/traces"
        assert status["spans_exported_since_start"] >= len(names)
        assert (status["spans_dropped_since_start"], status["problem"]) == (0, "")
        text = (await _scrape(node).text()).decode()
        assert 'headrace_trace_spans_total{node="1",outcome="dropped"} 0.0' in text
    finally:
        await node.stop()
    assert collector.spans[-1].name == "headrace.admin/status", "what is left is posted at the end"


async def test_a_collector_that_hangs_holds_up_neither_calls_nor_the_end(tmp_path: Path, collector: Collector) -> None:
    collector.manner = Manner.HANGS
    node = Traced(tmp_path / "node", collector.endpoint)
    await node.start()
    try:
        await node.call("admin", "stream.create", path="/a")
        await until(lambda: collector.requests == 1)
        for number in range(20):
            await node.call("admin", "stream.create", path=f"/a/{number}")
            await node.call("put", "t", b"a")
    finally:
        await node.stop()
    assert collector.requests == 1


async def test_a_node_without_an_endpoint_has_no_traces_and_says_nothing_of_them(tmp_path: Path) -> None:
    node = Traced(tmp_path / "node", "")
    await node.start()
    try:
        assert node.parts.tracer is NO_TRACER
        assert "tracing" not in await node.call("admin", "status")
        assert "headrace_trace_spans_total" not in (await _scrape(node).text()).decode()
    finally:
        await node.stop()


async def test_a_node_without_opentelemetry_says_so_and_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError("No module named 'opentelemetry'")

    monkeypatch.setattr(tracing, "import_module", missing)
    node = Traced(tmp_path / "node", "http://127.0.0.1:1")
    with structlog.testing.capture_logs() as told:
        await node.start()
    try:
        (said,) = [each for each in told if each["event"] == "this node has no traces"]
        assert said["log_level"] == "error"
        assert said["reason"] == f"{MISSING} (No module named 'opentelemetry')"
        status = await node.call("admin", "status")
        assert status["tracing"] == {"endpoint": "http://127.0.0.1:1/v1/traces", "problem": said["reason"]}
        (event,) = [each for each in node.node.controller.events if each.kind == "tracing"]
        assert event.reason == f"node 1 has no traces: {said['reason']}"
        assert await node.call("put", "t", b"a") == 0
    finally:
        await node.stop()


async def test_an_address_that_cannot_be_one_is_said_and_not_repeated() -> None:
    with ThreadPoolExecutor(1) as executor:
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://me:hunter2@here"}
        made = Tracing("", environment=environment, executor=executor)
        with structlog.testing.capture_logs() as told:
            await made.start({})
        assert "OTEL_EXPORTER_OTLP_HEADERS" in made.problem
        assert made.tracer is NO_TRACER
        assert made.shown() == {"endpoint": "", "problem": made.problem}
        assert "hunter2" not in repr((told, made.problem))
        await made.close()


async def test_whatever_the_sdk_comes_to_keeps_a_node_from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "many")
    with ThreadPoolExecutor(1) as executor:
        made = Tracing("http://127.0.0.1:1", environment={}, executor=executor)
        await made.start({})
        assert made.problem == "traces cannot be set up: ValueError"
        assert made.tracer is NO_TRACER


def test_nothing_of_opentelemetry_is_loaded_where_no_endpoint_is_given() -> None:
    code = "import sys, headrace.node.process, headrace.cli.main, headrace.node.metrics; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "headrace.node.tracing" in loaded
    assert [name for name in loaded if name.split(".")[0] in ("opentelemetry", "requests")] == []


def _scrape(running: Running) -> NodeScrape:
    return running.node._scraped()

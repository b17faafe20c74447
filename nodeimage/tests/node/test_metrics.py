"""A node's metrics as Prometheus scrapes them."""

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.base.errors import KafkaError
from headrace.metrics.declarations import ALL
from headrace.node.metrics import NodeScrape
from headrace.wire.api_keys import ApiKey
from kit.storage import NewNode, Running

Scraped = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape_of(running: Running) -> NodeScrape:
    node = running.node
    return NodeScrape(
        running.parts,
        status=node._status,
        log_times=node._log_times,
        links=node.links,
        peers=node.peers,
        controller=node.controller,
        tracing=node._tracing,
    )


class Scrape:
    """The contents of one scrape."""

    def __init__(self, text: bytes) -> None:
        self.samples: Scraped = {
            (each.name, frozenset(each.labels.items())): each.value
            for family in text_string_to_metric_families(text.decode())
            for each in family.samples
        }

    def __getitem__(self, name: str) -> dict[tuple[str, ...], float]:
        """The series of a metric, by the values of their labels without the node's."""
        return {
            tuple(value for label, value in sorted(labels) if label != "node"): value
            for (found, labels), value in self.samples.items()
            if found == f"headrace_{name}"
        }


async def test_what_clients_do_is_told(new_node: NewNode) -> None:
    node = await new_node(metrics_topics=1)
    await node.call("create", "t")
    await node.call("create", "u")
    await node.call("put", "t", b"a", b"b", b"c")
    await node.call("put", "u", b"d")
    await node.call("fetch", ("t", 0, 0))
    told = Scrape(await scrape_of(node).text())
    assert told["ready"] == {(): 1.0}
    assert told["containers"] == {("in_sync",): 2.0, ("behind",): 0.0, ("stalled",): 0.0, ("waiting",): 0.0}
    assert told["nodes"] == {("alive",): 1.0, ("in_doubt",): 0.0, ("dead",): 0.0}
    assert told["topics"] == {(): 2.0}
    assert told["stream_in_records_total"][("/default",)] == 4.0
    assert told["stream_out_records_total"][("/default",)] == 3.0
    assert list(told["topic_in_records_total"].values()) == [3.0]
    assert told["series_dropped"][("topics",)] == 1.0
    assert told["request_seconds_count"][("Produce",)] == 2.0
    phases = told["request_phase_seconds_count"]
    assert {phase: phases[("Produce", phase)] for phase in ("queue", "append", "sync", "answer")} == {
        "queue": 2.0,
        "append": 2.0,
        "sync": 2.0,
        "answer": 2.0,
    }
    whole = told["request_seconds_sum"][("Produce",)]
    parts = [value for (api, _), value in told["request_phase_seconds_sum"].items() if api == "Produce"]
    assert abs(whole - sum(parts)) < 1e-6
    assert told["log_sync_seconds_count"][()] >= 2.0


async def test_what_is_told_is_declared_and_short(new_node: NewNode) -> None:
    node = await new_node()
    text = await scrape_of(node).text()
    declared = {metric.name for metric in ALL}
    told = {line.split()[2] for line in text.decode().splitlines() if line.startswith("# TYPE")}
    assert told <= declared
    assert len(text) < 200 * 1024


async def test_a_refusal_is_counted_by_api_and_code(new_node: NewNode) -> None:
    node = await new_node()
    await node.call("create", "t")
    await node.call("produce", "t", [b"a"], partition=7)
    topics = [{"topic_id": None, "name": "absent"}]
    await node.call("ask", ApiKey.METADATA, 12, topics=topics, allow_auto_topic_creation=False)
    await node.call("ask", ApiKey.DELETE_GROUPS, 2, groups_names=["absent"])
    await asyncio.to_thread(node.client.connection.call, ApiKey.API_VERSIONS, 99, b"")
    with pytest.raises(KafkaError, match="no stream"):
        await node.call("admin", "stream.show", path="/absent")
    told = Scrape(await scrape_of(node).text())
    assert told["request_errors_total"] == {
        ("Produce", "UNKNOWN_TOPIC_OR_PARTITION"): 1.0,
        ("Metadata", "UNKNOWN_TOPIC_OR_PARTITION"): 1.0,
        ("DeleteGroups", "GROUP_ID_NOT_FOUND"): 1.0,
        ("ApiVersions", "UNSUPPORTED_VERSION"): 1.0,
        ("HeadraceAdmin", "UNKNOWN_TOPIC_OR_PARTITION"): 1.0,
    }


async def test_kafka_exporters_names_are_told_apart(new_node: NewNode) -> None:
    node = await new_node()
    await node.call("create", "t")
    await node.call("put", "t", b"a", b"b")
    text = (await scrape_of(node).kafka_text()).decode()
    assert "kafka_brokers 1.0" in text
    assert 'kafka_topic_partition_current_offset{partition="0",topic="t"} 2.0' in text
    assert "headrace_" not in text

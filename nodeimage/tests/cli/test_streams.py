"""`headrace stream` on a running node."""

from typing import Any

import pytest

from headrace.wire.batch import build_batch
from kit.commands_on_node import Headrace, stored


def test_a_stream_is_made_shown_altered_listed_and_deleted(hr: Headrace) -> None:
    policy = ("--ttl", "7d", "--no-auto-create", "--partitions", "3")
    made = hr("stream", "create", "/cli/plant", *policy, "-o", "json").json
    assert (made["ttl_ms"], made["auto_create"], made["default_partitions"]) == (604_800_000, False, 3)
    assert "stream alter" in hr("stream", "create", "/cli/plant").refused()
    assert hr("stream", "alter", "/cli/plant", "--ttl", "forever", "-o", "json").json["ttl_ms"] == 0
    assert hr("stream", "show", "/cli/plant", "-o", "json").json["default_partitions"] == 3
    assert "/cli/plant" in {stream["path"] for stream in hr("stream", "list", "-o", "json").json}
    table = hr("stream", "list").out
    assert "/cli/plant" in table
    assert "forever" in table
    assert hr("stream", "delete", "/cli/plant", "-o", "json").json == {"deleted": "/cli/plant"}
    assert "stream create" in hr("stream", "show", "/cli/plant").refused()


@pytest.mark.parametrize("path", ["no-slash", "/dots.are.not", "/", "/double//slash"])
def test_an_illegal_path_is_refused(hr: Headrace, path: str) -> None:
    assert hr("stream", "create", path).refused()


def test_a_stream_with_topics_is_deleted_only_by_force(hr: Headrace, cluster: Any) -> None:
    stream = cluster.stream()
    hr("topic", "create", f"{stream}:a")
    assert hr("stream", "delete", stream).refused()
    assert hr("stream", "delete", stream, "--force").code == 0


@pytest.mark.parametrize("at_ms", [2**63 - 1, -(2**63), 1_700_000_000_000_000])
def test_a_stream_is_shown_whatever_times_its_records_have(hr: Headrace, cluster: Any, at_ms: int) -> None:
    topic = cluster.topic(cluster.stream())
    hr("topic", "create", topic)
    stored(cluster.bootstrap, topic, bytes(build_batch([(at_ms, None, b"v", [])])))
    assert f"{at_ms} ms" in hr("stream", "show", topic.partition(":")[0]).out
    (record,) = hr("consume", topic, "--from-beginning", "-o", "json").json_lines
    assert record["timestamp"] == at_ms

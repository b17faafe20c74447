import asyncio
from typing import Any

import pytest

from headrace.admin import group_metrics
from headrace.admin.group_metrics import GroupLag, GroupMetrics, furthest_behind, shown_name
from headrace.base.errors import Code
from headrace.wire.api_keys import ApiKey
from kit.storage import NewNode, Running, new_node

__all__ = ["new_node"]


def metrics_of(node: Running) -> GroupMetrics:
    parts = node.parts
    return GroupMetrics(
        runtime=parts.runtime, catalog=parts.catalog, coordination=parts.coordination, states=parts.partition_states
    )


def told(metrics: GroupMetrics) -> dict[tuple[str, ...], float]:
    found = {}
    for each in metrics.readings():
        assert isinstance(each.value, float)
        found[(each.metric.name.removeprefix("headrace_"), *each.labels)] = each.value
    return found


async def commit(node: Running, group: str, topic: str, offset: int) -> None:
    part = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1, "committed_metadata": ""}
    fields: dict[str, Any] = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": topic, "partitions": [part]}],
    }
    answer = await asyncio.to_thread(node.client.ask, ApiKey.OFFSET_COMMIT, 8, **fields)
    assert answer.topics[0].partitions[0].error_code == Code.NONE


async def test_lag_is_told_in_records_and_seconds(new_node: NewNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node = await new_node()
    await node.call("create", "t")
    await node.call("put", "t", b"a", b"b")
    await commit(node, "g", "t", 2)
    metrics = metrics_of(node)
    assert told(metrics) == {}
    await metrics.look()
    assert told(metrics) == {
        ("groups",): 1.0,
        ("series_dropped", "groups"): 0.0,
        ("group_lag_records", "g"): 0.0,
        ("group_lag_max_records", "g"): 0.0,
        ("group_lag_seconds", "g"): 0.0,
        ("group_members", "g"): 0.0,
    }
    await node.call("put", "t", b"c", b"d", b"e")
    await metrics.look()
    now = told(metrics)
    assert now["group_lag_records", "g"] == now["group_lag_max_records", "g"] == 3.0
    assert 0.0 <= now["group_lag_seconds", "g"] < 60.0
    assert metrics.looked is not None
    ((partition,),) = (each.partitions for each in metrics.looked.told)
    assert (partition.topic, partition.partition, partition.offset, partition.records) == ("t", 0, 2, 3)


async def test_groups_beyond_the_limit_are_counted(new_node: NewNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_metrics, "MOST_GROUPS", 2)
    monkeypatch.setattr(group_metrics, "AT_ONCE", 2)
    node = await new_node()
    await node.call("create", "t")
    await node.call("put", "t", b"a", b"b", b"c", b"d", b"e")
    for offset in range(5):
        await commit(node, f'g{offset}"\n', "t", offset)
    metrics = metrics_of(node)
    await metrics.look()
    now = told(metrics)
    assert now["groups",] == 5.0
    assert now["series_dropped", "groups"] == 3.0
    assert {each[1]: value for each, value in now.items() if each[0] == "group_lag_records"} == {
        'g0"\n': 5.0,
        'g1"\n': 4.0,
    }


async def test_a_node_that_does_not_coordinate_tells_of_no_group(
    new_node: NewNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await new_node()
    metrics = metrics_of(node)
    await metrics.look()
    assert told(metrics)["groups",] == 0.0
    monkeypatch.setattr(type(node.parts.coordination), "is_here", property(lambda _: False))
    await metrics.look()
    assert told(metrics) == {}


def test_names_are_those_of_the_streams_clients() -> None:
    assert shown_name("/default", "t") == "t"
    assert shown_name("/a/b", "t") == "/a/b:t"


def test_the_furthest_behind_come_first() -> None:
    groups = [GroupLag(name, lag, lag, None, None, ()) for name, lag in (("a", 1), ("b", 7), ("c", 7))]
    assert [each.group for each in furthest_behind(groups)] == ["b", "c", "a"]

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headrace.admin import group_metrics
from headrace.admin.group_metrics import AT_ONCE, FurthestBehind, GroupLag, GroupMetrics, shown_name
from headrace.base.errors import Code
from headrace.base.ids import LeaderEpoch, Millis, Offset
from headrace.catalog.committed_offsets import CommitOffsets, CommittedOffset
from headrace.catalog.rows import CommittedOffsetRow
from headrace.partitions.lookups import TURN
from headrace.partitions.topics import Topic
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
    monkeypatch.setattr(group_metrics, "MAX_GROUPS", 2)
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


def furthest(*groups: tuple[str, int]) -> list[str]:
    found = FurthestBehind()
    for name, lag in groups:
        found.begin(GroupLag(name)).records = lag
    return [each.group for each in found.told()]


def test_the_furthest_behind_come_first() -> None:
    assert furthest(("a", 1), ("b", 7), ("c", 7)) == ["b", "c", "a"]
    assert furthest(*((str(lag), lag) for lag in range(1000))) == [str(lag) for lag in range(999, 899, -1)]


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        ([], 0.0),
        ([None], None),
        ([None, 3.0], 3.0),
        ([7.0, None, 3.0], 7.0),
        ([0.0, 0.0], 0.0),
        ([0.0, None], None),
        ([None, 0.0], None),
        ([0.0, None, 3.0, 0.0], 3.0),
    ],
)
def test_a_group_is_as_late_as_the_oldest_that_is_known(seconds: list[float | None], told: float | None) -> None:
    group = GroupLag("g")
    for each in seconds:
        group.add(committed_offset("t", 0), 0 if each == 0.0 else 1, each)
    assert group.seconds == told


def test_few_partitions_of_a_group_are_kept_and_all_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_metrics, "MAX_OF_A_GROUP", 2)
    group = GroupLag("g")
    for topic in ("t", "u", "v", "t"):
        group.add(committed_offset(topic, 5), 3, 1.0)
    assert (group.records, group.most, group.topics) == (12, 3, {"t": 6, "u": 3})
    assert [each.topic for each in group.partitions] == ["t", "u"]


def committed_offset(topic: str, offset: int) -> CommittedOffsetRow:
    return CommittedOffsetRow(topic.encode(), "/default", topic, 0, Offset(offset), LeaderEpoch(-1), "", Millis(0))


async def test_however_many_groups_there_are_the_loop_goes_on(
    new_node: NewNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group costs a few microseconds: as many as are read at once take less than a millisecond."""
    node = await new_node()
    await node.call("create", "t")
    await node.call("put", "t", b"a")
    (topic,) = await node.parts.topics.resolve(["t"])
    assert isinstance(topic, Topic)
    at = CommittedOffset(topic.topic_id, 0, Offset(0), LeaderEpoch(-1), "")
    groups = 3 * AT_ONCE
    for number in range(groups):
        command = CommitOffsets(group=f"{number}", generation=-1, member_id="", items=[at], now=Millis(1))
        await node.parts.catalog.submit(command)
    at_once, most = 0, 0

    def count(add: Callable[..., None]) -> Callable[..., None]:
        def counted(*args: Any) -> None:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            add(*args)

        return counted

    monkeypatch.setattr(GroupLag, "__init__", count(GroupLag.__init__))
    monkeypatch.setattr(GroupLag, "add", count(GroupLag.add))
    looking = asyncio.create_task(metrics_of(node).look())
    while not looking.done():
        at_once = 0
        await asyncio.sleep(0)
    await looking
    assert 0 < most <= 2 * max(AT_ONCE, TURN), "each group has one partition"

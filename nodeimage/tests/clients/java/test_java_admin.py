"""Java's AdminClient, and the command line programs that stand on it."""

import json
from typing import Any

import pytest

from headrace.base.levels import FEATURE, NEWEST

NOON = 1_700_000_000_000


def test_a_topic_is_made_described_and_deleted(java: Any, unique: str, until: Any) -> None:
    made = java.call("create_topic", topic=unique, partitions=3)
    assert (made["partitions"], made["replication"]) == (3, 1)
    found = until(lambda: java.call("describe_topic", topic=unique), "the topic")
    assert (found["name"], found["id"]) == (unique, made["id"])
    assert [each["partition"] for each in found["partitions"]] == [0, 1, 2]
    assert {(each["replicas"], each["isr"]) for each in found["partitions"]} == {(1, 1)}
    assert any(name.endswith(unique) for name in java.call("list_topics"))
    java.call("delete_topic", topic=unique)
    until(lambda: not any(name.endswith(unique) for name in java.call("list_topics")), "the topic gone")
    with pytest.raises(Exception, match="UnknownTopicOrPartition"):
        java.call("describe_topic", topic=unique)


def test_a_topic_made_again_has_another_id_and_no_records(java: Any, unique: str, until: Any) -> None:
    first = java.call("create_topic", topic=unique, partitions=1)["id"]
    java.call("produce", topic=unique, records=[{"value": "old"}])
    java.call("delete_topic", topic=unique)
    until(lambda: not any(name.endswith(unique) for name in java.call("list_topics")), "the topic gone")
    assert java.call("create_topic", topic=unique, partitions=1)["id"] != first
    assert java.call("produce", topic=unique, records=[{"value": "new"}])[0]["offset"] == 0
    assert [each["value"] for each in java.call("read", topic=unique, expect=1)] == ["new"]


def test_wrong_topics_are_refused_with_kafkas_errors(java: Any, unique: str) -> None:
    java.call("create_topic", topic=unique, partitions=1)
    with pytest.raises(Exception, match="TopicExists"):
        java.call("create_topic", topic=unique, partitions=1)
    with pytest.raises(Exception, match="InvalidTopic"):
        java.call("create_topic", topic="no spaces", partitions=1)
    with pytest.raises(Exception, match="InvalidTopic"):
        java.call("create_topic", topic="x" * 250, partitions=1)
    with pytest.raises(Exception, match="InvalidPartitions"):
        java.call("create_topic", topic=f"{unique}-none", partitions=0)
    with pytest.raises(Exception, match=r"InvalidConfiguration|InvalidConfig"):
        java.call("create_topic", topic=f"{unique}-bad", partitions=1, configs={"retention.ms": "soon"})
    with pytest.raises(Exception, match="UnknownTopicOrPartition"):
        java.call("delete_topic", topic=f"{unique}-absent")


def test_partitions_are_added_and_never_taken(java: Any, unique: str, until: Any) -> None:
    java.call("create_topic", topic=unique, partitions=1)
    java.call("create_partitions", topic=unique, count=3)
    until(lambda: len(java.call("describe_topic", topic=unique)["partitions"]) == 3, "three partitions")
    with pytest.raises(Exception, match="InvalidPartitions"):
        java.call("create_partitions", topic=unique, count=2)
    java.call("produce", topic=unique, records=[{"value": "x", "partition": 2}])
    assert len(java.call("read", topic=unique, partitions=[2], expect=1)) == 1


def test_a_topics_configs_are_set_and_unset(java: Any, unique: str, until: Any) -> None:
    java.call("create_topic", topic=unique, partitions=1, configs={"retention.ms": "60000"})
    found = java.call("describe_configs", topic=unique)
    assert found["retention.ms"]["value"] == "60000"
    assert found["retention.ms"]["source"] == "DYNAMIC_TOPIC_CONFIG"
    assert found["cleanup.policy"]["value"] == "delete"
    java.call("set_config", topic=unique, key="retention.ms", value="120000")
    until(lambda: java.call("describe_configs", topic=unique)["retention.ms"]["value"] == "120000", "the new value")
    java.call("set_config", topic=unique, key="retention.ms")
    until(lambda: java.call("describe_configs", topic=unique)["retention.ms"]["value"] != "120000", "the default")
    assert java.call("describe_configs", topic=unique)["retention.ms"]["source"] != "DYNAMIC_TOPIC_CONFIG"
    with pytest.raises(Exception, match=r"InvalidConfiguration|InvalidConfig|InvalidRequest"):
        java.call("set_config", topic=unique, key="no.such.config", value="1")


def test_the_cluster_describes_itself(java: Any, unique: str) -> None:
    cluster = java.call("describe_cluster")
    assert cluster["id"]
    assert cluster["controller"] in cluster["nodes"]
    configs = java.call("describe_configs", broker=str(cluster["nodes"][0]))
    assert "message.max.bytes" in configs
    assert java.call("reassignments") == 0
    java.call("produce", topic=unique, records=[{"value": "x" * 1000}])
    sizes = java.call("log_dirs", topic=unique)
    assert sum(sizes.values()) >= 1000


def test_offsets_are_listed_by_every_rule(java: Any, unique: str) -> None:
    java.call("create_topic", topic=unique, partitions=1)
    for value, timestamp in (("a", NOON), ("b", NOON + 5000), ("c", NOON + 2000)):
        java.call("produce", topic=unique, records=[{"value": value, "timestamp": timestamp}])
    found = java.call("list_offsets", topic=unique, timestamp=NOON + 1)
    assert (found["earliest"][0], found["latest"][0]) == (0, 3)
    assert found["max_timestamp"] == [1, NOON + 5000]
    assert found["at"] == [1, NOON + 5000]


def test_records_are_deleted_up_to_an_offset(java: Any, unique: str) -> None:
    java.call("create_topic", topic=unique, partitions=1)
    java.call("produce", topic=unique, records=[{"value": str(i)} for i in range(10)])
    assert java.call("delete_records", topic=unique, before=6) == 6
    assert java.call("offsets", topic=unique)["beginning"] == {"0": 6}
    assert [each["offset"] for each in java.call("read", topic=unique, expect=4)] == [6, 7, 8, 9]
    with pytest.raises(Exception, match="OffsetOutOfRange"):
        java.call("delete_records", topic=unique, before=100)
    assert java.call("delete_records", topic=unique, before=-1) == 10
    assert java.call("offsets", topic=unique) == {"beginning": {"0": 10}, "end": {"0": 10}, "times": []}


@pytest.mark.headrace_only
def test_topics_of_any_stream_are_administered_by_full_name_and_alias(java: Any, cluster: Any, unique: str) -> None:
    stream = cluster.stream()
    full, alias = f"{stream}:{unique}", f"{stream.strip('/').replace('/', '.')}..{unique}"
    made = java.call("create_topic", topic=full, partitions=2)
    for name in (full, alias):
        found = java.call("describe_topic", topic=name)
        assert (found["name"], found["id"], len(found["partitions"])) == (name, made["id"], 2)
    with pytest.raises(Exception, match="TopicExists"):
        java.call("create_topic", topic=alias, partitions=2)
    java.call("set_config", topic=alias, key="retention.ms", value="60000")
    assert java.call("describe_configs", topic=full)["retention.ms"]["value"] == "60000"
    assert full in java.call("list_topics")
    java.call("delete_topic", topic=alias)
    assert full not in java.call("list_topics")


def test_kafka_topics_creates_lists_describes_and_deletes(java: Any, unique: str, until: Any) -> None:
    made = java.tool(
        "TopicCommand", "--create", "--topic", unique, "--partitions", "2", "--config", "retention.ms=60000"
    )
    assert "Created topic" in made
    until(lambda: java.call("describe_topic", topic=unique), "the topic")
    assert any(line.endswith(unique) for line in java.tool("TopicCommand", "--list").splitlines())
    described = java.tool("TopicCommand", "--describe", "--topic", unique)
    assert "PartitionCount: 2" in described
    assert "retention.ms=60000" in described
    assert described.count("Leader: ") == 2
    java.tool("TopicCommand", "--delete", "--topic", unique)
    until(lambda: not any(name.endswith(unique) for name in java.call("list_topics")), "the topic gone")


def test_kafka_consumer_groups_lists_describes_and_resets(java: Any, unique: str) -> None:
    group = f"group-{unique}"
    java.call("produce", topic=unique, records=[{"value": str(i)} for i in range(10)])
    java.call("set_group_offsets", group=group, topic=unique, offsets={"0": 4})
    tool = "consumer.group.ConsumerGroupCommand"
    patient = ("--timeout", "60000")
    assert group in java.tool(tool, "--list", *patient).split()
    described = java.tool(tool, "--describe", "--group", group, *patient)
    (line,) = [each.split() for each in described.splitlines() if each.startswith(group)]
    assert line[1:6] == [unique, "0", "4", "10", "6"]
    java.tool(tool, "--reset-offsets", "--to-earliest", "--group", group, "--topic", unique, "--execute", *patient)
    assert java.call("group_offsets", group=group)[f"{unique}-0"][0] == 0


def test_kafka_get_offsets_prints_the_ends(java: Any, unique: str) -> None:
    java.call("produce", topic=unique, records=[{"value": str(i)} for i in range(10)])
    assert f"{unique}:0:10" in java.tool("GetOffsetShell", "--topic", unique).split()


def test_kafka_reassign_partitions_verifies_and_clears_throttles_that_nobody_set(
    java: Any, unique: str, tmp_path: Any
) -> None:
    java.call("create_topic", topic=unique, partitions=1)
    (node,) = java.call("describe_cluster")["nodes"]
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"partitions": [{"topic": unique, "partition": 0, "replicas": [node]}]}))
    said = java.tool("reassign.ReassignPartitionsCommand", "--verify", "--reassignment-json-file", str(plan))
    assert f"Reassignment of partition {unique}-0 is completed" in said
    assert "Clearing broker-level throttles" in said


def test_kafka_topics_lists_what_is_at_its_minimum_in_sync(java: Any, unique: str) -> None:
    java.call("create_topic", topic=unique, partitions=1)
    assert unique in java.tool("TopicCommand", "--describe", "--topic", unique, "--at-min-isr-partitions")
    assert unique not in java.tool("TopicCommand", "--describe", "--topic", unique, "--under-min-isr-partitions")


@pytest.mark.headrace_only
def test_a_refused_transaction_says_why(java: Any) -> None:
    with pytest.raises(Exception, match="transactions are not supported"):
        java.call("init_transactions", id="t")


@pytest.mark.headrace_only
def test_the_feature_level_is_a_finalized_feature(java: Any) -> None:
    found = java.call("features")
    assert found["finalized"] == {FEATURE: NEWEST}
    assert found["epoch"] >= 1
    again = {"feature": FEATURE, "level": int(NEWEST), "type": "UPGRADE"}
    assert java.call("update_feature", **again)
    assert java.call("update_feature", **again, validate_only=True)
    assert java.call("features") == found, "it was so before"


@pytest.mark.headrace_only
@pytest.mark.parametrize(
    ("feature", "level", "type", "said"),
    [
        (FEATURE, NEWEST + 1, "UPGRADE", "supports the levels 0 to"),
        ("metadata.version", 1, "UPGRADE", "there is no feature"),
        (FEATURE, NEWEST - 1, "SAFE_DOWNGRADE", "a safe downgrade is not possible"),
        (FEATURE, NEWEST - 1, "UNSAFE_DOWNGRADE", "would lose records"),
    ],
)
def test_a_level_that_cannot_be_is_refused_with_kafkas_error(
    java: Any, feature: str, level: int, type: str, said: str
) -> None:
    before = java.call("features")
    with pytest.raises(Exception, match=f"(?s)InvalidUpdateVersion.*{said}|{said}.*InvalidUpdateVersion"):
        java.call("update_feature", feature=feature, level=int(level), type=type)
    assert java.call("features") == before


@pytest.mark.headrace_only
def test_kafka_features_describes_and_downgrades_nothing(java: Any) -> None:
    (line,) = [line for line in java.tool("FeatureCommand", "describe").splitlines() if FEATURE in line]
    assert f"FinalizedVersionLevel: {NEWEST}" in line
    with pytest.raises(Exception, match="safe downgrade is not possible"):
        java.tool("FeatureCommand", "downgrade", "--feature", f"{FEATURE}={NEWEST - 1}")
    with pytest.raises(Exception, match="would lose records"):
        java.tool("FeatureCommand", "downgrade", "--unsafe", "--feature", f"{FEATURE}={NEWEST - 1}")

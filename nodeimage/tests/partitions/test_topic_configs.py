"""A topic's configs: allowed values, changes, and what a client is shown."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import Code, KafkaError
from headrace.catalog.policy import StreamPolicy
from headrace.catalog.retention import overrides_retention, retention
from headrace.catalog.rows import Retention
from headrace.partitions.topic_config_table import DEFINITIONS, ConfigType
from headrace.partitions.topic_configs import (
    AlterOp,
    ConfigSource,
    changed_by,
    checked,
    checked_all,
    described,
    effective,
    replaced_by,
)


@dataclass(frozen=True)
class Policy:
    ttl_ms: int = 0
    retention_bytes: int = -1
    max_message_bytes: int = 1_048_588
    timestamp_type: str = "CreateTime"
    compression: str = "producer"


@dataclass(frozen=True)
class Volume:
    min_in_sync: int = 1


def shown(name: str, policy: Policy, overrides: dict[str, str], *, synonyms: bool = True) -> dict[str, object]:
    [row] = described(policy, Volume(), overrides, names=[name], synonyms=synonyms, documentation=True)
    return row


@pytest.mark.parametrize("definition", DEFINITIONS.values(), ids=DEFINITIONS)
def test_every_default_is_a_value_that_may_be_set(definition):
    assert checked(definition.name, definition.default) == definition.default
    assert definition.documentation.endswith(".")
    assert not definition.documentation.startswith(" ")


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("retention.ms", "-1", "-1"),
        ("retention.ms", "0", "0"),
        ("retention.bytes", "0", "0"),
        ("retention.ms", " 60000 ", "60000"),
        ("cleanup.policy", "compact", "compact"),
        ("cleanup.policy", "compact, delete", "compact,delete"),
        ("cleanup.policy", "compact,compact", "compact"),
        ("preallocate", "TRUE", "true"),
        ("min.cleanable.dirty.ratio", "0.01", "0.01"),
        ("message.timestamp.difference.max.ms", "9223372036854775807", "9223372036854775807"),
        ("segment.bytes", "1073741824", "1073741824"),
        ("leader.replication.throttled.replicas", "0:1, 1:2", "0:1,1:2"),
        ("compression.gzip.level", "-1", "-1"),
    ],
)
def test_a_good_value_is_kept_in_canonical_spelling(name, value, kept):
    assert checked(name, value) == kept


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "-2"),
        ("retention.ms", "1e3"),
        ("retention.ms", "1_000"),
        ("retention.ms", "٣"),
        ("retention.ms", "9223372036854775808"),
        ("retention.ms", "9" * 5000),
        ("retention.ms", ""),
        ("max.message.bytes", "2147483648"),
        ("cleanup.policy", ""),
        ("cleanup.policy", "compact,shred"),
        ("message.timestamp.type", "logappendtime"),
        ("preallocate", "yes"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.cleanable.dirty.ratio", "1.5"),
        ("min.insync.replicas", "0"),
        ("remote.storage.enable", "true"),
        ("leader.replication.throttled.replicas", "all"),
        ("compression.gzip.level", "0"),
    ],
)
def test_a_bad_value_is_refused_with_its_name(name, value):
    with pytest.raises(KafkaError, match=name) as refused:
        checked(name, value)
    assert refused.value.code is Code.INVALID_CONFIG
    assert len(str(refused.value)) < 400


def kept_or_code(name: str, value: str) -> str | Code:
    try:
        return checked(name, value)
    except KafkaError as refused:
        return refused.code


@given(st.sampled_from(sorted(DEFINITIONS)), st.text())
def test_any_text_is_kept_stably_or_refused_as_invalid_config(name, value):
    kept = kept_or_code(name, value)
    assert kept is Code.INVALID_CONFIG or checked(name, kept) == kept


def test_an_unknown_config_is_refused_with_the_known_ones():
    with pytest.raises(KafkaError, match=r"'retention\.hours'.*retention\.ms") as refused:
        checked("retention.hours", "7")
    assert refused.value.code is Code.INVALID_CONFIG


def test_a_config_without_a_value_or_given_twice_is_refused():
    with pytest.raises(KafkaError) as no_value:
        checked_all([("retention.ms", None)])
    assert no_value.value.code is Code.INVALID_CONFIG
    with pytest.raises(KafkaError) as twice:
        checked_all([("retention.ms", "1"), ("retention.ms", "2")])
    assert twice.value.code is Code.INVALID_REQUEST


class TestIncrementalChanges:
    def test_set_and_delete(self):
        change = changed_by(
            [("retention.ms", AlterOp.SET, "5"), ("segment.ms", AlterOp.DELETE, None)],
            policy=Policy(),
            overrides={"segment.ms": "7"},
        )
        assert (change.set, change.remove) == ({"retention.ms": "5"}, ["segment.ms"])

    def test_append_goes_by_the_inherited_list_and_drops_doubles(self):
        change = changed_by([("cleanup.policy", AlterOp.APPEND, "compact,delete")], policy=Policy(), overrides={})
        assert change.set == {"cleanup.policy": "delete,compact"}

    def test_subtract_goes_by_the_topics_own_list(self):
        change = changed_by(
            [("cleanup.policy", AlterOp.SUBTRACT, "delete")],
            policy=Policy(),
            overrides={"cleanup.policy": "compact,delete"},
        )
        assert change.set == {"cleanup.policy": "compact"}

    def test_a_subtraction_that_leaves_no_cleanup_policy_is_refused(self):
        with pytest.raises(KafkaError) as refused:
            changed_by([("cleanup.policy", AlterOp.SUBTRACT, "delete")], policy=Policy(), overrides={})
        assert refused.value.code is Code.INVALID_CONFIG

    @pytest.mark.parametrize("operation", [AlterOp.APPEND, AlterOp.SUBTRACT])
    def test_only_lists_are_appended_to(self, operation):
        with pytest.raises(KafkaError, match="not a list") as refused:
            changed_by([("retention.ms", operation, "5")], policy=Policy(), overrides={})
        assert refused.value.code is Code.INVALID_CONFIG

    @pytest.mark.parametrize(
        "operations",
        [
            [("retention.ms", AlterOp.SET, "5"), ("retention.ms", AlterOp.DELETE, None)],
            [("retention.ms", 9, "5")],
        ],
    )
    def test_a_config_named_twice_or_an_unknown_operation_is_an_invalid_request(self, operations):
        with pytest.raises(KafkaError) as refused:
            changed_by(operations, policy=Policy(), overrides={})
        assert refused.value.code is Code.INVALID_REQUEST

    @pytest.mark.parametrize("name", ["gone.config", "retention.ms"])
    def test_what_is_not_set_can_be_deleted_and_nothing_changes(self, name):
        change = changed_by([(name, AlterOp.DELETE, None)], policy=Policy(), overrides={name: "1"})
        assert change.remove == [name]
        change = changed_by([(name, AlterOp.DELETE, None)], policy=Policy(), overrides={})
        assert (change.set, change.remove) == ({}, [])


def test_replacing_drops_what_is_not_named():
    change = replaced_by([("retention.ms", "5")], overrides={"retention.ms": "4", "segment.ms": "9"})
    assert (change.set, change.remove) == ({"retention.ms": "5"}, ["segment.ms"])


class TestEffective:
    def test_a_topic_without_overrides_has_its_streams_policy(self):
        policy = effective(Policy(ttl_ms=7, retention_bytes=9, max_message_bytes=5, timestamp_type="LogAppendTime"), {})
        assert (policy.retention_ms, policy.retention_bytes, policy.max_message_bytes) == (7, 9, 5)
        assert policy.append_time
        assert not policy.compacted

    def test_a_ttl_of_0_is_for_ever(self):
        assert effective(Policy(ttl_ms=0), {}).retention_ms == -1

    def test_a_topic_may_outlive_its_stream(self):
        assert effective(Policy(ttl_ms=7), {"retention.ms": "-1"}).retention_ms == -1

    def test_a_compacted_topic_is_kept_whole(self):
        policy = effective(Policy(ttl_ms=7, retention_bytes=9), {"cleanup.policy": "compact", "retention.ms": "5"})
        assert (policy.retention_ms, policy.retention_bytes, policy.compacted) == (-1, -1, True)

    def test_compact_and_delete_expires_by_retention(self):
        policy = effective(Policy(ttl_ms=7), {"cleanup.policy": "compact,delete"})
        assert (policy.retention_ms, policy.compacted) == (7, True)


@given(
    ttl_ms=st.integers(0, 9),
    retention_bytes=st.sampled_from([-1, 1, 9]),
    overrides=st.fixed_dictionaries(
        {},
        optional={
            "retention.ms": st.sampled_from(["-1", "0", "1", "7"]),
            "retention.bytes": st.sampled_from(["-1", "0", "1", "7"]),
            "cleanup.policy": st.sampled_from(["delete", "compact", "compact,delete", "delete,compact"]),
        },
    ),
)
def test_what_is_shown_is_what_expiry_goes_by(ttl_ms, retention_bytes, overrides):
    policy = StreamPolicy(ttl_ms=ttl_ms, retention_bytes=retention_bytes)
    shown = effective(policy, overrides)
    rule = retention(policy, overrides) if overrides_retention(overrides) else Retention(ttl_ms, retention_bytes)
    assert (shown.retention_ms, shown.retention_bytes) == (rule.ttl_ms or -1, rule.bytes)


class TestDescribed:
    def test_a_topics_own_value_comes_with_the_streams_and_the_default_as_synonyms(self):
        row = shown("retention.ms", Policy(ttl_ms=60_000), {"retention.ms": "5"})
        assert (row["value"], row["config_source"]) == ("5", ConfigSource.TOPIC)
        assert row["config_type"] == ConfigType.LONG
        assert row["synonyms"] == [
            {"name": "retention.ms", "value": "5", "source": ConfigSource.TOPIC},
            {"name": "log.retention.ms", "value": "60000", "source": ConfigSource.STATIC_BROKER},
            {"name": "log.retention.hours", "value": "168", "source": ConfigSource.DEFAULT},
        ]

    def test_the_streams_policy_is_a_static_value_where_it_differs_from_kafkas_default(self):
        assert shown("max.message.bytes", Policy(max_message_bytes=5), {})["config_source"] == (
            ConfigSource.STATIC_BROKER
        )
        assert shown("max.message.bytes", Policy(), {})["config_source"] == ConfigSource.DEFAULT

    @pytest.mark.parametrize(("ttl_ms", "value"), [(0, "-1"), (60_000, "60000"), (604_800_000, "604800000")])
    def test_time_to_live_is_the_streams_whatever_it_is(self, ttl_ms, value):
        row = shown("retention.ms", Policy(ttl_ms=ttl_ms), {})
        assert (row["value"], row["config_source"]) == (value, ConfigSource.STATIC_BROKER)

    @pytest.mark.parametrize(
        ("least", "overrides", "source"),
        [
            (1, {}, ConfigSource.DEFAULT),
            (2, {}, ConfigSource.STATIC_BROKER),
            (2, {"min.insync.replicas": "2"}, ConfigSource.TOPIC),
            (2, {"min.insync.replicas": "3"}, ConfigSource.STATIC_BROKER),
            (1, {"min.insync.replicas": "3"}, ConfigSource.DEFAULT),
        ],
    )
    def test_the_minimum_in_sync_is_the_volumes_whatever_a_topic_says(self, least, overrides, source):
        [row] = described(Policy(), Volume(least), overrides, names=["min.insync.replicas"], synonyms=True)
        assert (row["value"], row["config_source"]) == (str(least), source)
        said = [(each["value"], each["source"]) for each in row["synonyms"]]
        assert said == [
            *((value, ConfigSource.TOPIC) for value in overrides.values()),
            *([(str(least), ConfigSource.STATIC_BROKER)] if least > 1 else []),
            ("1", ConfigSource.DEFAULT),
        ]

    def test_compaction_is_said_not_to_be_performed(self):
        row = shown("cleanup.policy", Policy(), {"cleanup.policy": "compact"})
        assert row["value"] == "compact"
        assert "not performed yet" in str(row["documentation"])

    def test_all_are_shown_in_order_of_name_and_unknown_names_left_out(self):
        rows = described(Policy(), Volume(), {})
        assert [row["name"] for row in rows] == sorted(DEFINITIONS)
        assert described(Policy(), Volume(), {}, names=["no.such"]) == []

    def test_documentation_and_synonyms_only_when_asked_for(self):
        [row] = described(Policy(), Volume(), {}, names=["retention.ms"])
        assert row["documentation"] is None
        assert not row["synonyms"]

"""Topic configs: the values that each accepts, and how it is shown."""

import pytest

from headrace.base.errors import KafkaError
from headrace.partitions.topic_config_table import (
    DEFINITIONS,
    list_entries,
    retention_of_limit,
    retention_of_ttl,
)


def test_they_are_all_there_by_name_with_a_default_that_they_take_themselves() -> None:
    assert list(DEFINITIONS) == sorted(DEFINITIONS)
    for name, definition in DEFINITIONS.items():
        assert definition.name == name
        if definition.default is not None:
            assert definition.check(definition.default) == definition.default, name


@pytest.mark.parametrize(
    ("name", "taken", "refused"),
    [
        ("retention.ms", ["-1", "1", "9223372036854775807"], ["-2", "x", "1.5", "9223372036854775808"]),
        ("segment.bytes", ["14"], ["13", "2147483648"]),
        ("compression.gzip.level", ["-1", "1", "9"], ["0", "10"]),
        ("min.cleanable.dirty.ratio", ["0", "0.5", "1"], ["1.1", "-0.1", "nan", "x"]),
        ("preallocate", ["true", "false"], ["yes", ""]),
        ("remote.storage.enable", ["false"], ["true"]),
        ("message.timestamp.type", ["CreateTime", "LogAppendTime"], ["createtime", ""]),
        ("leader.replication.throttled.replicas", ["*", "", "0:1,1:2"], ["0", "a:b"]),
    ],
)
def test_a_value_is_taken_or_refused(name: str, taken: list[str], refused: list[str]) -> None:
    check = DEFINITIONS[name].check
    for value in taken:
        check(value)
    for value in refused:
        with pytest.raises((ValueError, KafkaError)):
            check(value)


def test_entries_of_a_list_are_without_blanks() -> None:
    assert list_entries(" delete , compact ") == ["delete", "compact"]
    assert list_entries("") == []


def test_for_ever_is_minus_one_to_kafka() -> None:
    assert (retention_of_ttl(0), retention_of_ttl(5000)) == ("-1", "5000")
    assert (retention_of_limit(-1), retention_of_limit(7)) == ("-1", "7")

"""A stream's policy: the fields that a call may set, and the resulting policy."""

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.catalog.policy import PolicyChanges, StreamPolicy
from headrace.partitions.stream_policies import MAX_DESCRIPTION, PolicyFields, changes_from, policy_from
from headrace.partitions.topic_configs import MAX_PARTITIONS


def test_what_is_not_given_is_the_default_of_a_new_stream_and_unchanged_in_an_old_one() -> None:
    assert policy_from(PolicyFields()) == StreamPolicy()
    assert policy_from(PolicyFields(ttl_ms=5000)).ttl_ms == 5000
    assert changes_from(PolicyFields()) == PolicyChanges()
    changes = changes_from(PolicyFields(default_partitions=3))
    assert (changes.default_partitions, changes.ttl_ms) == (3, None)


@pytest.mark.parametrize(
    "fields",
    [
        {"ttl_ms": 0},
        {"ttl_ms": 2**63 - 1},
        {"retention_bytes": -1},
        {"retention_bytes": 1},
        {"default_partitions": 1},
        {"default_partitions": MAX_PARTITIONS},
        {"description": "d" * MAX_DESCRIPTION},
        {"compression": "zstd"},
        {"timestamp_type": "LogAppendTime"},
    ],
)
def test_values_within_their_bounds_are_taken(fields: dict[str, object]) -> None:
    policy = policy_from(PolicyFields(**fields))  # type: ignore[arg-type]
    assert {name: getattr(policy, name) for name in fields} == fields


@pytest.mark.parametrize(
    "fields",
    [
        {"ttl_ms": -1},
        {"ttl_ms": 2**63},
        {"retention_bytes": 0},
        {"retention_bytes": -2},
        {"default_partitions": 0},
        {"default_partitions": MAX_PARTITIONS + 1},
        {"description": "d" * (MAX_DESCRIPTION + 1)},
        {"compression": "rar"},
        {"timestamp_type": "Yesterday"},
        {"max_message_bytes": -1},
    ],
)
@pytest.mark.parametrize("make", [policy_from, changes_from])
def test_a_value_out_of_bounds_is_refused_with_its_name(make: object, fields: dict[str, object]) -> None:
    (name,) = fields
    with pytest.raises(KafkaError, match=f"^{name} cannot be") as refused:
        make(PolicyFields(**fields))  # type: ignore[arg-type, operator]
    assert refused.value.code is Code.INVALID_CONFIG
    assert len(str(refused.value)) < 400, "a long value is not told in full"

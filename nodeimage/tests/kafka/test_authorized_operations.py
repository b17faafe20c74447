"""Operations as bits, by Kafka's numbers."""

import pytest

from headrace.kafka.authorized_operations import (
    CLUSTER_OPERATIONS,
    GROUP_OPERATIONS,
    NOT_ASKED,
    TOPIC_OPERATIONS,
    told,
)


@pytest.mark.parametrize(
    ("operations", "bits"),
    [
        (TOPIC_OPERATIONS, {3, 4, 5, 6, 7, 8, 10, 11}),
        (GROUP_OPERATIONS, {3, 6, 8, 10, 11}),
        (CLUSTER_OPERATIONS, {5, 7, 8, 9, 10, 11, 12}),
    ],
)
def test_a_bit_stands_for_each_operation_that_the_kind_of_resource_has(operations: int, bits: set[int]) -> None:
    """As in Kafka's AclEntry.supportedOperations."""
    assert operations == sum(1 << bit for bit in bits)


def test_who_did_not_ask_is_told_so() -> None:
    assert told(GROUP_OPERATIONS, asked=True) == GROUP_OPERATIONS
    assert told(GROUP_OPERATIONS, asked=False) == NOT_ASKED == -(2**31)

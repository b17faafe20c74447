"""Errors and the codes that are sent to clients."""

import pytest

from headrace.base.errors import (
    Code,
    CorruptLog,
    InvalidRecords,
    KafkaError,
    LostTail,
    OutOfDescriptors,
    StorageFull,
    code_of,
)


def test_a_code_that_is_not_known_is_an_unknown_fault() -> None:
    assert code_of(3) is Code.UNKNOWN_TOPIC_OR_PARTITION
    assert code_of(-1) is Code.UNKNOWN_SERVER_ERROR
    assert code_of(30_000) is Code.UNKNOWN_SERVER_ERROR


def test_an_error_of_a_code_keeps_it_to_itself() -> None:
    error = KafkaError(Code.NOT_COORDINATOR)
    assert (error.code, str(error)) == (Code.NOT_COORDINATOR, "NOT_COORDINATOR")
    assert KafkaError.code is Code.UNKNOWN_SERVER_ERROR
    assert str(KafkaError(Code.NOT_COORDINATOR, "ask node 3")) == "ask node 3"


def test_want_of_descriptors_is_put_off_as_a_full_disk_is_and_is_no_damage() -> None:
    error = OutOfDescriptors("none is left")
    assert isinstance(error, StorageFull)
    assert isinstance(error, OSError)
    assert not isinstance(error, CorruptLog)
    assert isinstance(LostTail("it ends early"), CorruptLog)


def test_records_that_break_a_rule_are_named() -> None:
    with pytest.raises(InvalidRecords, match="two of them") as refused:
        raise InvalidRecords("two of them have no key", iter([(0, "no key"), (4, "no key")]))
    assert refused.value.records == ((0, "no key"), (4, "no key"))
    assert refused.value.code is Code.INVALID_RECORD

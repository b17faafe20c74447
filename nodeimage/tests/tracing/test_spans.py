import asyncio

import pytest

from headrace.base.errors import Code, KafkaError, StorageFull
from headrace.tracing.spans import ADMIN, KINDS, MAX_TEXT, ROLL, Span, error_type


def test_names_and_attributes_are_of_headrace_and_each_is_there_once() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS)
    for kind in KINDS:
        assert kind.name.startswith("headrace.")
        assert all(name.startswith("headrace.") for name in kind.attributes)


def test_what_is_not_declared_is_refused() -> None:
    with pytest.raises(ValueError, match=r"headrace\.roll declares no password"):
        Span(ROLL, 1.0, {"headrace.partition": 1, "password": "x"})


def test_a_span_tells_what_there_is_cut_to_a_bearable_length() -> None:
    span = Span(ADMIN, 1.0, {"headrace.path": "x" * 10_000, "headrace.paths": None}, detail="roll", error="NONE")
    assert span.name == "headrace.admin/roll"
    assert span.told() == {"headrace.path": "x" * MAX_TEXT, "error.type": "NONE"}
    assert Span(ROLL, 1.0).name == "headrace.roll"


def test_an_error_is_told_by_its_code_alone() -> None:
    assert error_type(KafkaError(Code.INVALID_CONFIG, "the password is hunter2")) == "INVALID_CONFIG"
    assert error_type(StorageFull("full")) == "KAFKA_STORAGE_ERROR"
    assert error_type(asyncio.CancelledError()) == "CANCELLED"
    assert error_type(RuntimeError("hunter2")) == "UNKNOWN_SERVER_ERROR"

import asyncio
from typing import Any

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.tracing.admin_call import admin_call
from headrace.tracing.spans import Span


class Ended:
    """A tracer that records ended spans."""

    is_on = True

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def ended(self, span: Span) -> None:
        self.spans.append(span)


def times(*each: float) -> Any:
    return iter(each).__next__


def test_a_call_is_told_when_it_is_answered() -> None:
    tracer: Any = Ended()
    with admin_call(tracer, "stream.create", time=times(1.0, 3.5)) as call:
        call.attributes = {"headrace.path": "/a"}
        assert tracer.spans == []
    (span,) = tracer.spans
    assert (span.name, span.took_s, span.error) == ("headrace.admin/stream.create", 2.5, "")
    assert span.told() == {"headrace.path": "/a"}


def test_the_first_error_of_an_answer_is_told() -> None:
    tracer: Any = Ended()
    with admin_call(tracer, "CreateTopics", time=times(0.0, 0.0)) as call:
        call.failed(int(Code.TOPIC_ALREADY_EXISTS))
        call.failed(int(Code.INVALID_REQUEST))
    assert tracer.spans[0].error == "TOPIC_ALREADY_EXISTS"


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (KafkaError(Code.INVALID_REQUEST, "hush"), "INVALID_REQUEST"),
        (RuntimeError("hush"), "UNKNOWN_SERVER_ERROR"),
        (asyncio.CancelledError(), "CANCELLED"),
    ],
)
def test_a_call_that_is_not_answered_is_told_without_a_text(raised: BaseException, told: str) -> None:
    tracer: Any = Ended()

    def ends() -> None:
        with admin_call(tracer, "status", time=times(0.0, 0.0)) as call:
            call.failed(int(Code.TOPIC_ALREADY_EXISTS))
            raise raised

    with pytest.raises(type(raised)):
        ends()
    (span,) = tracer.spans
    assert span.told() == {"error.type": told}

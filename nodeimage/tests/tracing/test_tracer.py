from headrace.tracing.spans import ROLL, Span
from headrace.tracing.tracer import NO_TRACER, Tracer


def test_without_traces_nothing_is_taken() -> None:
    tracer: Tracer = NO_TRACER
    assert not tracer.is_on
    tracer.ended(Span(ROLL, 1.0))

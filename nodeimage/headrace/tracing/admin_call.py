"""The span of one admin call, Kafka's or Headrace's own, from the call to its response or failure."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from headrace.base.errors import code_of
from headrace.tracing.spans import ADMIN, Span, Value, error_type
from headrace.tracing.tracer import Tracer


@dataclass(slots=True)
class AdminCall:
    """The attributes and the first error of a call, collected while it is handled."""

    name: str
    attributes: Mapping[str, Value | None] = field(default_factory=dict)
    code: int = 0
    """The first error in the response; 0: none."""

    def failed(self, code: int) -> None:
        """Reports an error in the response."""
        self.code = self.code or code


@contextmanager
def admin_call(tracer: Tracer, name: str, *, time: Callable[[], float]) -> Iterator[AdminCall]:
    """Records a span for a call that is handled within this context, whether it succeeds or fails. Exceptions
    propagate."""
    began, call, raised = time(), AdminCall(name), ""
    try:
        yield call
    except BaseException as error:
        raised = error_type(error)
        raise
    finally:
        error_name = raised or (code_of(call.code).name if call.code else "")
        tracer.ended(Span(ADMIN, time() - began, call.attributes, detail=call.name, error=error_name))

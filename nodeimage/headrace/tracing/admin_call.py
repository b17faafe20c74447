"""The span of one admin call, Kafka's or Headrace's own: begun with the call, ended with its answer or its failure."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from headrace.base.errors import code_of
from headrace.tracing.spans import ADMIN, Span, Value, error_type
from headrace.tracing.tracer import Tracer


@dataclass(slots=True)
class AdminCall:
    """What becomes known of a call while it is answered."""

    name: str
    attributes: Mapping[str, Value | None] = field(default_factory=dict)
    code: int = 0
    """The first error of the answer."""

    def failed(self, code: int) -> None:
        """The answer has an error."""
        self.code = self.code or code


@contextmanager
def admin_call(tracer: Tracer, name: str, *, time: Callable[[], float]) -> Iterator[AdminCall]:
    """A call that is answered inside. It is told whatever becomes of it; what is raised goes on."""
    began, call, raised = time(), AdminCall(name), ""
    try:
        yield call
    except BaseException as error:
        raised = error_type(error)
        raise
    finally:
        error_name = raised or (code_of(call.code).name if call.code else "")
        tracer.ended(Span(ADMIN, time() - began, call.attributes, detail=call.name, error=error_name))

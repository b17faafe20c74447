"""What parts of a node hand their spans to. Knows nothing of where these go."""

from typing import Final, Protocol

from headrace.tracing.spans import Span


class Tracer(Protocol):
    """Takes spans that have ended."""

    @property
    def is_on(self) -> bool:
        """Whether spans go anywhere; they need not be made where they do not."""

    def ended(self, span: Span, /) -> None:
        """A span ends now. Never blocks, and never raises."""


class NoTracer:
    """Takes nothing."""

    is_on: Final = False

    def ended(self, span: Span, /) -> None:
        """See Tracer."""


NO_TRACER: Final = NoTracer()

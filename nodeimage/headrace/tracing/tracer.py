"""The interface to which parts of a node report spans. Knows nothing of their destination."""

from typing import Final, Protocol

from headrace.tracing.spans import Span


class Tracer(Protocol):
    """Receives spans that have ended."""

    @property
    def is_on(self) -> bool:
        """Whether spans are exported; if not, callers need not create them."""

    def ended(self, span: Span, /) -> None:
        """Reports a span that ends now. Never blocks, and never raises."""


class NoTracer:
    """Discards all spans."""

    is_on: Final = False

    def ended(self, span: Span, /) -> None:
        """See Tracer."""


NO_TRACER: Final = NoTracer()

"""A tracer that keeps its spans."""

from typing import Any

from headrace.tracing.spans import Span


class KeptSpans:
    """A Tracer that keeps its spans."""

    is_on = True

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def ended(self, span: Span, /) -> None:
        span.told()
        self.spans.append(span)

    def told(self, name: str) -> list[dict[str, Any]]:
        """The attributes of the spans of a name."""
        return [each.told() for each in self.spans if each.name == name]

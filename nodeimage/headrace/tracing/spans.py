"""The declarations of all spans that a node may export, which docs/observability.md lists.

Kafka's protocol has no field for a caller's trace context, so each span is the root of a trace of its own. Attributes
name containers, nodes, streams and topics; never a record's data, a credential, or free text written by others.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace.base.errors import Code, HeadraceError

Value = str | bool | int | float

MAX_TEXT: Final = 512
"""The most characters of an attribute's value, since clients choose some names freely."""
ERROR: Final = "error.type"
"""The attribute of every failed span, by OpenTelemetry's own name."""
ERROR_HELP: Final = "Kafka's name of the error, or `CANCELLED`; only if the operation failed"


@dataclass(frozen=True, slots=True, eq=False)
class SpanKind:
    """The declaration of spans of one name."""

    name: str
    help: str
    """The description, in one line."""
    attributes: Mapping[str, str]
    """The description of each attribute by its name."""
    follows: str = ""
    """What follows the name after a slash, for the documentation; "": nothing does."""


@dataclass(frozen=True, slots=True)
class Span:
    """A span that ends now. Raises ValueError for an attribute that its kind does not declare."""

    kind: SpanKind
    took_s: float
    attributes: Mapping[str, Value | None] = field(default_factory=dict)
    """The values of attributes by name; None: the attribute is omitted."""
    detail: str = ""
    """What follows the name after a slash, such as the API; "": nothing."""
    error: str = ""
    """The name of the error (ERROR_HELP); "": the operation succeeded."""

    def __post_init__(self) -> None:
        if unknown := self.attributes.keys() - self.kind.attributes.keys():
            raise ValueError(f"{self.kind.name} declares no {', '.join(sorted(unknown))}")

    @property
    def name(self) -> str:
        """The complete name of the span."""
        return f"{self.kind.name}/{self.detail}" if self.detail else self.kind.name

    def told(self) -> dict[str, Value]:
        """The attributes with a value, cut to `MAX_TEXT` characters, and the error."""
        found: dict[str, Value] = {}
        for name, value in self.attributes.items():
            if value is not None:
                found[name] = value[:MAX_TEXT] if isinstance(value, str) else value
        if self.error:
            found[ERROR] = self.error
        return found


def error_type(error: BaseException) -> str:
    """The name of an error in a span, never its text."""
    if isinstance(error, asyncio.CancelledError):
        return "CANCELLED"
    return error.code.name if isinstance(error, HeadraceError) else Code.UNKNOWN_SERVER_ERROR.name


ADMIN: Final = SpanKind(
    "headrace.admin",
    "An admin call of a client, on the node that answers it: Kafka's (CreateTopics, AlterConfigs, ...) or one of "
    "Headrace's own (stream.create, node.drain, ...). Repeated calls of links to their source are left out",
    {
        "headrace.path": "The full name of the stream or topic that the call names; of several, the first",
        "headrace.paths": "The number of streams or topics that the call names",
    },
    follows="API",
)
FAILOVER: Final = SpanKind(
    "headrace.failover",
    "A container gets another leader; exported by the controller. It begins when the former leader was last heard "
    "from, or when another cause was found, and ends when the controller hears that the new one leads: with the next "
    "probe, within a second",
    {
        "headrace.container": "The container's id",
        "headrace.container.kind": "`catalog` or `data`",
        "headrace.cause": "`failure`; `hand_over`: the former leader was well, and stopped, was drained, or led more "
        "than its share; or `balance`",
        "headrace.from_node": "The former leader",
        "headrace.to_node": "The new leader",
        "headrace.epoch": "The epoch in which the new leader leads",
        "headrace.notice_seconds": "Seconds until the controller chose the new leader",
        "headrace.appoint_seconds": "Seconds from then until the cluster store had stored that",
        "headrace.lead_seconds": "Seconds from then until the controller heard that the new leader leads",
    },
)
ROLL: Final = SpanKind(
    "headrace.roll",
    "A partition continues in a new partitionlet, on the node that leads it; its producers wait meanwhile",
    {
        "headrace.path": "The topic, by its full name",
        "headrace.partition": "The partition's number",
        "headrace.from_container": "The container of the former partitionlet",
        "headrace.to_container": "The container of the new partitionlet",
        "headrace.is_home_roll": "Whether the roll applied a topic's new home",
        "headrace.intent_seconds": "Seconds until the catalog had recorded the intent, including the commits that "
        "it waited for",
        "headrace.seal_seconds": "Seconds from then until the seal was committed",
        "headrace.open_seconds": "Seconds from then until the new partitionlet was open",
        "headrace.record_seconds": "Seconds from then until the catalog had recorded the new partitionlet",
    },
)
LINK_STATE: Final = SpanKind(
    "headrace.link.state",
    "A link on one node leaves a state; the span lasts as long as the link was in that state",
    {
        "headrace.link": "The link's name",
        "headrace.path": "The stream that it copies to",
        "headrace.state": "The state that it leaves: Connecting, Running (as a metric, CatchingUp or "
        "CaughtUp), Paused, Failed",
        "headrace.next_state": "The state that it enters; Ended: the link was altered or deleted, or its node stops",
    },
)
LINK_TOPICS: Final = SpanKind(
    "headrace.link.topics",
    "A link brings topics in line with its source, on the node that leads the catalog; only if something has to change",
    {
        "headrace.link": "The link's name",
        "headrace.path": "The stream that it copies to",
        "headrace.made": "Topics to be created",
        "headrace.grown": "Topics to be given more partitions",
        "headrace.configured": "Topics whose configs are to be changed",
        "headrace.moved": "Topics whose new home is to be recorded in this cluster",
        "headrace.announced": "Topics whose new home is to be announced to the source",
        "headrace.refused": "Topics that cannot be copied as they are",
        "headrace.later": "Topics with changes that have to wait",
    },
)
KINDS: Final = (ADMIN, FAILOVER, ROLL, LINK_STATE, LINK_TOPICS)
"""All kinds of spans, in the order of the documentation."""

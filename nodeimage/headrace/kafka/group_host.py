"""What Kafka's APIs for groups need of the broker; the only parts of it that they touch."""

from collections.abc import Sequence
from typing import Any, Protocol

from headrace.base.errors import KafkaError
from headrace.base.ids import NodeId
from headrace.catalog.catalog import Catalog
from headrace.coordination.takeover import Coordination


class NumberedRow(Protocol):
    """A topic's row in the catalog."""

    @property
    def number(self) -> int:
        """By which cursors refer to the topic."""
        ...


class NamedTopic(Protocol):
    """A topic in use."""

    @property
    def topic_id(self) -> bytes:
        """16 bytes, the same for every form of the name."""
        ...

    @property
    def row(self) -> NumberedRow: ...


class TopicsHost(Protocol):
    """Names and topics."""

    async def resolve(self, names: Sequence[str], session: Any, /) -> Sequence[NamedTopic | KafkaError]:
        """Each name's topic, or why there is none. Makes none."""
        ...

    async def names_of(self, topic_ids: Sequence[bytes], session: Any, /) -> dict[bytes, str]:
        """The names under which topics are shown."""
        ...


class Session(Protocol):
    """A client's connection."""

    client_id: str | None
    peer: str
    """`address:port`."""


class NodeAddress(Protocol):
    """A node as clients reach it."""

    @property
    def node_id(self) -> int: ...

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...


class Host(Protocol):
    """The broker, as far as consumer groups are concerned."""

    @property
    def catalog(self) -> Catalog: ...

    @property
    def topics(self) -> TopicsHost: ...

    @property
    def coordination(self) -> Coordination: ...

    def address(self, node_id: NodeId, session: Any, /) -> NodeAddress | None:
        """The address by which this session's client reaches a node."""
        ...

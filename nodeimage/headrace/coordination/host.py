"""What the group coordinator and its Kafka APIs need of the broker; the only parts of it that they touch."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from headrace.base.errors import KafkaError
from headrace.base.ids import NodeId, Position
from headrace.catalog.commands import Command
from headrace.catalog.reader import Reader
from headrace.container.leader import Container

T = TypeVar("T")


class CatalogHost(Protocol):
    """The catalog: commands in, rows out."""

    async def submit(self, command: Command, *, here: bool = False) -> Any:
        """The command's outcome, once committed and applied. Raises HeadraceError.

        `here`: only while this node leads the catalog, else KafkaError NOT_COORDINATOR.
        """

    async def wait_applied(self, position: Position, /) -> None:
        """Return once everything below `position` is applied here."""

    async def query(self, fn: Callable[[Reader], T]) -> T:
        """Run `fn` in a reader thread."""
        ...


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


class Cancellable(Protocol):
    """A call that can be taken back."""

    def cancel(self) -> None: ...


class Session(Protocol):
    """A client's connection."""

    client_id: str | None
    peer: str
    """`address:port`."""


class GroupHost(Protocol):
    """The broker, as far as consumer groups are concerned."""

    @property
    def catalog(self) -> CatalogHost: ...

    @property
    def topics(self) -> TopicsHost: ...

    @property
    def node_id(self) -> int: ...

    def now(self) -> int:
        """Milliseconds since 1970."""
        ...

    def monotonic_ms(self) -> int: ...

    def call_at(self, deadline_ms: int, callback: Callable[[], None], /) -> Cancellable:
        """Call on the loop at this monotonic time."""
        ...

    def spawn(self, coroutine: Coroutine[Any, Any, Any], /) -> Any:
        """An asyncio task that the broker owns, and awaits before it closes."""
        ...


class NodeAddress(Protocol):
    """A node as clients reach it."""

    @property
    def node_id(self) -> int: ...

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...


class CoordinationHost(GroupHost, Protocol):
    """The broker, as far as it matters who coordinates groups."""

    @property
    def catalog_container(self) -> Container | None:
        """The catalog's container, where this node leads it."""
        ...

    @property
    def coordinator(self) -> NodeId | None:
        """The node that leads the catalog's container, as far as is known."""
        ...

    @property
    def leads_catalog_soon(self) -> bool:
        """The cluster wants this node to lead the catalog's container, which it may not yet do."""
        ...

    async def coordinator_by(self, node_id: NodeId, /) -> NodeId | None:
        """Whom a node names as the coordinator; itself where it says nothing."""
        ...

    def address(self, node_id: NodeId, session: Any, /) -> NodeAddress | None:
        """The address by which this session's client reaches a node."""
        ...

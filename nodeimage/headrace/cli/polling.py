"""Calls a cluster's nodes repeatedly over connections that stay open: for commands that show changes live.

A login for each call would cost the nodes a password hash and an audit event; so each node is logged in to once, and
again if its connection has ended. A node that did not answer is tried last the next time.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

from headrace.base.closing import Closing
from headrace.base.errors import HeadraceError
from headrace.cli.connect import CLIENT_ID, FIND_COORDINATOR_VERSION, NODE_TIMEOUT_S, NODES_AT_ONCE, NoAnswer
from headrace.cli.target import Target, split_address
from headrace.kafka_client.blocking_client import BrokerConnection
from headrace.kafka_client.errors import SourceRefuses
from headrace.wire.api_keys import ApiKey

T = TypeVar("T")

KEPT: Final = 1_000
"""The maximum number of connections that are kept. A connection to a node that has gone stays open until this is
exceeded."""


class Asking(Protocol):
    """What a command can call: a cluster through any of its nodes, and each node by its address."""

    def admin(self, method: str, params: Mapping[str, Any] | None = None) -> Any: ...

    def each(self, addresses: Sequence[str], method: str, params: Mapping[str, Any] | None = None) -> list[Any]: ...


class Polled(Closing):
    """A cluster that is called repeatedly, from one thread at a time."""

    def __init__(self, target: Target, *, timeout_s: float = NODE_TIMEOUT_S) -> None:
        self.target = target
        self._timeout_s = timeout_s
        self._addresses = [each.strip() for each in target.addresses.split(",")]
        self._connections: dict[str, BrokerConnection] = {}
        self._threads = ThreadPoolExecutor(NODES_AT_ONCE, thread_name_prefix="poll")

    def close(self) -> None:
        """Close all connections; a call under way ends with them."""
        for connection in list(self._connections.values()):
            connection.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def admin(self, method: str, params: Mapping[str, Any] | None = None) -> Any:
        """The answer of the first node that answers. Raises KafkaError, SourceRefuses, NoAnswer."""
        return self._any(lambda connection: connection.admin(method, params))

    def each(self, addresses: Sequence[str], method: str, params: Mapping[str, Any] | None = None) -> list[Any]:
        """The answer of each of these nodes, all called at once; None for a node that does not answer, or refuses."""

        def ask(address: str) -> Any:
            with suppress(OSError, HeadraceError):
                return self._at(address, lambda connection: connection.admin(method, params))
            return None

        for address in addresses:
            if address not in self._addresses:
                self._addresses.append(address)
        return list(self._threads.map(ask, addresses))

    def groups(self) -> list[dict[str, Any]] | None:
        """Consumer groups, as their coordinator lists them; None if there is no coordinator, or it does not answer."""
        fields = {"key": CLIENT_ID, "key_type": 0}
        found = self._any(lambda each: each.ask(ApiKey.FIND_COORDINATOR, FIND_COORDINATOR_VERSION, fields))
        if found.error_code:
            return None
        (groups,) = self.each([f"{found.host}:{found.port}"], "groups.list")
        return groups  # type: ignore[no-any-return]

    def _any(self, question: Callable[[BrokerConnection], T]) -> T:
        failure: OSError | None = None
        for address in list(self._addresses):
            try:
                return self._at(address, question)
            except OSError as error:
                failure = failure or error
                self._addresses.remove(address)
                self._addresses.append(address)
        raise NoAnswer(f"{failure}: see `headrace status`")

    def _at(self, address: str, question: Callable[[BrokerConnection], T]) -> T:
        """Call over the existing connection, or over a new one if that has ended meanwhile."""
        kept = self._connections.pop(address, None)
        if kept is not None and not kept.is_stale:
            try:
                return self._asked(address, kept, question)
            except TimeoutError:
                raise
            except OSError:  # the connection may have ended since the last call
                pass
        elif kept is not None:
            kept.close()
        host, port = split_address(address)
        made = BrokerConnection(host, port, CLIENT_ID, self._timeout_s, access=self.target.access)
        return self._asked(address, made, question)

    def _asked(self, address: str, connection: BrokerConnection, question: Callable[[BrokerConnection], T]) -> T:
        try:
            answer = question(connection)
        except (OSError, SourceRefuses):
            connection.close()
            raise
        except HeadraceError:  # the node answered, so the connection is sound
            self._keep(address, connection)
            raise
        self._keep(address, connection)
        return answer

    def _keep(self, address: str, connection: BrokerConnection) -> None:
        self._connections[address] = connection
        if len(self._connections) > KEPT:
            with suppress(KeyError, StopIteration):
                self._connections.pop(next(iter(self._connections))).close()

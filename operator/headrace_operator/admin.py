"""Headrace's own admin calls, for reconcilers.

The client blocks, so it runs in a small thread pool; idle connections are kept for a while. After a cluster has failed
to answer, calls to it fail at once for a moment: thousands of topics then wait for it together instead of one after the
other, each for a time-out.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

import structlog

from headrace.base.errors import HeadraceError, KafkaError
from headrace.kafka_client.blocking_client import BrokerConnection
from headrace.kafka_client.errors import SourceRefuses
from headrace.wire.api_keys import ApiKey
from headrace_operator.routes import Destination, Routes

log = structlog.get_logger()

THREADS: Final = 8
CALL_S: Final = 20.0
CONNECT_S: Final = 5.0
IDLE_S: Final = 30.0
FAIL_FAST_S: Final = 5.0
CLIENT_ID: Final = "headrace-operator"


class Unreachable(HeadraceError):
    """No node of a cluster answers."""

    def again(self) -> "Unreachable":
        """Return a copy of this error, to be raised again."""
        return type(self)(str(self))


class NotAuthenticated(Unreachable):
    """A cluster rejects the operator's password, or the operator does not trust the cluster's certificate."""


class Calls(Protocol):
    """The calls that reconcilers send to clusters; tests replace the implementation."""

    async def call(
        self,
        bootstrap: str,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        patience_s: float | None = None,
    ) -> Any:
        """Return the result of one of Headrace's own calls. Raises KafkaError with the node's error, Unreachable.

        `patience_s`: time-out in seconds of a call for which the node waits for other nodes, so that its silence does
        not mean that the node is unreachable.
        """

    async def kafka(self, bootstrap: str, api_key: ApiKey, version: int, fields: Mapping[str, Any]) -> Any:
        """Return the response of one of Kafka's APIs, by the generic codec. Raises KafkaError, Unreachable."""


@dataclass(slots=True)
class _Endpoint:
    """An address, its idle connections, and its last failure."""

    idle: list[tuple[float, BrokerConnection]] = field(default_factory=list)
    failed_at: float = float("-inf")
    failure: Unreachable | None = None


class Admin:
    """The connections to all clusters."""

    def __init__(self, routes: Routes | None = None) -> None:
        """`routes`: how clusters are reached; without it all are reached in clear text."""
        self._routes = Routes() if routes is None else routes
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="admin")
        # Calls with their own time-out do not wait behind calls that hang.
        self._patient_threads = ThreadPoolExecutor(THREADS, thread_name_prefix="admin-patient")
        self._endpoints: dict[tuple[str, str], _Endpoint] = {}
        """By address and by the credentials used there (`Destination.mark`)."""
        self._lock = threading.Lock()
        self.calls = 0

    async def call(
        self,
        bootstrap: str,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        patience_s: float | None = None,
    ) -> Any:
        """See Calls."""
        if method in PASSWORDS and self._routes.way(bootstrap).access is None:
            raise Unreachable(f"no password is sent to {bootstrap} in clear text: the cluster has no security yet")
        if patience_s is None:
            return await self._with(bootstrap, lambda connection: _admin(connection, method, params))
        self.calls += 1
        patient = partial(self._patient, bootstrap, method, params, patience_s)
        return await asyncio.get_running_loop().run_in_executor(self._patient_threads, patient)

    async def kafka(self, bootstrap: str, api_key: ApiKey, version: int, fields: Mapping[str, Any]) -> Any:
        """See Calls."""
        return await self._with(bootstrap, lambda connection: _kafka(connection, api_key, version, fields))

    async def close(self) -> None:
        """Stop the threads and close the connections."""
        for threads in (self._threads, self._patient_threads):
            threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            for endpoint in self._endpoints.values():
                for _, connection in endpoint.idle:
                    connection.close()
            self._endpoints.clear()

    async def _with(self, address: str, use: Callable[[BrokerConnection], Any]) -> Any:
        self.calls += 1
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._blocking, address, use)

    def _blocking(self, address: str, use: Callable[[BrokerConnection], Any]) -> Any:
        """[blocking]"""
        way = self._way(address)
        kept = self._take(way)
        try:
            if kept is not None:
                try:
                    return self._used(way, kept, use)
                except TimeoutError:
                    raise  # a time-out is not the connection's fault
                except OSError:
                    pass  # the node may have closed an idle connection: try once more over a new one
            return self._used(way, _connected(way, CALL_S, connect_timeout_s=min(CONNECT_S, CALL_S)), use)
        except (OSError, SourceRefuses) as error:
            failure = _failure(way.address, error)
            with self._lock:
                endpoint = self._endpoints.setdefault((way.address, way.mark), _Endpoint())
                endpoint.failed_at, endpoint.failure = time.monotonic(), failure
            raise failure from error

    def _patient(self, address: str, method: str, params: Mapping[str, Any] | None, patience_s: float) -> Any:
        """[blocking] Call over a new connection."""
        way = self._way(address)
        try:
            with _connected(way, patience_s) as connection:
                return _admin(connection, method, params)
        except (OSError, SourceRefuses) as error:
            raise _failure(way.address, error, method) from error

    def _way(self, address: str) -> Destination:
        way = self._routes.way(address)
        if way.closed:
            raise Unreachable(way.closed)
        return way

    def _used(self, way: Destination, connection: BrokerConnection, use: Callable[[BrokerConnection], Any]) -> Any:
        try:
            answer = use(connection)
        except KafkaError:
            self._give_back(way, connection)
            raise
        except BaseException:
            connection.close()
            raise
        self._give_back(way, connection)
        return answer

    def _take(self, way: Destination) -> BrokerConnection | None:
        """Return an idle connection, if any. Raises Unreachable if the last call failed a moment ago."""
        now = time.monotonic()
        with self._lock:
            endpoint = self._endpoints.setdefault((way.address, way.mark), _Endpoint())
            if endpoint.failure is not None and now - endpoint.failed_at < FAIL_FAST_S:
                raise endpoint.failure.again()
            while endpoint.idle:
                since, connection = endpoint.idle.pop()
                if now - since < IDLE_S and not connection.is_stale:
                    return connection
                connection.close()
        return None

    def _give_back(self, way: Destination, connection: BrokerConnection) -> None:
        with self._lock:
            endpoint = self._endpoints.get((way.address, way.mark))
            if endpoint is None:
                connection.close()
                return
            endpoint.failed_at = float("-inf")
            endpoint.idle.append((time.monotonic(), connection))


def _connected(way: Destination, timeout_s: float, *, connect_timeout_s: float | None = None) -> BrokerConnection:
    """[blocking] Raises OSError, SourceRefuses."""
    host, _, port = way.address.rpartition(":")
    return BrokerConnection(
        host, int(port), CLIENT_ID, timeout_s, connect_timeout_s=connect_timeout_s, access=way.access
    )


def _failure(address: str, error: Exception, what: str = "") -> Unreachable:
    if isinstance(error, SourceRefuses):
        return NotAuthenticated(f"{address} and the operator cannot authenticate each other: {error}")
    return Unreachable(f"{address} does not answer{f' {what}' if what else ''}: {error}")


READS: Final = frozenset(
    {
        *("access.show", "balance", "cluster.events", "cluster.status", "features.show", "groups.show", "link.hello"),
        *("link.show", "link.topics", "security.show", "status", "stream.show", "topic.show", "user.list"),
        *("user.show", "volume.list"),
    }
)
"""Calls that change nothing; `balance` only if it has no parameters."""
PASSWORDS: Final = frozenset({"user.create", "user.passwd"})
"""Calls whose parameters hold a password: they are sent over TLS only."""
NAMES: Final = ("name", "path", "topic", "volume", "node", "drain", "cancel", "level")
"""Parameters that may be logged; others may be secrets."""
KAFKA_READS: Final = frozenset({ApiKey.DESCRIBE_CLIENT_QUOTAS})
KAFKA_CHANGED_FIELDS: Final = ("topics", "resources")
"""Fields of Kafka's requests that list what is changed."""


def _log_change(connection: BrokerConnection, method: str, params: Mapping[str, Any]) -> None:
    """Log a call that changes something in a cluster."""
    if method not in READS or (method == "balance" and params):
        what = {name: params[name] for name in NAMES if name in params}
        log.info("changed a cluster", method=method, of=connection.address, **what)


def _admin(connection: BrokerConnection, method: str, params: Mapping[str, Any] | None) -> Any:
    result = connection.admin(method, params)
    _log_change(connection, method, params or {})
    return result


def _kafka(connection: BrokerConnection, api_key: ApiKey, version: int, fields: Mapping[str, Any]) -> Any:
    answer = connection.ask(api_key, version, fields)
    if api_key in KAFKA_READS:
        return answer
    what = [each.get("name", each.get("resource_name")) for key in KAFKA_CHANGED_FIELDS for each in fields.get(key, ())]
    log.info("changed a cluster", method=api_key.name, of=connection.address, topics=what)
    return answer

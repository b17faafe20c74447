"""Headrace's own admin calls, for reconcilers.

The client blocks, so it runs in a few threads; connections are kept for a while. A cluster that did not answer is left
in peace for a moment: thousands of topics wait for it together, rather than one after the other for a time-out each.
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
from headrace.wire.api_keys import ApiKey

log = structlog.get_logger()

THREADS: Final = 8
CALL_S: Final = 20.0
CONNECT_S: Final = 5.0
IDLE_S: Final = 30.0
PEACE_S: Final = 5.0
CLIENT_ID: Final = "headrace-operator"


class Unreachable(HeadraceError):
    """No node of a cluster answers."""


class Calls(Protocol):
    """What reconcilers ask of clusters: the seam for tests."""

    async def call(
        self,
        bootstrap: str,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        patience_s: float | None = None,
    ) -> Any:
        """The result of one of Headrace's own calls. Raises KafkaError as the node says, Unreachable.

        `patience_s`: of a call for which the node asks others, so that silence says nothing of the node.
        """

    async def kafka(self, bootstrap: str, api_key: ApiKey, version: int, fields: Mapping[str, Any]) -> Any:
        """The response of one of Kafka's APIs of the generic codec. Raises KafkaError, Unreachable."""


@dataclass(slots=True)
class _Endpoint:
    """An address, and the connections to it that nobody uses now."""

    idle: list[tuple[float, BrokerConnection]] = field(default_factory=list)
    failed_at: float = float("-inf")
    failure: str = ""


class Admin:
    """All clusters."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="admin")
        # Those with a patience of their own do not wait behind calls that hang.
        self._patient_threads = ThreadPoolExecutor(THREADS, thread_name_prefix="admin-patient")
        self._endpoints: dict[str, _Endpoint] = {}
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
        if patience_s is None:
            return await self._with(bootstrap, lambda connection: _admin(connection, method, params))
        self.calls += 1
        patient = partial(self._patient, bootstrap, method, params, patience_s)
        return await asyncio.get_running_loop().run_in_executor(self._patient_threads, patient)

    async def kafka(self, bootstrap: str, api_key: ApiKey, version: int, fields: Mapping[str, Any]) -> Any:
        """See Calls."""
        return await self._with(bootstrap, lambda connection: _kafka(connection, api_key, version, fields))

    async def close(self) -> None:
        """End threads and connections."""
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
        kept = self._take(address)
        try:
            if kept is not None:
                try:
                    return self._used(address, kept, use)
                except TimeoutError:
                    raise  # it is not the connection
                except OSError:
                    pass  # the node may have ended an idle connection: once more, over a new one
            host, _, port = address.rpartition(":")
            connection = BrokerConnection(host, int(port), CLIENT_ID, CALL_S, connect_timeout_s=min(CONNECT_S, CALL_S))
            return self._used(address, connection, use)
        except OSError as error:
            failure = f"{address} does not answer: {error}"
            with self._lock:
                endpoint = self._endpoints.setdefault(address, _Endpoint())
                endpoint.failed_at, endpoint.failure = time.monotonic(), failure
            raise Unreachable(failure) from error

    def _patient(self, address: str, method: str, params: Mapping[str, Any] | None, patience_s: float) -> Any:
        """[blocking] Over a connection of its own."""
        host, _, port = address.rpartition(":")
        try:
            with BrokerConnection(host, int(port), CLIENT_ID, patience_s) as connection:
                return _admin(connection, method, params)
        except OSError as error:
            raise Unreachable(f"{address} does not answer {method}: {error}") from error

    def _used(self, address: str, connection: BrokerConnection, use: Callable[[BrokerConnection], Any]) -> Any:
        try:
            answer = use(connection)
        except KafkaError:
            self._give_back(address, connection)
            raise
        except BaseException:
            connection.close()
            raise
        self._give_back(address, connection)
        return answer

    def _take(self, address: str) -> BrokerConnection | None:
        """One that is kept. Raises Unreachable where the last call failed a moment ago."""
        now = time.monotonic()
        with self._lock:
            endpoint = self._endpoints.setdefault(address, _Endpoint())
            if now - endpoint.failed_at < PEACE_S:
                raise Unreachable(endpoint.failure)
            while endpoint.idle:
                since, connection = endpoint.idle.pop()
                if now - since < IDLE_S:
                    return connection
                connection.close()
        return None

    def _give_back(self, address: str, connection: BrokerConnection) -> None:
        with self._lock:
            endpoint = self._endpoints.get(address)
            if endpoint is None:
                connection.close()
                return
            endpoint.failed_at = float("-inf")
            endpoint.idle.append((time.monotonic(), connection))


LOOKS: Final = frozenset(
    {
        *("balance", "cluster.events", "cluster.status", "features.show", "groups.show", "link.hello", "link.show"),
        *("link.topics", "stream.show", "topic.show", "volume.list"),
    }
)
"""Calls that change nothing; `balance` where it says nothing."""
NAMES: Final = ("name", "path", "topic", "volume", "node", "drain", "cancel", "level")
"""Parameters that the log may have: others may be secrets."""
OF_KAFKA: Final = ("topics", "resources")
"""Fields of Kafka's requests that list what is changed."""


def _tell(connection: BrokerConnection, method: str, params: Mapping[str, Any]) -> None:
    """Log what a cluster was told to change."""
    if method not in LOOKS or (method == "balance" and params):
        what = {name: params[name] for name in NAMES if name in params}
        log.info("told a cluster", method=method, of=connection.address, **what)


def _admin(connection: BrokerConnection, method: str, params: Mapping[str, Any] | None) -> Any:
    result = connection.admin(method, params)
    _tell(connection, method, params or {})
    return result


def _kafka(connection: BrokerConnection, api_key: ApiKey, version: int, fields: Mapping[str, Any]) -> Any:
    answer = connection.ask(api_key, version, fields)
    what = [each.get("name", each.get("resource_name")) for key in OF_KAFKA for each in fields.get(key, ())]
    log.info("told a cluster", method=api_key.name, of=connection.address, topics=what)
    return answer

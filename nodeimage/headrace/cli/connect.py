"""Connects to a command's cluster and calls it: Headrace's own admin calls, and Kafka's APIs of the generic codec.

`target.py` decides which cluster that is, and as whom. Each command uses one connection, to the first address that
answers: any node answers for the cluster. Data that only the nodes themselves have is requested from all of them at
once, and consumer groups from their coordinator. Errors are raised as `HeadraceError` with advice in the message.
`SourceRefuses`: the cluster refuses the credentials; the name is from links.
"""

import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from headrace.base.errors import HeadraceError, KafkaError, code_of
from headrace.cli.target import Target, find_target, split_address
from headrace.kafka_client.blocking_client import BrokerConnection, Unanswered
from headrace.kafka_client.errors import SourceRefuses
from headrace.wire import metadata
from headrace.wire.api_keys import ApiKey

CLIENT_ID: Final = "headrace-cli"
TIMEOUT_S: Final = 30.0
NODE_TIMEOUT_S: Final = 5.0
"""Seconds to wait for one node's part of an answer."""
KNOCK_S: Final = 2.0
"""Seconds that a node may take before another one is tried."""
AGAIN_S: Final = 0.5
NODES_AT_ONCE: Final = 32
COORDINATOR_S: Final = 10.0
FIND_COORDINATOR_VERSION: Final = 3
METADATA_VERSION: Final = 4
"""Version of the Metadata request, for no topics, that checks whether a cluster answers: every Kafka supports it."""


class NoAnswer(HeadraceError):
    """No address of the cluster answers."""


class Cluster:
    """One open connection to a cluster."""

    def __init__(self, connection: BrokerConnection, address: str, target: Target) -> None:
        self._connection = connection
        self.address = address
        self.target = target
        """The target, for further connections to the same cluster."""

    def admin(self, method: str, params: Mapping[str, Any] | None = None) -> Any:
        """The result of one of Headrace's admin calls. Raises KafkaError with the node's message."""
        with _lost():
            return self._connection.admin(method, params)

    def each(self, addresses: Sequence[str], method: str, params: Mapping[str, Any] | None = None) -> list[Any]:
        """Each node's answer, as `ask_each` returns them."""
        return ask_each(self.target, addresses, method, params)

    def kafka(self, api_key: ApiKey, version: int, fields: Mapping[str, Any]) -> Any:
        """The response entity of one of Kafka's APIs of the generic codec."""
        try:
            with _lost():
                return self._connection.ask(api_key, version, fields)
        except (ValueError, OverflowError, struct.error) as error:
            raise HeadraceError(f"the request cannot be encoded: {error}") from error


def connected(
    bootstrap: str | None, folder: Path | None, *, timeout_s: float = TIMEOUT_S
) -> AbstractContextManager[Cluster]:
    """A connection to the first address that answers. Raises NoAnswer, also if the connection is lost later."""
    return connected_to(find_target(bootstrap, folder), timeout_s=timeout_s)


@contextmanager
def connected_to(target: Target, *, timeout_s: float = TIMEOUT_S) -> Iterator[Cluster]:
    """A connection to the first address of a target that answers. Raises NoAnswer and SourceRefuses."""
    addresses = target.addresses.split(",")
    failure: Exception | None = None
    for address in addresses:
        host, port = split_address(address)
        try:
            if len(addresses) > 1:
                _knock(host, port, target)
            connection = BrokerConnection(host, port, CLIENT_ID, timeout_s, access=target.access)
        except (OSError, SourceRefuses) as error:
            failure = error if not isinstance(failure, SourceRefuses) else failure
            continue
        with connection:
            yield Cluster(connection, address, target)
        return
    if isinstance(failure, SourceRefuses):
        raise failure
    raise NoAnswer(f"{failure}: is the cluster up?")


def check_access(target: Target) -> None:
    """Raise SourceRefuses if the cluster rejects `target`'s credentials, which librdkafka would keep retrying.

    A cluster that does not answer is not an error here: it may in a moment.
    """
    request = metadata.encode_request(METADATA_VERSION, metadata.MetadataRequest([], False))
    for again in (True, False):
        refused: Exception | None = None
        for address in target.addresses.split(","):
            try:
                with BrokerConnection(*split_address(address), CLIENT_ID, KNOCK_S, access=target.access) as connection:
                    connection.call(ApiKey.METADATA, METADATA_VERSION, request)
                return
            except (Unanswered, SourceRefuses) as error:
                refused = error
            except OSError:
                continue
        if refused is None:
            return
        if isinstance(refused, SourceRefuses):
            raise refused
        if not again:
            raise SourceRefuses(str(refused))
        time.sleep(AGAIN_S)  # a stopping node ends its connections too


@contextmanager
def _lost() -> Iterator[None]:
    """Turn a lost connection into NoAnswer. Wraps the calls only: a command's own output may fail too."""
    try:
        yield
    except OSError as error:
        raise NoAnswer(f"{error}: see `headrace status`") from error


def _knock(host: str, port: int, target: Target) -> None:
    """Check that a node answers, if others could be tried: a suspended node still accepts connections."""
    with (
        BrokerConnection(host, port, CLIENT_ID, KNOCK_S, access=target.access) as connection,
        suppress(KafkaError),
    ):
        connection.admin("node.settings")


@contextmanager
def connected_to_coordinator(bootstrap: str | None, folder: Path | None) -> Iterator[Cluster]:
    """A connection to the node that coordinates consumer groups; waits a moment while another node becomes coordinator.

    Raises KafkaError, NoAnswer.
    """
    deadline = time.monotonic() + COORDINATOR_S
    target = find_target(bootstrap, folder)
    while True:
        with connected_to(target) as cluster:
            found = cluster.kafka(ApiKey.FIND_COORDINATOR, FIND_COORDINATOR_VERSION, {"key": CLIENT_ID, "key_type": 0})
            if not found.error_code:
                address = f"{found.host}:{found.port}"
                if address == cluster.address:
                    yield cluster
                    return
                break
        if time.monotonic() >= deadline:
            check(found.error_code, None, what="no node coordinates consumer groups; see `headrace status`")
        time.sleep(0.1)
    with connected_to(target.at(address)) as cluster:
        yield cluster


def ask_each(
    target: Target,
    addresses: Sequence[str],
    method: str,
    params: Mapping[str, Any] | None = None,
    *,
    timeout_s: float = NODE_TIMEOUT_S,
) -> list[Any]:
    """The results of an admin call to each of these nodes, all at once; None for a node that does not answer."""

    def ask(address: str) -> Any:
        try:
            with connected_to(target.at(address), timeout_s=timeout_s) as cluster:
                return cluster.admin(method, params)
        except HeadraceError:
            return None

    if not addresses:
        return []
    with ThreadPoolExecutor(min(NODES_AT_ONCE, len(addresses))) as threads:
        return list(threads.map(ask, addresses))


def check(error_code: object, message: str | None, *, what: str) -> None:
    """Raise KafkaError for a Kafka error code other than 0, with the node's message or the code's name."""
    code = int(error_code)  # type: ignore[call-overload]
    if code:
        known = code_of(code)
        raise KafkaError(known, f"{what}: {message or known.name.lower().replace('_', ' ')}")

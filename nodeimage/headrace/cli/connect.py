"""Finds the cluster that a command talks to, and asks it: Headrace's own admin calls and Kafka's APIs of the generic
codec.

Which cluster that is, and who asks, `target.py` says. One connection per command, to the first address that answers:
any node answers for the cluster. What only the nodes themselves know is asked of all of them at a time, and consumer
groups of their coordinator. Errors leave as `HeadraceError` with a message that says what to do next.
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
"""For one node's part of an answer."""
KNOCK_S: Final = 2.0
"""So long a node may take before another is asked."""
AGAIN_S: Final = 0.5
NODES_AT_ONCE: Final = 32
COORDINATOR_S: Final = 10.0
FIND_COORDINATOR_VERSION: Final = 3
METADATA_VERSION: Final = 4
"""Of no topics, to see whether a cluster answers: every Kafka has it."""


class NoAnswer(HeadraceError):
    """No address of the cluster answers."""


class Cluster:
    """One open connection to a cluster."""

    def __init__(self, connection: BrokerConnection, address: str, target: Target) -> None:
        self._connection = connection
        self.address = address
        self.target = target
        """For further connections to the same cluster."""

    def admin(self, method: str, params: Mapping[str, Any] | None = None) -> Any:
        """The result of one of Headrace's own admin calls. Raises KafkaError with the node's message."""
        with _lost():
            return self._connection.admin(method, params)

    def each(self, addresses: Sequence[str], method: str, params: Mapping[str, Any] | None = None) -> list[Any]:
        """What each of these nodes answers, as `ask_each`."""
        return ask_each(self.target, addresses, method, params)

    def kafka(self, api_key: ApiKey, version: int, fields: Mapping[str, Any]) -> Any:
        """The response entity of one of Kafka's APIs of the generic codec."""
        try:
            with _lost():
                return self._connection.ask(api_key, version, fields)
        except (ValueError, OverflowError, struct.error) as error:
            raise HeadraceError(f"this cannot be asked of a cluster: {error}") from error


def connected(
    bootstrap: str | None, folder: Path | None, *, timeout_s: float = TIMEOUT_S
) -> AbstractContextManager[Cluster]:
    """A connection to the first address that answers. Raises NoAnswer, also when the connection is lost in between."""
    return connected_to(find_target(bootstrap, folder), timeout_s=timeout_s)


@contextmanager
def connected_to(target: Target, *, timeout_s: float = TIMEOUT_S) -> Iterator[Cluster]:
    """The same, of a target that was found. Raises also SourceRefuses."""
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
    """Raises SourceRefuses where the cluster does not take what `target` says: librdkafka would try for long.

    That nobody answers is no error here: somebody may in a moment.
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
        time.sleep(AGAIN_S)  # a node that is just stopping ends its connections too


@contextmanager
def _lost() -> Iterator[None]:
    """Tells of a connection that is lost. Around its calls alone: what a command writes may fail too."""
    try:
        yield
    except OSError as error:
        raise NoAnswer(f"{error}: see `headrace status`") from error


def _knock(host: str, port: int, target: Target) -> None:
    """Makes sure that a node answers, where others could be asked: one that stands still accepts connections too."""
    with (
        BrokerConnection(host, port, CLIENT_ID, KNOCK_S, access=target.access) as connection,
        suppress(KafkaError),
    ):
        connection.admin("node.settings")


@contextmanager
def connected_to_coordinator(bootstrap: str | None, folder: Path | None) -> Iterator[Cluster]:
    """A connection to the node that coordinates consumer groups, waiting a moment while another takes that over.

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
            check(found.error_code, None, what="nobody coordinates consumer groups; see `headrace status`")
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
    """The results of an admin call at each of these nodes, all at a time; None for one that does not answer."""

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
    """Raises KafkaError for a Kafka error code that is not 0, with the node's message or the code's name."""
    code = int(error_code)  # type: ignore[call-overload]
    if code:
        known = code_of(code)
        raise KafkaError(known, f"{what}: {message or known.name.lower().replace('_', ' ')}")

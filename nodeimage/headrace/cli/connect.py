"""Finds the cluster that a command talks to, and asks it: Headrace's own admin calls and Kafka's APIs of the generic
codec.

`--bootstrap` names the cluster, else the embedded one that runs in the data folder. One connection per command, to the
first address that answers; any node answers for the cluster. What only the nodes themselves know is asked of all of
them at a time, and consumer groups of their coordinator. Errors leave as `HeadraceError` with a message that says what
to do next.
"""

import re
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from headrace.base.errors import HeadraceError, KafkaError, code_of
from headrace.kafka_client.blocking_client import BrokerConnection
from headrace.local.folder import ClusterNotRunning, default_folder
from headrace.wire.api_keys import ApiKey

CLIENT_ID: Final = "headrace-cli"
TIMEOUT_S: Final = 30.0
NODE_TIMEOUT_S: Final = 5.0
"""For one node's part of an answer."""
KNOCK_S: Final = 2.0
"""So long a node may take before another is asked."""
NODES_AT_ONCE: Final = 32
COORDINATOR_S: Final = 10.0
FIND_COORDINATOR_VERSION: Final = 3
DEFAULT_PORT: Final = 9092


class NoAnswer(HeadraceError):
    """No address of the cluster answers."""


def find_bootstrap(bootstrap: str | None, folder: Path | None) -> str:
    """The addresses to talk to: what was asked for, else those of the embedded cluster that runs in the folder."""
    if bootstrap:
        for address in bootstrap.split(","):
            split_address(address)
        return bootstrap
    from headrace.local.cluster import running_cluster

    folder = folder or default_folder()
    cluster = running_cluster(folder)
    if cluster is None:
        raise ClusterNotRunning(
            f"no cluster runs in {folder}: start one with `headrace up`, or name one with --bootstrap or --data"
        )
    return cluster.bootstrap


def split_address(address: str) -> tuple[str, int]:
    """`host`, `host:port` or `[v6]:port` as (host, port)."""
    text = address.strip()
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(DEFAULT_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not re.fullmatch(r"0*[0-9]{1,5}", port) or not 0 < int(port) < 65_536 or not _is_host(host):
        raise HeadraceError(f"{address!r} is not an address: write HOST:PORT")
    return host, int(port)


def _is_host(host: str) -> bool:
    """Whether the resolver takes the name."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return host.isprintable() and " " not in host


class Cluster:
    """One open connection to a cluster."""

    def __init__(self, connection: BrokerConnection, address: str) -> None:
        self._connection = connection
        self.address = address

    def admin(self, method: str, params: Mapping[str, Any] | None = None) -> Any:
        """The result of one of Headrace's own admin calls. Raises KafkaError with the node's message."""
        with _lost():
            return self._connection.admin(method, params)

    def kafka(self, api_key: ApiKey, version: int, fields: Mapping[str, Any]) -> Any:
        """The response entity of one of Kafka's APIs of the generic codec."""
        try:
            with _lost():
                return self._connection.ask(api_key, version, fields)
        except (ValueError, OverflowError, struct.error) as error:
            raise HeadraceError(f"this cannot be asked of a cluster: {error}") from error


@contextmanager
def connected(bootstrap: str | None, folder: Path | None, *, timeout_s: float = TIMEOUT_S) -> Iterator[Cluster]:
    """A connection to the first address that answers. Raises NoAnswer, also when the connection is lost in between."""
    addresses = find_bootstrap(bootstrap, folder).split(",")
    failure: Exception | None = None
    for address in addresses:
        host, port = split_address(address)
        try:
            if len(addresses) > 1:
                _knock(host, port)
            connection = BrokerConnection(host, port, CLIENT_ID, timeout_s)
        except OSError as error:
            failure = error
            continue
        with connection:
            yield Cluster(connection, address)
        return
    raise NoAnswer(f"{failure}: is the cluster up?")


@contextmanager
def _lost() -> Iterator[None]:
    """Tells of a connection that is lost. Around its calls alone: what a command writes may fail too."""
    try:
        yield
    except OSError as error:
        raise NoAnswer(f"{error}: see `headrace status`") from error


def _knock(host: str, port: int) -> None:
    """Makes sure that a node answers, where others could be asked: one that stands still accepts connections too."""
    with BrokerConnection(host, port, CLIENT_ID, KNOCK_S) as connection, suppress(KafkaError):
        connection.admin("node.settings")


@contextmanager
def connected_to_coordinator(bootstrap: str | None, folder: Path | None) -> Iterator[Cluster]:
    """A connection to the node that coordinates consumer groups, waiting a moment while another takes that over.

    Raises KafkaError, NoAnswer.
    """
    deadline = time.monotonic() + COORDINATOR_S
    while True:
        with connected(bootstrap, folder) as cluster:
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
    with connected(address, None) as cluster:
        yield cluster


def ask_each(
    addresses: Sequence[str], method: str, params: Mapping[str, Any] | None = None, *, timeout_s: float = NODE_TIMEOUT_S
) -> list[Any]:
    """The results of an admin call at each of these nodes, all at a time; None for one that does not answer."""

    def ask(address: str) -> Any:
        try:
            with connected(address, None, timeout_s=timeout_s) as cluster:
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

"""librdkafka as the commands use it: configuration, its errors as `HeadraceError`, and finding a topic's partitions.

Importing confluent_kafka takes 0.1 s: import this module inside the commands that need it.
"""

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from headrace.base.errors import HeadraceError
from headrace.cli.target import Target
from headrace.security.client_security import librdkafka_properties

METADATA_TIMEOUT_S: Final = 10.0
MAX_MESSAGE_BYTES: Final = 96 << 20
"""Largest message in bytes: what fits into a node's request (100 MiB). librdkafka's own default is 1 MB; a topic may
have a smaller limit."""
CREATION_TIMEOUT_S: Final = 5.0
"""Seconds to wait for a topic that is created on first use, which the first answer does not contain yet."""

_silent = logging.getLogger("headrace.librdkafka")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False


class KafkaClientError(HeadraceError):
    """An error from librdkafka, with advice."""


class RefusedByPolicy(KafkaClientError):
    """The cluster refuses such a record, mostly because the topic's home is elsewhere."""


def client_config(target: Target, settings: Mapping[str, Any]) -> dict[str, Any]:
    """librdkafka's configuration. Keeps its own log lines off stderr; errors are raised as exceptions.

    It contains the user's password, so do not show it.
    """
    return {
        "bootstrap.servers": target.addresses,
        **librdkafka_properties(target.access.security),
        "client.id": "headrace-cli",
        "logger": _silent,
        "socket.timeout.ms": 30_000,
        **settings,
    }


def producer_config(target: Target, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a producer, which accepts messages as large as a topic may. Its batches still end at 1 MB
    (batch.size)."""
    return client_config(target, {"message.max.bytes": MAX_MESSAGE_BYTES, **settings})


@contextmanager
def client_errors(what: str) -> Iterator[None]:
    """Turn librdkafka's exceptions into KafkaClientError."""
    try:
        yield
    except KafkaException as error:
        raise describe(error.args[0], what) from error


def describe(error: Any, what: str) -> KafkaClientError:
    """An error of librdkafka in one line, with advice if there is any."""
    code = error.code() if isinstance(error, KafkaError) else None
    match code:
        case KafkaError._TRANSPORT | KafkaError._ALL_BROKERS_DOWN | KafkaError._TIMED_OUT:
            return KafkaClientError(f"{what}: no answer from the cluster ({_text(error)}): see `headrace status`")
        case KafkaError.UNKNOWN_TOPIC_OR_PART | KafkaError._UNKNOWN_TOPIC:
            return KafkaClientError(f"{what}: there is no such topic: make it with `headrace topic create`")
        case KafkaError._UNKNOWN_PARTITION:
            return KafkaClientError(f"{what}: there is no such partition: see `headrace topic show`")
        case KafkaError.TOPIC_AUTHORIZATION_FAILED | KafkaError.GROUP_AUTHORIZATION_FAILED:
            return KafkaClientError(
                f"{what}: {_text(error)}: an administrator can grant the right to it (`headrace access`)"
            )
        case KafkaError.MSG_SIZE_TOO_LARGE:
            return KafkaClientError(
                f"{what}: {_text(error)}: `headrace stream alter --max-message` allows larger ones, up to 80 MiB"
            )
        case KafkaError.POLICY_VIOLATION:
            return RefusedByPolicy(f"{what}: {_text(error)}")
        case _:
            return KafkaClientError(f"{what}: {_text(error)}")


def partitions_of(client: Any, topic: str) -> list[int]:
    """The topic's partitions; waits for a topic that is created on first use. Raises KafkaClientError."""
    deadline = time.monotonic() + CREATION_TIMEOUT_S
    while True:
        try:
            with client_errors(topic):
                found = client.list_topics(topic, timeout=METADATA_TIMEOUT_S).topics[topic]
        except RuntimeError as error:  # the name is not valid for a topic
            raise KafkaClientError(f"{topic}: {KafkaError(KafkaError.TOPIC_EXCEPTION).str()}") from error
        if found.error is None and found.partitions:
            return sorted(found.partitions)
        transient = found.error is None or found.error.code() == KafkaError.LEADER_NOT_AVAILABLE
        if not transient or time.monotonic() > deadline:
            raise describe(found.error or KafkaError(KafkaError.LEADER_NOT_AVAILABLE), topic)
        time.sleep(0.05)


def _text(error: Any) -> str:
    return str(error.str()) if isinstance(error, KafkaError) else str(error)

"""Headrace's own admin calls, for what Kafka's protocol cannot set up."""

from typing import Any

from headrace.base.errors import KafkaError
from headrace.kafka_client.blocking_client import BrokerConnection


def admin(address: str, method: str, **params: object) -> Any:
    """Call one of Headrace's own admin methods; return the result. Raises RuntimeError with the error's message."""
    host, _, port = address.rpartition(":")
    with BrokerConnection(host, int(port), timeout_s=120.0) as connection:
        try:
            return connection.admin(method, params)
        except KafkaError as error:
            raise RuntimeError(f"{method}: {error}") from error

"""Versions of Kafka's APIs: those of Kafka, as far as there are schemas of them, and those that a node supports."""

from collections.abc import Mapping
from typing import Final

from kio.schema.index import schema_name_map

from headrace.kafka_client.blocking_client import BrokerConnection
from headrace.wire.api_keys import ApiKey, Versions
from headrace.wire.api_versions import decode_v0_response


def _versions(key: ApiKey) -> Versions:
    versions = schema_name_map[key.name.lower()]
    return Versions(min(versions), max(versions))


KAFKA: Final[Mapping[ApiKey, Versions]] = {key: _versions(key) for key in ApiKey if key is not ApiKey.HEADRACE_ADMIN}


def told_versions(host: str, port: int) -> dict[int, tuple[int, int]]:
    """By API key, a node's answer to ApiVersions."""
    with BrokerConnection(host, port) as connection:
        error, versions = decode_v0_response(connection.call(ApiKey.API_VERSIONS, 0, b""))
    assert error == 0
    return versions

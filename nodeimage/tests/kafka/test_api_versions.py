"""The APIs that a node answers: what its modules declare, what ApiVersions reports, and what clients conclude from
it."""

import asyncio
from typing import Final

import pytest
from kafka.protocol.broker_version_data import infer_broker_version_from_api_versions

from headrace.kafka.api import RawApi
from headrace.kafka.dispatch import Dispatcher
from headrace.kafka.security import APIS
from headrace.node.parts import NodeParts
from headrace.wire import fetch, metadata, produce
from headrace.wire.api_keys import ApiKey
from kit.kafka_versions import KAFKA, told_versions

OWN_CODECS: Final = {
    ApiKey.PRODUCE: produce.VERSIONS,
    ApiKey.FETCH: fetch.VERSIONS,
    ApiKey.METADATA: metadata.VERSIONS,
}


@pytest.fixture
async def told(broker: NodeParts) -> dict[int, tuple[int, int]]:
    return await asyncio.to_thread(told_versions, "127.0.0.1", broker.node.port)


async def test_all_that_is_answered_is_told_but_our_own(broker: NodeParts, told: dict[int, tuple[int, int]]) -> None:
    apis = broker.dispatcher.apis
    assert told == {int(key): api.versions for key, api in apis.items() if key is not ApiKey.HEADRACE_ADMIN}


async def test_every_version_that_is_answered_can_be_read_and_written(broker: NodeParts) -> None:
    for key, api in broker.dispatcher.apis.items():
        if key is not ApiKey.HEADRACE_ADMIN:
            lowest, highest = OWN_CODECS.get(key, KAFKA[key])
            assert lowest <= api.versions.lowest <= api.versions.highest <= highest, key.name


async def test_only_api_versions_answers_other_versions(broker: NodeParts) -> None:
    raw = {key: api for key, api in broker.dispatcher.apis.items() if isinstance(api, RawApi)}
    assert {key for key, api in raw.items() if api.answers_other_versions} == {ApiKey.API_VERSIONS}
    assert raw.keys() == {*OWN_CODECS, ApiKey.API_VERSIONS, ApiKey.HEADRACE_ADMIN}


async def test_no_api_is_declared_twice(broker: NodeParts) -> None:
    with pytest.raises(ValueError, match="SASL_AUTHENTICATE is declared twice"):
        Dispatcher(
            runtime=broker.runtime,
            connections=broker.connections,
            counters=broker.counters,
            throttle=broker.throttle,
            apis=(*APIS, APIS[1]),
        )


async def test_produce_is_told_from_version_0_or_librdkafka_turns_compression_off(
    told: dict[int, tuple[int, int]],
) -> None:
    assert told[ApiKey.PRODUCE][0] == 0


KAFKA_3_5: Final = """
0:9 1:15 2:8 3:12 8:8 9:8 10:4 11:9 12:4 13:5 14:5 15:5 16:4 17:1 18:3 19:7 20:6 21:2 22:4 23:4 24:3 25:3 26:3 28:3 29:3
30:3 31:3 32:4 33:2 34:2 35:4 36:2 37:3 38:3 39:2 40:2 41:3 42:2 43:2 44:1 45:0 46:0 47:0 48:1 49:1 50:0 51:0 60:0 61:0
65:0 66:0
"""
"""The APIs of Kafka 3.5 from which franz-go's kversion guesses a release, as key:highest version."""


async def test_franz_go_and_what_stands_on_it_take_the_cluster_for_one_above_kafka_3_5(
    told: dict[int, tuple[int, int]],
) -> None:
    """With one API missing, or at an older version, kversion would guess the release before the one that introduced
    it."""
    wanted = [tuple(map(int, each.split(":"))) for each in KAFKA_3_5.split()]
    assert [(key, version) for key, version in wanted if told.get(key, (0, -1))[1] < version] == []


async def test_kafka_python_takes_the_cluster_for_kafka_3_8(told: dict[int, tuple[int, int]]) -> None:
    assert infer_broker_version_from_api_versions(told) == (3, 8)

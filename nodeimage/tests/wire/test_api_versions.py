from typing import Final

import pytest
from kafka.protocol.broker_version_data import infer_broker_version_from_api_versions

from headrace.base.errors import MalformedRequest
from headrace.wire import generic_codec
from headrace.wire.api_keys import ADVERTISED, ApiKey
from headrace.wire.api_versions import Finalized, decode_v0_response, encode_response, is_known


@pytest.mark.parametrize("version", range(5))
def test_every_api_is_told_with_its_range_and_nothing_of_our_own(version: int) -> None:
    answer = generic_codec.decode_response(ApiKey.API_VERSIONS, version, encode_response(version))
    told = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
    assert told == {int(key): span for key, span in ADVERTISED.items()}
    assert answer.error_code == 0
    assert generic_codec.field(answer, "finalized_features", ()) == ()


@pytest.mark.parametrize(
    ("version", "oldest", "supported"), [(3, 0, (1, 2)), (4, 0, (0, 2)), (3, 1, (1, 2)), (4, 1, (1, 2))]
)
def test_a_feature_is_told_with_its_range_and_its_level(version: int, oldest: int, supported: tuple[int, int]) -> None:
    """Clients of version 3 refuse an answer with a range that begins at 0 (KAFKA-17011)."""
    raw = encode_response(version, Finalized("f", 1, oldest, 2, 7))
    answer = generic_codec.decode_response(ApiKey.API_VERSIONS, version, raw)
    assert [(each.name, each.min_version, each.max_version) for each in answer.supported_features] == [
        ("f", *supported)
    ]
    finalized = [(each.name, each.min_version_level, each.max_version_level) for each in answer.finalized_features]
    assert finalized == [("f", 1, 1)]
    assert answer.finalized_features_epoch == 7


def test_a_feature_at_0_is_told_to_nobody_and_none_to_older_clients() -> None:
    for version in (3, 4):
        answer = generic_codec.decode_response(
            ApiKey.API_VERSIONS, version, encode_response(version, Finalized("f", 0, 0, 0, 7))
        )
        assert answer.finalized_features == ()
        assert [each.name for each in answer.supported_features] == ([] if version == 3 else ["f"])
    for version in range(3):
        assert encode_response(version, Finalized("f", 1, 0, 2, 7)) == encode_response(version)


def test_produce_is_told_from_version_0_or_librdkafka_turns_compression_off() -> None:
    answer = generic_codec.decode_response(ApiKey.API_VERSIONS, 3, encode_response(3))
    assert {one.api_key: one.min_version for one in answer.api_keys}[ApiKey.PRODUCE] == 0


KAFKA_3_5: Final = """
0:9 1:15 2:8 3:12 8:8 9:8 10:4 11:9 12:4 13:5 14:5 15:5 16:4 17:1 18:3 19:7 20:6 21:2 22:4 23:4 24:3 25:3 26:3 28:3 29:3
30:3 31:3 32:4 33:2 34:2 35:4 36:2 37:3 38:3 39:2 40:2 41:3 42:2 43:2 44:1 45:0 46:0 47:0 48:1 49:1 50:0 51:0 60:0 61:0
65:0 66:0
"""
"""The APIs of Kafka 3.5 that franz-go's kversion goes by, key:highest version."""


def test_franz_go_and_what_stands_on_it_take_the_cluster_for_one_above_kafka_3_5() -> None:
    """One API less, or an older version, and kversion's guess falls to the release in which that one came."""
    told = {int(key): highest for key, (_, highest) in ADVERTISED.items()}
    wanted = [tuple(map(int, each.split(":"))) for each in KAFKA_3_5.split()]
    assert [(key, version) for key, version in wanted if told.get(key, -1) < version] == []


def test_kafka_python_takes_the_cluster_for_kafka_3_8() -> None:
    ranges = {int(key): span for key, span in ADVERTISED.items()}
    assert infer_broker_version_from_api_versions(ranges) == (3, 8)


@pytest.mark.parametrize("version", [-1, 5, 32767])
def test_an_unknown_version_is_answered_in_version_0_with_the_ranges(version: int) -> None:
    assert not is_known(version)
    answer = generic_codec.decode_response(ApiKey.API_VERSIONS, 0, encode_response(version))
    assert answer.error_code == 35
    assert len(answer.api_keys) == len(ADVERTISED)


def test_version_0_is_read_back_and_bytes_that_are_none_of_it_are_refused() -> None:
    raw = encode_response(0)
    assert decode_v0_response(raw) == (0, {int(key): span for key, span in ADVERTISED.items()})
    assert decode_v0_response(encode_response(99))[0] == 35
    for broken in (raw[:-1], raw + b"x", b"", b"\x00\x00\x7f\xff\xff\xff"):
        with pytest.raises(MalformedRequest):
            decode_v0_response(broken)

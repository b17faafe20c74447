import pytest

from headrace.base.errors import Code, MalformedRequest
from headrace.wire import generic_codec
from headrace.wire.api_keys import ApiKey, Versions
from headrace.wire.api_versions import Finalized, decode_v0_response, encode_response

APIS = ((ApiKey.PRODUCE, Versions(0, 11)), (ApiKey.FETCH, Versions(4, 16)), (ApiKey.OFFSET_DELETE, Versions(0, 0)))
RANGES = {int(key): tuple(versions) for key, versions in APIS}


@pytest.mark.parametrize("version", range(5))
def test_every_api_is_told_with_its_range(version: int) -> None:
    answer = generic_codec.decode_response(ApiKey.API_VERSIONS, version, encode_response(version, APIS))
    assert {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys} == RANGES
    assert answer.error_code == 0
    assert generic_codec.field(answer, "finalized_features", ()) == ()


@pytest.mark.parametrize(
    ("version", "oldest", "supported"), [(3, 0, (1, 2)), (4, 0, (0, 2)), (3, 1, (1, 2)), (4, 1, (1, 2))]
)
def test_a_feature_is_told_with_its_range_and_its_level(version: int, oldest: int, supported: tuple[int, int]) -> None:
    """Clients of version 3 reject a response with a range that begins at 0 (KAFKA-17011)."""
    raw = encode_response(version, APIS, Finalized("f", 1, oldest, 2, 7))
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
            ApiKey.API_VERSIONS, version, encode_response(version, APIS, Finalized("f", 0, 0, 0, 7))
        )
        assert answer.finalized_features == ()
        assert [each.name for each in answer.supported_features] == ([] if version == 3 else ["f"])
    for version in range(3):
        assert encode_response(version, APIS, Finalized("f", 1, 0, 2, 7)) == encode_response(version, APIS)


def test_version_0_is_read_back_and_bytes_that_are_none_of_it_are_refused() -> None:
    raw = encode_response(0, APIS)
    assert decode_v0_response(raw) == (0, RANGES)
    assert decode_v0_response(encode_response(0, APIS, error=Code.UNSUPPORTED_VERSION)) == (35, RANGES)
    for broken in (raw[:-1], raw + b"x", b"", b"\x00\x00\x7f\xff\xff\xff"):
        with pytest.raises(MalformedRequest):
            decode_v0_response(broken)

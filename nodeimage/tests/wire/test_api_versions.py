import pytest

from headrace.wire import cold
from headrace.wire.api_keys import ADVERTISED, ApiKey
from headrace.wire.api_versions import encode_response, is_known


@pytest.mark.parametrize("version", range(5))
def test_every_api_is_told_with_its_range_and_nothing_of_our_own(version: int) -> None:
    answer = cold.decode_response(ApiKey.API_VERSIONS, version, encode_response(version))
    told = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
    assert told == {int(key): span for key, span in ADVERTISED.items()}
    assert answer.error_code == 0
    assert cold.field(answer, "finalized_features", ()) == ()


def test_produce_is_told_from_version_0_or_librdkafka_turns_compression_off() -> None:
    answer = cold.decode_response(ApiKey.API_VERSIONS, 3, encode_response(3))
    assert {one.api_key: one.min_version for one in answer.api_keys}[ApiKey.PRODUCE] == 0


@pytest.mark.parametrize("version", [-1, 5, 32767])
def test_an_unknown_version_is_answered_in_version_0_with_the_ranges(version: int) -> None:
    assert not is_known(version)
    answer = cold.decode_response(ApiKey.API_VERSIONS, 0, encode_response(version))
    assert answer.error_code == 35
    assert len(answer.api_keys) == len(ADVERTISED)

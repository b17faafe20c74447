import kio.index
import pytest
from kio.schema.index import api_key_map

from headrace.wire.api_keys import ApiKey, is_flexible
from kit.kafka_versions import KAFKA

KNOWN = [(key, version) for key, (low, high) in KAFKA.items() for version in range(low, high + 1)]


@pytest.mark.parametrize(("key", "version"), KNOWN)
def test_flexible_versions_are_those_of_kafkas_schemas(key: ApiKey, version: int) -> None:
    assert is_flexible(key, version) == kio.index.load_request_schema(key, version).__flexible__
    assert is_flexible(key, version) == kio.index.load_response_schema(key, version).__flexible__


def test_names_are_those_of_kios_schema_packages() -> None:
    assert {int(key): key.name.lower() for key in KAFKA} == {int(key): api_key_map[key] for key in KAFKA}


def test_our_own_api_is_not_flexible() -> None:
    assert not is_flexible(ApiKey.HEADRACE_ADMIN, 0)


def test_an_unknown_api_is_not_flexible() -> None:
    assert not is_flexible(12345, 32767)

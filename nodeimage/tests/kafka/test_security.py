"""SASL and delegation tokens of a cluster without either, through the bytes of the APIs."""

import pytest

from headrace.base.errors import Code
from headrace.kafka import security
from headrace.wire.api_keys import ApiKey


def versions(key):
    ((low, high),) = (api.versions for api in security.APIS if api.key is key)
    return [pytest.param(key, version, id=f"{key.name} {version}") for version in range(low, high + 1)]


@pytest.mark.parametrize(("key", "version"), [*versions(ApiKey.SASL_HANDSHAKE), *versions(ApiKey.SASL_AUTHENTICATE)])
async def test_who_wants_to_authenticate_is_told_that_the_listener_does_not(ask, key, version):
    answer = await ask(key, version, {"mechanism": "PLAIN", "auth_bytes": b"\0u\0p"})
    assert answer.error_code == Code.ILLEGAL_SASL_STATE


@pytest.mark.parametrize(
    ("key", "version"),
    [
        *versions(ApiKey.CREATE_DELEGATION_TOKEN),
        *versions(ApiKey.RENEW_DELEGATION_TOKEN),
        *versions(ApiKey.EXPIRE_DELEGATION_TOKEN),
        *versions(ApiKey.DESCRIBE_DELEGATION_TOKEN),
    ],
)
async def test_there_are_no_delegation_tokens(ask, key, version):
    assert (await ask(key, version, {})).error_code == Code.DELEGATION_TOKEN_AUTH_DISABLED

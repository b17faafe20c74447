"""SASL and delegation tokens, answered as by a Kafka that has neither enabled.

Tools send these requests and continue if the answer says that the feature is disabled; if the connection just ended,
they could not tell.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from headrace.base.errors import Code
from headrace.kafka.api import Api
from headrace.kafka.connection import Connection
from headrace.wire.api_keys import ApiKey, Versions

_NO_TOKENS: Final = {"error_code": int(Code.DELEGATION_TOKEN_AUTH_DISABLED)}
_NO_SASL: Final = {
    "error_code": int(Code.ILLEGAL_SASL_STATE),
    "error_message": "this listener authenticates nobody: connect without SASL",
}


# --- SASL, delegation tokens


async def sasl_handshake(request: Any, session: Connection) -> Mapping[str, object]:
    """SaslHandshake."""
    return _NO_SASL


async def sasl_authenticate(request: Any, session: Connection) -> Mapping[str, object]:
    """SaslAuthenticate."""
    return _NO_SASL


async def delegation_token(request: Any, session: Connection) -> Mapping[str, object]:
    """CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken, DescribeDelegationToken."""
    return _NO_TOKENS


APIS: Final[Sequence[Api]] = (
    Api(ApiKey.SASL_HANDSHAKE, Versions(0, 1), sasl_handshake),
    Api(ApiKey.SASL_AUTHENTICATE, Versions(0, 2), sasl_authenticate),
    Api(ApiKey.CREATE_DELEGATION_TOKEN, Versions(1, 3), delegation_token),
    Api(ApiKey.RENEW_DELEGATION_TOKEN, Versions(1, 2), delegation_token),
    Api(ApiKey.EXPIRE_DELEGATION_TOKEN, Versions(1, 2), delegation_token),
    Api(ApiKey.DESCRIBE_DELEGATION_TOKEN, Versions(1, 3), delegation_token),
)

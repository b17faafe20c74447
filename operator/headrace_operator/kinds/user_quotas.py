"""The quotas of a StreamUser, by Kafka's own calls (DescribeClientQuotas 48, AlterClientQuotas 49)."""

from typing import Any, Final

from headrace.base.errors import Code, KafkaError, code_of
from headrace.wire.api_keys import ApiKey
from headrace_operator.admin import Calls
from headrace_operator.specs import Quotas

EXACT: Final = 0
"""Kafka's match type for an exact entity name."""
_KEYS: Final = {
    "producer_byte_rate": "producer_byte_rate",
    "consumer_byte_rate": "consumer_byte_rate",
    "request_percentage": "request_percentage",
    "controller_mutation_rate": "controller_mutation_rate",
}
"""Kafka's names of quotas, by field."""


def asked(quotas: Quotas) -> dict[str, float]:
    """Return the requested quotas by Kafka's names."""
    given = {key: getattr(quotas, name) for name, key in _KEYS.items()}
    return {key: float(value) for key, value in given.items() if value is not None}


async def alter_quotas(admin: Calls, bootstrap: str, user: str, quotas: Quotas) -> None:
    """Give a user exactly these quotas. Raises HeadraceError."""
    wanted = asked(quotas)
    present = await _shown(admin, bootstrap, user)
    ops = [
        {"key": key, "value": wanted.get(key, 0.0), "remove": key not in wanted}
        for key in sorted(wanted.keys() | present.keys())
        if wanted.get(key) != present.get(key)
    ]
    if not ops:
        return
    entry = {"entity": [{"entity_type": "user", "entity_name": user}], "ops": ops}
    answer = await admin.kafka(bootstrap, ApiKey.ALTER_CLIENT_QUOTAS, 1, {"entries": [entry], "validate_only": False})
    for each in answer.entries:
        _check(each.error_code, each.error_message)


async def _shown(admin: Calls, bootstrap: str, user: str) -> dict[str, float]:
    component = {"entity_type": "user", "match_type": EXACT, "match": user}
    answer = await admin.kafka(bootstrap, ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, {"components": [component], "strict": True})
    _check(answer.error_code, answer.error_message)
    found: dict[str, float] = {}
    for entry in answer.entries or ():
        values: Any = entry.values
        found |= {str(each.key): float(each.value) for each in values}
    return found


def _check(error_code: Any, message: str | None) -> None:
    code = code_of(int(error_code))
    if code is not Code.NONE:
        raise KafkaError(code, message or code.name)

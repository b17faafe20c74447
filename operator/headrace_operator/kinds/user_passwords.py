"""The removal of a user's password, by Kafka's own call (AlterUserScramCredentials 51): Headrace's calls can only
replace one.
"""

from collections.abc import Sequence
from typing import Final

from headrace.base.errors import Code, KafkaError, code_of
from headrace.wire.api_keys import ApiKey
from headrace_operator.admin import Calls

_NUMBERS: Final = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
"""Kafka's numbers of mechanisms (KIP-554)."""


async def remove_password(admin: Calls, bootstrap: str, user: str, mechanisms: Sequence[str]) -> None:
    """Delete a user's credentials for these mechanisms; the user stays. Raises HeadraceError."""
    deletions = [{"name": user, "mechanism": _NUMBERS[each]} for each in mechanisms]
    asked = {"deletions": deletions, "upsertions": []}
    answer = await admin.kafka(bootstrap, ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, asked)
    for each in answer.results:
        code = code_of(int(each.error_code))
        if code not in (Code.NONE, Code.RESOURCE_NOT_FOUND):  # not found: deleted concurrently
            raise KafkaError(code, each.error_message or code.name)

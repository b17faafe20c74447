"""The credentials of users, read from the catalog, which every node has.

The time that an answer takes must not reveal whether a user exists: proving that a row is absent reads more than the
row itself. So no look-up is answered before `MIN_S` has passed since its turn came, which is much longer than a look-up
takes.
"""

import asyncio
import hmac
import sqlite3
from typing import Final

from headrace.base.errors import Code, KafkaError
from headrace.catalog.catalog import Catalog
from headrace.security.sasl.scram_credential import ScramCredential

MIN_S: Final = 0.002
AT_ONCE: Final = 4
"""Concurrent look-ups, so that many clients that connect at the same time leave threads for other work."""
_SALT_OF: Final = b"headrace: records of users that do not exist"


class CatalogCredentials:
    """The SCRAM credentials of all users (implements security.sasl.scram_credential.Credentials)."""

    def __init__(self, *, catalog: Catalog, secret: str) -> None:
        """`secret`: the cluster's secret."""
        self.unknown_salt_key = hmac.digest(secret.encode(), _SALT_OF, "sha256")
        self._catalog = catalog
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def scram(self, user: str, mechanism: str) -> ScramCredential | None:
        """See Credentials."""
        loop = asyncio.get_running_loop()
        async with self._turns:
            until = loop.time() + MIN_S
            try:
                row = await self._catalog.query(lambda reader: reader.users.credential(user, mechanism))
            except sqlite3.Error as error:
                raise KafkaError(Code.BROKER_NOT_AVAILABLE, f"the catalog cannot be read: {error}") from error
        await asyncio.sleep(max(0.0, until - loop.time()))
        if row is None:
            return None
        return ScramCredential(
            salt=row.salt, stored_key=row.stored_key, server_key=row.server_key, iterations=row.iterations
        )

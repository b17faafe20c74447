"""A node whose security is on, called by authenticated clients."""

from collections.abc import Mapping
from typing import Any

from headrace.base.errors import Code
from headrace.base.ids import Millis
from headrace.catalog.access import AccessItem, SecureCluster, SetAccess
from headrace.kafka.connection import Connection
from headrace.node.parts import NodeParts
from headrace.wire.api_keys import ApiKey
from kit.access import User

ROOT = "root"
"""The administrator."""


class SecuredNode:
    """A node, and requests to it as a particular user."""

    def __init__(self, parts: NodeParts) -> None:
        self.parts = parts
        self.told: list[Mapping[str, object]] = []
        """The events of the audit."""

    async def secure(self) -> None:
        """Turn security on, with one administrator."""
        self.parts.audit._sinks.append(self.told.append)
        await self.access("cluster", "", "admin", f"u:{ROOT}")
        await self.parts.catalog.submit(SecureCluster(on=True))

    async def access(
        self, kind: str, name: str, permission: str, expression: str | None, *, topic_id: bytes = b""
    ) -> None:
        """Set an expression."""
        item = AccessItem(kind, name, permission, expression, topic_id)
        (outcome,) = await self.parts.catalog.submit(SetAccess([item], Millis(1)))
        assert outcome.code is Code.NONE

    def connection(self, user: str) -> Connection:
        """The connection of a client authenticated as `user`."""
        return User(self.parts, user).connection

    async def ask(self, user: str, key: ApiKey, version: int, fields: Mapping[str, Any]) -> Any:
        """The answer that `user` gets, through the bytes of the request, its handler, and the bytes of the answer."""
        return await User(self.parts, user).ask(key, version, **fields)

"""A node whose security is on, asked by clients who have proven who they are."""

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
    """A node, and what tests ask of it as somebody."""

    def __init__(self, parts: NodeParts) -> None:
        self.parts = parts
        self.told: list[Mapping[str, object]] = []
        """What the audit was told."""

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
        """Of a client who has proven to be `user`."""
        return User(self.parts, user).connection

    async def ask(self, user: str, key: ApiKey, version: int, fields: Mapping[str, Any]) -> Any:
        """The answer that `user` gets, through the request's bytes, its handler, and the answer's bytes."""
        return await User(self.parts, user).ask(key, version, **fields)

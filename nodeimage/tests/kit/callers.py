"""Authenticated callers of Headrace's own admin calls, on a cluster whose security is on."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from headrace.base.errors import Code
from headrace.catalog.reader import Reader
from headrace.kafka.connection import Connection
from headrace.node.parts import NodeParts
from headrace.security.principals import Principal
from headrace.security.sasl.scram_credential import ScramCredential
from headrace.security.scram_common import HASHES
from headrace.wire.admin_call import encode_admin_request
from headrace.wire.api_keys import ApiKey
from kit.access import User, principal

PASSWORD = "not a secret 1"
FORBIDDEN = (
    Code.CLUSTER_AUTHORIZATION_FAILED,
    Code.TOPIC_AUTHORIZATION_FAILED,
    Code.GROUP_AUTHORIZATION_FAILED,
    Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)


class Refusal(Exception):
    """An admin call's error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = Code(code)

    @property
    def is_forbidden(self) -> bool:
        return self.code in FORBIDDEN


class Callers:
    """Calls a node as one user or another."""

    def __init__(self, parts: NodeParts) -> None:
        self.parts = parts

    async def call(self, user: str | Principal, method: str, /, **params: Any) -> Any:
        """The result of a call. Raises Refusal."""
        connection = Connection(self.parts.dispatcher)
        connection.principal = user if isinstance(user, Principal) else await self.logged_in(user)
        answer = msgspec.msgpack.decode(await self.parts.admin.handle(encode_admin_request(method, params), connection))
        if answer["error"]:
            assert answer["result"] is None
            assert "\n" not in answer["message"]
            raise Refusal(answer["error"], answer["message"])
        return answer["result"]

    def asks(self, user: str) -> Callable[[ApiKey, int, Mapping[str, Any]], Awaitable[Any]]:
        """A caller of Kafka's APIs as a user."""

        async def asked(key: ApiKey, version: int, fields: Mapping[str, Any]) -> Any:
            return await User(self.parts, user).ask(key, version, **fields)

        return asked

    async def logged_in(self, user: str) -> Principal:
        """`user` as a principal, logged in with the user's present password."""

        def look(reader: Reader) -> frozenset[bytes]:
            rows = [row for each in HASHES if (row := reader.users.credential(user, each)) is not None]
            return frozenset(
                ScramCredential(row.salt, row.stored_key, row.server_key, row.iterations).mark for row in rows
            )

        found = principal(user)
        return replace(found, passwords=await self.parts.catalog.query(look)) if user else found

    async def refused(self, user: str | Principal, method: str, /, **params: Any) -> Refusal:
        """The reason why a call is refused for lack of a right."""
        error = await self.fails(user, method, **params)
        assert error.is_forbidden, (method, error.code, str(error))
        return error

    async def fails(self, user: str | Principal, method: str, /, **params: Any) -> Refusal:
        """The reason why a call fails."""
        try:
            answer = await self.call(user, method, **params)
        except Refusal as error:
            return error
        raise AssertionError(f"{method} answers {answer}")

    async def access(self, by: str, given: dict[str, dict[str, str | None]], **more: Any) -> Any:
        """Set expressions, by object and permission."""
        items = [
            {"object": name, "permission": permission, "expression": text}
            for name, each in given.items()
            for permission, text in each.items()
        ]
        return await self.call(by, "access.set", items=items, **more)

    async def secure(self, admin: str = "root") -> None:
        """Turn security on, with one administrator."""
        await self.call("", "user.create", name=admin, password=PASSWORD)
        await self.access("", {"cluster": {"admin": f"u:{admin}"}})
        await self.call("", "security.on")

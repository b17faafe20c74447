"""Users: their groups, and their credentials.

A credential is what a SCRAM server needs (RFC 5802): salted keys, from which the password cannot be derived. A user
without a credential can authenticate only by a certificate.
"""

from typing import ClassVar, NamedTuple

import msgspec

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import Millis
from headrace.base.levels import Level
from headrace.catalog.command import CatalogCommand, Item
from headrace.catalog.rows import UserRow
from headrace.catalog.selects import select_user
from headrace.tables.row_checksums import Tables


class UserOutcome(NamedTuple):
    """The user's row, for a deleted user as it was. `changed` is false if there was nothing to do."""

    user: UserRow
    changed: bool


class PutUser(CatalogCommand[UserOutcome], frozen=True):
    """Create (`create`) or alter the user of that name.

    If the user has these groups already, the outcome is a success without a change, as for a repeat. Creating a user
    that exists with other groups is refused with DUPLICATE_RESOURCE, altering a missing one with RESOURCE_NOT_FOUND.
    """

    name: str
    groups: list[str]
    now: Millis
    create: bool

    since: ClassVar[Level] = Level.SECURED
    changes_topics: ClassVar[bool] = False

    def apply(self, connection: Tables) -> UserOutcome:
        groups = tuple(sorted(set(self.groups)))
        present = select_user(connection, self.name)
        if present is None:
            if not self.create:
                raise _not_found(self.name)
            return UserOutcome(_create(connection, self.name, groups, self.now), changed=True)
        if present.groups == groups:
            return UserOutcome(present, changed=False)
        if self.create:
            raise KafkaError(Code.DUPLICATE_RESOURCE, f"there is a user {self.name} already, with other groups")
        connection.update("users", {"groups": "?1"}, "name = ?2", _encoded(groups), self.name)
        return UserOutcome(present._replace(groups=groups), changed=True)


class DeleteUser(CatalogCommand[UserOutcome], frozen=True):
    """Delete a user with his credentials. RESOURCE_NOT_FOUND if there is none.

    Access expressions and quotas that name the user stay, and apply again if a user of that name is recreated. (The
    submitter of a repeat gets the outcome of the first copy.)
    """

    name: str

    since: ClassVar[Level] = Level.SECURED
    changes_topics: ClassVar[bool] = False

    def apply(self, connection: Tables) -> UserOutcome:
        present = select_user(connection, self.name)
        if present is None:
            raise _not_found(self.name)
        connection.delete("credentials", "user = ?1", self.name)
        connection.delete("users", "name = ?1", self.name)
        return UserOutcome(present, changed=True)


class Credential(Item, frozen=True):
    """A user's credential for one mechanism, SCRAM-SHA-256 or SCRAM-SHA-512."""

    user: str
    mechanism: str
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"Credential({self.user!r}, {self.mechanism!r})"


class AlterCredentials(CatalogCommand[list[Code]], frozen=True):
    """Set and delete credentials. One code per item, deletions first; RESOURCE_NOT_FOUND if there is nothing to delete.

    Setting a credential of a missing user creates the user, without groups, as Kafka's tools expect; with
    `only_existing` it is refused with RESOURCE_NOT_FOUND, so that a new password does not bring a deleted user back.
    """

    deletions: list[tuple[str, str]]
    """Pairs of (user, mechanism)."""
    upserts: list[Credential]
    now: Millis
    only_existing: bool = False

    since: ClassVar[Level] = Level.SECURED
    changes_topics: ClassVar[bool] = False

    def apply(self, connection: Tables) -> list[Code]:
        codes = []
        for user, mechanism in self.deletions:
            gone = connection.delete("credentials", "user = ?1 AND mechanism = ?2", user, mechanism)
            codes.append(Code.NONE if gone else Code.RESOURCE_NOT_FOUND)
        for each in self.upserts:
            if select_user(connection, each.user) is None:
                if self.only_existing:
                    codes.append(Code.RESOURCE_NOT_FOUND)
                    continue
                _create(connection, each.user, (), self.now)
            columns = (each.user, each.mechanism, each.salt, each.stored_key, each.server_key, each.iterations)
            connection.insert("credentials", [columns], upsert=True)
            codes.append(Code.NONE)
        return codes


def _create(connection: Tables, name: str, groups: tuple[str, ...], now: Millis) -> UserRow:
    connection.insert("users", [(name, _encoded(groups), now)])
    return UserRow(name, groups, now)


def _encoded(groups: tuple[str, ...]) -> bytes:
    return msgspec.msgpack.encode(groups)


def _not_found(name: str) -> KafkaError:
    return KafkaError(Code.RESOURCE_NOT_FOUND, f"there is no user {name}")

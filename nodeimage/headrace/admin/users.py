"""Headrace's own admin calls on users. Any node answers them.

Passwords are sent in these calls only, and no further than the node that answers: it stores salted keys, for
SCRAM-SHA-256 and SCRAM-SHA-512, and no answer, log or error contains either.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import structlog

from headrace.admin.access_changes import AccessChanges
from headrace.base.errors import Code, KafkaError
from headrace.base.runtime import Runtime
from headrace.catalog.catalog import Catalog
from headrace.catalog.reader import Reader
from headrace.catalog.rows import UserRow
from headrace.catalog.users import AlterCredentials, Credential, DeleteUser, PutUser, UserOutcome
from headrace.partitions.admin_params import Method, Methods, Params
from headrace.partitions.admin_rights import CLUSTER_ADMIN, Own
from headrace.partitions.caller import Caller
from headrace.partitions.lookups import look_up_one, now, submit_within
from headrace.security.audit import Change
from headrace.security.principals import check_name, check_user_name
from headrace.security.sasl.scram_credential import ScramCredential
from headrace.security.scram_common import HASHES

log = structlog.get_logger()

MIN_PASSWORD: Final = 8
MAX_PASSWORD: Final = 256
"""Shortest and longest password, in characters."""
MAX_GROUPS: Final = 1_000
MAX_PAGE: Final = 10_000
_CONTROLS: Final = re.compile("[\x00-\x1f\x7f-\x9f]")


class OneUser(Params, frozen=True):
    name: str


class NewUser(Params, frozen=True):
    name: str
    password: str | None = None
    """None: the user authenticates by a certificate or a token."""
    groups: list[str] = msgspec.field(default_factory=list)
    if_not_exists: bool = False

    def __repr__(self) -> str:
        return f"NewUser({self.name!r})"


class UserChange(Params, frozen=True):
    name: str
    groups: list[str]
    """All groups that the user is in from now on."""
    force: bool = False


class UserEnd(Params, frozen=True):
    name: str
    force: bool = False


class NewPassword(Params, frozen=True):
    name: str
    password: str

    def __repr__(self) -> str:
        return f"NewPassword({self.name!r})"


class UserPage(Params, frozen=True):
    after: str = ""
    limit: int = 1_000


TAKEN: Final = (OneUser, NewUser, UserChange, UserEnd, NewPassword, UserPage)
_DECODERS: Final = [msgspec.msgpack.Decoder(params) for params in TAKEN]
"""Decoders built as this module is loaded; see admin_api."""


class UserCalls:
    """The admin calls on users."""

    def __init__(self, *, runtime: Runtime, catalog: Catalog, changes: AccessChanges) -> None:
        self._runtime = runtime
        self._catalog = catalog
        self._changes = changes

    def methods(self) -> Methods:
        """By method name: its parameters, its handler, and the right that it requires."""
        return {
            "user.create": Method(NewUser, self._create, CLUSTER_ADMIN, of_caller=True),
            "user.list": Method(UserPage, self._list, CLUSTER_ADMIN),
            "user.show": Method(OneUser, self._show, Own("name")),
            "user.alter": Method(UserChange, self._alter, CLUSTER_ADMIN, of_caller=True),
            "user.passwd": Method(NewPassword, self._passwd, Own("name"), of_caller=True),
            "user.delete": Method(UserEnd, self._delete, CLUSTER_ADMIN, of_caller=True),
        }

    async def _create(self, params: NewUser, caller: Caller) -> dict[str, Any]:
        """Create a user and return it. Raises DUPLICATE_RESOURCE for a name that is taken, unless `if_not_exists`.

        A crash leaves at most a user without a password, which cannot log in; the call may be repeated.
        """
        name = params.name
        check_user_name(name)
        _check_groups(params.groups)
        if params.password is not None:
            check_password(params.password, user=name)
        present = await self._found(name)
        if present is not None and params.if_not_exists:
            return {**present, **await self._changes.outcome_fields()}
        if present is not None and (present["mechanisms"] or params.password is None):
            raise _taken(name)
        # Computed first, so that the user is without its password as briefly as possible: a concurrent call would take
        # it for the rest of a crash.
        credentials = None if params.password is None else await self._credentials(name, params.password)
        command = PutUser(name=name, groups=params.groups, now=now(), create=True)
        outcome: UserOutcome = await submit_within(self._catalog, command, timeout_ms=0)
        if not outcome.changed:
            made = await self._found(name) or _shown(outcome.user, ())
            if params.if_not_exists:
                return {**made, **await self._changes.outcome_fields()}
            if present is None or made["mechanisms"]:  # another call was faster
                raise _taken(name)
        if credentials is not None:
            await self._put_credentials(name, credentials)
        log.info("user created", user=name)
        self._changes.note(caller, Change.USERS, name, f"made, {_of_groups(params.groups)}", api="user.create")
        made = await self._found(name) or _shown(outcome.user, ())
        return {**made, **await self._changes.outcome_fields()}

    async def _list(self, params: UserPage) -> list[dict[str, Any]]:
        """A page of users in order of name."""
        if not 1 <= params.limit <= MAX_PAGE:
            raise KafkaError(Code.INVALID_REQUEST, f"limit is {params.limit}; allowed are 1 to {MAX_PAGE}")

        def look(reader: Reader) -> list[dict[str, Any]]:
            rows = reader.users.page(after=params.after, limit=params.limit)
            return [_shown(row, _mechanisms(reader, row.name)) for row in rows]

        return await self._catalog.query(look)

    async def _show(self, params: OneUser) -> dict[str, Any]:
        """One user: its groups, and its authentication mechanisms."""
        found = await self._found(params.name)
        if found is None:
            raise _none(params.name)
        return found

    async def _alter(self, params: UserChange, caller: Caller) -> dict[str, Any]:
        """Change a user's groups and return the user. They apply from the next request on, in open sessions too."""
        _check_groups(params.groups)
        if params.name == caller.principal.user:
            after = frozenset(params.groups) | caller.principal.groups
            self._changes.check_stays_admin(caller, force=params.force, groups=after)
        command = PutUser(name=params.name, groups=params.groups, now=now(), create=False)
        await submit_within(self._catalog, command, timeout_ms=0)
        log.info("user altered", user=params.name)
        self._changes.note(caller, Change.USERS, params.name, _of_groups(params.groups), api="user.alter")
        return {**await self._show(OneUser(params.name)), **await self._changes.outcome_fields()}

    async def _passwd(self, params: NewPassword, caller: Caller) -> dict[str, Any]:
        """Change a user's password, for new log-ins; open connections stay open."""
        check_password(params.password, user=params.name)
        await self._show(OneUser(params.name))
        if not self._changes.is_admin(caller):
            await self._check_still_his(params.name, caller)
        await self._put_credentials(params.name, await self._credentials(params.name, params.password))
        log.info("password changed", user=params.name)
        self._changes.note(caller, Change.USERS, params.name, "another password", api="user.passwd")
        return {**await self._show(OneUser(params.name)), **await self._changes.outcome_fields()}

    async def _delete(self, params: UserEnd, caller: Caller) -> dict[str, Any]:
        """Delete a user and return it. Expressions that name it stay, and apply to a later user of the same name."""
        found = await self._show(OneUser(params.name))
        if params.name == caller.principal.user and not params.force:
            raise KafkaError(
                Code.POLICY_VIOLATION, f"{params.name} is the user who asks; with force it is deleted anyway"
            )
        await submit_within(self._catalog, DeleteUser(name=params.name), timeout_ms=0)
        log.info("user deleted", user=params.name)
        self._changes.note(caller, Change.USERS, params.name, "deleted", api="user.delete")
        return {**found, **await self._changes.outcome_fields()}

    async def _check_still_his(self, name: str, caller: Caller) -> None:
        """Check that the session's own password is still the user's: if the user got another password, or was deleted
        and recreated, an older open connection must not take the user over."""

        def look(reader: Reader) -> bool:
            rows = [row for each in HASHES if (row := reader.users.credential(name, each)) is not None]
            kept = {ScramCredential(row.salt, row.stored_key, row.server_key, row.iterations).mark for row in rows}
            return not kept.isdisjoint(caller.principal.passwords)

        if not await self._catalog.query(look):
            raise KafkaError(
                Code.CLUSTER_AUTHORIZATION_FAILED,
                f"{caller.principal} has a new password since this session began: log in again with that one",
            )

    async def _credentials(self, name: str, password: str) -> list[Credential]:
        return await self._runtime.loop.run_in_executor(self._runtime.executor, _credentials, name, password)

    async def _put_credentials(self, name: str, upserts: list[Credential]) -> None:
        command = AlterCredentials(deletions=[], upserts=upserts, now=now(), only_existing=True)
        codes: Sequence[Code] = await submit_within(self._catalog, command, timeout_ms=0)
        if any(code is not Code.NONE for code in codes):
            raise _none(name)

    async def _found(self, name: str) -> dict[str, Any] | None:
        def look(reader: Reader) -> dict[str, Any] | None:
            row = reader.users.named(name)
            return None if row is None else _shown(row, _mechanisms(reader, name))

        return await look_up_one(self._catalog, look)


def check_password(password: str, *, user: str) -> None:
    """Check that a password is acceptable. Raises KafkaError, whose message does not contain it."""
    fault = ""
    if not MIN_PASSWORD <= len(password) <= MAX_PASSWORD:
        fault = f"has {len(password)} characters; {MIN_PASSWORD} to {MAX_PASSWORD} are allowed"
    elif _CONTROLS.search(password):
        fault = "has a control character, such as a line break"
    elif password.casefold() == user.casefold():
        fault = "is the user's name"
    if fault:
        raise KafkaError(Code.UNACCEPTABLE_CREDENTIAL, f"the password {fault}")


def _check_groups(groups: Sequence[str]) -> None:
    if len(groups) > MAX_GROUPS:
        raise KafkaError(Code.INVALID_REQUEST, f"{len(groups)} groups; a user can be in at most {MAX_GROUPS}")
    for each in groups:
        check_name(each, kind="group")


def _of_groups(groups: Sequence[str]) -> str:
    return f"of the groups {', '.join(sorted(set(groups)))}" if groups else "of no group"


def _credentials(user: str, password: str) -> list[Credential]:
    """[blocking] The user's credentials for all mechanisms."""
    made = [ScramCredential.made_of(password, mechanism) for mechanism in HASHES]
    return [
        Credential(user, each.mechanism, each.salt, each.stored_key, each.server_key, each.iterations) for each in made
    ]


def _mechanisms(reader: Reader, name: str) -> list[str]:
    """[blocking] The mechanisms for which the user has credentials."""
    return [each for each in HASHES if reader.users.credential(name, each) is not None]


def _shown(row: UserRow, mechanisms: Sequence[str]) -> dict[str, Any]:
    return {
        "user": row.name,
        "groups": list(row.groups),
        "mechanisms": list(mechanisms),
        "created_ms": row.created,
    }


def _taken(name: str) -> KafkaError:
    return KafkaError(
        Code.DUPLICATE_RESOURCE,
        f"there is a user {name} already; `headrace user alter` changes its groups, `headrace user passwd` its"
        " password",
    )


def _none(name: str) -> KafkaError:
    return KafkaError(
        Code.RESOURCE_NOT_FOUND, f"there is no user {name[:100]!r}; `headrace user list` shows those that exist"
    )

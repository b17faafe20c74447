"""Access rules and groups of users in force at this node, kept up to date with the catalog.

A command changes the rules on the loop when this node applies it, before its submitter wakes. A client that has changed
an expression therefore finds it in force at this node at once, and so does every request that begins later, even in an
older session. Waiting requests (parked fetches) are notified of a change through `on_change`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import structlog

from headrace.base.errors import Code
from headrace.base.runtime import Runtime
from headrace.catalog.access import SecureCluster, SetAccess
from headrace.catalog.catalog import Catalog, Change
from headrace.catalog.reader import Reader
from headrace.catalog.rows import Replaced
from headrace.catalog.streams import CreateOwnedStream, DeleteStream
from headrace.catalog.topics import DeleteTopics
from headrace.catalog.users import AlterCredentials, DeleteUser, PutUser
from headrace.partitions.catalog_loader import CatalogLoader
from headrace.security.access_rules import NOT_SECURED, AccessRules, Kind, Permission, Place, UnknownPlace, place_of
from headrace.security.principals import Principal

log = structlog.get_logger()

CLOSED: Final = NOT_SECURED.changed({}, on=True)
"""Rules under which nobody may do anything."""


class AccessControl:
    """The access rules in force at this node. All methods run on the loop's thread."""

    def __init__(self, *, runtime: Runtime, catalog: Catalog) -> None:
        self._loader = CatalogLoader(
            runtime=runtime, catalog=catalog, read=_read_all, loaded=self._use, failed=self._close
        )
        self.rules = CLOSED
        """The rules in force. Until `start` has read the catalog, nobody may do anything."""
        self.is_current = False
        """Whether the rules match the catalog as applied; false while its rows are read, such as after all of them were
        replaced."""
        self._groups: Mapping[str, frozenset[str]] = {}
        self._on_change: list[Callable[[], None]] = []

    async def start(self) -> None:
        """Read the rules from the catalog. To be called once `applied` is notified of applied commands.

        If the catalog cannot be read, nobody may do anything until a retry in the background succeeds.
        """
        await self._loader.start()

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever somebody's permissions change."""
        self._on_change.append(callback)

    def allows(self, principal: Principal, permission: Permission, kind: Kind = Kind.CLUSTER, name: str = "") -> bool:
        """Whether a client has a permission now. `name` as in access_rules.Rule."""
        return self.rules.allows(principal.user, self.groups_of(principal), permission, kind, name)

    def groups_of(self, principal: Principal) -> frozenset[str]:
        """A client's groups: those that the catalog gives its user, and those that its token names."""
        own = self._groups.get(principal.user)
        if own is None or principal.is_anonymous:
            return principal.groups
        return own | principal.groups if principal.groups else own

    def applied(self, changes: Sequence[Change]) -> None:
        """Commands were applied (Catalog.on_applied)."""
        before = (self.rules, self._groups)
        for command, outcome in changes:
            self._apply(command, outcome)
        if before[0] is not self.rules or before[1] is not self._groups:
            self._tell()

    def _apply(self, command: object, outcome: Any) -> None:
        """Apply one command. Rows that are being read are read again even if the rules known here stay the same."""
        match command:
            case Replaced():
                self._reload()
            case SetAccess():
                items = zip(command.items, outcome, strict=True)
                self._set_expressions(
                    (place_of(item.kind, result.object, item.permission), item.expression)
                    for item, result in items
                    if result.code is Code.NONE
                )
            case CreateOwnedStream() if outcome.changed:
                self._set_expressions(
                    (place_of(Kind.STREAM, command.path, each), text) for each, text in command.access
                )
            case DeleteStream():
                self.rules = self.rules.without(command.path)
            case DeleteTopics():
                for each in outcome:
                    if each.topic is not None:
                        self.rules = self.rules.without(each.topic.full_name)
            case SecureCluster():
                self.rules = self.rules.changed({}, on=command.on)
            case PutUser():
                self._groups = {**self._groups, command.name: frozenset(outcome.user.groups)}
            case DeleteUser():
                self._groups = {name: groups for name, groups in self._groups.items() if name != command.name}
            case AlterCredentials():
                set_codes = outcome[len(command.deletions) :]
                done = zip(command.upserts, set_codes, strict=True)
                made = {each.user: frozenset[str]() for each, code in done if code is Code.NONE}
                self._groups = {**made, **self._groups}
            case _:
                return
        self._loader.changed()

    def _set_expressions(self, changes: Iterable[tuple[Place | UnknownPlace, str | None]]) -> None:
        """Change single expressions, unless all are being read: others not read yet may be stricter."""
        if not self.is_current:
            return
        before = self.rules.unknown
        self.rules = _with_expressions(self.rules, changes)
        _log_unknown(self.rules.unknown - before)

    def _reload(self) -> None:
        """Read all rows again. Until they are read nobody may do anything, unless security was off."""
        self.is_current = False
        self.rules = CLOSED if self.rules.on else NOT_SECURED
        self._loader.load_again()

    def _use(self, found: tuple[AccessRules, Mapping[str, frozenset[str]]]) -> None:
        self.rules, self._groups = found
        self.is_current = True
        for rule in self.rules.faults:
            log.error("an access expression cannot be read, so it permits nobody", kind=rule.kind, object=rule.name)
        _log_unknown(self.rules.unknown)
        self._tell()

    def _close(self, error: Exception) -> None:
        log.error("access expressions cannot be read, so nobody may do anything", reason=str(error))
        if self.rules is not CLOSED:  # security was off, and whether it still is off is not known
            self.rules = CLOSED
            self._tell()

    def _tell(self) -> None:
        for callback in self._on_change:
            callback()


def _with_expressions(
    rules: AccessRules, changes: Iterable[tuple[Place | UnknownPlace, str | None]], *, on: bool | None = None
) -> AccessRules:
    known: dict[Place, str | None] = {}
    unknown: dict[UnknownPlace, str | None] = {}
    for place, text in changes:
        if isinstance(place, UnknownPlace):
            unknown[place] = text
        else:
            known[place] = text
    return rules.changed(known, on=on, unknown=unknown)


def _log_unknown(unknown: Iterable[UnknownPlace]) -> None:
    for kind, name, permission in sorted(unknown):
        log.error(
            "an access expression is on an object or a permission that this version does not know, "
            "so only administrators have access; start this node with the version that wrote it",
            kind=kind,
            object=name,
            permission=permission,
        )


def _read_all(reader: Reader) -> tuple[AccessRules, dict[str, frozenset[str]]]:
    rows = reader.access.all()
    places = ((place_of(row.kind, row.object, row.permission), row.expression) for row in rows)
    rules = _with_expressions(NOT_SECURED, places, on=reader.access.is_secured())
    return rules, {user.name: frozenset(user.groups) for user in reader.users.page()}

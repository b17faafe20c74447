"""Headrace's own admin calls on security as a whole: show, turn on, turn off. Any node answers them.

While security is off, every client that reaches a listener may do everything. Turning it on is refused if no user with
a password administers the cluster, since that would lock everybody out. Turning it off opens everything, so the caller
has to request exactly that.
"""

from typing import Any, Final

import msgspec
import structlog

from headrace.admin.access_changes import AccessChanges
from headrace.base.errors import Code, KafkaError
from headrace.catalog.access import SecureCluster
from headrace.catalog.catalog import Catalog
from headrace.catalog.reader import Reader
from headrace.partitions.access_control import AccessControl
from headrace.partitions.admin_params import Method, Methods, NoParams, Params
from headrace.partitions.admin_rights import CLUSTER_ADMIN
from headrace.partitions.caller import Caller
from headrace.partitions.lookups import submit_within
from headrace.security.access_expression import parse
from headrace.security.access_rules import AccessRules, Kind, Permission
from headrace.security.audit import Change
from headrace.security.principals import ANONYMOUS

log = structlog.get_logger()

OPEN: Final = "security is off: everybody who reaches a listener may do everything; docs/security.md"
NO_ADMINISTRATOR: Final = (
    "security is on, and no user who has a password administers the cluster: "
    "`headrace access set cluster --admin EXPRESSION`, as a user whom a certificate or token proves"
)


class TurnOn(Params, frozen=True):
    force: bool = False
    """Whether to turn it on even if administrators authenticate by certificates or tokens alone."""


class TurnOff(Params, frozen=True):
    open_everything: bool = False
    """Whether the caller confirms that everybody may do everything from then on."""


TAKEN: Final = (TurnOn, TurnOff)
_DECODERS: Final = [msgspec.msgpack.Decoder(params) for params in TAKEN]
"""Decoders built as this module is loaded; see admin_api."""


class SecurityCalls:
    """The admin calls on security as a whole, and its part of the cluster's status."""

    def __init__(self, *, catalog: Catalog, access: AccessControl, changes: AccessChanges) -> None:
        self._catalog = catalog
        self._access = access
        self._changes = changes

    def methods(self) -> Methods:
        """By method name: its parameters, its handler, and the right that it requires."""
        return {
            "security.show": Method(NoParams, self._show, CLUSTER_ADMIN),
            "security.on": Method(TurnOn, self._on, CLUSTER_ADMIN, of_caller=True),
            "security.off": Method(TurnOff, self._off, CLUSTER_ADMIN, of_caller=True),
        }

    async def shown(self) -> dict[str, Any]:
        """Whether security is on, who administers the cluster, and the most important `problem`, if any."""
        rules = self._access.rules
        admin = _administrators(rules)
        users, with_password, administrators = await self._counted(admin)
        problem = None
        if not rules.on:
            problem = OPEN
        elif not administrators:
            problem = NO_ADMINISTRATOR
        return {
            "on": rules.on,
            "administrators": admin,
            "administrators_with_password": administrators,
            "users": users,
            "users_with_password": with_password,
            "unreadable_expressions": len(rules.faults) + len(rules.unknown),
            "problem": problem,
        }

    async def _show(self, _params: NoParams) -> dict[str, Any]:
        return await self.shown()

    async def _on(self, params: TurnOn, caller: Caller) -> dict[str, Any]:
        """Turn security on and return its state. Raises POLICY_VIOLATION if no user with a password would administer
        the cluster."""
        rules = self._access.rules
        admin = _administrators(rules)
        _, _, administrators = await self._counted(admin)
        if not administrators and not params.force:
            said = f"its expression is {admin!r:.200}" if admin else "the cluster has no expression for admin"
            raise KafkaError(
                Code.POLICY_VIOLATION,
                f"nobody who has a password would administer the cluster, and everybody would be locked out: {said};"
                " `headrace user create NAME --password-file FILE`, then `headrace access set cluster --admin u:NAME`",
            )
        return await self._turn(caller, on=True)

    async def _off(self, params: TurnOff, caller: Caller) -> dict[str, Any]:
        """Turn security off and return its state. Raises POLICY_VIOLATION unless `open_everything`."""
        if not params.open_everything:
            raise KafkaError(
                Code.POLICY_VIOLATION,
                "without security everybody who reaches a listener may do everything: confirm that this is wanted"
                " (`headrace security off --open-everything`)",
            )
        return await self._turn(caller, on=False)

    async def _turn(self, caller: Caller, *, on: bool) -> dict[str, Any]:
        before = self._access.rules.on
        await submit_within(self._catalog, SecureCluster(on=on), timeout_ms=0)
        if before != on:
            log.warning("security is on" if on else "security is off")
            what, api = ("on", "security.on") if on else ("off: everybody may do everything", "security.off")
            self._changes.note(caller, Change.SECURITY, "", what, api=api, kind=Kind.CLUSTER)
        return {**await self.shown(), **await self._changes.outcome_fields()}

    async def _counted(self, admin: str | None) -> tuple[int, int, int]:
        """The number of users, of users with a password, and of users with a password who administer the cluster."""
        expression = parse(admin or "")

        def look(reader: Reader) -> tuple[int, int, int]:
            users = reader.users.page()
            able = reader.users.mechanisms().keys()
            with_password = [each for each in users if each.name in able]
            return (
                len(users),
                len(with_password),
                sum(expression.allows(each.name, frozenset(each.groups)) for each in with_password),
            )

        if expression.allows(ANONYMOUS, frozenset()):
            users, with_password, _ = await self._catalog.query(look)
            return users, with_password, max(1, with_password)
        return await self._catalog.query(look)


def _administrators(rules: AccessRules) -> str | None:
    """The cluster's expression for admin; None if there is none that can be parsed."""
    rule = rules.deciding(Permission.ADMIN, Kind.CLUSTER)
    return None if rule is None or rule in rules.faults else rule.expression

"""What changes of users, groups and access expressions have in common: expressions are parsed before they are written,
unknown names cause warnings, callers may not lock themselves out by mistake, and the call waits for all nodes.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from headrace.admin.applied_everywhere import AppliedEverywhere
from headrace.base.errors import Code, KafkaError
from headrace.catalog.catalog import Catalog
from headrace.catalog.reader import Reader
from headrace.partitions.access_control import AccessControl
from headrace.partitions.authorizer import Authorizer
from headrace.partitions.caller import Caller
from headrace.security.access_expression import AccessExpression, parse
from headrace.security.access_rules import AccessRules, Kind, Permission
from headrace.security.access_syntax import ExpressionFault
from headrace.security.audit import Change
from headrace.security.principals import ANONYMOUS

NAMED: Final = 20
"""The maximum number of names in one warning."""


def read_expression(text: str, *, of: str) -> AccessExpression:
    """The parsed expression. Raises KafkaError that says where it is wrong, and what is expected there. `of`: what it
    is for, in words."""
    try:
        return parse(text)
    except ExpressionFault as fault:
        raise KafkaError(Code.INVALID_REQUEST, f"the expression for {of} cannot be read: {fault}") from None


def read_expressions(given: Mapping[Permission, str], *, where: str) -> dict[Permission, AccessExpression]:
    """The parsed expressions of one object. Raises KafkaError."""
    return {each: read_expression(text, of=f"{each} on {where}") for each, text in given.items()}


class AccessChanges:
    """Checks, warnings and audit events for the changes that this node carries out."""

    def __init__(
        self, *, catalog: Catalog, access: AccessControl, authorizer: Authorizer, applied: AppliedEverywhere
    ) -> None:
        self._catalog = catalog
        self._access = access
        self._authorizer = authorizer
        self._applied = applied

    async def warnings(self, expressions: Iterable[AccessExpression]) -> list[str]:
        """Warnings about names in expressions that no user and no group of the catalog has: a certificate or token may
        prove them, or they may be misspelt."""
        named = list(expressions)
        users = frozenset().union(*(each.users() for each in named)) - {ANONYMOUS}
        groups = frozenset().union(*(each.groups() for each in named))
        if not users and not groups:
            return []

        def look(reader: Reader) -> tuple[frozenset[str], frozenset[str]]:
            known = reader.users.page()
            return (
                users - {each.name for each in known},
                groups - {group for each in known for group in each.groups},
            )

        return _unknown(*await self._catalog.query(look))

    def is_admin(self, caller: Caller) -> bool:
        """Whether the caller administers the cluster, or security is off."""
        return self._authorizer.sees(caller, (Permission.ADMIN,), Kind.CLUSTER, "")

    def note(self, caller: Caller, change: Change, name: str, what: str, *, api: str, kind: str = "user") -> None:
        """Send a change that took place to the audit. `what`: the change in a few words, never a secret."""
        self._authorizer.changed(caller, change, kind, name, what, api=api)

    async def outcome_fields(self, warnings: Sequence[str] = ()) -> dict[str, Any]:
        """The fields that every change answers: the nodes that have not applied it within a few seconds, and
        warnings."""
        return {"not_applied": await self._applied.nodes_behind(), "warnings": list(warnings)}

    def check_stays_admin(
        self,
        caller: Caller,
        *,
        force: bool,
        rules: AccessRules | None = None,
        groups: frozenset[str] | None = None,
    ) -> None:
        """Raises KafkaError if a change would end the caller's own administration of the cluster, unless `force`.
        `rules`: the rules after the change; `groups`: the caller's groups after it."""
        before, user = self._access.rules, caller.principal.user
        own = self._access.groups_of(caller.principal)
        if force or not before.on or not before.allows(user, own, Permission.ADMIN):
            return
        after = (rules or before).explain(user, own if groups is None else groups, Permission.ADMIN)
        if not after.allowed:
            raise KafkaError(
                Code.POLICY_VIOLATION,
                f"{caller.principal} would no longer administer the cluster ({after.reason}); with force it is done"
                " anyway",
            )


def _unknown(users: frozenset[str], groups: frozenset[str]) -> list[str]:
    found = []
    for what, names in (("user", users), ("group", groups)):
        if names:
            shown = ", ".join(sorted(names)[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
            plural = "s" if len(names) > 1 else ""
            found.append(
                f"the cluster has no {what}{plural} {shown}: fine if certificates or tokens prove such names,"
                " otherwise a typing error"
            )
    return found

"""Access expressions of streams, topics and clusters, as their resources declare them.

A resource declares all of an object's own expressions: a permission that it does not name is removed from the object,
which then inherits it (a topic from its stream, a stream from its path, that from the cluster). So an expression that
is removed from a resource no longer lets anybody in.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace.security.access_expression import AccessExpression, parse
from headrace.security.access_rules import Permission
from headrace.security.access_syntax import ExpressionFault
from headrace.security.principals import ANONYMOUS
from headrace_operator.admin import Calls
from headrace_operator.kinds.references import Unresolved
from headrace_operator.specs import ClusterSpec, Permissions
from headrace_operator.status import Condition

CLUSTER: Final = "cluster"
"""The name of the cluster as a whole in calls about expressions."""
PERMITTED: Final = "Permitted"
"""The condition's type. Ready does not depend on it: unknown names may be proved by certificates and tokens."""
TYPES: Final = (PERMITTED,)
PAGE: Final = 1000
MAX_PAGES: Final = 20
"""The maximum number of pages of users that are read to find unknown names; with more users names are not checked."""
KNOWN_S: Final = 60.0
SHOWN: Final = 5

Items = list[dict[str, Any]]


def read(permissions: Permissions) -> dict[str, AccessExpression]:
    """Return the expressions that a resource names, by permission. Raises Unresolved for an invalid expression."""
    found = {}
    for name, text in permissions.given().items():
        try:
            found[name] = parse(text)
        except ExpressionFault as fault:
            raise Unresolved("BadExpression", f"permissions.{name} cannot be read: {fault}") from None
    return found


async def shown_expressions(admin: Calls, bootstrap: str, of: str) -> dict[str, str | None]:
    """Return an object's expressions by permission, None for inherited ones. Raises HeadraceError."""
    shown = await admin.call(bootstrap, "access.show", {"object": of})
    return {
        each["permission"]: None if each["inherited"] else each["expression"]
        for each in shown["permissions"]
        if each["permission"] in set(Permission)
    }


def wanted_items(of: str, wanted: Mapping[str, str], present: Mapping[str, str | None]) -> Items:
    """Return the changes that give an object exactly these expressions. Pure."""
    return [
        {"object": of, "permission": str(each), "expression": wanted.get(each)}
        for each in Permission
        if wanted.get(each) != present.get(each)
    ]


@dataclass(frozen=True, slots=True)
class _Names:
    """The users and groups of a cluster, with when they were read."""

    at: float
    users: frozenset[str]
    groups: frozenset[str]


class PermissionStep:
    """Sets access expressions in all clusters."""

    def __init__(self, *, admin: Calls, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._admin = admin
        self._monotonic = monotonic
        self._known: dict[str, _Names | None] = {}
        """By bootstrap address."""

    async def step(
        self, bootstrap: str, cluster: ClusterSpec, of: str, expressions: Mapping[str, AccessExpression]
    ) -> Condition:
        """Give an object exactly these expressions, if the cluster has security. Raises HeadraceError."""
        if not cluster.security.enabled:
            if expressions:
                text = "permissions are not checked: the StreamCluster has no security (spec.security.enabled)"
                return Condition(PERMITTED, False, "NotChecked", text)
            return Condition(PERMITTED, True, "AsAsked")
        wanted = {name: each.text for name, each in expressions.items()}
        present = await shown_expressions(self._admin, bootstrap, of)
        if items := wanted_items(of, wanted, present):
            await self._admin.call(bootstrap, "access.set", {"items": items})
        if unknown := await self._unknown(bootstrap, list(expressions.values())):
            text = f"{unknown}: fine if certificates or tokens prove such names, otherwise a typo"
            return Condition(PERMITTED, False, "UnknownNames", text)
        return Condition(PERMITTED, True, "AsAsked")

    async def _unknown(self, bootstrap: str, expressions: Sequence[AccessExpression]) -> str:
        users = frozenset().union(*(each.users() for each in expressions)) - {ANONYMOUS}
        groups = frozenset().union(*(each.groups() for each in expressions))
        if not users and not groups:
            return ""
        known = await self._names(bootstrap)
        if known is None:
            return ""
        found = []
        for what, missing in (("user", users - known.users), ("group", groups - known.groups)):
            if missing:
                names = sorted(missing)
                more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
                found.append(f"there is no {what} {', '.join(names[:SHOWN])}{more}")
        return ", ".join(found)

    async def _names(self, bootstrap: str) -> _Names | None:
        now = self._monotonic()
        known = self._known.get(bootstrap)
        if known is not None and now - known.at < KNOWN_S:
            return known
        users: set[str] = set()
        groups: set[str] = set()
        after = ""
        for _ in range(MAX_PAGES):
            page = await self._admin.call(bootstrap, "user.list", {"after": after, "limit": PAGE})
            users |= {each["user"] for each in page}
            groups |= {group for each in page for group in each["groups"]}
            if len(page) < PAGE:
                self._known[bootstrap] = _Names(now, frozenset(users), frozenset(groups))
                return self._known[bootstrap]
            after = page[-1]["user"]
        return None

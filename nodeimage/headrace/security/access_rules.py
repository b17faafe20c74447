"""Which access expression decides, and what it decides: inheritance by path, and the cluster's administrators. Pure.

A permission on a topic is decided by the nearest expression for it: the topic's own, its stream's, that of the longest
prefix of the stream's path, the cluster's. If there is none, only administrators have the permission. Everybody whom
the cluster's `admin` expression admits has every permission on everything, so administrators cannot lock themselves
out.

For a consumer group the expression for its name decides, otherwise that for the longest matching name prefix, otherwise
the cluster's. If no expression decides who may consume with a group, everybody who may consume some topic may;
transactional ids are like groups, with produce. While security is off, everybody may do everything (docs/security.md).

Rules are immutable: a change creates new rules, and the decisions cached for the former ones are dropped with them. A
text that is not a valid expression (one of a later version, say) admits nobody, and is listed in `faults`. An
expression on a kind of object, or of a permission, that this version does not know is kept in `unknown`. An unknown
kind of object could be nearer than every known one, so while an expression is set on one, only administrators may do
anything.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from enum import StrEnum
from typing import Final, NamedTuple

from headrace.security.access_expression import AccessExpression, PlainOr, expression_of, parse
from headrace.security.access_syntax import ExpressionFault

_MAX_DECISIONS: Final = 100_000
"""The maximum number of decisions that are cached; when the cache is full, it is cleared."""
_LONGEST_KEPT: Final = 300
"""Longest name, in characters, whose decision is cached. Clients choose names of groups, which may have 32 KiB."""


class Permission(StrEnum):
    """What a user may do with an object, in MapR's words."""

    PRODUCE = "produce"
    CONSUME = "consume"
    TOPIC = "topic"
    """Create, alter and delete topics of a stream."""
    COPY = "copy"
    """Read a stream by a link, from another cluster."""
    ADMIN = "admin"
    """Change policy, configs and expressions."""


class Kind(StrEnum):
    """The kind of object that an expression is set on."""

    CLUSTER = "cluster"
    PREFIX = "prefix"
    STREAM = "stream"
    TOPIC = "topic"
    GROUP = "group"
    GROUP_PREFIX = "group-prefix"
    """Groups whose names begin with a prefix."""
    TRANSACTIONAL_ID = "transactional-id"
    TRANSACTIONAL_ID_PREFIX = "transactional-id-prefix"


PREFIX_OF: Final = {Kind.GROUP: Kind.GROUP_PREFIX, Kind.TRANSACTIONAL_ID: Kind.TRANSACTIONAL_ID_PREFIX}
"""The kind for prefixes of names, by the kind for whole names."""
_PREFIXES: Final = PREFIX_OF | {kind: kind for kind in PREFIX_OF.values()}
_BY_SOME_TOPIC: Final = {
    Kind.GROUP: Permission.CONSUME,
    Kind.GROUP_PREFIX: Permission.CONSUME,
    Kind.TRANSACTIONAL_ID: Permission.PRODUCE,
    Kind.TRANSACTIONAL_ID_PREFIX: Permission.PRODUCE,
}
"""The permission that suffices, on any one topic, for a name of this kind if no expression decides about it."""


class Rule(NamedTuple):
    """One expression. `name`: a stream's path, a prefix of paths or names, `/stream:topic`, or a group's or id's name;
    "" for the cluster."""

    kind: Kind
    name: str
    permission: Permission
    expression: str


class Decision(NamedTuple):
    """Whether a permission is granted, by which rule (None: none applies, or security is off), and why, in one line."""

    allowed: bool
    rule: Rule | None
    reason: str


Place = tuple[Kind, str, Permission]
"""The place of an expression: its object and its permission."""


class UnknownPlace(NamedTuple):
    """The place of an expression whose kind or permission this version does not know."""

    kind: str
    name: str
    permission: str

    @property
    def may_be_nearest(self) -> bool:
        """Whether the expression may concern any object. An unknown permission concerns none, since nothing asks for
        it."""
        return self.kind not in set(Kind)


def place_of(kind: str, name: str, permission: str) -> Place | UnknownPlace:
    """The place of an expression as the catalog stores it."""
    try:
        return Kind(kind), name, Permission(permission)
    except ValueError:
        return UnknownPlace(kind, name, permission)


class AccessRules:
    """All expressions of a cluster, compiled. Created by `of`, or from other rules by `changed`."""

    def __init__(
        self, rules: Mapping[Place, tuple[Rule, AccessExpression]], *, on: bool, unknown: frozenset[UnknownPlace]
    ) -> None:
        """`on`: whether security is on."""
        self.on = on
        self.unknown = unknown
        """Places of expressions that this version does not know."""
        self._is_shut = any(place.may_be_nearest for place in unknown)
        self._rules = rules
        self._lengths = {
            kind: sorted({len(name) for each, name, _ in self._rules if each is kind}, reverse=True)
            for kind in PREFIX_OF.values()
        }
        self._own = frozenset(name for kind, name, _ in self._rules if kind is Kind.TOPIC)
        """Topics with an expression of their own; every other topic has its stream's decision."""
        self._topics: dict[str, list[Place]] = {}
        for place in self._rules:
            if place[0] is Kind.TOPIC:
                self._topics.setdefault(place[1].partition(":")[0], []).append(place)
        self._decided: dict[tuple[str, frozenset[str], Kind, str, Permission], bool] = {}
        self._decided_of_some: dict[tuple[str, frozenset[str], Permission], bool] = {}

    @classmethod
    def of(cls, rules: Iterable[Rule], *, on: bool) -> "AccessRules":
        """The rules from all expressions."""
        return NOT_SECURED.changed({(rule.kind, rule.name, rule.permission): rule.expression for rule in rules}, on=on)

    def changed(
        self,
        changes: Mapping[Place, str | None],
        *,
        on: bool | None = None,
        unknown: Mapping[UnknownPlace, str | None] | None = None,
    ) -> "AccessRules":
        """Rules in which the expressions at some places are replaced, or removed (None); the others are not parsed
        again."""
        rules = dict(self._rules)
        compiled: dict[str, AccessExpression] = {}
        for place, text in changes.items():
            if text is None:
                rules.pop(place, None)
                continue
            if text not in compiled:
                compiled[text] = _compiled(text)
            rules[place] = (Rule(*place, text), compiled[text])
        places = self.unknown
        for strange, text in (unknown or {}).items():
            places = places - {strange} if text is None else places | {strange}
        return AccessRules(rules, on=self.on if on is None else on, unknown=places)

    def without(self, name: str) -> "AccessRules":
        """Rules without the expressions of a topic (`/stream:topic`), or of a stream and its topics."""
        kind = Kind.TOPIC if ":" in name else Kind.STREAM
        gone: dict[Place, str | None] = dict.fromkeys((kind, name, permission) for permission in Permission)
        if kind is Kind.STREAM:
            gone |= dict.fromkeys(
                each for each in self._rules if each[0] is Kind.TOPIC and each[1].startswith(f"{name}:")
            )
        return self.changed(gone) if not gone.keys().isdisjoint(self._rules) else self

    @property
    def faults(self) -> list[Rule]:
        """The rules whose texts are not valid expressions."""
        return [rule for rule, expression in self._rules.values() if expression is _UNREADABLE]

    def allows(
        self, user: str, groups: frozenset[str], permission: Permission, kind: Kind = Kind.CLUSTER, name: str = ""
    ) -> bool:
        """Whether a user has a permission on an object. `name` as in `Rule`. The decision is cached, so repeating the
        call is cheap."""
        if not self.on:
            return True
        if kind is Kind.TOPIC and name not in self._own:
            kind, name = Kind.STREAM, name.partition(":")[0]
        key = (user, groups, kind, name, permission)
        if len(name) > _LONGEST_KEPT:
            return self._is_allowed(*key)
        found = self._decided.get(key)
        if found is None:
            if len(self._decided) >= _MAX_DECISIONS:
                self._decided.clear()
            found = self._decided[key] = self._is_allowed(*key)
        return found

    def explain(
        self, user: str, groups: frozenset[str], permission: Permission, kind: Kind = Kind.CLUSTER, name: str = ""
    ) -> Decision:
        """The decision about a user's permission on an object, with the reason."""
        if not self.on:
            return Decision(True, None, "security is off: everybody may do everything")
        admin = self._rules.get((Kind.CLUSTER, "", Permission.ADMIN))
        if admin is not None and admin[1].allows(user, groups):
            return Decision(True, admin[0], f"an administrator of the cluster: {admin[1].explain(user, groups)}")
        if self._is_shut:
            return Decision(False, None, f"{_shut_by(self.unknown)}, so only administrators may")
        deciding = self._deciding(permission, kind, name)
        if deciding is None and _BY_SOME_TOPIC.get(kind) is permission:
            allowed = self.any_topic(user, groups, permission)
            has = "has" if allowed else "does not have"
            reason = (
                f"no expression is set for this {kind}, so a user needs {permission} on at least one topic, "
                f"which this user {has}"
            )
            return Decision(allowed, None, reason)
        if deciding is None:
            return Decision(False, None, f"no expression says who may {permission} here, so only administrators may")
        rule, expression = deciding
        if expression is _UNREADABLE:
            return Decision(False, rule, "this version cannot read the expression, so only administrators may")
        return Decision(expression.allows(user, groups), rule, expression.explain(user, groups))

    def deciding(self, permission: Permission, kind: Kind, name: str = "") -> Rule | None:
        """The rule that decides about a permission on an object, apart from the cluster's `admin` rule."""
        found = self._deciding(permission, kind, name)
        return None if found is None else found[0]

    def of_topics(self, path: str) -> Sequence[Place]:
        """The places of expressions that are set on topics of a stream."""
        return self._topics.get(path, ())

    def any_topic(self, user: str, groups: frozenset[str], permission: Permission) -> bool:
        """Whether a user has a permission on some topic, stream or path, whether it exists or not. The decision is
        cached."""
        if not self.on:
            return True
        key = (user, groups, permission)
        found = self._decided_of_some.get(key)
        if found is None:
            if len(self._decided_of_some) >= _MAX_DECISIONS:
                self._decided_of_some.clear()
            found = self._decided_of_some[key] = self._is_admin(user, groups) or (
                not self._is_shut
                and any(
                    of is permission and kind not in _BY_SOME_TOPIC and expression.allows(user, groups)
                    for (kind, _, of), (_, expression) in self._rules.items()
                )
            )
        return found

    def decided_by(self, topic: str) -> str:
        """A key that is equal for all topics with the same decisions: the topic itself if it has an expression of its
        own, otherwise its stream's path."""
        return topic if topic in self._own else topic.partition(":")[0]

    def places(self) -> Iterable[Place]:
        """The places of all expressions."""
        return self._rules.keys()

    def at(self, place: Place) -> Rule | None:
        """The rule at exactly this place; None: there is none."""
        found = self._rules.get(place)
        return None if found is None else found[0]

    def plain_or(self, place: Place) -> PlainOr | None:
        """Whom the expression at this place admits, if it is valid and has neither `!` nor `&`; otherwise None."""
        found = self._rules.get(place)
        return None if found is None or found[1] is _UNREADABLE else found[1].plain_or()

    def nearest_first(self, permission: Permission, kind: Kind, name: str) -> list[Place]:
        """Every place whose expression may decide, nearest first; the first that has an expression decides."""
        if kind in _PREFIXES:
            own = [(kind, name, permission)] if kind in PREFIX_OF else []
            near = [(_PREFIXES[kind], name[:length], permission) for length in range(len(name), -1, -1)]
            return [*own, *near, (Kind.CLUSTER, "", permission)]
        return [(of, named, permission) for of, named in self._nearest_first(kind, name)]

    def users(self) -> frozenset[str]:
        """Every user that an expression names."""
        return frozenset().union(*(expression.users() for _, expression in self._rules.values()))

    def _is_allowed(self, user: str, groups: frozenset[str], kind: Kind, name: str, permission: Permission) -> bool:
        if self._is_admin(user, groups):
            return True
        if self._is_shut:
            return False
        deciding = self._deciding(permission, kind, name)
        if deciding is None:
            return _BY_SOME_TOPIC.get(kind) is permission and self.any_topic(user, groups, permission)
        return deciding[1].allows(user, groups)

    def _is_admin(self, user: str, groups: Set[str]) -> bool:
        admin = self._rules.get((Kind.CLUSTER, "", Permission.ADMIN))
        return admin is not None and admin[1].allows(user, groups)

    def _deciding(self, permission: Permission, kind: Kind, name: str) -> tuple[Rule, AccessExpression] | None:
        rules = ((of, named, permission) for of, named in self._nearest_first(kind, name))
        return next((self._rules[key] for key in rules if key in self._rules), None)

    def _nearest_first(self, kind: Kind, name: str) -> Iterable[tuple[Kind, str]]:
        if kind in _PREFIXES:
            if kind in PREFIX_OF:
                yield kind, name
            prefix = _PREFIXES[kind]
            yield from ((prefix, name[:length]) for length in self._lengths[prefix] if length <= len(name))
        elif kind is not Kind.CLUSTER:
            path = name
            if kind is Kind.TOPIC:
                yield kind, name
                path = name.partition(":")[0]
            if kind is not Kind.PREFIX:
                yield Kind.STREAM, path
            while path:
                yield Kind.PREFIX, path
                path = path.rpartition("/")[0]
        yield Kind.CLUSTER, ""


_UNREADABLE: Final = parse("")
"""Stands for a text that is not a valid expression; compared by identity."""


def _compiled(text: str) -> AccessExpression:
    try:
        return parse(text)
    except ExpressionFault:
        return _UNREADABLE


def _shut_by(unknown: Iterable[UnknownPlace]) -> str:
    place = min(place for place in unknown if place.may_be_nearest)
    return f"an expression is set on a kind of object that this version does not know, {place.kind[:100]!r}"


NOT_SECURED: Final = AccessRules({}, on=False, unknown=frozenset())
"""The rules of a cluster whose security is off."""

Owner = Mapping[Permission, str]
"""The expressions that a new stream gets."""


def owned_by(user: str) -> Owner:
    """Expressions that admit only the creator."""
    text = str(expression_of(users=[user]))
    return dict.fromkeys(Permission, text)

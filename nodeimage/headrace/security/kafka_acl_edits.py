"""Edits of access expressions through Kafka's ACLs (kafka_acls): which expressions to write when ACL rows are created
and deleted. Pure.

Nothing is approximated. A user gets a permission by being granted all that it allows, and loses it when all of it is
revoked; a request that neither gives nor takes a whole permission is refused, with advice. An expression that has no
form as ACLs is never touched.

Two rows are granted without a change, and never shown, because they would allow nothing further. `kafka-acls
--producer` requests both. CREATE of one topic: an expression is set on an existing topic and is deleted with it.
IDEMPOTENT_WRITE of the cluster: every user who may write to some topic gets producer ids, as in Kafka, and others have
no use for an id. The tool requests this row separately, before anything else.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.base.errors import KafkaError
from headrace.security.access_expression import PlainOr, expression_of, parse
from headrace.security.access_rules import AccessRules, Kind, Permission, Place
from headrace.security.access_syntax import ExpressionFault
from headrace.security.kafka_acls import (
    EVERY,
    GIVES,
    IMPLIES,
    NOBODY,
    PERMISSIONS,
    USER,
    Acl,
    AclFilter,
    AclOperation,
    Object,
    Pattern,
    Resource,
    invalid,
    object_of,
    plain,
    rows,
)


class Grant(NamedTuple):
    """A row to create. `user`: `*` is everybody."""

    on: Object
    user: str
    operation: AclOperation


@dataclass(slots=True)
class Edit:
    """Expressions to write, and the expressions on which that decision was based."""

    changes: dict[Place, str] = field(default_factory=dict)
    expected: dict[Place, str | None] = field(default_factory=dict)
    errors: dict[int, KafkaError] = field(default_factory=dict)
    """Why grants cannot be made, by the grant's number."""


def granted(rules: AccessRules, grants: Mapping[int, Grant]) -> Edit:
    """The edit that gives users what they are granted on existing topics and streams.

    Those who inherit access to an object without an expression of its own keep it: its first expression begins as a
    copy of the inherited one."""
    edit = Edit()
    asked: dict[tuple[Object, str], set[AclOperation]] = {}
    for grant in grants.values():
        asked.setdefault((grant.on, grant.user), set()).add(grant.operation)
    failed: dict[tuple[Object, str, Permission], KafkaError] = {}
    for (on, user), operations in asked.items():
        for permissions in _given(on, operations):
            try:
                _give(rules, edit, on, user, permissions)
            except KafkaError as error:
                failed |= dict.fromkeys(((on, user, permission) for permission in permissions), error)
    after = rules.changed(dict(edit.changes), on=True)
    for number, grant in grants.items():
        needed = _needed(grant)
        refused = [failed[key] for each in needed if (key := (grant.on, grant.user, each)) in failed]
        if refused:
            edit.errors[number] = refused[0]
        elif not _allows_nothing(grant) and not _has(after, grant, needed):
            edit.errors[number] = invalid(_why_not(grant))
    return edit


def _given(on: Object, operations: set[AclOperation]) -> Iterable[tuple[Permission, ...]]:
    """The permissions that these operations give completely; the permissions of one tuple belong together."""
    if AclOperation.ALL in operations:
        yield (Permission.ADMIN,) if on.kind is Kind.CLUSTER else tuple(Permission)
        return
    for permission in PERMISSIONS[on.kind]:
        if operations.issuperset(GIVES[permission]):
            yield (permission,)


def _give(rules: AccessRules, edit: Edit, on: Object, user: str, permissions: Sequence[Permission]) -> None:
    changes: dict[Place, str] = {}
    expected: dict[Place, str | None] = {}
    for permission in permissions:
        place = (on.kind, on.name, permission)
        names = _start(rules, edit, place, expected)
        is_own = place in edit.changes or rules.at(place) is not None
        if is_own and (user in names.users or (user == EVERY and names.everybody)):
            continue
        changes[place] = _text(place, names.users | {user} - {EVERY}, everybody=names.everybody or user == EVERY)
    edit.changes |= changes
    edit.expected |= expected


def _start(rules: AccessRules, edit: Edit, place: Place, expected: dict[Place, str | None]) -> PlainOr:
    """Whom the expression at a place admits before the change; without one, whom the inherited expression admits."""
    if place in edit.changes:
        return _read(edit.changes[place])
    kind, name, permission = place
    for each in rules.nearest_first(permission, kind, name):
        rule = rules.at(each)
        expected[each] = None if rule is None else rule.expression
        if rule is None:
            continue
        names = plain(rules, each)
        if names is None:
            raise _no_form(each, rule.expression)
        return names
    return NOBODY


def _read(text: str) -> PlainOr:
    names = parse(text).plain_or()
    assert names is not None, "written by `_text`"
    return names


def _text(place: Place, users: Iterable[str], *, everybody: bool) -> str:
    try:
        return str(expression_of(users=users, everybody=everybody))
    except ExpressionFault as error:
        raise invalid(f"`{place[2]}` of {_shown_object(place)}: {error}") from None


def _needed(grant: Grant) -> tuple[Permission, ...]:
    """The permissions that a row requires, all of them; none if its operation only comes with permissions."""
    if grant.operation is AclOperation.ALL:
        return (Permission.ADMIN,) if grant.on.kind is Kind.CLUSTER else tuple(Permission)
    return tuple(each for each in PERMISSIONS[grant.on.kind] if grant.operation in GIVES[each])


def _allows_nothing(grant: Grant) -> bool:
    """Whether a row is granted without a change. The caller has checked that its object exists."""
    return (grant.on.kind, grant.operation) in (
        (Kind.TOPIC, AclOperation.CREATE),
        (Kind.CLUSTER, AclOperation.IDEMPOTENT_WRITE),
    )


def _has(after: AccessRules, grant: Grant, needed: Sequence[Permission]) -> bool:
    """Whether the user has what a row gives, by expressions on its object or by inherited ones."""
    on = grant.on

    def may(permission: Permission) -> bool:
        if grant.user != EVERY:
            return after.allows(grant.user, frozenset(), permission, on.kind, on.name)
        places = after.nearest_first(permission, on.kind, on.name)
        names = next((after.plain_or(place) for place in places if after.at(place) is not None), None)
        return names is not None and names.everybody

    if needed:
        return all(map(may, needed))
    if on.kind is Kind.CLUSTER:
        return may(Permission.ADMIN)
    implied = [each for each in PERMISSIONS[on.kind] if grant.operation in IMPLIES[each]]
    return any(map(may, implied))


def _why_not(grant: Grant) -> str:
    operation, kind = grant.operation, grant.on.kind
    if kind is Kind.CLUSTER:
        return f"the cluster's administrators may do everything, {operation.name} alone cannot be granted: grant ALL"
    whole = next((GIVES[each] for each in PERMISSIONS[kind] if operation in GIVES[each]), ())
    if whole:
        names = ", ".join(each.name for each in whole)
        return f"{operation.name} cannot be granted alone: grant {names} in one request, or ALL"
    implied = [GIVES[each][0].name for each in PERMISSIONS[kind] if operation in IMPLIES[each]]
    if implied:
        return f"{operation.name} comes with {' or '.join(implied)}, and cannot be granted alone: grant one of these"
    return (
        f"there is no permission for {operation.name} on a {kind}: `headrace access set` has the permissions "
        "produce, consume, topic, copy and admin"
    )


def revoked(rules: AccessRules, acls: Iterable[Acl]) -> tuple[Edit, dict[Acl, KafkaError]]:
    """[blocking] The edit that removes these rows, which exist; and for each row that stays, why."""
    edit = Edit()
    errors: dict[Acl, KafkaError] = {}
    taken: dict[tuple[Object, str], set[AclOperation]] = {}
    objects: dict[Acl, Object] = {}
    acls = list(dict.fromkeys(acls))
    for acl in acls:
        try:
            on = objects[acl] = object_of(acl.resource, acl.name, acl.pattern)
        except KafkaError as error:
            errors[acl] = error
            continue
        taken.setdefault((on, acl.principal.removeprefix(USER)), set()).add(acl.operation)
    for (on, user), operations in taken.items():
        for permissions in _given(on, operations):
            for permission in permissions:
                _take(rules, edit, (on.kind, on.name, permission), user)
    admin = (Kind.CLUSTER, "", Permission.ADMIN)
    if edit.changes.get(admin) == "":
        del edit.changes[admin], edit.expected[admin]
    wanted = set(acls)
    still = {acl for acl in rows(rules.changed(dict(edit.changes))) if acl in wanted}
    for acl in acls:
        if acl in still and acl not in errors:
            errors[acl] = invalid(_why_it_stays(rules, acl, objects[acl]))
    return edit, errors


def _take(rules: AccessRules, edit: Edit, place: Place, user: str) -> None:
    rule = rules.at(place)
    names = _read(edit.changes[place]) if place in edit.changes else plain(rules, place)
    if rule is None or names is None:
        return
    edit.expected[place] = rule.expression
    edit.changes[place] = _text(place, names.users - {user}, everybody=names.everybody and user != EVERY)


def _why_it_stays(rules: AccessRules, acl: Acl, on: Object) -> str:
    if on.kind is Kind.CLUSTER:
        return "somebody has to administer the cluster: name another administrator first"
    if all(rules.at((on.kind, on.name, permission)) is None for permission in Permission):
        return "it comes from an expression on the cluster: `headrace access set cluster`"
    return f"{acl.operation.name} is part of what else is granted there, and cannot be taken away alone"


def without_form(rules: AccessRules, meant: AclFilter) -> KafkaError | None:
    """Why a filter that names one object cannot be answered: the object has an expression without a form as ACLs. None:
    it can."""
    name = meant.topic_name if meant.resource is Resource.TOPIC else meant.name
    if name is None or meant.pattern not in (Pattern.LITERAL, Pattern.PREFIXED):
        return None
    try:
        on = object_of(meant.resource, name, meant.pattern)
    except KafkaError:
        return None
    permissions = (*PERMISSIONS[on.kind], *((Permission.ADMIN,) if on.kind is Kind.CLUSTER else ()))
    for permission in permissions:
        place = (on.kind, on.name, permission)
        asked = meant.operation in (AclOperation.ANY, AclOperation.ALL, *GIVES[permission], *IMPLIES[permission])
        rule = rules.at(place)
        if asked and rule is not None and plain(rules, place) is None:
            return _no_form(place, rule.expression)
    return None


def _no_form(place: Place, expression: str) -> KafkaError:
    text = expression if len(expression) <= 200 else expression[:200] + "…"
    return invalid(
        f"`{place[2]}` of {_shown_object(place)} is `{text}`, which is not a plain OR of users, so ACLs cannot "
        "change it: `headrace access set`"
    )


def _shown_object(place: Place) -> str:
    return "the cluster" if place[0] is Kind.CLUSTER else f"{place[0]} {place[1]}"

"""Access expressions as Kafka's ACLs, and edits of one by the other. Pure, and without a clock.

An expression that is a plain OR of users has a form as ACLs: a row for each user and operation, `User:*` for `p`. One
with `!`, `&` or a group has none: it is not shown, and not edited here. Rows stand where expressions stand:

    TOPIC LITERAL /s:t              the topic          CLUSTER kafka-cluster        the cluster's `admin`
    TOPIC PREFIXED /s:              the stream /s      GROUP PREFIXED ops-          groups by a name's beginning
    TOPIC PREFIXED /plant/          the path /plant    TRANSACTIONAL_ID PREFIXED x  transactional ids, likewise
    TOPIC LITERAL *                 the cluster        GROUP, TRANSACTIONAL_ID *    all groups, all ids

Other than Kafka's, they do not add up: of an object the nearest expression decides, here as everywhere.

    produce   WRITE, DESCRIBE               topic   CREATE, DELETE, ALTER, DESCRIBE
    consume   READ, DESCRIBE                admin   ALTER_CONFIGS, DESCRIBE_CONFIGS; of the cluster: ALL
    all five  ALL                           copy    has no form of its own

Nothing is approximated. A permission is given to somebody who is given all that it allows, and taken from somebody from
whom all of it is taken.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple

from headrace.base.errors import Code, KafkaError
from headrace.security.access_expression import PlainOr, expression_of, parse
from headrace.security.access_rules import AccessRules, Kind, Permission, Place
from headrace.security.access_syntax import ExpressionFault

CLUSTER_NAME: Final = "kafka-cluster"
EVERY: Final = "*"
"""Every topic, group or user, in Kafka's words."""
_USER: Final = "User:"


class Resource(IntEnum):
    """org.apache.kafka.common.resource.ResourceType."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class Pattern(IntEnum):
    """org.apache.kafka.common.resource.PatternType."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """org.apache.kafka.common.acl.AclOperation."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Effect(IntEnum):
    """org.apache.kafka.common.acl.AclPermissionType."""

    ANY = 1
    DENY = 2
    ALLOW = 3


class Acl(NamedTuple):
    """One row: always of ALLOW, for every host."""

    resource: Resource
    name: str
    pattern: Pattern
    principal: str
    """`User:alice`, or `User:*`."""
    operation: Operation


class Object(NamedTuple):
    """What expressions stand on."""

    kind: Kind
    name: str


_GIVES: Final[Mapping[Permission, tuple[Operation, ...]]] = {
    Permission.PRODUCE: (Operation.WRITE,),
    Permission.CONSUME: (Operation.READ,),
    Permission.TOPIC: (Operation.CREATE, Operation.DELETE, Operation.ALTER),
    Permission.ADMIN: (Operation.ALTER_CONFIGS,),
}
"""What somebody has to be given for a permission, and lose to lose it. What these imply comes with them."""
_IMPLIES: Final[Mapping[Permission, tuple[Operation, ...]]] = {
    Permission.PRODUCE: (Operation.DESCRIBE,),
    Permission.CONSUME: (Operation.DESCRIBE,),
    Permission.TOPIC: (Operation.DESCRIBE,),
    Permission.ADMIN: (Operation.DESCRIBE_CONFIGS,),
}
_PERMISSIONS: Final[Mapping[Kind, tuple[Permission, ...]]] = {
    Kind.TOPIC: tuple(_GIVES),
    Kind.STREAM: tuple(_GIVES),
    Kind.PREFIX: tuple(_GIVES),
    Kind.GROUP: (Permission.CONSUME, Permission.ADMIN),
    Kind.TRANSACTIONAL_ID: (Permission.PRODUCE,),
    Kind.CLUSTER: (),
}
"""Which have a form of their own on an object of a kind, beside ALL."""
_RESOURCES: Final = {Kind.GROUP: Resource.GROUP, Kind.TRANSACTIONAL_ID: Resource.TRANSACTIONAL_ID}


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Which rows are meant. None: every one."""

    resource: Resource
    name: str | None
    topic_name: str | None
    """What the name says of topics: a full name, if it is one of a topic's names."""
    pattern: Pattern
    principal: str | None
    host: str | None
    operation: Operation
    effect: Effect

    def matches(self, acl: Acl) -> bool:
        """Whether a row is meant, as Kafka decides it."""
        return (
            self.resource in (Resource.ANY, acl.resource)
            and self.effect is not Effect.DENY
            and self.host in (None, EVERY)
            and self.principal in (None, acl.principal)
            and self.operation in (Operation.ANY, acl.operation)
            and self._names(acl)
        )

    def _names(self, acl: Acl) -> bool:
        if self.pattern in (Pattern.LITERAL, Pattern.PREFIXED) and acl.pattern is not self.pattern:
            return False
        name = self.topic_name if acl.resource is Resource.TOPIC else self.name
        if name is None or name == acl.name:
            return True
        if self.pattern is not Pattern.MATCH:
            return False
        return name.startswith(acl.name) if acl.pattern is Pattern.PREFIXED else acl.name == EVERY


# --- what is shown


def rows(rules: AccessRules) -> Iterator[Acl]:
    """[blocking] Every row that there is, each once: as many as all expressions have users, some times over."""
    holders: dict[Object, dict[Permission, PlainOr]] = {}
    for place in rules.places():
        kind, name, permission = place
        names = _plain(rules, place)
        if names is not None:
            holders.setdefault(Object(kind, name), {})[permission] = names
    for each, permissions in holders.items():
        if each.kind is Kind.CLUSTER:
            yield from _rows_of_cluster(rules, permissions)
        else:
            yield from _rows(*_pattern_of(each), permissions, _PERMISSIONS[each.kind])


def shown(rules: AccessRules, meant: Sequence[AclFilter], *, most: int) -> list[list[Acl]]:
    """[blocking] By filter, the rows that it means, in order. Raises KafkaError INVALID_REQUEST where they are more
    than `most` in all."""
    found: list[list[Acl]] = [[] for _ in meant]
    count = 0
    for acl in rows(rules):
        for each, acls in zip(meant, found, strict=True):
            if each.matches(acl):
                acls.append(acl)
                count += 1
        if count > most:
            raise invalid(f"these are more than {most} ACLs: name a resource, a principal or an operation")
    return [sorted(acls) for acls in found]


def _rows_of_cluster(rules: AccessRules, permissions: Mapping[Permission, PlainOr]) -> Iterable[Acl]:
    for principal in _principals(permissions.get(Permission.ADMIN, _NOBODY)):
        yield Acl(Resource.CLUSTER, CLUSTER_NAME, Pattern.LITERAL, principal, Operation.ALL)
    topics: Mapping[Permission, PlainOr] = {
        of: names for of, names in permissions.items() if of is not Permission.ADMIN
    }
    yield from _rows(Resource.TOPIC, EVERY, Pattern.LITERAL, topics, tuple(_GIVES))
    for kind, of in ((Kind.GROUP, Permission.CONSUME), (Kind.TRANSACTIONAL_ID, Permission.PRODUCE)):
        if of in permissions and rules.at((kind, "", of)) is None:
            yield from _rows(_RESOURCES[kind], EVERY, Pattern.LITERAL, {of: permissions[of]}, (of,))


def _rows(
    resource: Resource, name: str, pattern: Pattern, holders: Mapping[Permission, PlainOr], told: Sequence[Permission]
) -> Iterable[Acl]:
    has: dict[str, set[Permission]] = {}
    for permission, names in holders.items():
        for principal in _principals(names):
            has.setdefault(principal, set()).add(permission)
    for principal, permissions in has.items():
        if permissions == set(Permission):
            yield Acl(resource, name, pattern, principal, Operation.ALL)
            continue
        operations: set[Operation] = set()
        for permission in permissions.intersection(told):
            operations.update(_GIVES[permission], _IMPLIES[permission])
        for operation in operations:
            yield Acl(resource, name, pattern, principal, operation)


_NOBODY: Final = PlainOr(frozenset(), frozenset(), everybody=False)


def _plain(rules: AccessRules, place: Place) -> PlainOr | None:
    """Whom an expression lets in that has a form as ACLs."""
    names = rules.plain_or(place)
    return None if names is None or names.groups else names


def _principals(names: PlainOr) -> list[str]:
    return [_USER + name for name in (names.users | {EVERY} if names.everybody else names.users)]


def _pattern_of(each: Object) -> tuple[Resource, str, Pattern]:
    match each.kind:
        case Kind.TOPIC:
            return Resource.TOPIC, each.name, Pattern.LITERAL
        case Kind.STREAM:
            return Resource.TOPIC, f"{each.name}:", Pattern.PREFIXED
        case Kind.PREFIX:
            return Resource.TOPIC, f"{each.name}/", Pattern.PREFIXED
        case Kind.CLUSTER:
            return Resource.CLUSTER, CLUSTER_NAME, Pattern.LITERAL
        case kind if each.name:
            return _RESOURCES[kind], each.name, Pattern.PREFIXED
        case kind:
            return _RESOURCES[kind], EVERY, Pattern.LITERAL


def object_of(resource: Resource, name: str, pattern: Pattern) -> Object:
    """What a row would stand on. `name` of a topic: its full name. Raises KafkaError INVALID_REQUEST, which says what
    to do, where no expression stands on such things."""
    match resource, pattern:
        case Resource.TOPIC, Pattern.LITERAL if name == EVERY:
            raise invalid(
                "what the cluster says of all topics holds for groups and transactional ids too, which is more than "
                "this: `headrace access set cluster`, or PREFIXED with a stream's `/s:` or a path's `/plant/`"
            )
        case Resource.TOPIC, Pattern.LITERAL:
            return Object(Kind.TOPIC, name)
        case Resource.TOPIC, Pattern.PREFIXED if name.startswith("/") and name[-1] in ":/" and len(name) > 1:
            return Object(Kind.STREAM if name[-1] == ":" else Kind.PREFIX, name[:-1])
        case Resource.TOPIC, Pattern.PREFIXED:
            raise invalid(
                f"no expression stands on the topics whose names begin with {name[:100]!r}: a stream is the prefix "
                "`/s:`, the streams below a path are the prefix `/plant/`"
            )
        case Resource.CLUSTER, Pattern.LITERAL if name == CLUSTER_NAME:
            return Object(Kind.CLUSTER, "")
        case Resource.CLUSTER, _:
            raise invalid(f"the cluster's only name is the LITERAL {CLUSTER_NAME}")
        case ((Resource.GROUP | Resource.TRANSACTIONAL_ID), Pattern.LITERAL) if name != EVERY:
            raise invalid(
                "expressions of groups and transactional ids go by the beginnings of names: "
                f"ask for PREFIXED {name[:100]!r}, which holds for every name that begins so"
            )
        case ((Resource.GROUP | Resource.TRANSACTIONAL_ID), (Pattern.LITERAL | Pattern.PREFIXED)):
            kind = Kind.GROUP if resource is Resource.GROUP else Kind.TRANSACTIONAL_ID
            return Object(kind, "" if pattern is Pattern.LITERAL else name)
        case ((Resource.DELEGATION_TOKEN | Resource.USER), _):
            raise invalid(f"there are no access expressions for {resource.name}")
        case _:
            raise invalid("an ACL names a resource's type, and LITERAL or PREFIXED")


# --- what is changed


class Grant(NamedTuple):
    """A row to be made. `user`: `*` is everybody."""

    on: Object
    user: str
    operation: Operation


@dataclass(slots=True)
class Edit:
    """Expressions to be written, and what they were when that was decided."""

    changes: dict[Place, str] = field(default_factory=dict)
    expected: dict[Place, str | None] = field(default_factory=dict)
    errors: dict[int, KafkaError] = field(default_factory=dict)
    """By number of a grant: why it cannot be made."""


def granted(rules: AccessRules, grants: Mapping[int, Grant]) -> Edit:
    """What has to be written so that somebody has what he is granted. Whom an object without an expression of its own
    inherits keep what they have: its first one begins as a copy of what it inherits."""
    edit = Edit()
    asked: dict[tuple[Object, str], set[Operation]] = {}
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
        elif not _has(after, grant, needed):
            edit.errors[number] = invalid(_why_not(grant))
    return edit


def _given(on: Object, operations: set[Operation]) -> Iterable[tuple[Permission, ...]]:
    """The permissions of which all that they give is among the operations; those of one tuple go together."""
    if Operation.ALL in operations:
        yield (Permission.ADMIN,) if on.kind is Kind.CLUSTER else tuple(Permission)
        return
    for permission in _PERMISSIONS[on.kind]:
        if operations.issuperset(_GIVES[permission]):
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
    """Whom an expression lets in before it is changed; where there is none, that which is inherited."""
    if place in edit.changes:
        return _read(edit.changes[place])
    kind, name, permission = place
    for each in rules.nearest_first(permission, kind, name):
        rule = rules.at(each)
        expected[each] = None if rule is None else rule.expression
        if rule is None:
            continue
        names = _plain(rules, each)
        if names is None:
            raise _no_form(each, rule.expression)
        return names
    return _NOBODY


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
    """The permissions that have to be given for a row, if any was tried."""
    if grant.operation is Operation.ALL:
        return (Permission.ADMIN,) if grant.on.kind is Kind.CLUSTER else tuple(Permission)
    return tuple(each for each in _PERMISSIONS[grant.on.kind] if grant.operation in _GIVES[each])


def _has(after: AccessRules, grant: Grant, needed: Sequence[Permission]) -> bool:
    """Whether somebody has what a row gives: by expressions on its object, or by what that inherits."""
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
        if grant.operation is Operation.IDEMPOTENT_WRITE:
            return grant.user != EVERY and after.any_topic(grant.user, frozenset(), Permission.PRODUCE)
        return may(Permission.ADMIN)
    implied = [each for each in _PERMISSIONS[on.kind] if grant.operation in _IMPLIES[each]]
    return any(map(may, implied))


def _why_not(grant: Grant) -> str:
    operation, kind = grant.operation, grant.on.kind
    if kind is Kind.CLUSTER:
        if operation is Operation.IDEMPOTENT_WRITE:
            return "IDEMPOTENT_WRITE comes with WRITE on a topic: grant that"
        return f"the cluster's administrators may do everything, {operation.name} alone cannot be granted: grant ALL"
    whole = next((_GIVES[each] for each in _PERMISSIONS[kind] if operation in _GIVES[each]), ())
    if whole:
        names = ", ".join(each.name for each in whole)
        return f"{operation.name} cannot be granted alone: grant {names} in one request, or ALL"
    implied = [_GIVES[each][0].name for each in _PERMISSIONS[kind] if operation in _IMPLIES[each]]
    if implied:
        return f"{operation.name} comes with {' or '.join(implied)}, and cannot be granted alone: grant one of these"
    return (
        f"there is no permission for {operation.name} on a {kind}: `headrace access set` has the permissions "
        "produce, consume, topic, copy and admin"
    )


def revoked(rules: AccessRules, acls: Iterable[Acl]) -> tuple[Edit, dict[Acl, KafkaError]]:
    """[blocking] What has to be written so that these rows, which are shown, go; and why some stay."""
    edit = Edit()
    errors: dict[Acl, KafkaError] = {}
    taken: dict[tuple[Object, str], set[Operation]] = {}
    objects: dict[Acl, Object] = {}
    acls = list(dict.fromkeys(acls))
    for acl in acls:
        try:
            on = objects[acl] = object_of(acl.resource, acl.name, acl.pattern)
        except KafkaError as error:
            errors[acl] = error
            continue
        taken.setdefault((on, acl.principal.removeprefix(_USER)), set()).add(acl.operation)
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
    names = _read(edit.changes[place]) if place in edit.changes else _plain(rules, place)
    if rule is None or names is None:
        return
    edit.expected[place] = rule.expression
    edit.changes[place] = _text(place, names.users - {user}, everybody=names.everybody and user != EVERY)


def _why_it_stays(rules: AccessRules, acl: Acl, on: Object) -> str:
    if on.kind is Kind.CLUSTER:
        return "somebody has to administer the cluster: name another administrator first"
    if all(rules.at((on.kind, on.name, permission)) is None for permission in Permission):
        return "it stands on the cluster: `headrace access set cluster`"
    return f"{acl.operation.name} is part of what else is granted there, and cannot be taken away alone"


def without_form(rules: AccessRules, meant: AclFilter) -> KafkaError | None:
    """Why a filter that names one object cannot be told what is there: an expression that has no form as ACLs."""
    name = meant.topic_name if meant.resource is Resource.TOPIC else meant.name
    if name is None or meant.pattern not in (Pattern.LITERAL, Pattern.PREFIXED):
        return None
    try:
        on = object_of(meant.resource, name, meant.pattern)
    except KafkaError:
        return None
    permissions = (*_PERMISSIONS[on.kind], *((Permission.ADMIN,) if on.kind is Kind.CLUSTER else ()))
    for permission in permissions:
        place = (on.kind, on.name, permission)
        asked = meant.operation in (Operation.ANY, Operation.ALL, *_GIVES[permission], *_IMPLIES[permission])
        rule = rules.at(place)
        if asked and rule is not None and _plain(rules, place) is None:
            return _no_form(place, rule.expression)
    return None


def _no_form(place: Place, expression: str) -> KafkaError:
    text = expression if len(expression) <= 200 else expression[:200] + "…"
    return invalid(
        f"`{place[2]}` of {_shown_object(place)} is `{text}`, which is no plain OR of users, so ACLs cannot "
        "change it: `headrace access set`"
    )


def _shown_object(place: Place) -> str:
    return "the cluster" if place[0] is Kind.CLUSTER else f"{place[0]} {place[1]}"


def invalid(message: str) -> KafkaError:
    """INVALID_REQUEST."""
    return KafkaError(Code.INVALID_REQUEST, message)

"""Access expressions shown as Kafka's ACLs. Pure, and without a clock.

An expression that is a plain OR of users has a form as ACLs: a row for each user and operation, `User:*` for `p`. One
with `!`, `&` or a group has none: it is neither shown nor edited. Rows have these places:

    TOPIC LITERAL /s:t              the topic          CLUSTER kafka-cluster        the cluster's `admin`
    TOPIC PREFIXED /s:              the stream /s      GROUP LITERAL ops            the group ops
    TOPIC PREFIXED /plant/          the path /plant    GROUP PREFIXED ops-          groups by a prefix of their names
    TOPIC LITERAL *                 the cluster        GROUP LITERAL *              all groups

TRANSACTIONAL_ID is like GROUP.

Unlike Kafka's ACLs, these rows do not add up: the nearest expression decides about an object, as everywhere in
Headrace.

    produce   WRITE, DESCRIBE               topic   CREATE, DELETE, ALTER, DESCRIBE
    consume   READ, DESCRIBE                admin   ALTER_CONFIGS, DESCRIBE_CONFIGS; of the cluster: ALL
    all five  ALL                           copy    has no form of its own

`kafka_acl_edits` changes expressions through these rows.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from headrace.base.errors import Code, KafkaError
from headrace.security.access_expression import PlainOr
from headrace.security.access_rules import PREFIX_OF, AccessRules, Kind, Permission, Place

CLUSTER_NAME: Final = "kafka-cluster"
EVERY: Final = "*"
"""The name that stands for every topic, group or user, in Kafka's words."""
USER: Final = "User:"


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


class AclOperation(IntEnum):
    """An operation on a resource (org.apache.kafka.common.acl.AclOperation)."""

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
    """One ACL row. It always allows, and applies to every host."""

    resource: Resource
    name: str
    pattern: Pattern
    principal: str
    """`User:alice`, or `User:*`."""
    operation: AclOperation


class Object(NamedTuple):
    """An object on which expressions can be set."""

    kind: Kind
    name: str


GIVES: Final[Mapping[Permission, tuple[AclOperation, ...]]] = {
    Permission.PRODUCE: (AclOperation.WRITE,),
    Permission.CONSUME: (AclOperation.READ,),
    Permission.TOPIC: (AclOperation.CREATE, AclOperation.DELETE, AclOperation.ALTER),
    Permission.ADMIN: (AclOperation.ALTER_CONFIGS,),
}
"""The operations that make up a permission: those that no other permission allows. A user who gets all of them gets the
permission, and one who loses all of them loses it.

What a permission allows is decided elsewhere (kafka.authorization.PERMISSIONS), and may be more than an ACL shows."""
IMPLIES: Final[Mapping[Permission, tuple[AclOperation, ...]]] = {
    Permission.PRODUCE: (AclOperation.DESCRIBE,),
    Permission.CONSUME: (AclOperation.DESCRIBE,),
    Permission.TOPIC: (AclOperation.DESCRIBE,),
    Permission.ADMIN: (AclOperation.DESCRIBE_CONFIGS,),
}
"""Further operations that are shown with a permission, and come and go with it."""
PERMISSIONS: Final[Mapping[Kind, tuple[Permission, ...]]] = {
    Kind.TOPIC: tuple(GIVES),
    Kind.STREAM: tuple(GIVES),
    Kind.PREFIX: tuple(GIVES),
    Kind.GROUP: (Permission.CONSUME, Permission.ADMIN),
    Kind.GROUP_PREFIX: (Permission.CONSUME, Permission.ADMIN),
    Kind.TRANSACTIONAL_ID: (Permission.PRODUCE,),
    Kind.TRANSACTIONAL_ID_PREFIX: (Permission.PRODUCE,),
    Kind.CLUSTER: (),
}
"""The permissions that have a form of their own on an object of this kind, besides ALL."""
_RESOURCES: Final = {
    Kind.GROUP: Resource.GROUP,
    Kind.GROUP_PREFIX: Resource.GROUP,
    Kind.TRANSACTIONAL_ID: Resource.TRANSACTIONAL_ID,
    Kind.TRANSACTIONAL_ID_PREFIX: Resource.TRANSACTIONAL_ID,
}


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Selects ACL rows. A field that is None selects every row."""

    resource: Resource
    name: str | None
    topic_name: str | None
    """`name` as a topic's name: the full name, if `name` is one of a topic's names."""
    pattern: Pattern
    principal: str | None
    host: str | None
    operation: AclOperation
    effect: Effect

    def matches(self, acl: Acl) -> bool:
        """Whether the filter selects a row, by Kafka's rules."""
        return (
            self.resource in (Resource.ANY, acl.resource)
            and self.effect is not Effect.DENY
            and self.host in (None, EVERY)
            and self.principal in (None, acl.principal)
            and self.operation in (AclOperation.ANY, acl.operation)
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
    """[blocking] Every row, each once. There are several times as many as all expressions have users."""
    holders: dict[Object, dict[Permission, PlainOr]] = {}
    for place in rules.places():
        kind, name, permission = place
        names = plain(rules, place)
        if names is not None:
            holders.setdefault(Object(kind, name), {})[permission] = names
    for each, permissions in holders.items():
        if each.kind is Kind.CLUSTER:
            yield from _rows_of_cluster(rules, permissions)
        else:
            yield from _rows(*_pattern_of(each), permissions, PERMISSIONS[each.kind])


def shown(rules: AccessRules, meant: Sequence[AclFilter], *, most: int) -> list[list[Acl]]:
    """[blocking] For each filter the rows that it selects, in order. Raises KafkaError INVALID_REQUEST if they are more
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
    for principal in _principals(permissions.get(Permission.ADMIN, NOBODY)):
        yield Acl(Resource.CLUSTER, CLUSTER_NAME, Pattern.LITERAL, principal, AclOperation.ALL)
    topics: Mapping[Permission, PlainOr] = {
        of: names for of, names in permissions.items() if of is not Permission.ADMIN
    }
    yield from _rows(Resource.TOPIC, EVERY, Pattern.LITERAL, topics, tuple(GIVES))
    every = ((Kind.GROUP_PREFIX, Permission.CONSUME), (Kind.TRANSACTIONAL_ID_PREFIX, Permission.PRODUCE))
    for kind, of in every:
        if of in permissions and rules.at((kind, "", of)) is None:
            yield from _rows(_RESOURCES[kind], EVERY, Pattern.LITERAL, {of: permissions[of]}, (of,))


def _rows(
    resource: Resource, name: str, pattern: Pattern, holders: Mapping[Permission, PlainOr], listed: Sequence[Permission]
) -> Iterable[Acl]:
    has: dict[str, set[Permission]] = {}
    for permission, names in holders.items():
        for principal in _principals(names):
            has.setdefault(principal, set()).add(permission)
    for principal, permissions in has.items():
        if permissions == set(Permission):
            yield Acl(resource, name, pattern, principal, AclOperation.ALL)
            continue
        operations: set[AclOperation] = set()
        for permission in permissions.intersection(listed):
            operations.update(GIVES[permission], IMPLIES[permission])
        for operation in operations:
            yield Acl(resource, name, pattern, principal, operation)


NOBODY: Final = PlainOr(frozenset(), frozenset(), everybody=False)


def plain(rules: AccessRules, place: Place) -> PlainOr | None:
    """Whom the expression at a place admits, if it has a form as ACLs; otherwise None."""
    names = rules.plain_or(place)
    return None if names is None or names.groups else names


def _principals(names: PlainOr) -> list[str]:
    return [USER + name for name in (names.users | {EVERY} if names.everybody else names.users)]


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
        case Kind.GROUP | Kind.TRANSACTIONAL_ID as kind:
            return _RESOURCES[kind], each.name, Pattern.LITERAL
        case kind if each.name:
            return _RESOURCES[kind], each.name, Pattern.PREFIXED
        case kind:
            return _RESOURCES[kind], EVERY, Pattern.LITERAL


def object_of(resource: Resource, name: str, pattern: Pattern) -> Object:
    """The object that a row concerns. `name` of a topic: its full name. Raises KafkaError INVALID_REQUEST, with advice,
    if no expression can be set on such an object."""
    match resource, pattern:
        case Resource.TOPIC, Pattern.LITERAL if name == EVERY:
            raise invalid(
                "expressions for all topics are set on the cluster, and cover groups and transactional ids too, "
                "which is more than this: `headrace access set cluster`, or PREFIXED with a stream's `/s:` or a "
                "path's `/plant/`"
            )
        case Resource.TOPIC, Pattern.LITERAL:
            return Object(Kind.TOPIC, name)
        case Resource.TOPIC, Pattern.PREFIXED if name.startswith("/") and name[-1] in ":/" and len(name) > 1:
            return Object(Kind.STREAM if name[-1] == ":" else Kind.PREFIX, name[:-1])
        case Resource.TOPIC, Pattern.PREFIXED:
            raise invalid(
                f"no expression can be set on the topics whose names begin with {name[:100]!r}: a stream is the prefix "
                "`/s:`, the streams below a path are the prefix `/plant/`"
            )
        case Resource.CLUSTER, Pattern.LITERAL if name == CLUSTER_NAME:
            return Object(Kind.CLUSTER, "")
        case Resource.CLUSTER, _:
            raise invalid(f"the cluster's only name is the LITERAL {CLUSTER_NAME}")
        case ((Resource.GROUP | Resource.TRANSACTIONAL_ID), (Pattern.LITERAL | Pattern.PREFIXED)):
            one = Kind.GROUP if resource is Resource.GROUP else Kind.TRANSACTIONAL_ID
            if pattern is Pattern.LITERAL and name == EVERY:
                return Object(PREFIX_OF[one], "")
            if not name or EVERY in name:
                raise invalid(
                    f"no expression can be set on a name that is empty or has a {EVERY} in it, as {name[:100]!r}: "
                    f"LITERAL {EVERY} is every name, PREFIXED `ops-` every one that begins so"
                )
            return Object(one if pattern is Pattern.LITERAL else PREFIX_OF[one], name)
        case ((Resource.DELEGATION_TOKEN | Resource.USER), _):
            raise invalid(f"there are no access expressions for {resource.name}")
        case _:
            raise invalid("an ACL names a resource's type, and LITERAL or PREFIXED")


def invalid(message: str) -> KafkaError:
    """A KafkaError INVALID_REQUEST."""
    return KafkaError(Code.INVALID_REQUEST, message)

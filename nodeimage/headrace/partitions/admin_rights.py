"""Rights: what a caller of Headrace's own admin API needs while security is on, and the check of it.

Every method declares a right (`admin_params.Method`); the node does not start with a method that has none. The right is
checked before the method runs, on the objects that its parameters name. Names are brought into one form first, so that
an alias cannot get around a rule. A refusal does not reveal whether the object exists.

Kinds of right:

    On           one of some permissions on each object that the parameters name
    SeesStream   any permission on a stream or within it
    Own          the user that the parameters name, or the cluster's administrators
    Anybody      the method itself leaves out what its caller may not see, or refuses it
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from headrace.base.errors import Code, KafkaError
from headrace.catalog.names import DEFAULT_STREAM, MAX_LENGTH, check_stream, split
from headrace.partitions.authorizer import Authorizer
from headrace.partitions.caller import Caller
from headrace.security.access_rules import PREFIX_OF, Kind, Permission
from headrace.security.principals import Mechanism

ANY: Final = tuple(Permission)
"""All permissions: any one of them lets a caller see an object."""
ADMIN: Final = (Permission.ADMIN,)
COPY: Final = (Permission.COPY,)
LONGEST_NAME: Final = 1_000
"""Limit of the characters of a name that is looked up in the rules, which cache their decisions by name."""

_CODES: Final[Mapping[Kind, Code]] = {
    Kind.CLUSTER: Code.CLUSTER_AUTHORIZATION_FAILED,
    Kind.PREFIX: Code.TOPIC_AUTHORIZATION_FAILED,
    Kind.STREAM: Code.TOPIC_AUTHORIZATION_FAILED,
    Kind.TOPIC: Code.TOPIC_AUTHORIZATION_FAILED,
    Kind.GROUP: Code.GROUP_AUTHORIZATION_FAILED,
    Kind.GROUP_PREFIX: Code.GROUP_AUTHORIZATION_FAILED,
    Kind.TRANSACTIONAL_ID: Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    Kind.TRANSACTIONAL_ID_PREFIX: Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
_PASSWORDS: Final = (Mechanism.PLAIN, Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512)


class Target(NamedTuple):
    """An object on which a right is checked. `name` as in access_rules.Rule."""

    kind: Kind
    name: str = ""
    shown: str = ""
    """What a refusal calls the object, if `name` would reveal more than the caller has named."""


CLUSTER: Final = Target(Kind.CLUSTER)

Targets = Sequence[Target]


class Right(Protocol):
    """What a caller needs to call a method."""

    @property
    def words(self) -> str:
        """The right in words, for the table in docs/security.md."""

    async def check(self, params: Any, caller: Caller, may: Authorizer, *, method: str) -> None:
        """Raise KafkaError unless the caller has the right: Kafka's code for the object, and one line that says how to
        get the right."""

    def is_ever_had(self, caller: Caller, may: Authorizer) -> bool:
        """Whether a caller has this right on any object, so that an error may say what is wrong with the parameters."""


@dataclass(frozen=True)
class On:
    """One of `permissions` on each of the objects that `find` derives from the parameters."""

    permissions: tuple[Permission, ...]
    where: str
    find: Callable[[Any, Caller], Targets | Awaitable[Targets]]
    """Returns the objects that the parameters name, as their caller means them. Raises KafkaError for an illegal
    name."""

    @property
    def words(self) -> str:
        """See Right."""
        what = "any permission" if self.permissions == ANY else " or ".join(f"`{each}`" for each in self.permissions)
        return f"{what} on {self.where}"

    async def check(self, params: Any, caller: Caller, may: Authorizer, *, method: str) -> None:
        """See Right."""
        if not may.is_on:
            return
        try:
            found = self.find(params, caller)
            targets = found if isinstance(found, Sequence) else await found
        except KafkaError:
            if self.is_ever_had(caller, may):
                raise
            raise unknown_to(caller, may, method) from None
        for target in targets:
            check(self.permissions, target, caller, may, method=method)

    def is_ever_had(self, caller: Caller, may: Authorizer) -> bool:
        """See Right."""
        return any(may.allows_some_topic(caller, each) for each in self.permissions)


@dataclass(frozen=True)
class SeesStream:
    """Any permission on the stream whose path the parameter `field` is, or on one of its topics."""

    field: str = "path"

    @property
    def words(self) -> str:
        """See Right."""
        return f"any permission on the stream `{self.field}`, or on a topic of it"

    async def check(self, params: Any, caller: Caller, may: Authorizer, *, method: str) -> None:
        """See Right."""
        path = getattr(params, self.field)
        if may.is_on and not may.sees_stream(caller, path[:LONGEST_NAME]):
            await on_stream(ANY, self.field).check(params, caller, may, method=method)

    def is_ever_had(self, caller: Caller, may: Authorizer) -> bool:
        """See Right."""
        return any(may.allows_some_topic(caller, each) for each in ANY)


@dataclass(frozen=True)
class Own:
    """The user whom the parameter `field` names, authenticated by password; or the cluster's administrators.

    A certificate or a token is not enough: somebody who got hold of one for a moment could set a lasting password.
    """

    field: str

    @property
    def words(self) -> str:
        """See Right."""
        return f"`admin` on the cluster; or to be the user `{self.field}`, authenticated by password"

    async def check(self, params: Any, caller: Caller, may: Authorizer, *, method: str) -> None:
        """See Right."""
        principal = caller.principal
        if principal.mechanism in _PASSWORDS and principal.user == getattr(params, self.field):
            return
        check(ADMIN, CLUSTER, caller, may, method=method)

    def is_ever_had(self, caller: Caller, may: Authorizer) -> bool:
        """See Right."""
        return may.sees(caller, ADMIN, Kind.CLUSTER, "")


@dataclass(frozen=True)
class Anybody:
    """Everybody who reaches a listener. `why` says how the method itself withholds what its caller may not see."""

    why: str

    @property
    def words(self) -> str:
        """See Right."""
        return self.why

    async def check(self, params: Any, caller: Caller, may: Authorizer, *, method: str) -> None:
        """See Right."""

    def is_ever_had(self, caller: Caller, may: Authorizer) -> bool:
        """See Right."""
        return True


CLUSTER_ADMIN: Final = On(ADMIN, "the cluster", lambda _params, _caller: (CLUSTER,))


def on_stream(permissions: tuple[Permission, ...], field: str = "path") -> On:
    """A right on the stream whose path the parameter `field` is, whether that stream exists or not."""
    return On(permissions, f"the stream `{field}`", lambda params, _: (stream_target(getattr(params, field)),))


def on_path(permissions: tuple[Permission, ...], field: str = "path") -> On:
    """A right on the path of a stream to be created: the expression on the path's nearest prefix decides."""
    return On(
        permissions,
        f"the nearest prefix of the path `{field}`",
        lambda params, _: (Target(Kind.PREFIX, _bounded(getattr(params, field))),),
    )


def on_topic(permissions: tuple[Permission, ...], field: str = "topic") -> On:
    """A right on the topic that the parameter `field` names, in any form of its name."""
    return On(
        permissions,
        f"the topic `{field}`",
        lambda params, caller: (topic_target(getattr(params, field), caller.default_stream),),
    )


def on_group(permissions: tuple[Permission, ...], field: str = "group") -> On:
    """A right on the consumer group that the parameter `field` names."""
    return On(
        permissions,
        f"the group `{field}`",
        lambda params, _: (Target(Kind.GROUP, _bounded(getattr(params, field))),),
    )


def stream_target(path: str) -> Target:
    """The stream at a path, as a target. Raises KafkaError if the path is too long."""
    return Target(Kind.STREAM, _bounded(path))


def topic_target(name: str, default_stream: str) -> Target:
    """The topic that any form of its name means, as a target. Raises KafkaError for an illegal name."""
    topic = split(_bounded(name, most=MAX_LENGTH), default_stream)
    return Target(Kind.TOPIC, topic.full)


def check(permissions: tuple[Permission, ...], target: Target, caller: Caller, may: Authorizer, *, method: str) -> None:
    """Raise KafkaError unless a caller has one of these permissions on an object; the decision is audited."""
    if len(permissions) == 1:
        allowed = may.allows(caller, permissions[0], target.kind, target.name, api=method)
    else:
        allowed = may.allows_any(caller, permissions, target.kind, target.name, api=method)
    if not allowed:
        raise lacking(permissions, target, caller)


def lacking(permissions: Iterable[Permission], target: Target, caller: Caller) -> KafkaError:
    """The error that names the caller, the permission that he lacks, the object, and how to get the permission."""
    wanted = tuple(permissions)
    what = "every permission" if wanted == ANY else " and ".join(wanted)
    option = f"--{wanted[0]}" if len(wanted) == 1 else "--consume"
    named = "the cluster" if target.kind is Kind.CLUSTER else f"{target.kind} {_one_line(target.name)}"
    where = target.shown or named
    given = "OBJECT" if target.shown or "*" in target.name else written(target.kind, _one_line(target.name))
    return KafkaError(
        _CODES[target.kind],
        f"{caller.principal} lacks {what} on {where}; a user with admin there can grant it:"
        f" `headrace access set {given} {option} EXPRESSION`",
    )


def unknown_to(caller: Caller, may: Authorizer, method: str) -> KafkaError:
    """The error for a caller without any rights, in place of an answer that would reveal which objects exist."""
    reason = "no such method, or none with these parameters, that the user may call"
    may.refused(caller, Permission.ADMIN, Kind.CLUSTER, "", reason=reason, api=method)
    return KafkaError(
        Code.CLUSTER_AUTHORIZATION_FAILED, f"{caller.principal} may not call {method[:100]!r} with these parameters"
    )


def written(kind: Kind, name: str) -> str:
    """An object as the command line writes it: `/stream`, `/stream:topic`, `/path/*`, `cluster`, `group:NAME`,
    `group:PREFIX*`."""
    match kind:
        case Kind.CLUSTER:
            return "cluster"
        case Kind.PREFIX:
            return f"{name}/*"
        case Kind.GROUP | Kind.TRANSACTIONAL_ID:
            return f"{kind}:{name}"
        case Kind.GROUP_PREFIX:
            return f"{Kind.GROUP}:{name}*"
        case Kind.TRANSACTIONAL_ID_PREFIX:
            return f"{Kind.TRANSACTIONAL_ID}:{name}*"
        case Kind.STREAM | Kind.TOPIC:
            return name


def read_object(text: str) -> Target:
    """The object that a text names in the form that `written` returns; a topic may also be named by its alias. Raises
    KafkaError for any other text."""
    kind, colon, rest = text.partition(":")
    if text == "cluster":
        return CLUSTER
    if colon and kind in (Kind.GROUP, Kind.TRANSACTIONAL_ID):
        one, is_prefix, name = Kind(kind), rest.endswith("*"), _bounded(rest.removesuffix("*"))
        if not rest or "*" in name:
            raise _no_object(text, f"write {kind}:NAME, {kind}:PREFIX* for names that begin so, {kind}:* for all")
        return Target(PREFIX_OF[one] if is_prefix else one, name)
    if text == "/*":
        raise _no_object(text, "expressions for all streams are set on the cluster: write `cluster`")
    if text.endswith("/*"):
        return Target(Kind.PREFIX, check_stream(text[:-2]))
    if text.startswith("/") and not colon:
        return Target(Kind.STREAM, check_stream(text))
    if text.startswith("/") or ".." in text:
        return topic_target(text, DEFAULT_STREAM)  # the name is never bare here, so the default stream does not matter
    raise _no_object(
        text,
        "write /stream, /stream:topic, /path/*, cluster, group:NAME, group:PREFIX*, transactional-id:NAME or "
        "transactional-id:PREFIX*",
    )


def _no_object(text: str, what: str) -> KafkaError:
    return KafkaError(Code.INVALID_REQUEST, f"{_one_line(text)[:100]} is not an object of access expressions: {what}")


def _one_line(name: str) -> str:
    return name if name.isprintable() else repr(name)


def _bounded(name: str, *, most: int = LONGEST_NAME) -> str:
    if len(name) > most:
        raise KafkaError(Code.INVALID_REQUEST, f"{name[:50]!r}... has {len(name)} characters: no name is that long")
    return name

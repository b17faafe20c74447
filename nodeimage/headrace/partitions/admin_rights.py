"""The right that a call of Headrace's own admin API declares, and how a caller is held to it while security is on.

Every method declares one (`admin_params.Method`): a method without one does not start. A right is checked before the
method runs, on what its parameters name; a name has one form by then, so that an alias is no way around a rule. A
refusal does not tell whether the thing is there.

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
"""Whoever may do anything with an object may see it."""
ADMIN: Final = (Permission.ADMIN,)
COPY: Final = (Permission.COPY,)
LONGEST_NAME: Final = 1_000
"""Characters of a name that is looked up in the rules, which keep what they have decided."""

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
    """What a right is asked for. `name` as in access_rules.Rule."""

    kind: Kind
    name: str = ""
    shown: str = ""
    """How a refusal calls it, where `name` would tell the caller what he did not say himself."""


CLUSTER: Final = Target(Kind.CLUSTER)

Targets = Sequence[Target]


class Right(Protocol):
    """What a method asks of its caller."""

    @property
    def words(self) -> str:
        """For the table in docs/security.md."""

    async def check(self, params: Any, caller: Caller, may: Authorizer, *, method: str) -> None:
        """Raises KafkaError with Kafka's code for what is refused, in one line that says how to get the right."""

    def is_ever_had(self, caller: Caller, may: Authorizer) -> bool:
        """Whether a caller may hear what is wrong with his parameters: he has this right on something."""


@dataclass(frozen=True)
class On:
    """One of `permissions` on each of the objects that `find` makes of the parameters."""

    permissions: tuple[Permission, ...]
    where: str
    find: Callable[[Any, Caller], Targets | Awaitable[Targets]]
    """Of the parameters, as their caller means them. Raises KafkaError for a name that nothing can have."""

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
    """Any permission on the stream whose path a parameter is, or on one of its topics."""

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
    """The user whom a parameter names, who has proved who he is by his password; and the cluster's administrators.

    A certificate or a token is no proof here: who had it for a moment could give its user a password, for ever.
    """

    field: str

    @property
    def words(self) -> str:
        """See Right."""
        return f"`admin` on the cluster; or to be the user `{self.field}`, by his password"

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
    """Whoever reaches a listener. `why` says how the method keeps what its caller may not see."""

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
    """On the stream whose path a parameter is, be there one or not."""
    return On(permissions, f"the stream `{field}`", lambda params, _: (stream_target(getattr(params, field)),))


def on_path(permissions: tuple[Permission, ...], field: str = "path") -> On:
    """On the path of a stream that is to be made: what stands on the nearest prefix of it decides."""
    return On(
        permissions,
        f"the nearest prefix of the path `{field}`",
        lambda params, _: (Target(Kind.PREFIX, _bounded(getattr(params, field))),),
    )


def on_topic(permissions: tuple[Permission, ...], field: str = "topic") -> On:
    """On the topic that a parameter names, in whichever form."""
    return On(
        permissions,
        f"the topic `{field}`",
        lambda params, caller: (topic_target(getattr(params, field), caller.default_stream),),
    )


def on_group(permissions: tuple[Permission, ...], field: str = "group") -> On:
    """On the group of consumers that a parameter names."""
    return On(
        permissions,
        f"the group `{field}`",
        lambda params, _: (Target(Kind.GROUP, _bounded(getattr(params, field))),),
    )


def stream_target(path: str) -> Target:
    """A stream. Raises KafkaError for what is too long to be one's path."""
    return Target(Kind.STREAM, _bounded(path))


def topic_target(name: str, default_stream: str) -> Target:
    """A topic by any of its names. Raises KafkaError for what is none."""
    topic = split(_bounded(name, most=MAX_LENGTH), default_stream)
    return Target(Kind.TOPIC, topic.full)


def check(permissions: tuple[Permission, ...], target: Target, caller: Caller, may: Authorizer, *, method: str) -> None:
    """Raises KafkaError unless a caller has one of these permissions on an object; the audit is told of it."""
    if len(permissions) == 1:
        allowed = may.allows(caller, permissions[0], target.kind, target.name, api=method)
    else:
        allowed = may.allows_any(caller, permissions, target.kind, target.name, api=method)
    if not allowed:
        raise lacking(permissions, target, caller)


def lacking(permissions: Iterable[Permission], target: Target, caller: Caller) -> KafkaError:
    """Who lacks what on which object, and how to get it."""
    wanted = tuple(permissions)
    what = "every permission" if wanted == ANY else " and ".join(wanted)
    option = f"--{wanted[0]}" if len(wanted) == 1 else "--consume"
    named = "the cluster" if target.kind is Kind.CLUSTER else f"{target.kind} {_one_line(target.name)}"
    where = target.shown or named
    given = "OBJECT" if target.shown or "*" in target.name else written(target.kind, _one_line(target.name))
    return KafkaError(
        _CODES[target.kind],
        f"{caller.principal} lacks {what} on {where}; who has admin there gives it:"
        f" `headrace access set {given} {option} EXPRESSION`",
    )


def unknown_to(caller: Caller, may: Authorizer, method: str) -> KafkaError:
    """In place of an answer that says what there is, for somebody without rights."""
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
    """What `written` wrote; a topic may be named by its alias, too. Raises KafkaError for what is no object."""
    kind, colon, rest = text.partition(":")
    if text == "cluster":
        return CLUSTER
    if colon and kind in (Kind.GROUP, Kind.TRANSACTIONAL_ID):
        one, is_prefix, name = Kind(kind), rest.endswith("*"), _bounded(rest.removesuffix("*"))
        if not rest or "*" in name:
            raise _no_object(text, f"write {kind}:NAME, {kind}:PREFIX* for names that begin so, {kind}:* for all")
        return Target(PREFIX_OF[one] if is_prefix else one, name)
    if text == "/*":
        raise _no_object(text, "what holds for all streams stands on the cluster: write `cluster`")
    if text.endswith("/*"):
        return Target(Kind.PREFIX, check_stream(text[:-2]))
    if text.startswith("/") and not colon:
        return Target(Kind.STREAM, check_stream(text))
    if text.startswith("/") or ".." in text:
        return topic_target(text, DEFAULT_STREAM)  # no bare name gets here
    raise _no_object(
        text,
        "write /stream, /stream:topic, /path/*, cluster, group:NAME, group:PREFIX*, transactional-id:NAME or "
        "transactional-id:PREFIX*",
    )


def _no_object(text: str, what: str) -> KafkaError:
    return KafkaError(Code.INVALID_REQUEST, f"{_one_line(text)[:100]} is no object of access expressions: {what}")


def _one_line(name: str) -> str:
    return name if name.isprintable() else repr(name)


def _bounded(name: str, *, most: int = LONGEST_NAME) -> str:
    if len(name) > most:
        raise KafkaError(Code.INVALID_REQUEST, f"{name[:50]!r}... has {len(name)} characters: no name is so long")
    return name

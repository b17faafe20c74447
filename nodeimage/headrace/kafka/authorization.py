"""What Kafka's operations need of Headrace's permissions, and the questions that the APIs ask before they do anything.

`PERMISSIONS` is the table that decides. What ACLs show of it is another table (security.kafka_acls), which a test holds
to this one: never more than is allowed, and less where two permissions allow the same.

Names of topics are full names (`/stream:topic`) before anything is asked, so that an alias, a bare name and an id mean
what they name. A name that nothing can have is left to whoever looks it up.

Nobody learns by an error whether there is something that he may not describe: what is named is refused whether it is
there or not, and a topic's id that he may not describe is answered as one that nothing has.

While security is off `rules` is None, and nothing else is looked at. Producers and consumers ask for the same few
topics with each request: what a connection was granted is kept at it (`Grants`), for as long as the rules and its
principal are the same.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from headrace.base.errors import Code, KafkaError
from headrace.catalog.names import split
from headrace.catalog.rows import TopicRow
from headrace.kafka.authorized_operations import OF_GROUPS, OF_THE_CLUSTER, OF_TOPICS, bits
from headrace.kafka.session import Grants
from headrace.partitions.authorizer import Authorizer
from headrace.partitions.caller import Caller
from headrace.partitions.lookups import turn
from headrace.security.access_rules import Kind, Permission
from headrace.security.kafka_acls import AclOperation
from headrace.security.principals import Principal

_ADMIN: Final = (Permission.ADMIN,)
_TOPIC: Final = (Permission.TOPIC,)
_PRODUCE: Final = (Permission.PRODUCE,)

PERMISSIONS: Final[Mapping[Kind, Mapping[AclOperation, tuple[Permission, ...]]]] = {
    Kind.TOPIC: {
        AclOperation.READ: (Permission.CONSUME, Permission.COPY),
        AclOperation.WRITE: _PRODUCE,
        AclOperation.CREATE: _TOPIC,
        AclOperation.DELETE: _TOPIC,
        AclOperation.ALTER: _TOPIC,
        AclOperation.DESCRIBE: tuple(Permission),
        AclOperation.DESCRIBE_CONFIGS: (Permission.TOPIC, Permission.ADMIN),
        AclOperation.ALTER_CONFIGS: _ADMIN,
    },
    Kind.GROUP: {
        AclOperation.READ: (Permission.CONSUME,),
        AclOperation.DESCRIBE: (Permission.CONSUME, Permission.ADMIN),
        AclOperation.DELETE: _ADMIN,
        AclOperation.DESCRIBE_CONFIGS: _ADMIN,
        AclOperation.ALTER_CONFIGS: _ADMIN,
    },
    Kind.CLUSTER: {
        AclOperation.CREATE: _TOPIC,
        AclOperation.ALTER: _ADMIN,
        AclOperation.DESCRIBE: _ADMIN,
        AclOperation.DESCRIBE_CONFIGS: _ADMIN,
        AclOperation.ALTER_CONFIGS: _ADMIN,
        AclOperation.IDEMPOTENT_WRITE: _PRODUCE,  # on some topic
        AclOperation.CLUSTER_ACTION: (),  # nobody is a replica: nodes have a protocol of their own
    },
    Kind.TRANSACTIONAL_ID: {
        AclOperation.WRITE: _PRODUCE,
        AclOperation.DESCRIBE: _PRODUCE,
    },
}
"""By the kind of resource: one of these permissions is needed for the operation; none: nobody may do it."""

REFUSED_BY: Final[Mapping[Kind, Code]] = {
    Kind.TOPIC: Code.TOPIC_AUTHORIZATION_FAILED,
    Kind.GROUP: Code.GROUP_AUTHORIZATION_FAILED,
    Kind.CLUSTER: Code.CLUSTER_AUTHORIZATION_FAILED,
    Kind.TRANSACTIONAL_ID: Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
"""Kafka's error by the kind of resource."""
_OPERATIONS: Final[Mapping[Kind, Sequence[AclOperation]]] = {
    Kind.TOPIC: OF_TOPICS,
    Kind.GROUP: OF_GROUPS,
    Kind.CLUSTER: OF_THE_CLUSTER,
}


class Authorization:
    """Of one node. Everything is on the loop's thread."""

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer
        self._changes = 0
        self.rules: int | None = 0 if authorizer.is_on else None
        """A number that the rules in force have, and no others before or after them; None while security is off."""
        authorizer.on_change(self._changed)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` when somebody may do more or less than before; `rules` is the new number by then."""
        self._authorizer.on_change(callback)

    def _changed(self) -> None:
        self._changes += 1
        self.rules = self._changes if self._authorizer.is_on else None

    # --- one thing

    def may(
        self, caller: Caller, operation: AclOperation, kind: Kind = Kind.CLUSTER, name: str = "", *, api: str = ""
    ) -> bool:
        """Whether a client may do this now; a denial is told to the audit. `name`: of a topic its full name."""
        if self.rules is None:
            return True
        permissions = PERMISSIONS[kind][operation]
        if operation is AclOperation.IDEMPOTENT_WRITE:
            if self._authorizer.allows_some_topic(caller, Permission.PRODUCE):
                return True
            reason = "this user may produce to no topic"
            self._authorizer.refused(caller, Permission.PRODUCE, kind, name, reason=reason, api=api)
            return False
        action = permissions[0] if permissions and operation is not AclOperation.DESCRIBE else operation.name.lower()
        return self._authorizer.allows_any(caller, permissions, kind, name, api=api, action=action)

    def sees(self, caller: Caller, operation: AclOperation, kind: Kind, name: str) -> bool:
        """The same, without a word to the audit: for lists, and for bits of authorized operations."""
        if self.rules is None:
            return True
        if operation is AclOperation.IDEMPOTENT_WRITE:
            return self._authorizer.allows_some_topic(caller, Permission.PRODUCE)
        return self._authorizer.sees(caller, PERMISSIONS[kind][operation], kind, name)

    def may_read(self, principal: Principal, topic: str) -> bool:
        """Whether a user may fetch from a topic, by its full name, without a word to the audit."""
        return self._authorizer.permits(principal, PERMISSIONS[Kind.TOPIC][AclOperation.READ], Kind.TOPIC, topic)

    def check(
        self, caller: Caller, operation: AclOperation, kind: Kind = Kind.CLUSTER, name: str = "", *, api: str = ""
    ) -> None:
        """Raises KafkaError with Kafka's code for the kind where a client may not do this now."""
        if not self.may(caller, operation, kind, name, api=api):
            raise refusal_of(caller, operation, kind, name)

    # --- topics

    async def refused_topics(
        self, caller: Caller, operation: AclOperation, names: Iterable[str], *, api: str = ""
    ) -> dict[str, KafkaError]:
        """Those topics, as a client names them, with which it may not do this."""
        refused: dict[str, KafkaError] = {}
        if self.rules is None:
            return refused
        for index, name in enumerate(dict.fromkeys(names)):
            error = self.refused_topic(caller, operation, name, api=api)
            if error is not None:
                refused[name] = error
            await turn(index)
        return refused

    def refused_topic(self, caller: Caller, operation: AclOperation, name: str, *, api: str = "") -> KafkaError | None:
        """Why a client may not do this with a topic, as it names it; None: it may, or no topic can have that name."""
        if self.rules is None:
            return None
        try:
            full = split(name, caller.default_stream).full
        except KafkaError:
            return None
        if self.may(caller, operation, Kind.TOPIC, full, api=api):
            return None
        return refusal_of(caller, operation, Kind.TOPIC, name)

    def refused_id(
        self, caller: Caller, operation: AclOperation, topic_id: bytes, full: str, *, api: str = ""
    ) -> KafkaError | None:
        """Why a client may not do this with a topic of that full name that it names by its id; None: it may.

        Who may not describe it is told that there is none.
        """
        if self.may(caller, operation, Kind.TOPIC, full, api=api):
            return None
        if self.sees(caller, AclOperation.DESCRIBE, Kind.TOPIC, full):
            return refusal_of(caller, operation, Kind.TOPIC, full)
        return KafkaError(Code.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id.hex()}")

    def keep_grant(self, caller: Caller, grants: Grants, operation: AclOperation, name: str | bytes) -> None:
        """Keep that a client may do this with a topic that there is, unless the audit is told of each time."""
        if self.rules is None or any(map(self._authorizer.tells, PERMISSIONS[Kind.TOPIC][operation])):
            return
        if len(grants) >= _MOST_GRANTS:
            grants.clear()
        grants[name] = self.rules, caller.principal

    def topics_of(self, caller: Caller) -> "TopicView":
        """What a client sees of topics, for the length of one request."""
        return TopicView(self, self._authorizer, caller)

    # --- authorized operations

    def operations(self, caller: Caller, kind: Kind, name: str = "") -> int:
        """The bits of the operations that a client may perform now."""
        return bits(each for each in _OPERATIONS[kind] if self.rules is None or self.sees(caller, each, kind, name))


class TopicView:
    """What a client sees of topics while one request of it is answered: decided once for each stream, and for topics
    with an expression of their own."""

    def __init__(self, authorization: Authorization, authorizer: Authorizer, caller: Caller) -> None:
        self._authorization = authorization
        self._authorizer = authorizer
        self._caller = caller
        self._rules = authorization.rules
        self._seen: dict[str, bool] = {}
        self._operations: dict[str, int] = {}

    def sees(self, row: TopicRow) -> bool:
        """Whether the client may describe a topic; not told to the audit."""
        if self._rules is None:
            return True
        self._refresh()
        full = row.full_name
        place = self._authorizer.decided_by(full)
        found = self._seen.get(place)
        if found is None:
            found = self._authorization.sees(self._caller, AclOperation.DESCRIBE, Kind.TOPIC, full)
            self._seen[place] = found
        return found

    def operations(self, row: TopicRow) -> int:
        """The bits of what the client may do with a topic."""
        self._refresh()
        full = row.full_name
        place = self._authorizer.decided_by(full)
        found = self._operations.get(place)
        if found is None:
            found = self._operations[place] = self._authorization.operations(self._caller, Kind.TOPIC, full)
        return found

    def _refresh(self) -> None:
        """A long list is put together in turns, in which the rules may change."""
        if self._rules != self._authorization.rules:
            self._rules = self._authorization.rules
            self._seen.clear()
            self._operations.clear()


def refusal_of(caller: Caller, operation: AclOperation, kind: Kind, name: str = "") -> KafkaError:
    """The error of a client that may not do this: who, what, and what it takes. `name`: as the client named it."""
    permissions = PERMISSIONS[kind][operation]
    of = f"the {kind}" if kind is Kind.CLUSTER else f"{kind.replace('-', ' ')} {name[:_MOST_SHOWN]}"
    needs = f"it takes {' or '.join(permissions)}, which an administrator gives" if permissions else "nobody may"
    return KafkaError(REFUSED_BY[kind], f"{caller.principal} may not {operation.name.lower()} {of}: {needs}")


_MOST_SHOWN: Final = 249
_MOST_GRANTS: Final = 10_000
"""Of a connection; then they are decided anew."""

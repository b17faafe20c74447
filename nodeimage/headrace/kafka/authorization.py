"""Which of Headrace's permissions Kafka's operations need, and the checks that the APIs make before they act.

`PERMISSIONS` is the table that decides. ACLs are listed from a separate table (security.kafka_acls), which a test
compares with this one: it never shows more than is allowed, and shows less where two permissions allow the same
operation.

Topic names are resolved to full names (`/stream:topic`) before a check, so an alias, a bare name and an id are all
checked as the topic that they mean. Names that no topic can have are left to the later look-up to refuse.

An error never reveals whether something exists that the client may not describe: a named resource is refused whether it
exists or not, and the id of a topic that the client may not describe is answered like an unknown id.

While security is off, `rules` is None and nothing else is checked. Producers and consumers are checked for the same few
topics with each request, so each connection caches what it was granted (`Grants`) while the rules and its principal
stay the same.
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
from headrace.partitions.lookups import yield_to_loop
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
        AclOperation.CLUSTER_ACTION: (),  # nobody: nodes replicate by a protocol of their own
    },
    Kind.TRANSACTIONAL_ID: {
        AclOperation.WRITE: _PRODUCE,
        AclOperation.DESCRIBE: _PRODUCE,
    },
}
"""By kind of resource and operation: the permissions, any one of which is enough. An empty tuple means that nobody may
perform the operation."""

REFUSED_BY: Final[Mapping[Kind, Code]] = {
    Kind.TOPIC: Code.TOPIC_AUTHORIZATION_FAILED,
    Kind.GROUP: Code.GROUP_AUTHORIZATION_FAILED,
    Kind.CLUSTER: Code.CLUSTER_AUTHORIZATION_FAILED,
    Kind.TRANSACTIONAL_ID: Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
"""Kafka's authorization error for each kind of resource."""
_OPERATIONS: Final[Mapping[Kind, Sequence[AclOperation]]] = {
    Kind.TOPIC: OF_TOPICS,
    Kind.GROUP: OF_GROUPS,
    Kind.CLUSTER: OF_THE_CLUSTER,
}


class Authorization:
    """The authorization checks of one node. All methods run on the loop's thread."""

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer
        self._changes = 0
        self.rules_version: int | None = 0 if authorizer.is_on else None
        """A number that identifies the rules in force, never reused for others; None while security is off."""
        authorizer.on_change(self._changed)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever somebody's permissions have changed; `rules` is already the new number by then."""
        self._authorizer.on_change(callback)

    def _changed(self) -> None:
        self._changes += 1
        self.rules_version = self._changes if self._authorizer.is_on else None

    # --- one thing

    def may(
        self, caller: Caller, operation: AclOperation, kind: Kind = Kind.CLUSTER, name: str = "", *, api: str = ""
    ) -> bool:
        """Whether the client may perform the operation now; a denial is recorded by the audit. `name`: for a topic, its
        full name."""
        if self.rules_version is None:
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
        """Whether the client may perform the operation, without an audit record: for lists and for the bits of
        authorized operations."""
        if self.rules_version is None:
            return True
        if operation is AclOperation.IDEMPOTENT_WRITE:
            return self._authorizer.allows_some_topic(caller, Permission.PRODUCE)
        return self._authorizer.sees(caller, PERMISSIONS[kind][operation], kind, name)

    def may_read(self, principal: Principal, topic: str) -> bool:
        """Whether a user may fetch from the topic with this full name, without an audit record."""
        return self._authorizer.permits(principal, PERMISSIONS[Kind.TOPIC][AclOperation.READ], Kind.TOPIC, topic)

    def check(
        self, caller: Caller, operation: AclOperation, kind: Kind = Kind.CLUSTER, name: str = "", *, api: str = ""
    ) -> None:
        """Raises KafkaError, with Kafka's code for the kind of resource, if the client may not perform the operation
        now."""
        if not self.may(caller, operation, kind, name, api=api):
            raise refusal_of(caller, operation, kind, name)

    # --- topics

    async def refused_topics(
        self, caller: Caller, operation: AclOperation, names: Iterable[str], *, api: str = ""
    ) -> dict[str, KafkaError]:
        """The errors of the topics on which the client may not perform the operation, by the names that the client
        used."""
        refused: dict[str, KafkaError] = {}
        if self.rules_version is None:
            return refused
        for index, name in enumerate(dict.fromkeys(names)):
            error = self.refused_topic(caller, operation, name, api=api)
            if error is not None:
                refused[name] = error
            await yield_to_loop(index)
        return refused

    def refused_topic(self, caller: Caller, operation: AclOperation, name: str, *, api: str = "") -> KafkaError | None:
        """The error if the client may not perform the operation on the topic that it names; None if it may, or if no
        topic can have that name."""
        if self.rules_version is None:
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
        """The error if the client may not perform the operation on a topic that it names by its id; None if it may.
        `full`: the topic's full name.

        A client that may not describe the topic gets UNKNOWN_TOPIC_ID, as if the topic did not exist.
        """
        if self.may(caller, operation, Kind.TOPIC, full, api=api):
            return None
        if self.sees(caller, AclOperation.DESCRIBE, Kind.TOPIC, full):
            return refusal_of(caller, operation, Kind.TOPIC, full)
        return KafkaError(Code.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id.hex()}")

    def keep_grant(self, caller: Caller, grants: Grants, operation: AclOperation, name: str | bytes) -> None:
        """Cache that the client may perform the operation on an existing topic, unless the audit records every use of
        the permission."""
        if self.rules_version is None or any(map(self._authorizer.tells, PERMISSIONS[Kind.TOPIC][operation])):
            return
        if len(grants) >= _MAX_GRANTS:
            grants.clear()
        grants[name] = self.rules_version, caller.principal

    def topics_of(self, caller: Caller) -> "TopicView":
        """The topics as the client may see them, valid for one request."""
        return TopicView(self, self._authorizer, caller)

    # --- authorized operations

    def operations(self, caller: Caller, kind: Kind, name: str = "") -> int:
        """The bits of the operations that a client may perform now."""
        return bits(
            each for each in _OPERATIONS[kind] if self.rules_version is None or self.sees(caller, each, kind, name)
        )


class TopicView:
    """The topics as one client may see them, for the duration of one request. A decision is made once for each stream,
    and once for each topic that has an expression of its own."""

    def __init__(self, authorization: Authorization, authorizer: Authorizer, caller: Caller) -> None:
        self._authorization = authorization
        self._authorizer = authorizer
        self._caller = caller
        self._rules = authorization.rules_version
        self._seen: dict[str, bool] = {}
        self._operations: dict[str, int] = {}

    def sees(self, row: TopicRow) -> bool:
        """Whether the client may describe a topic, without an audit record."""
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
        """The bits of the operations that the client may perform on a topic."""
        self._refresh()
        full = row.full_name
        place = self._authorizer.decided_by(full)
        found = self._operations.get(place)
        if found is None:
            found = self._operations[place] = self._authorization.operations(self._caller, Kind.TOPIC, full)
        return found

    def _refresh(self) -> None:
        """Forget all decisions if the rules have changed: a long list is built in several turns of the loop."""
        if self._rules != self._authorization.rules_version:
            self._rules = self._authorization.rules_version
            self._seen.clear()
            self._operations.clear()


def refusal_of(caller: Caller, operation: AclOperation, kind: Kind, name: str = "") -> KafkaError:
    """The error of a client that may not perform an operation: names the client, the operation, and the permissions
    that it takes. `name`: as the client wrote it."""
    permissions = PERMISSIONS[kind][operation]
    of = f"the {kind}" if kind is Kind.CLUSTER else f"{kind.replace('-', ' ')} {name[:_MAX_SHOWN]}"
    needs = f"it requires {' or '.join(permissions)}, which an administrator can grant" if permissions else "nobody may"
    return KafkaError(REFUSED_BY[kind], f"{caller.principal} may not {operation.name.lower()} {of}: {needs}")


_MAX_SHOWN: Final = 249
_MAX_GRANTS: Final = 10_000
"""Cached grants per connection; above this the cache is emptied."""

"""The permissions that Kafka's operations need, the wording of refusals, and that every API checks."""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import Code, KafkaError
from headrace.catalog.rows import TopicRow
from headrace.kafka.api import Api
from headrace.kafka.authorization import PERMISSIONS, REFUSED_BY, Authorization
from headrace.kafka.authorized_operations import (
    CLUSTER_OPERATIONS,
    GROUP_OPERATIONS,
    OF_THE_CLUSTER,
    OF_TOPICS,
    TOPIC_OPERATIONS,
    bits,
)
from headrace.kafka.session import Grants
from headrace.node.parts import NodeParts
from headrace.partitions.caller import Caller
from headrace.security import kafka_acls
from headrace.security.access_rules import Kind, Permission, Rule
from headrace.security.audit import AuditLog
from headrace.security.kafka_acls import AclOperation
from headrace.wire.api_keys import ApiKey
from kit.access import AuditTold, Client, User, authorization, client, put, secure

ADMIN, CONSUME, COPY, PRODUCE, TOPIC = (
    Permission.ADMIN,
    Permission.CONSUME,
    Permission.COPY,
    Permission.PRODUCE,
    Permission.TOPIC,
)
READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE


ALICE, MALLORY = client("alice"), client("mallory")


def on_stream(*permissions: Permission) -> Authorization:
    return authorization([Rule(Kind.STREAM, "/s", each, "u:alice") for each in permissions])


# --- the table


@pytest.mark.parametrize(
    ("operation", "permissions"),
    [
        (READ, {CONSUME, COPY}),
        (WRITE, {PRODUCE}),
        (AclOperation.CREATE, {TOPIC}),
        (AclOperation.DELETE, {TOPIC}),
        (AclOperation.ALTER, {TOPIC}),
        (DESCRIBE, {PRODUCE, CONSUME, TOPIC, COPY, ADMIN}),
        (AclOperation.DESCRIBE_CONFIGS, {TOPIC, ADMIN}),
        (AclOperation.ALTER_CONFIGS, {ADMIN}),
    ],
)
def test_of_a_topic_each_operation_takes_these_permissions_and_no_other(
    operation: AclOperation, permissions: set[Permission]
) -> None:
    for each in Permission:
        assert on_stream(each).may(ALICE, operation, Kind.TOPIC, "/s:t") == (each in permissions)
        assert on_stream(each).sees(ALICE, operation, Kind.TOPIC, "/s:t") == (each in permissions)
    assert not on_stream(*Permission).may(MALLORY, operation, Kind.TOPIC, "/s:t")
    assert not on_stream(*Permission).may(ALICE, operation, Kind.TOPIC, "/other:t")


@pytest.mark.parametrize("operation", [each for each in OF_THE_CLUSTER if each is not AclOperation.CLUSTER_ACTION])
def test_of_the_cluster_its_administrators_may_do_everything_but_be_a_replica(operation: AclOperation) -> None:
    held = authorization([Rule(Kind.CLUSTER, "", ADMIN, "u:alice")])
    assert held.may(ALICE, operation)
    assert not held.may(MALLORY, operation)
    assert not held.may(ALICE, AclOperation.CLUSTER_ACTION)


def test_the_cluster_gives_the_making_of_topics_and_ids_for_producers_without_its_administration() -> None:
    held = authorization([Rule(Kind.CLUSTER, "", TOPIC, "u:alice"), Rule(Kind.TOPIC, "/s:t", PRODUCE, "u:alice")])
    allowed = {each for each in OF_THE_CLUSTER if held.may(ALICE, each)}
    assert allowed == {AclOperation.CREATE, AclOperation.IDEMPOTENT_WRITE}


def test_with_a_group_of_which_nothing_is_said_may_whoever_consumes_some_topic() -> None:
    held = on_stream(CONSUME)
    assert held.may(ALICE, READ, Kind.GROUP, "g")
    assert held.may(ALICE, DESCRIBE, Kind.GROUP, "g")
    assert not held.may(ALICE, AclOperation.DELETE, Kind.GROUP, "g")
    assert not held.may(MALLORY, READ, Kind.GROUP, "g")
    assert not on_stream(PRODUCE).may(ALICE, READ, Kind.GROUP, "g")


@pytest.mark.parametrize(
    "decides",
    [
        Rule(Kind.GROUP, "g1", CONSUME, "u:bob"),
        Rule(Kind.GROUP_PREFIX, "g", CONSUME, "u:bob"),
        Rule(Kind.CLUSTER, "", CONSUME, "u:bob"),
    ],
)
def test_where_an_expression_decides_of_a_group_it_decides_alone(decides: Rule) -> None:
    held = authorization([Rule(Kind.STREAM, "/s", CONSUME, "u:alice"), decides])
    assert not held.may(ALICE, READ, Kind.GROUP, "g1")
    assert held.may(client("bob"), READ, Kind.GROUP, "g1")


def test_administrators_of_a_group_see_and_delete_it() -> None:
    held = authorization([Rule(Kind.GROUP_PREFIX, "g", ADMIN, "u:alice")])
    allowed = {each for each in PERMISSIONS[Kind.GROUP] if held.may(ALICE, each, Kind.GROUP, "g1")}
    assert allowed == set(PERMISSIONS[Kind.GROUP]) - {READ}


def test_transactional_ids_are_of_those_who_produce_unless_something_is_said() -> None:
    held = authorization(
        [Rule(Kind.STREAM, "/s", PRODUCE, "u:alice"), Rule(Kind.TRANSACTIONAL_ID_PREFIX, "pay-", PRODUCE, "u:bob")]
    )
    assert held.may(ALICE, WRITE, Kind.TRANSACTIONAL_ID, "t")
    assert not held.may(ALICE, WRITE, Kind.TRANSACTIONAL_ID, "pay-1")
    assert not held.may(client("bob"), WRITE, Kind.TRANSACTIONAL_ID, "t"), "it is an id, and no topic"
    assert not held.may(client("bob"), AclOperation.IDEMPOTENT_WRITE)


# --- what ACLs show of it

DECIDED_AS = {
    Kind.STREAM: Kind.TOPIC,
    Kind.PREFIX: Kind.TOPIC,
    Kind.GROUP_PREFIX: Kind.GROUP,
    Kind.TRANSACTIONAL_ID_PREFIX: Kind.TRANSACTIONAL_ID,
}


@pytest.mark.parametrize("kind", kafka_acls.PERMISSIONS)
def test_acls_show_nothing_that_is_not_allowed(kind: Kind) -> None:
    table = PERMISSIONS[DECIDED_AS.get(kind, kind)]
    for permission in kafka_acls.PERMISSIONS[kind]:
        for operation in (*kafka_acls.GIVES[permission], *kafka_acls.IMPLIES[permission]):
            assert permission in table[operation], (permission, operation)


def test_an_acl_gives_what_no_other_permission_allows() -> None:
    gives: dict[Permission, set[AclOperation]] = {}
    for operation, permissions in PERMISSIONS[Kind.TOPIC].items():
        with_a_form = [each for each in permissions if each in kafka_acls.PERMISSIONS[Kind.TOPIC]]
        if len(with_a_form) == 1:
            gives.setdefault(with_a_form[0], set()).add(operation)
    assert gives == {permission: set(operations) for permission, operations in kafka_acls.GIVES.items()}


# --- names


@pytest.mark.parametrize("name", ["/s/u:t", "s.u..t"])
def test_an_alias_and_a_full_name_are_one_topic(name: str) -> None:
    held = authorization([Rule(Kind.TOPIC, "/s/u:t", PRODUCE, "u:alice"), Rule(Kind.CLUSTER, "", PRODUCE, "p")])
    assert held.refused_topic(ALICE, WRITE, name) is None
    refused = held.refused_topic(MALLORY, WRITE, name)
    assert refused is not None
    assert refused.code is Code.TOPIC_AUTHORIZATION_FAILED
    assert str(refused) == (
        f"User:mallory may not write topic {name}: it requires produce, which an administrator can grant"
    ), "by the name that the client knows"


def test_a_bare_name_is_a_topic_of_the_default_stream() -> None:
    held = authorization([Rule(Kind.TOPIC, "/default:t", PRODUCE, "u:alice")])
    assert held.refused_topic(ALICE, WRITE, "t") is None
    assert held.refused_topic(ALICE, WRITE, "u") is not None


async def test_of_many_names_those_that_are_refused_are_told_and_what_names_nothing_is_left_to_others() -> None:
    held = authorization([Rule(Kind.STREAM, "/s", CONSUME, "u:alice")])
    refused = await held.refused_topics(ALICE, READ, ["/s:t", "/x:t", "/x:t", "a b", "..", "/s"])
    assert list(refused) == ["/x:t"]
    assert await authorization(on=False).refused_topics(cast(Caller, None), READ, ["/x:t"]) == {}


def test_of_an_id_who_may_not_describe_the_topic_learns_nothing() -> None:
    held = authorization([Rule(Kind.STREAM, "/s", PRODUCE, "u:alice"), Rule(Kind.STREAM, "/s", CONSUME, "u:bob")])
    topic_id = bytes(range(16))
    assert held.refused_id(client("bob"), READ, topic_id, "/s:t") is None
    known = held.refused_id(ALICE, READ, topic_id, "/s:t")
    assert known is not None
    assert known.code is Code.TOPIC_AUTHORIZATION_FAILED
    unknown = held.refused_id(MALLORY, READ, topic_id, "/s:t")
    assert unknown is not None
    assert unknown.code is Code.UNKNOWN_TOPIC_ID
    assert "/s" not in str(unknown)


@pytest.mark.parametrize("kind", list(REFUSED_BY))
def test_each_kind_has_its_error(kind: Kind) -> None:
    held = authorization()
    operation = next(iter(PERMISSIONS[kind]))
    with pytest.raises(KafkaError) as refused:
        held.check(MALLORY, operation, kind, "n" * 300)
    assert refused.value.code is REFUSED_BY[kind]
    assert len(str(refused.value)) < 400


# --- lists and bits


def row(name: str) -> TopicRow:
    stream, _, topic = name.partition(":")
    return cast(TopicRow, Row(stream, topic, name))


class Row(NamedTuple):
    stream: str
    name: str
    full_name: str


def test_a_view_tells_topics_with_an_expression_of_their_own_from_the_others_of_their_stream() -> None:
    held = authorization([Rule(Kind.STREAM, "/s", CONSUME, "u:alice"), Rule(Kind.TOPIC, "/s:closed", CONSUME, "u:bob")])
    view = held.topics_of(ALICE)
    assert [view.sees(row(name)) for name in ("/s:t", "/s:closed", "/s:u", "/x:t")] == [True, False, True, False]
    assert view.operations(row("/s:t")) == bits([READ, DESCRIBE])
    assert view.operations(row("/s:closed")) == 0
    assert held.topics_of(client("bob")).operations(row("/s:closed")) == bits([READ, DESCRIBE])


def test_a_view_goes_on_under_rules_that_change_meanwhile() -> None:
    held = on_stream(CONSUME)
    view = held.topics_of(ALICE)
    assert view.sees(row("/s:t"))
    access = held._authorizer._access
    access.rules = access.rules.changed({(Kind.STREAM, "/s", CONSUME): None})
    access._tell()
    assert not view.sees(row("/s:t"))
    assert view.operations(row("/s:t")) == 0
    access.rules = access.rules.changed({}, on=False)
    access._tell()
    assert view.sees(row("/s:t"))
    assert view.operations(row("/s:t")) == TOPIC_OPERATIONS


def test_bits_are_of_what_one_may_do_and_of_everything_while_security_is_off() -> None:
    assert on_stream(*Permission).operations(ALICE, Kind.TOPIC, "/s:t") == bits(OF_TOPICS)
    assert on_stream(*Permission).operations(MALLORY, Kind.TOPIC, "/s:t") == 0
    assert on_stream(CONSUME).operations(ALICE, Kind.GROUP, "g") == bits([READ, DESCRIBE])
    assert on_stream(PRODUCE).operations(ALICE, Kind.CLUSTER) == bits([AclOperation.IDEMPOTENT_WRITE])
    off = authorization(on=False)
    nobody = cast(Caller, None)
    assert off.operations(nobody, Kind.TOPIC, "/s:t") == TOPIC_OPERATIONS
    assert off.operations(nobody, Kind.GROUP, "g") == GROUP_OPERATIONS
    assert off.operations(nobody, Kind.CLUSTER) == CLUSTER_OPERATIONS


def test_rules_have_a_number_that_each_change_raises_and_none_while_security_is_off() -> None:
    held = on_stream(CONSUME)
    access = held._authorizer._access
    first = held.rules_version
    assert first is not None
    told: list[int | None] = []
    held.on_change(lambda: told.append(held.rules_version))
    access.rules = access.rules.changed({(Kind.STREAM, "/s", CONSUME): "p"})
    access._tell()
    access.rules = access.rules.changed({}, on=False)
    access._tell()
    access.rules = access.rules.changed({}, on=True)
    access._tell()
    second, off, third = told
    assert off is None
    assert len({first, second, third}) == 3


def test_while_security_is_off_nobody_is_looked_at() -> None:
    off = authorization(on=False)
    nobody = cast(Caller, None)
    for kind, operations in PERMISSIONS.items():
        for operation in operations:
            assert off.may(nobody, operation, kind, "/s:t")
            assert off.sees(nobody, operation, kind, "/s:t")
    assert off.refused_topic(nobody, READ, "/s:t") is None
    assert off.refused_id(nobody, READ, bytes(16), "/s:t") is None


@given(
    st.lists(
        st.builds(
            Rule,
            st.sampled_from(Kind),
            st.sampled_from(["", "/s", "/s:t", "g"]),
            st.sampled_from(Permission),
            st.sampled_from(["", "p", "u:alice", "!u:alice", "g:ops"]),
        ),
        max_size=8,
    ),
    st.sampled_from([ALICE, MALLORY, Client()]),
    st.sampled_from(["t", "/s:t", "s..t", "a b", ""]),
)
def test_while_security_is_off_no_expression_changes_anything(rules: list[Rule], caller: Caller, name: str) -> None:
    off = authorization(rules, on=False)
    for kind, operations in PERMISSIONS.items():
        for operation in operations:
            assert off.may(caller, operation, kind, name)
            assert off.sees(caller, operation, kind, name)
            off.check(caller, operation, kind, name)
    assert off.refused_topic(caller, READ, name) is None
    assert off.topics_of(caller).sees(row("/s:t"))
    assert off.topics_of(caller).operations(row("/s:t")) == TOPIC_OPERATIONS
    grants: Grants = {}
    off.keep_grant(caller, grants, READ, name)
    assert grants == {}


def test_what_was_granted_is_kept_with_the_rules_and_the_user_within_bounds() -> None:
    held = on_stream(PRODUCE)
    grants: Grants = {}
    for number in range(10_001):
        held.keep_grant(ALICE, grants, WRITE, f"/s:{number}")
    assert grants == {"/s:10000": (held.rules_version, ALICE.principal)}


def test_nothing_is_kept_where_the_audit_hears_of_each_time() -> None:
    held = on_stream(PRODUCE)
    held._authorizer._audit = AuditLog([], monotonic=time.monotonic, allowed=["produce"])
    grants: Grants = {}
    held.keep_grant(ALICE, grants, WRITE, "/s:t")
    assert grants == {}
    held.keep_grant(ALICE, grants, READ, "/s:t")
    assert list(grants) == ["/s:t"]


# --- every API


class Asked(NamedTuple):
    """A request of an API, the codes of its answer, and the code for a client without permissions."""

    fields: Mapping[str, Any]
    codes: Callable[[Any], list[int]]
    refused: Code


def whole(answer: Any) -> list[int]:
    return [answer.error_code]


def each_of(*path: str, code: str = "error_code") -> Callable[[Any], list[int]]:
    """The codes in nested lists of an answer."""

    def found(answer: Any) -> list[int]:
        level = [answer]
        for name in path:
            level = [each for one in level for each in getattr(one, name)]
        assert level
        return [getattr(each, code) for each in level]

    return found


TOPIC_REFUSED, GROUP_REFUSED, CLUSTER_REFUSED, ID_REFUSED = (
    Code.TOPIC_AUTHORIZATION_FAILED,
    Code.GROUP_AUTHORIZATION_FAILED,
    Code.CLUSTER_AUTHORIZATION_FAILED,
    Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)
OFFSETS = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
MEMBER = {"group_id": "g", "member_id": "m", "generation_id": 1}

CHECKED: Mapping[ApiKey, Asked] = {
    ApiKey.LIST_OFFSETS: Asked(
        {"replica_id": -1, "topics": [{"name": "t", "partitions": [{"partition_index": 0, "timestamp": -1}]}]},
        each_of("topics", "partitions"),
        TOPIC_REFUSED,
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Asked(
        {"topics": [{"topic": "t", "partitions": [{"partition": 0, "leader_epoch": 0}]}]},
        each_of("topics", "partitions"),
        TOPIC_REFUSED,
    ),
    ApiKey.OFFSET_COMMIT: Asked(
        {"group_id": "g", "topics": [{"name": "t", "partitions": [OFFSETS]}]},
        each_of("topics", "partitions"),
        GROUP_REFUSED,
    ),
    ApiKey.OFFSET_FETCH: Asked(
        {"groups": [{"group_id": "g", "topics": [{"name": "t", "partition_indexes": [0]}]}]},
        each_of("groups"),
        GROUP_REFUSED,
    ),
    ApiKey.OFFSET_DELETE: Asked(
        {"group_id": "g", "topics": [{"name": "t", "partitions": [{"partition_index": 0}]}]}, whole, GROUP_REFUSED
    ),
    ApiKey.FIND_COORDINATOR: Asked({"key_type": 0, "coordinator_keys": ["g"]}, each_of("coordinators"), GROUP_REFUSED),
    ApiKey.JOIN_GROUP: Asked(
        {
            "group_id": "g",
            "session_timeout": 30_000,
            "rebalance_timeout": 60_000,
            "member_id": "",
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        },
        whole,
        GROUP_REFUSED,
    ),
    ApiKey.SYNC_GROUP: Asked(
        {**MEMBER, "protocol_type": "consumer", "protocol_name": "range", "assignments": []}, whole, GROUP_REFUSED
    ),
    ApiKey.HEARTBEAT: Asked(MEMBER, whole, GROUP_REFUSED),
    ApiKey.LEAVE_GROUP: Asked({"group_id": "g", "members": [{"member_id": "m"}]}, whole, GROUP_REFUSED),
    ApiKey.DESCRIBE_GROUPS: Asked({"groups": ["g"]}, each_of("groups"), GROUP_REFUSED),
    ApiKey.DELETE_GROUPS: Asked({"groups_names": ["g"]}, each_of("results"), GROUP_REFUSED),
    ApiKey.CREATE_TOPICS: Asked(
        {"topics": [{"name": "u", "num_partitions": 1, "replication_factor": -1}], "timeout": 1000},
        each_of("topics"),
        TOPIC_REFUSED,
    ),
    ApiKey.DELETE_TOPICS: Asked({"topics": [{"name": "u"}], "timeout": 1000}, each_of("responses"), TOPIC_REFUSED),
    ApiKey.DELETE_RECORDS: Asked(
        {"topics": [{"name": "t", "partitions": [{"partition_index": 0, "offset": 0}]}], "timeout": 1000},
        each_of("topics", "partitions"),
        TOPIC_REFUSED,
    ),
    ApiKey.CREATE_PARTITIONS: Asked(
        {"topics": [{"name": "t", "count": 9}], "timeout": 1000, "validate_only": True},
        each_of("results"),
        TOPIC_REFUSED,
    ),
    ApiKey.INIT_PRODUCER_ID: Asked({"transactional_id": None}, whole, CLUSTER_REFUSED),
    ApiKey.DESCRIBE_CONFIGS: Asked(
        {"resources": [{"resource_type": 2, "resource_name": "t"}]}, each_of("results"), TOPIC_REFUSED
    ),
    ApiKey.ALTER_CONFIGS: Asked(
        {"resources": [{"resource_type": 2, "resource_name": "t", "configs": []}]},
        each_of("responses"),
        TOPIC_REFUSED,
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Asked(
        {"resources": [{"resource_type": 2, "resource_name": "t", "configs": []}]},
        each_of("responses"),
        TOPIC_REFUSED,
    ),
    ApiKey.LIST_CONFIG_RESOURCES: Asked({}, whole, CLUSTER_REFUSED),
    ApiKey.DESCRIBE_LOG_DIRS: Asked({"topics": None}, whole, CLUSTER_REFUSED),
    ApiKey.ALTER_REPLICA_LOG_DIRS: Asked(
        {"dirs": [{"path": "/", "topics": [{"name": "t", "partitions": [0]}]}]},
        each_of("results", "partitions"),
        CLUSTER_REFUSED,
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Asked({"timeout": 1000, "topics": None}, whole, CLUSTER_REFUSED),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Asked({"timeout": 1000, "topics": []}, whole, CLUSTER_REFUSED),
    ApiKey.ELECT_LEADERS: Asked({"topic_partitions": None, "timeout": 1000}, whole, CLUSTER_REFUSED),
    ApiKey.UPDATE_FEATURES: Asked(
        {"timeout": 1000, "feature_updates": [], "validate_only": True}, whole, CLUSTER_REFUSED
    ),
    ApiKey.DESCRIBE_PRODUCERS: Asked(
        {"topics": [{"name": "t", "partition_indexes": [0]}]}, each_of("topics", "partitions"), TOPIC_REFUSED
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: Asked({"transactional_ids": ["x"]}, each_of("transaction_states"), ID_REFUSED),
}
"""A request of each API in its newest version."""

LISTS = {
    ApiKey.LIST_GROUPS: "leaves out the groups that the client may not describe",
    ApiKey.METADATA: "a topic that is named is refused, and a list leaves out what the client may not describe",
}
BY_PARTITION = {ApiKey.PRODUCE, ApiKey.FETCH}
"""APIs with a codec of their own; see test_produce, test_fetch and test_attempts."""

OPEN: Mapping[ApiKey, str] = {
    ApiKey.API_VERSIONS: "says what this version is, before anybody has proved anything",
    ApiKey.SASL_HANDSHAKE: "is how somebody proves who he is",
    ApiKey.SASL_AUTHENTICATE: "is how somebody proves who he is",
    ApiKey.DESCRIBE_CLUSTER: "addresses of nodes, which Metadata has for everybody; as at Kafka",
    ApiKey.ADD_PARTITIONS_TO_TXN: "there are no transactions: refused to everybody, with 53",
    ApiKey.ADD_OFFSETS_TO_TXN: "there are no transactions: refused to everybody, with 53",
    ApiKey.END_TXN: "there are no transactions: refused to everybody, with 53",
    ApiKey.TXN_OFFSET_COMMIT: "there are no transactions: refused to everybody, with 53",
    ApiKey.LIST_TRANSACTIONS: "there are none",
    ApiKey.CREATE_DELEGATION_TOKEN: "there are none: refused to everybody",
    ApiKey.RENEW_DELEGATION_TOKEN: "there are none: refused to everybody",
    ApiKey.EXPIRE_DELEGATION_TOKEN: "there are none: refused to everybody",
    ApiKey.DESCRIBE_DELEGATION_TOKEN: "there are none: refused to everybody",
}
"""APIs that answer everybody alike, and why they may."""
ELSEWHERE: Mapping[ApiKey, str] = {
    ApiKey.DESCRIBE_ACLS: "test_acls",
    ApiKey.CREATE_ACLS: "test_acls",
    ApiKey.DELETE_ACLS: "test_acls",
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: "test_scram_credentials",
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: "test_scram_credentials",
    ApiKey.DESCRIBE_CLIENT_QUOTAS: "test_client_quotas",
    ApiKey.ALTER_CLIENT_QUOTAS: "test_client_quotas",
    ApiKey.HEADRACE_ADMIN: "each of its methods declares what it takes: tests/admin",
}
"""APIs whose authorization has tests of its own."""


def test_there_is_no_api_of_which_nobody_has_said_what_it_asks(broker: NodeParts) -> None:
    known = [*CHECKED, *LISTS, *BY_PARTITION, *OPEN, *ELSEWHERE]
    assert len(set(known)) == len(known)
    assert set(broker.dispatcher.apis) == set(known), "say here what it checks, or why it need not"


@pytest.mark.parametrize("key", list(CHECKED), ids=lambda key: key.name)
async def test_an_api_refuses_who_may_do_nothing_and_tells_the_audit(broker: NodeParts, key: ApiKey) -> None:
    (topic,) = await broker.topics.resolve(["t"], create=True)
    assert not isinstance(topic, KafkaError)
    await put(broker, {(Kind.CLUSTER, "", ADMIN): "u:root"})
    asked = CHECKED[key]
    nobody, mallory, root = User(broker), User(broker, "mallory"), User(broker, "root")
    before = asked.codes(await nobody.ask(key, **asked.fields))
    assert asked.refused not in before, "security is off"
    await secure(broker)
    audit = AuditTold(broker)
    for stranger in (mallory, nobody):
        assert set(asked.codes(await stranger.ask(key, **asked.fields))) == {asked.refused}
    assert {each["user"] for each in audit.events} == {"mallory", "ANONYMOUS"}
    assert asked.refused not in asked.codes(await root.ask(key, **asked.fields))
    assert not isinstance(await broker.topics.resolve(["t"]), KafkaError)
    await secure(broker, on=False)
    assert asked.refused not in asked.codes(await nobody.ask(key, **asked.fields))


@pytest.mark.parametrize(
    "key",
    [
        key
        for key, asked in CHECKED.items()
        if asked.refused is TOPIC_REFUSED and key not in (ApiKey.DELETE_TOPICS, ApiKey.CREATE_TOPICS)
    ],
    ids=lambda key: key.name,
)
async def test_a_topic_that_is_not_there_is_refused_as_one_that_is(broker: NodeParts, key: ApiKey) -> None:
    await put(broker, {(Kind.CLUSTER, "", ADMIN): "u:root"})
    await secure(broker)
    asked = CHECKED[key]
    assert set(asked.codes(await User(broker, "mallory").ask(key, **asked.fields))) == {asked.refused}
    assert await broker.catalog.query(lambda reader: reader.topics.at("/default", "t")) is None


@pytest.mark.parametrize("key", [key for key in OPEN if key is not ApiKey.API_VERSIONS], ids=lambda key: key.name)
def test_what_is_open_is_of_the_generic_codec(broker: NodeParts, key: ApiKey) -> None:
    assert isinstance(broker.dispatcher.apis[key], Api)

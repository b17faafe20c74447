"""Expressions as ACLs: which rows are shown, what a filter selects, and which object a row concerns."""

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.security.access_rules import Kind, Permission
from headrace.security.kafka_acls import (
    Acl,
    AclFilter,
    AclOperation,
    Effect,
    Object,
    Pattern,
    Resource,
    object_of,
    rows,
    shown,
)
from kit.shown_acls import CLUSTER, GROUP, GROUPS, STREAM, TOPIC, lines, rules_of

PRODUCE, CONSUME, ADMIN = Permission.PRODUCE, Permission.CONSUME, Permission.ADMIN


def test_a_row_stands_for_each_user_and_operation_where_the_expression_stands() -> None:
    rules = rules_of(
        (TOPIC, PRODUCE, "u:alice | u:bob"),
        (STREAM, CONSUME, "p"),
        (Object(Kind.PREFIX, "/plant"), Permission.TOPIC, "u:carol"),
        (STREAM, ADMIN, "u:dora"),
        (GROUP, CONSUME, "u:bob"),
        (GROUPS, CONSUME, "u:alice"),
        (Object(Kind.TRANSACTIONAL_ID, "tx"), PRODUCE, "u:bob"),
        (Object(Kind.TRANSACTIONAL_ID_PREFIX, "tx"), PRODUCE, "u:alice"),
        (STREAM, Permission.COPY, "u:link"),
    )
    assert lines(rules) == [
        "TOPIC PREFIXED /plant/ User:carol CREATE",
        "TOPIC PREFIXED /plant/ User:carol DELETE",
        "TOPIC PREFIXED /plant/ User:carol ALTER",
        "TOPIC PREFIXED /plant/ User:carol DESCRIBE",
        "TOPIC PREFIXED /s: User:* READ",
        "TOPIC PREFIXED /s: User:* DESCRIBE",
        "TOPIC PREFIXED /s: User:dora DESCRIBE_CONFIGS",
        "TOPIC PREFIXED /s: User:dora ALTER_CONFIGS",
        "TOPIC LITERAL /s:t User:alice WRITE",
        "TOPIC LITERAL /s:t User:alice DESCRIBE",
        "TOPIC LITERAL /s:t User:bob WRITE",
        "TOPIC LITERAL /s:t User:bob DESCRIBE",
        "GROUP PREFIXED ops- User:alice READ",
        "GROUP PREFIXED ops- User:alice DESCRIBE",
        "GROUP LITERAL ops-1 User:bob READ",
        "GROUP LITERAL ops-1 User:bob DESCRIBE",
        "TRANSACTIONAL_ID LITERAL tx User:bob WRITE",
        "TRANSACTIONAL_ID LITERAL tx User:bob DESCRIBE",
        "TRANSACTIONAL_ID PREFIXED tx User:alice WRITE",
        "TRANSACTIONAL_ID PREFIXED tx User:alice DESCRIBE",
    ]


def test_who_has_all_five_has_one_row() -> None:
    rules = rules_of(*((TOPIC, each, "u:alice | u:bob") for each in Permission), (TOPIC, PRODUCE, "u:alice"))
    assert lines(rules)[0] == "TOPIC LITERAL /s:t User:alice ALL"
    assert all("alice" not in line for line in lines(rules)[1:])
    assert "TOPIC LITERAL /s:t User:bob READ" in lines(rules)


def test_administrators_have_all_of_the_cluster_and_the_rest_of_it_is_everywhere() -> None:
    rules = rules_of((CLUSTER, CONSUME, "u:alice"), (CLUSTER, PRODUCE, "u:bob"))
    assert Acl(Resource.CLUSTER, "kafka-cluster", Pattern.LITERAL, "User:root", AclOperation.ALL) in list(rows(rules))
    assert lines(rules) == [
        "TOPIC LITERAL * User:alice READ",
        "TOPIC LITERAL * User:alice DESCRIBE",
        "TOPIC LITERAL * User:bob WRITE",
        "TOPIC LITERAL * User:bob DESCRIBE",
        "GROUP LITERAL * User:alice READ",
        "GROUP LITERAL * User:alice DESCRIBE",
        "TRANSACTIONAL_ID LITERAL * User:bob WRITE",
        "TRANSACTIONAL_ID LITERAL * User:bob DESCRIBE",
    ]
    every = Object(Kind.GROUP_PREFIX, "")
    rules = rules_of((CLUSTER, CONSUME, "u:alice"), (every, CONSUME, "u:carol"))
    assert [line for line in lines(rules) if "GROUP" in line] == [
        "GROUP LITERAL * User:carol READ",
        "GROUP LITERAL * User:carol DESCRIBE",
    ]


# --- filters and objects


ACL = Acl(Resource.TOPIC, "/s:", Pattern.PREFIXED, "User:a", AclOperation.READ)
ANY = AclFilter(Resource.ANY, None, None, Pattern.ANY, None, None, AclOperation.ANY, Effect.ANY)


def meant(**others: object) -> AclFilter:
    fields = {name: getattr(ANY, name) for name in ANY.__slots__}
    if "name" in others:
        others.setdefault("topic_name", others["name"])
    return AclFilter(**{**fields, **others})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (meant(), True),
        (meant(resource=Resource.TOPIC, principal="User:a", host="*", operation=AclOperation.READ), True),
        (meant(resource=Resource.GROUP), False),
        (meant(principal="User:b"), False),
        (meant(host="10.0.0.1"), False),
        (meant(operation=AclOperation.ALL), False),
        (meant(effect=Effect.DENY), False),
        (meant(effect=Effect.ALLOW), True),
        (meant(pattern=Pattern.LITERAL), False),
        (meant(pattern=Pattern.PREFIXED, name="/s:"), True),
        (meant(pattern=Pattern.PREFIXED, name="/s:t"), False),
        (meant(pattern=Pattern.MATCH, name="/s:t"), True),
        (meant(pattern=Pattern.MATCH, name="/r:t"), False),
        (meant(pattern=Pattern.ANY, name="/s:t"), False),
    ],
)
def test_a_filter_means_what_kafkas_does(of: AclFilter, expected: bool) -> None:
    assert of.matches(ACL) is expected


def test_what_is_meant_is_shown_in_order_by_filter_and_within_a_bound() -> None:
    rules = rules_of((TOPIC, PRODUCE, "u:alice | u:bob"), (STREAM, CONSUME, "u:alice"))
    found = shown(rules, [meant(principal="User:alice"), meant(operation=AclOperation.WRITE)], most=6)
    assert [[(acl.name, acl.principal, acl.operation.name) for acl in acls] for acls in found] == [
        [
            ("/s:", "User:alice", "READ"),
            ("/s:", "User:alice", "DESCRIBE"),
            ("/s:t", "User:alice", "WRITE"),
            ("/s:t", "User:alice", "DESCRIBE"),
        ],
        [("/s:t", "User:alice", "WRITE"), ("/s:t", "User:bob", "WRITE")],
    ]
    with pytest.raises(KafkaError, match="more than 5 ACLs: name a resource"):
        shown(rules, [meant(principal="User:alice"), meant(operation=AclOperation.WRITE)], most=5)


def test_match_finds_what_holds_for_every_name() -> None:
    every = ACL._replace(name="*", pattern=Pattern.LITERAL)
    assert meant(pattern=Pattern.MATCH, name="/s:t").matches(every)
    assert not meant(pattern=Pattern.LITERAL, name="/s:t").matches(every)
    group = Acl(Resource.GROUP, "t", Pattern.LITERAL, "User:a", AclOperation.READ)
    assert meant(name="t", topic_name="/default:t").matches(group)
    assert meant(name="t", topic_name="/default:t").matches(ACL._replace(name="/default:t", pattern=Pattern.LITERAL))


@pytest.mark.parametrize(
    ("resource", "name", "pattern", "says"),
    [
        (Resource.TOPIC, "*", Pattern.LITERAL, "`headrace access set cluster`"),
        (Resource.TOPIC, "/s:t", Pattern.PREFIXED, "a stream is the prefix `/s:`"),
        (Resource.TOPIC, "s..", Pattern.PREFIXED, "a stream is the prefix `/s:`"),
        (Resource.TOPIC, "/", Pattern.PREFIXED, "the streams below a path are the prefix `/plant/`"),
        (Resource.CLUSTER, "other", Pattern.LITERAL, "kafka-cluster"),
        (Resource.CLUSTER, "kafka", Pattern.PREFIXED, "kafka-cluster"),
        (Resource.GROUP, "g*", Pattern.LITERAL, "as 'g*': LITERAL * is every name"),
        (Resource.GROUP, "", Pattern.LITERAL, "a name that is empty"),
        (Resource.GROUP, "*", Pattern.PREFIXED, "as '*': LITERAL * is every name"),
        (Resource.TRANSACTIONAL_ID, "", Pattern.PREFIXED, "a name that is empty"),
        (Resource.USER, "u", Pattern.LITERAL, "no access expressions for USER"),
        (Resource.DELEGATION_TOKEN, "u", Pattern.LITERAL, "no access expressions for DELEGATION_TOKEN"),
        (Resource.ANY, "u", Pattern.LITERAL, "a resource's type"),
        (Resource.TOPIC, "/s:t", Pattern.MATCH, "LITERAL or PREFIXED"),
    ],
)
def test_what_no_expression_stands_on_is_refused(resource: Resource, name: str, pattern: Pattern, says: str) -> None:
    with pytest.raises(KafkaError) as caught:
        object_of(resource, name, pattern)
    assert caught.value.code is Code.INVALID_REQUEST
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("resource", "name", "pattern", "kind"),
    [
        (Resource.GROUP, "g", Pattern.LITERAL, Kind.GROUP),
        (Resource.GROUP, "g", Pattern.PREFIXED, Kind.GROUP_PREFIX),
        (Resource.TRANSACTIONAL_ID, "g", Pattern.LITERAL, Kind.TRANSACTIONAL_ID),
        (Resource.TRANSACTIONAL_ID, "g", Pattern.PREFIXED, Kind.TRANSACTIONAL_ID_PREFIX),
    ],
)
def test_a_literal_name_is_that_name_alone(resource: Resource, name: str, pattern: Pattern, kind: Kind) -> None:
    assert object_of(resource, name, pattern) == Object(kind, name)
    assert object_of(resource, "*", Pattern.LITERAL).name == ""

"""Expressions as ACLs and back: what is shown, what is edited, and what is refused rather than approximated."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import Code, KafkaError
from headrace.security.access_rules import AccessRules, Kind, Permission, Rule
from headrace.security.kafka_acls import (
    Acl,
    AclFilter,
    Edit,
    Effect,
    Grant,
    Object,
    Operation,
    Pattern,
    Resource,
    granted,
    object_of,
    revoked,
    rows,
    shown,
    without_form,
)

STREAM = Object(Kind.STREAM, "/s")
TOPIC = Object(Kind.TOPIC, "/s:t")
CLUSTER = Object(Kind.CLUSTER, "")
GROUPS = Object(Kind.GROUP, "ops-")
PRODUCE, CONSUME, ADMIN = Permission.PRODUCE, Permission.CONSUME, Permission.ADMIN
ADMINS = Rule(Kind.CLUSTER, "", ADMIN, "u:root")


def rules_of(*rules: tuple[Object, Permission, str]) -> AccessRules:
    return AccessRules.of([ADMINS, *(Rule(on.kind, on.name, of, text) for on, of, text in rules)], on=True)


def all_of(rules: AccessRules) -> list[Acl]:
    found = list(rows(rules))
    assert len(found) == len(set(found)), "each row once"
    return sorted(found)


def lines(rules: AccessRules) -> list[str]:
    """Rows but the administrators'."""
    return [
        f"{acl.resource.name} {acl.pattern.name} {acl.name} {acl.principal} {acl.operation.name}"
        for acl in all_of(rules)
        if acl.resource is not Resource.CLUSTER
    ]


def grant(rules: AccessRules, *grants: Grant) -> tuple[dict[tuple[str, str, str], str], dict[int, str]]:
    """The expressions that are written, and the refusals."""
    edit = granted(rules, dict(enumerate(grants)))
    assert all(error.code is Code.INVALID_REQUEST for error in edit.errors.values())
    assert set(edit.changes) <= edit.expected.keys()
    changes = {(str(kind), name, str(of)): text for (kind, name, of), text in edit.changes.items()}
    return changes, {number: str(error) for number, error in edit.errors.items()}


def after(rules: AccessRules, edit: Edit) -> AccessRules:
    return rules.changed(dict(edit.changes))


# --- shown


def test_a_row_stands_for_each_user_and_operation_where_the_expression_stands() -> None:
    rules = rules_of(
        (TOPIC, PRODUCE, "u:alice | u:bob"),
        (STREAM, CONSUME, "p"),
        (Object(Kind.PREFIX, "/plant"), Permission.TOPIC, "u:carol"),
        (STREAM, ADMIN, "u:dora"),
        (GROUPS, CONSUME, "u:alice"),
        (Object(Kind.TRANSACTIONAL_ID, "tx"), PRODUCE, "u:alice"),
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
    assert Acl(Resource.CLUSTER, "kafka-cluster", Pattern.LITERAL, "User:root", Operation.ALL) in all_of(rules)
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
    every = Object(Kind.GROUP, "")
    rules = rules_of((CLUSTER, CONSUME, "u:alice"), (every, CONSUME, "u:carol"))
    assert [line for line in lines(rules) if "GROUP" in line] == [
        "GROUP LITERAL * User:carol READ",
        "GROUP LITERAL * User:carol DESCRIBE",
    ]


@pytest.mark.parametrize("text", ["u:a & u:b", "!u:a", "g:ops", "u:a | g:ops", "u:a | (u:b & !u:c)", "no expression ("])
def test_what_is_no_plain_or_of_users_is_neither_shown_nor_edited(text: str) -> None:
    rules = rules_of((TOPIC, PRODUCE, text))
    assert lines(rules) == []
    changes, errors = grant(rules, Grant(TOPIC, "bob", Operation.WRITE))
    assert changes == {}
    assert errors[0].startswith(f"`produce` of topic /s:t is `{text}`, which is no plain OR of users")
    assert "`headrace access set`" in errors[0]
    inherits = rules_of((STREAM, PRODUCE, text))
    _, errors = grant(inherits, Grant(TOPIC, "bob", Operation.WRITE))
    assert errors[0].startswith(f"`produce` of stream /s is `{text}`")
    names = AclFilter(Resource.TOPIC, "t", "/s:t", Pattern.LITERAL, None, None, Operation.ANY, Effect.ALLOW)
    assert "`produce` of topic /s:t" in str(without_form(rules, names))
    assert without_form(inherits, names) is None


# --- granted


def test_a_user_joins_those_who_are_there() -> None:
    rules = rules_of((TOPIC, PRODUCE, "u:alice"))
    assert grant(rules, Grant(TOPIC, "bob", Operation.WRITE)) == (
        {("topic", "/s:t", "produce"): "u:alice | u:bob"},
        {},
    )
    assert grant(rules, Grant(TOPIC, "alice", Operation.WRITE)) == ({}, {})
    assert grant(rules, Grant(TOPIC, "*", Operation.WRITE))[0] == {("topic", "/s:t", "produce"): "p | u:alice"}


def test_the_first_expression_of_an_object_begins_with_those_whom_it_inherits() -> None:
    rules = rules_of((STREAM, PRODUCE, "u:alice | p"), (CLUSTER, CONSUME, "u:carol"))
    changes, errors = grant(rules, Grant(TOPIC, "bob", Operation.WRITE), Grant(TOPIC, "bob", Operation.READ))
    assert errors == {}
    assert changes == {
        ("topic", "/s:t", "produce"): "p | u:alice | u:bob",
        ("topic", "/s:t", "consume"): "u:bob | u:carol",
    }
    assert grant(rules_of(), Grant(GROUPS, "bob", Operation.READ))[0] == {("group", "ops-", "consume"): "u:bob"}


def test_what_the_decision_rests_on_is_expected_up_to_what_decides() -> None:
    rules = rules_of((STREAM, PRODUCE, "u:alice"))
    edit = granted(rules, {0: Grant(TOPIC, "bob", Operation.WRITE)})
    assert edit.expected == {
        (Kind.TOPIC, "/s:t", PRODUCE): None,
        (Kind.STREAM, "/s", PRODUCE): "u:alice",
    }
    edit = granted(rules_of(), {0: Grant(Object(Kind.GROUP, "ab"), "bob", Operation.READ)})
    assert edit.expected == {
        (Kind.GROUP, "ab", CONSUME): None,
        (Kind.GROUP, "a", CONSUME): None,
        (Kind.GROUP, "", CONSUME): None,
        (Kind.CLUSTER, "", CONSUME): None,
    }


def test_what_comes_with_something_else_is_a_success_where_that_is_there() -> None:
    write, describe = Grant(TOPIC, "bob", Operation.WRITE), Grant(TOPIC, "bob", Operation.DESCRIBE)
    idempotent = Grant(CLUSTER, "bob", Operation.IDEMPOTENT_WRITE)
    changes, errors = grant(rules_of(), describe, idempotent, write)
    assert (list(changes.values()), errors) == (["u:bob"], {})
    _, errors = grant(rules_of(), describe, idempotent)
    assert errors == {
        0: "DESCRIBE comes with WRITE or READ or CREATE, and cannot be granted alone: grant one of these",
        1: "IDEMPOTENT_WRITE comes with WRITE on a topic: grant that",
    }
    assert grant(rules_of((STREAM, CONSUME, "g:x | u:bob")), describe) == ({}, {})
    _, errors = grant(rules_of((STREAM, CONSUME, "!u:eve")), Grant(TOPIC, "*", Operation.DESCRIBE))
    assert len(errors) == 1, "everybody but one is not everybody"
    assert grant(rules_of((STREAM, CONSUME, "p")), Grant(TOPIC, "*", Operation.DESCRIBE)) == ({}, {})


def test_a_permission_is_given_to_whom_all_of_it_is_given() -> None:
    parts = [Grant(TOPIC, "bob", each) for each in (Operation.CREATE, Operation.DELETE, Operation.ALTER)]
    changes, errors = grant(rules_of(), *parts)
    assert (changes, errors) == ({("topic", "/s:t", "topic"): "u:bob"}, {})
    for some in itertools.combinations(parts, 2):
        changes, errors = grant(rules_of(), *some)
        assert changes == {}
        assert len(errors) == 2
        assert "grant CREATE, DELETE, ALTER in one request, or ALL" in errors[0]
    assert grant(rules_of((STREAM, Permission.TOPIC, "u:bob")), parts[0]) == ({}, {})


def test_all_is_all_five_or_none() -> None:
    changes, errors = grant(rules_of(), Grant(STREAM, "bob", Operation.ALL))
    assert {of for _, _, of in changes} == set(Permission)
    assert errors == {}
    assert changes["stream", "/s", "admin"] == "u:bob | u:root", "administrators stay"
    changes, errors = grant(rules_of((STREAM, Permission.COPY, "g:links")), Grant(STREAM, "bob", Operation.ALL))
    assert changes == {}
    assert "`copy` of stream /s is `g:links`" in errors[0]


def test_of_the_cluster_there_is_all_alone() -> None:
    assert grant(rules_of(), Grant(CLUSTER, "bob", Operation.ALL))[0] == {("cluster", "", "admin"): "u:bob | u:root"}
    assert grant(rules_of(), Grant(CLUSTER, "root", Operation.ALTER)) == ({}, {})
    _, errors = grant(rules_of(), Grant(CLUSTER, "bob", Operation.ALTER))
    assert errors == {0: "the cluster's administrators may do everything, ALTER alone cannot be granted: grant ALL"}


def test_operations_that_an_object_does_not_have_are_refused() -> None:
    _, errors = grant(rules_of(), Grant(GROUPS, "bob", Operation.WRITE), Grant(TOPIC, "b", Operation.CLUSTER_ACTION))
    assert "no permission for WRITE on a group" in errors[0]
    assert "no permission for CLUSTER_ACTION on a topic" in errors[1]


def test_an_expression_that_would_be_too_long_is_refused() -> None:
    names = "|".join(f"u:{index:0100d}" for index in range(636))
    changes, errors = grant(rules_of((TOPIC, PRODUCE, names)), Grant(TOPIC, "b" * 249, Operation.WRITE))
    assert changes == {}
    assert errors[0].startswith("`produce` of topic /s:t: ")


# --- revoked


def test_rows_that_are_taken_are_gone_and_nothing_else_is() -> None:
    rules = rules_of((TOPIC, PRODUCE, "u:alice | u:bob"), (TOPIC, CONSUME, "u:alice"))
    gone = [acl for acl in all_of(rules) if acl.principal == "User:alice" and acl.operation is Operation.WRITE]
    edit, errors = revoked(rules, gone)
    assert errors == {}
    assert edit.changes == {(Kind.TOPIC, "/s:t", PRODUCE): "u:bob"}
    assert edit.expected == {(Kind.TOPIC, "/s:t", PRODUCE): "u:alice | u:bob"}
    assert "TOPIC LITERAL /s:t User:alice DESCRIBE" in lines(after(rules, edit)), "it comes with consume"


def test_the_last_row_leaves_nobody_and_does_not_inherit_again() -> None:
    rules = rules_of((TOPIC, PRODUCE, "u:alice"), (STREAM, PRODUCE, "p"))
    edit, _ = revoked(rules, [acl for acl in all_of(rules) if acl.name == "/s:t"])
    assert edit.changes == {(Kind.TOPIC, "/s:t", PRODUCE): ""}
    assert not after(rules, edit).allows("alice", frozenset(), PRODUCE, Kind.TOPIC, "/s:t")


def test_what_cannot_be_taken_alone_stays_and_says_why() -> None:
    rules = rules_of((TOPIC, PRODUCE, "u:alice"), (TOPIC, Permission.TOPIC, "u:bob"))
    for operation in (Operation.DESCRIBE, Operation.CREATE):
        some = [acl for acl in all_of(rules) if acl.operation is operation]
        edit, errors = revoked(rules, some)
        assert edit.changes == {}
        assert errors.keys() == set(some)
        assert f"{operation.name} is part of what else is granted" in str(errors[some[0]])


def test_the_last_administrator_and_what_stands_on_the_cluster_stay() -> None:
    rules = rules_of((CLUSTER, CONSUME, "u:alice"))
    edit, errors = revoked(rules, all_of(rules))
    assert edit.changes == {}
    assert {acl.resource: str(error).partition(":")[0] for acl, error in errors.items()} == {
        Resource.TOPIC: "what the cluster says of all topics holds for groups and transactional ids too, which is more "
        "than this",
        Resource.GROUP: "it stands on the cluster",
        Resource.CLUSTER: "somebody has to administer the cluster",
    }


# --- filters and objects


ACL = Acl(Resource.TOPIC, "/s:", Pattern.PREFIXED, "User:a", Operation.READ)
ANY = AclFilter(Resource.ANY, None, None, Pattern.ANY, None, None, Operation.ANY, Effect.ANY)


def meant(**others: object) -> AclFilter:
    fields = {name: getattr(ANY, name) for name in ANY.__slots__}
    if "name" in others:
        others.setdefault("topic_name", others["name"])
    return AclFilter(**{**fields, **others})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (meant(), True),
        (meant(resource=Resource.TOPIC, principal="User:a", host="*", operation=Operation.READ), True),
        (meant(resource=Resource.GROUP), False),
        (meant(principal="User:b"), False),
        (meant(host="10.0.0.1"), False),
        (meant(operation=Operation.ALL), False),
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
    found = shown(rules, [meant(principal="User:alice"), meant(operation=Operation.WRITE)], most=6)
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
        shown(rules, [meant(principal="User:alice"), meant(operation=Operation.WRITE)], most=5)


def test_match_finds_what_holds_for_every_name() -> None:
    every = ACL._replace(name="*", pattern=Pattern.LITERAL)
    assert meant(pattern=Pattern.MATCH, name="/s:t").matches(every)
    assert not meant(pattern=Pattern.LITERAL, name="/s:t").matches(every)
    group = Acl(Resource.GROUP, "t", Pattern.LITERAL, "User:a", Operation.READ)
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
        (Resource.GROUP, "g", Pattern.LITERAL, "ask for PREFIXED 'g'"),
        (Resource.TRANSACTIONAL_ID, "x", Pattern.LITERAL, "ask for PREFIXED 'x'"),
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


users = st.sampled_from(["alice", "bob", "carol", "*"])
objects = st.sampled_from([STREAM, TOPIC, Object(Kind.PREFIX, "/s"), GROUPS])
operations = st.sampled_from([Operation.WRITE, Operation.READ, Operation.ALTER_CONFIGS, Operation.ALL])


@given(st.lists(st.tuples(objects, users, operations), max_size=8), st.data())
def test_a_grant_takes_nobody_out_and_shows_as_its_row_and_goes_with_it(
    before: list[tuple[Object, str, Operation]], data: st.DataObject
) -> None:
    rules = rules_of((CLUSTER, PRODUCE, "u:carol"))
    for each in before:
        rules = after(rules, granted(rules, {0: Grant(*each)}))
    on, user, operation = data.draw(st.tuples(objects, users, operations))
    edit = granted(rules, {0: Grant(on, user, operation)})
    then = after(rules, edit)
    for who, of, (kind, name) in itertools.product(("alice", "bob", "carol"), Permission, (TOPIC, GROUPS, STREAM)):
        if rules.allows(who, frozenset(), of, kind, name):
            assert then.allows(who, frozenset(), of, kind, name)
    if edit.errors:
        assert not edit.changes
        return
    here = [acl for acl in all_of(then) if acl.principal == f"User:{user}" and acl.name != "*"]
    mine = [acl for acl in here if object_of(*acl[:3]) == on]
    assert {operation, Operation.ALL} & {acl.operation for acl in mine}
    edit, errors = revoked(then, mine)
    assert errors == {}
    assert not set(mine) & set(all_of(after(then, edit)))

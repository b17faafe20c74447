"""Edits of expressions by ACLs: who is admitted and removed, and what is refused rather than approximated."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import Code
from headrace.security.access_rules import AccessRules, Kind, Permission
from headrace.security.kafka_acl_edits import Edit, Grant, granted, revoked, without_form
from headrace.security.kafka_acls import (
    AclFilter,
    AclOperation,
    Effect,
    Object,
    Pattern,
    Resource,
    object_of,
)
from kit.shown_acls import CLUSTER, GROUP, GROUPS, STREAM, TOPIC, all_of, lines, rules_of

PRODUCE, CONSUME, ADMIN = Permission.PRODUCE, Permission.CONSUME, Permission.ADMIN
PRODUCER = (AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.CREATE)
"""The operations that `kafka-acls --producer` grants."""


def grant(rules: AccessRules, *grants: Grant) -> tuple[dict[tuple[str, str, str], str], dict[int, str]]:
    """The expressions to write, and the refusals."""
    edit = granted(rules, dict(enumerate(grants)))
    assert all(error.code is Code.INVALID_REQUEST for error in edit.errors.values())
    assert set(edit.changes) <= edit.expected.keys()
    changes = {(str(kind), name, str(of)): text for (kind, name, of), text in edit.changes.items()}
    return changes, {number: str(error) for number, error in edit.errors.items()}


def after(rules: AccessRules, edit: Edit) -> AccessRules:
    return rules.changed(dict(edit.changes))


@pytest.mark.parametrize("text", ["u:a & u:b", "!u:a", "g:ops", "u:a | g:ops", "u:a | (u:b & !u:c)", "no expression ("])
def test_what_is_no_plain_or_of_users_is_neither_shown_nor_edited(text: str) -> None:
    rules = rules_of((TOPIC, PRODUCE, text))
    assert lines(rules) == []
    changes, errors = grant(rules, Grant(TOPIC, "bob", AclOperation.WRITE))
    assert changes == {}
    assert errors[0].startswith(f"`produce` of topic /s:t is `{text}`, which is not a plain OR of users")
    assert "`headrace access set`" in errors[0]
    inherits = rules_of((STREAM, PRODUCE, text))
    _, errors = grant(inherits, Grant(TOPIC, "bob", AclOperation.WRITE))
    assert errors[0].startswith(f"`produce` of stream /s is `{text}`")
    names = AclFilter(Resource.TOPIC, "t", "/s:t", Pattern.LITERAL, None, None, AclOperation.ANY, Effect.ALLOW)
    assert "`produce` of topic /s:t" in str(without_form(rules, names))
    assert without_form(inherits, names) is None


# --- granted


def test_a_user_joins_those_who_are_there() -> None:
    rules = rules_of((TOPIC, PRODUCE, "u:alice"))
    assert grant(rules, Grant(TOPIC, "bob", AclOperation.WRITE)) == (
        {("topic", "/s:t", "produce"): "u:alice | u:bob"},
        {},
    )
    assert grant(rules, Grant(TOPIC, "alice", AclOperation.WRITE)) == ({}, {})
    assert grant(rules, Grant(TOPIC, "*", AclOperation.WRITE))[0] == {("topic", "/s:t", "produce"): "p | u:alice"}


def test_the_first_expression_of_an_object_begins_with_those_whom_it_inherits() -> None:
    rules = rules_of((STREAM, PRODUCE, "u:alice | p"), (CLUSTER, CONSUME, "u:carol"))
    changes, errors = grant(rules, Grant(TOPIC, "bob", AclOperation.WRITE), Grant(TOPIC, "bob", AclOperation.READ))
    assert errors == {}
    assert changes == {
        ("topic", "/s:t", "produce"): "p | u:alice | u:bob",
        ("topic", "/s:t", "consume"): "u:bob | u:carol",
    }
    assert grant(rules_of(), Grant(GROUPS, "bob", AclOperation.READ))[0] == {
        ("group-prefix", "ops-", "consume"): "u:bob"
    }


def test_the_first_expression_of_a_group_ends_that_whoever_consumes_some_topic_may_use_it() -> None:
    rules = rules_of((TOPIC, CONSUME, "u:alice"))
    assert rules.allows("alice", frozenset(), CONSUME, *GROUP)
    edit = granted(rules, {0: Grant(GROUP, "bob", AclOperation.READ)})
    assert edit.changes == {(Kind.GROUP, "ops-1", CONSUME): "u:bob"}
    assert not after(rules, edit).allows("alice", frozenset(), CONSUME, *GROUP)


def test_what_the_decision_rests_on_is_expected_up_to_what_decides() -> None:
    rules = rules_of((STREAM, PRODUCE, "u:alice"))
    edit = granted(rules, {0: Grant(TOPIC, "bob", AclOperation.WRITE)})
    assert edit.expected == {
        (Kind.TOPIC, "/s:t", PRODUCE): None,
        (Kind.STREAM, "/s", PRODUCE): "u:alice",
    }
    edit = granted(rules_of(), {0: Grant(Object(Kind.GROUP, "ab"), "bob", AclOperation.READ)})
    assert edit.expected == {
        (Kind.GROUP, "ab", CONSUME): None,
        (Kind.GROUP_PREFIX, "ab", CONSUME): None,
        (Kind.GROUP_PREFIX, "a", CONSUME): None,
        (Kind.GROUP_PREFIX, "", CONSUME): None,
        (Kind.CLUSTER, "", CONSUME): None,
    }


def test_what_comes_with_something_else_is_a_success_where_that_is_there() -> None:
    write, describe = Grant(TOPIC, "bob", AclOperation.WRITE), Grant(TOPIC, "bob", AclOperation.DESCRIBE)
    changes, errors = grant(rules_of(), describe, write)
    assert (list(changes.values()), errors) == (["u:bob"], {})
    _, errors = grant(rules_of(), describe)
    assert errors == {0: "DESCRIBE comes with WRITE or READ or CREATE, and cannot be granted alone: grant one of these"}
    assert grant(rules_of((STREAM, CONSUME, "g:x | u:bob")), describe) == ({}, {})
    _, errors = grant(rules_of((STREAM, CONSUME, "!u:eve")), Grant(TOPIC, "*", AclOperation.DESCRIBE))
    assert len(errors) == 1, "everybody but one is not everybody"
    assert grant(rules_of((STREAM, CONSUME, "p")), Grant(TOPIC, "*", AclOperation.DESCRIBE)) == ({}, {})


def test_a_permission_is_given_to_whom_all_of_it_is_given() -> None:
    parts = [Grant(TOPIC, "bob", each) for each in (AclOperation.CREATE, AclOperation.DELETE, AclOperation.ALTER)]
    changes, errors = grant(rules_of(), *parts)
    assert (changes, errors) == ({("topic", "/s:t", "topic"): "u:bob"}, {})
    streams = [part._replace(on=STREAM) for part in parts]
    for some in itertools.combinations(streams, 2):
        changes, errors = grant(rules_of(), *some)
        assert changes == {}
        assert len(errors) == 2
        assert "grant CREATE, DELETE, ALTER in one request, or ALL" in errors[0]
    assert grant(rules_of((STREAM, Permission.TOPIC, "u:bob")), parts[0]) == ({}, {})


def test_create_of_a_topic_that_is_there_is_granted_without_a_change_and_not_shown() -> None:
    rules = rules_of((STREAM, PRODUCE, "u:alice"))
    create = Grant(TOPIC, "bob", AclOperation.CREATE)
    assert grant(rules, create) == ({}, {})
    changes, errors = grant(rules, *(create._replace(operation=each) for each in PRODUCER))
    assert (changes, errors) == ({("topic", "/s:t", "produce"): "u:alice | u:bob"}, {})
    then = rules.changed({(Kind.TOPIC, "/s:t", PRODUCE): "u:alice | u:bob"})
    assert not any("CREATE" in line for line in lines(then))
    assert not then.allows("bob", frozenset(), Permission.TOPIC, Kind.TOPIC, "/s:t")
    _, errors = grant(rules, create, create._replace(operation=AclOperation.DELETE))
    assert errors.keys() == {1}
    for on in (STREAM, Object(Kind.PREFIX, "/plant")):
        assert "CREATE cannot be granted alone" in grant(rules, Grant(on, "bob", AclOperation.CREATE))[1][0]


@pytest.mark.parametrize("user", ["bob", "*"])
def test_idempotent_writes_are_granted_without_a_change_and_not_shown(user: str) -> None:
    rules = rules_of((STREAM, PRODUCE, "u:alice"))
    idempotent = Grant(CLUSTER, user, AclOperation.IDEMPOTENT_WRITE)
    assert grant(rules, idempotent) == ({}, {})
    assert not any("IDEMPOTENT" in line for line in lines(rules))
    _, errors = grant(rules, idempotent, idempotent._replace(operation=AclOperation.ALTER))
    assert errors.keys() == {1}, "nothing else of the cluster is"


def test_what_a_producer_and_a_consumer_are_granted_by_name_is_all_of_it() -> None:
    transaction = Object(Kind.TRANSACTIONAL_ID, "tx")
    rows_of = {
        TOPIC: PRODUCER,
        transaction: (AclOperation.WRITE, AclOperation.DESCRIBE),
        CLUSTER: (AclOperation.IDEMPOTENT_WRITE,),
    }
    changes, errors = grant(rules_of(), *(Grant(on, "bob", each) for on, of in rows_of.items() for each in of))
    assert errors == {}
    assert changes == {("topic", "/s:t", "produce"): "u:bob", ("transactional-id", "tx", "produce"): "u:bob"}
    read = [Grant(TOPIC, "bob", AclOperation.READ), Grant(TOPIC, "bob", AclOperation.DESCRIBE)]
    changes, errors = grant(rules_of((GROUPS, CONSUME, "u:alice")), *read, Grant(GROUP, "bob", AclOperation.READ))
    assert errors == {}
    assert changes == {("topic", "/s:t", "consume"): "u:bob", ("group", "ops-1", "consume"): "u:alice | u:bob"}


def test_all_is_all_five_or_none() -> None:
    changes, errors = grant(rules_of(), Grant(STREAM, "bob", AclOperation.ALL))
    assert {of for _, _, of in changes} == set(Permission)
    assert errors == {}
    assert changes["stream", "/s", "admin"] == "u:bob | u:root", "administrators stay"
    changes, errors = grant(rules_of((STREAM, Permission.COPY, "g:links")), Grant(STREAM, "bob", AclOperation.ALL))
    assert changes == {}
    assert "`copy` of stream /s is `g:links`" in errors[0]


def test_of_the_cluster_there_is_all_alone() -> None:
    assert grant(rules_of(), Grant(CLUSTER, "bob", AclOperation.ALL))[0] == {("cluster", "", "admin"): "u:bob | u:root"}
    assert grant(rules_of(), Grant(CLUSTER, "root", AclOperation.ALTER)) == ({}, {})
    _, errors = grant(rules_of(), Grant(CLUSTER, "bob", AclOperation.ALTER))
    assert errors == {0: "the cluster's administrators may do everything, ALTER alone cannot be granted: grant ALL"}


def test_operations_that_an_object_does_not_have_are_refused() -> None:
    _, errors = grant(
        rules_of(), Grant(GROUPS, "bob", AclOperation.WRITE), Grant(TOPIC, "b", AclOperation.CLUSTER_ACTION)
    )
    assert "no permission for WRITE on a group-prefix" in errors[0]
    assert "no permission for CLUSTER_ACTION on a topic" in errors[1]


def test_an_expression_that_would_be_too_long_is_refused() -> None:
    names = "|".join(f"u:{index:0100d}" for index in range(636))
    changes, errors = grant(rules_of((TOPIC, PRODUCE, names)), Grant(TOPIC, "b" * 249, AclOperation.WRITE))
    assert changes == {}
    assert errors[0].startswith("`produce` of topic /s:t: ")


# --- revoked


def test_rows_that_are_taken_are_gone_and_nothing_else_is() -> None:
    rules = rules_of((TOPIC, PRODUCE, "u:alice | u:bob"), (TOPIC, CONSUME, "u:alice"))
    gone = [acl for acl in all_of(rules) if acl.principal == "User:alice" and acl.operation is AclOperation.WRITE]
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
    for operation in (AclOperation.DESCRIBE, AclOperation.CREATE):
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
        Resource.TOPIC: "expressions for all topics are set on the cluster, and cover groups and transactional ids "
        "too, which is more than this",
        Resource.GROUP: "it comes from an expression on the cluster",
        Resource.CLUSTER: "somebody has to administer the cluster",
    }


users = st.sampled_from(["alice", "bob", "carol", "*"])
objects = st.sampled_from([STREAM, TOPIC, Object(Kind.PREFIX, "/s"), GROUP, GROUPS])
operations = st.sampled_from([AclOperation.WRITE, AclOperation.READ, AclOperation.ALTER_CONFIGS, AclOperation.ALL])


@given(st.lists(st.tuples(objects, users, operations), max_size=8), st.data())
def test_a_grant_takes_nobody_out_and_shows_as_its_row_and_goes_with_it(
    before: list[tuple[Object, str, AclOperation]], data: st.DataObject
) -> None:
    rules = rules_of((CLUSTER, PRODUCE, "u:carol"))
    for each in before:
        rules = after(rules, granted(rules, {0: Grant(*each)}))
    on, user, operation = data.draw(st.tuples(objects, users, operations))
    edit = granted(rules, {0: Grant(on, user, operation)})
    then = after(rules, edit)
    for who, of, (kind, name) in itertools.product(("alice", "bob", "carol"), Permission, (TOPIC, GROUPS, STREAM)):
        is_left_to_consumers = kind is GROUPS.kind and rules.deciding(of, kind, name) is None
        if rules.allows(who, frozenset(), of, kind, name) and not is_left_to_consumers:
            assert then.allows(who, frozenset(), of, kind, name)
    if edit.errors:
        assert not edit.changes
        return
    here = [acl for acl in all_of(then) if acl.principal == f"User:{user}" and acl.name != "*"]
    mine = [acl for acl in here if object_of(*acl[:3]) == on]
    assert {operation, AclOperation.ALL} & {acl.operation for acl in mine}
    edit, errors = revoked(then, mine)
    assert errors == {}
    assert not set(mine) & set(all_of(after(then, edit)))

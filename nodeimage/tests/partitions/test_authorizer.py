"""Permissions are checked in one place, which audits each denial."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from headrace.base.runtime import Runtime
from headrace.partitions.access_control import AccessControl
from headrace.partitions.authorizer import Authorizer
from headrace.security.access_rules import AccessRules, Kind, Permission, Rule
from headrace.security.audit import AuditLog
from kit.access import Client, client
from kit.catalog import NOW, Still

PRODUCE, CONSUME = Permission.PRODUCE, Permission.CONSUME
TOPIC = "/plant:flow"


ALICE = client("alice")
BOB = client("bob")


class Asked:
    """An authorizer with one stream that alice may produce to, and the audited events."""

    def __init__(self, *, on: bool = True, allowed: tuple[str, ...] = ()) -> None:
        self.told: list[Mapping[str, object]] = []
        self.runtime = Runtime(executor=ThreadPoolExecutor(1), clock=Still())
        self.access = AccessControl(runtime=self.runtime, catalog=cast(Any, None))
        self.access.rules = AccessRules.of([Rule(Kind.STREAM, "/plant", PRODUCE, "u:alice")], on=on)
        audit = AuditLog([self.told.append], monotonic=lambda: 1.0, allowed=allowed)
        self.may = Authorizer(runtime=self.runtime, access=self.access, audit=audit)


async def test_a_denial_is_told_with_who_where_what_and_why() -> None:
    asked = Asked()
    assert asked.may.allows(ALICE, PRODUCE, Kind.TOPIC, TOPIC)
    assert asked.told == []
    assert not asked.may.allows(BOB, PRODUCE, Kind.TOPIC, TOPIC, api="Produce")
    (told,) = asked.told
    assert told == {
        "at_ms": int(NOW),
        "user": "bob",
        "address": "10.0.0.7",
        "listener": "external",
        "action": "produce",
        "kind": "topic",
        "name": TOPIC,
        "allowed": False,
        "reason": asked.may.explain(BOB, PRODUCE, Kind.TOPIC, TOPIC).reason,
        "api": "Produce",
        "client_id": "app",
    }


async def test_what_is_allowed_is_told_where_that_is_asked_for() -> None:
    asked = Asked(allowed=("produce",))
    assert asked.may.allows(ALICE, PRODUCE, Kind.TOPIC, TOPIC)
    assert [(each["user"], each["allowed"]) for each in asked.told] == [("alice", True)]


async def test_nothing_is_refused_nor_told_while_security_is_off() -> None:
    asked = Asked(on=False)
    assert asked.may.allows(Client(), Permission.ADMIN)
    assert asked.may.allows_any(BOB, (CONSUME,), Kind.TOPIC, TOPIC)
    assert asked.may.allows_some_topic(BOB, CONSUME)
    assert asked.told == []


async def test_one_of_several_permissions_is_enough_and_lists_are_silent() -> None:
    asked = Asked()
    assert asked.may.allows_any(ALICE, (CONSUME, PRODUCE), Kind.TOPIC, TOPIC)
    assert asked.may.sees(ALICE, (CONSUME, PRODUCE), Kind.TOPIC, TOPIC)
    assert not asked.may.sees(BOB, (CONSUME, PRODUCE), Kind.TOPIC, TOPIC)
    assert asked.may.allows_some_topic(ALICE, PRODUCE)
    assert not asked.may.allows_some_topic(ALICE, CONSUME)
    assert asked.told == []
    assert not asked.may.allows_any(BOB, (CONSUME, PRODUCE), Kind.TOPIC, TOPIC)
    assert [each["action"] for each in asked.told] == ["describe"]


async def test_a_denial_is_told_as_the_action_that_it_is_and_with_the_reason_where_there_is_one() -> None:
    asked = Asked()
    assert not asked.may.allows_any(BOB, (PRODUCE,), Kind.TOPIC, TOPIC, action="produce")
    assert not asked.may.allows_any(BOB, (), action="cluster_action")
    assert [(each["action"], each["reason"]) for each in asked.told] == [
        ("produce", asked.may.explain(BOB, PRODUCE, Kind.TOPIC, TOPIC).reason),
        ("cluster_action", "nobody is allowed this"),
    ]


async def test_of_several_permissions_the_one_that_was_had_is_told_where_that_is_asked_for() -> None:
    asked = Asked(allowed=("produce",))
    assert asked.may.allows_any(ALICE, (CONSUME, PRODUCE), Kind.TOPIC, TOPIC, action="consume")
    assert [(each["action"], each["allowed"]) for each in asked.told] == [("produce", True)]


async def test_a_user_whose_connection_is_gone_is_asked_for_too() -> None:
    asked = Asked()
    assert asked.may.permits(ALICE.principal, (PRODUCE,), Kind.TOPIC, TOPIC)
    assert not asked.may.permits(BOB.principal, (PRODUCE,), Kind.TOPIC, TOPIC)
    assert asked.may.decided_by(TOPIC) == "/plant"
    assert asked.told == []


async def test_nobody_is_looked_at_while_security_is_off() -> None:
    asked = Asked(on=False)
    nobody = cast(Any, None)
    assert asked.may.allows_some_topic(nobody, PRODUCE)
    assert asked.may.allows_any(nobody, (PRODUCE,), Kind.TOPIC, TOPIC)
    assert asked.may.permits(nobody, (), Kind.CLUSTER, "")


async def test_a_stream_is_seen_by_whom_one_of_its_topics_lets_in() -> None:
    asked = Asked()
    asked.access.rules = AccessRules.of([Rule(Kind.TOPIC, TOPIC, CONSUME, "u:bob")], on=True)
    assert asked.may.sees_stream(BOB, "/plant")
    assert not asked.may.sees_stream(ALICE, "/plant")
    assert not asked.may.sees_stream(BOB, "/plants")
    assert asked.may.differs_by_topic(CONSUME, "/plant")
    assert not asked.may.differs_by_topic(PRODUCE, "/plant")
    assert Asked(on=False).may.sees_stream(BOB, "/plant")

"""Quotas through Kafka's APIs: who may see and set them, what is refused, what a filter means."""

from typing import Any

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.kafka.client_quotas import MAX_ENTRIES
from headrace.partitions import lookups
from headrace.partitions.lookups import submit_within
from headrace.security.client_quotas import Key
from headrace.wire.api_keys import ApiKey
from kit.secured_node import ROOT, SecuredNode

DESCRIBE, ALTER = ApiKey.DESCRIBE_CLIENT_QUOTAS, ApiKey.ALTER_CLIENT_QUOTAS
EXACT, DEFAULT, ANY = 0, 1, 2
ALICE = {"user": "alice"}
Names = dict[str, str | None]


def entry(names: Names, **limits: float | None) -> dict[str, Any]:
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in names.items()],
        "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in limits.items()],
    }


async def alter(
    node: SecuredNode, *entries: dict[str, Any], user: str = ROOT, validate_only: bool = False, version: int = 1
) -> list[tuple[Code, str]]:
    answer = await node.ask(user, ALTER, version, {"entries": entries, "validate_only": validate_only})
    for asked, told in zip(entries, answer.entries, strict=True):
        assert [(of.entity_type, of.entity_name) for of in told.entity] == [
            (of["entity_type"], of["entity_name"]) for of in asked["entity"]
        ]
    return [(Code(each.error_code), each.error_message or "") for each in answer.entries]


async def described(
    node: SecuredNode, *components: tuple[str, int, str | None], strict: bool = False, version: int = 1
) -> dict[tuple[tuple[str, str | None], ...], dict[str, float]]:
    asked = [{"entity_type": kind, "match_type": match, "match": name} for kind, match, name in components]
    answer = await node.ask(ROOT, DESCRIBE, version, {"components": asked, "strict": strict})
    assert (answer.error_code, answer.error_message) == (0, None)
    return {
        tuple((of.entity_type, of.entity_name) for of in each.entity): {one.key: one.value for one in each.values}
        for each in answer.entries
    }


@pytest.mark.parametrize("version", [0, 1])
async def test_limits_are_set_altered_one_by_one_and_removed(secured: SecuredNode, version: int) -> None:
    assert await described(secured, version=version) == {}
    first = entry(ALICE, producer_byte_rate=1000.0, request_percentage=12.5)
    assert await alter(secured, first, version=version) == [(Code.NONE, "")]
    alice = (("user", "alice"),)
    assert await described(secured) == {alice: {"producer_byte_rate": 1000.0, "request_percentage": 12.5}}
    assert secured.parts.throttle.is_on
    second = entry(ALICE, producer_byte_rate=None, consumer_byte_rate=5.0)
    assert await alter(secured, second, entry(ALICE, controller_mutation_rate=None)) == [(Code.NONE, "")] * 2
    assert await described(secured) == {alice: {"consumer_byte_rate": 5.0, "request_percentage": 12.5}}
    gone = entry(ALICE, consumer_byte_rate=None, request_percentage=None)
    assert await alter(secured, gone, validate_only=True) == [(Code.NONE, "")]
    assert len((await described(secured))[alice]) == 2
    await alter(secured, gone)
    assert await described(secured) == {}
    assert not secured.parts.throttle.is_on


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (entry({}, producer_byte_rate=1.0), "a limit is of a user, a client-id, both, or of an ip alone"),
        (entry({"group": "g"}, producer_byte_rate=1.0), "no quotas of 'group'"),
        (entry({"user": ""}, producer_byte_rate=1.0), "an empty name"),
        (entry({"user": "u" * 250}, producer_byte_rate=1.0), "at most 249"),
        (entry({"ip": "::1", "user": "u"}, connection_creation_rate=1.0), "an ip alone"),
        (entry({"ip": "host"}, connection_creation_rate=1.0), "'host' is not an IP address"),
        (
            entry({"ip": "::1"}, producer_byte_rate=1.0),
            "no quota 'producer_byte_rate' here; there are: connection_creation_rate",
        ),
        (entry(ALICE, connection_creation_rate=1.0), "no quota 'connection_creation_rate' here"),
        (entry(ALICE, nonsense=None), "no quota 'nonsense' here"),
        (entry(ALICE, producer_byte_rate=0.0001), "a whole number"),
        (entry(ALICE, producer_byte_rate=-1.0), "more than 0"),
        (entry(ALICE, producer_byte_rate=float("nan")), "more than 0"),
        (entry(ALICE, request_percentage=float("inf")), "more than 0"),
        (entry(ALICE, consumer_byte_rate=1e19), "too large"),
        (entry({"ip": "::1"}, connection_creation_rate=2.0**31), "too large"),
        (entry({"ip": "::1"}, connection_creation_rate=-1.0), "0 or more"),
        (
            {
                "entity": [{"entity_type": "user", "entity_name": name} for name in ("a", "b")],
                "ops": [{"key": "producer_byte_rate", "value": 1.0, "remove": False}],
            },
            "user is given more than once",
        ),
    ],
)
async def test_what_is_no_limit_is_refused_by_name_and_the_rest_is_done(
    secured: SecuredNode, wrong: dict[str, Any], says: str
) -> None:
    refused, done = await alter(secured, wrong, entry(ALICE, producer_byte_rate=1.0))
    assert refused[0] is Code.INVALID_REQUEST
    assert says in refused[1]
    assert done == (Code.NONE, "")
    assert await described(secured) == {(("user", "alice"),): {"producer_byte_rate": 1.0}}


async def test_a_filter_means_what_kafkas_does(secured: SecuredNode) -> None:
    entities: list[Names] = [
        {"user": "alice"},
        {"user": None},
        {"user": "alice", "client-id": "app"},
        {"user": None, "client-id": None},
        {"client-id": "app"},
    ]
    await alter(secured, *(entry(names, producer_byte_rate=1.0) for names in entities))
    await alter(secured, entry({"ip": "10.0.0.1"}, connection_creation_rate=0.0))

    async def found(*components: tuple[str, int, str | None], strict: bool = False) -> list[str]:
        names = await described(secured, *components, strict=strict)
        return sorted(" ".join(f"{kind}={name}" for kind, name in sorted(each)) for each in names)

    assert len(await found()) == 6
    assert await found(strict=True) == []
    assert await found(("user", EXACT, "alice")) == ["client-id=app user=alice", "user=alice"]
    assert await found(("user", EXACT, "alice"), strict=True) == ["user=alice"]
    assert await found(("user", DEFAULT, None)) == ["client-id=None user=None", "user=None"]
    assert await found(("user", ANY, None), strict=True) == ["user=None", "user=alice"]
    assert await found(("user", ANY, None), ("client-id", EXACT, "app")) == ["client-id=app user=alice"]
    assert await found(("ip", ANY, None)) == ["ip=10.0.0.1"]


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("group", ANY, None)], Code.UNSUPPORTED_VERSION),
        ([("user", ANY, None), ("user", ANY, None)], Code.INVALID_REQUEST),
        ([("user", EXACT, None)], Code.INVALID_REQUEST),
        ([("user", DEFAULT, "a")], Code.INVALID_REQUEST),
        ([("user", 3, None)], Code.INVALID_REQUEST),
        ([("user", ANY, None), ("ip", ANY, None)], Code.INVALID_REQUEST),
    ],
)
async def test_a_filter_that_means_nothing_is_refused(
    secured: SecuredNode, components: list[tuple[str, int, str | None]], code: Code
) -> None:
    asked = [{"entity_type": kind, "match_type": match, "match": name} for kind, match, name in components]
    answer = await secured.ask(ROOT, DESCRIBE, 1, {"components": asked, "strict": False})
    assert (answer.error_code, answer.entries) == (code, None)
    assert answer.error_message


async def test_administrators_alone_see_and_set_them_and_the_audit_hears(secured: SecuredNode) -> None:
    answer = await secured.ask("alice", DESCRIBE, 1, {"components": [], "strict": False})
    assert (answer.error_code, answer.entries) == (Code.CLUSTER_AUTHORIZATION_FAILED, None)
    found = await alter(secured, entry(ALICE, producer_byte_rate=1e9), user="alice")
    assert [code for code, _ in found] == [Code.CLUSTER_AUTHORIZATION_FAILED]
    found = await alter(secured, *[entry(ALICE, producer_byte_rate=1.0)] * (MAX_ENTRIES + 1))
    assert {code for code, _ in found} == {Code.INVALID_REQUEST}
    assert await described(secured) == {}
    await alter(secured, entry(ALICE, producer_byte_rate=1e6, consumer_byte_rate=None))
    told = [(each["name"], each["reason"]) for each in secured.told if each["action"] == "quotas"]
    assert told == [
        ('{"user":"alice"}', "producer_byte_rate is now 1e+06"),
        ('{"user":"alice"}', "consumer_byte_rate is now without limit"),
    ]


async def test_an_entry_is_applied_wholly_or_not_at_all_and_answered_as_it_is(
    secured: SecuredNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookups, "COMMAND_ITEMS", 3)
    commands = 0

    async def fail_at_the_second(catalog: Any, command: Any, *, timeout_ms: int) -> Any:
        nonlocal commands
        commands += 1
        if commands == 2:
            raise KafkaError(Code.REQUEST_TIMED_OUT, "not committed")
        return await submit_within(catalog, command, timeout_ms=timeout_ms)

    monkeypatch.setattr(lookups, "submit_within", fail_at_the_second)
    both = {"producer_byte_rate": 1.0, "consumer_byte_rate": 2.0}
    found = await alter(
        secured,
        entry(ALICE, **both),
        entry({"user": "bob"}, nonsense=1.0),
        entry({"user": "carol"}),
        entry({"user": "dave"}, **both),
        entry({"user": "erin"}, **both),
    )
    done, late = (Code.NONE, ""), (Code.REQUEST_TIMED_OUT, "not committed")
    assert found[:1] + found[2:] == [done, done, late, late]
    assert found[1][0] is Code.INVALID_REQUEST
    assert commands == 2
    assert await described(secured) == {(("user", "alice"),): both}
    assert [each["name"] for each in secured.told if each["action"] == "quotas"] == ['{"user":"alice"}'] * 2


async def test_an_address_has_one_form(secured: SecuredNode) -> None:
    await alter(secured, entry({"ip": "::ffff:10.0.0.1"}, connection_creation_rate=3.0))
    assert await described(secured) == {(("ip", "10.0.0.1"),): {Key.CONNECTIONS: 3.0}}

"""ACLs through Kafka's APIs: refusals with reasons, concurrent edits, and librdkafka's own admin client."""

import asyncio
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from headrace.base.errors import Code
from headrace.base.ids import ContainerId, Epoch, Millis
from headrace.catalog.access import SecureCluster
from headrace.catalog.policy import StreamPolicy
from headrace.catalog.rows import AccessRow
from headrace.catalog.streams import CreateStream
from headrace.catalog.topics import CreateTopics, NewTopic
from headrace.kafka.acls import MAX_CREATIONS, MAX_FILTERS
from headrace.security.access_rules import Kind, Permission
from headrace.wire.api_keys import ApiKey
from kit.secured_node import ROOT, SecuredNode

TOPIC, GROUP, CLUSTER = 2, 3, 4
LITERAL, PREFIXED = 3, 4
READ, WRITE, CREATE, DESCRIBE, ALL = 3, 4, 5, 8, 2
TOPIC_ID = b"t" * 16
VERSIONS = [1, 2, 3]


def row(operation: int = WRITE, principal: str = "User:bob", **others: Any) -> dict[str, Any]:
    return {
        "resource_type": TOPIC,
        "resource_name": "/s:t",
        "resource_pattern_type": LITERAL,
        "principal": principal,
        "host": "*",
        "operation": operation,
        "permission_type": 3,
        **others,
    }


def of(**others: Any) -> dict[str, Any]:
    return {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
        **others,
    }


@pytest.fixture
async def plant(secured: SecuredNode) -> SecuredNode:
    """A secured node with a stream and a topic in it."""
    catalog = secured.parts.catalog
    await catalog.submit(CreateStream("/s", StreamPolicy(), Millis(1)))
    await catalog.submit(CreateTopics([NewTopic("/s", "t", TOPIC_ID, 1, {}, [ContainerId(2)], [Epoch(1)])], Millis(1)))
    return secured


async def create(
    node: SecuredNode, *rows: dict[str, Any], user: str = ROOT, version: int = 3
) -> list[tuple[Code, str]]:
    answer = await node.ask(user, ApiKey.CREATE_ACLS, version, {"creations": rows})
    return [(Code(each.error_code), each.error_message or "") for each in answer.results]


async def shown(node: SecuredNode, **others: Any) -> list[tuple[str, str, int]]:
    answer = await node.ask(ROOT, ApiKey.DESCRIBE_ACLS, 3, of(**others))
    assert (answer.error_code, answer.error_message) == (0, None)
    return [(each.resource_name, acl.principal, int(acl.operation)) for each in answer.resources for acl in each.acls]


async def expressions(node: SecuredNode) -> dict[tuple[str, str, str], str]:
    rows: list[AccessRow] = await node.parts.catalog.query(lambda reader: reader.access.all())
    return {(each.kind, each.object, each.permission): each.expression for each in rows if each.permission != "admin"}


@pytest.mark.parametrize("version", VERSIONS)
async def test_while_security_is_off_there_are_none(ask: Any, version: int) -> None:
    answer = await ask(ApiKey.DESCRIBE_ACLS, version, of())
    assert (answer.error_code, answer.resources) == (Code.SECURITY_DISABLED, ())
    assert "everybody may do everything" in answer.error_message
    answer = await ask(ApiKey.CREATE_ACLS, version, {"creations": [row(), row()]})
    assert [each.error_code for each in answer.results] == [Code.SECURITY_DISABLED] * 2
    answer = await ask(ApiKey.DELETE_ACLS, version, {"filters": [of()]})
    assert [(each.error_code, each.matching_acls) for each in answer.filter_results] == [(Code.SECURITY_DISABLED, ())]


async def test_administrators_alone_may_see_and_change_them(plant: SecuredNode) -> None:
    answer = await plant.ask("alice", ApiKey.DESCRIBE_ACLS, 3, of())
    assert (answer.error_code, answer.resources) == (Code.CLUSTER_AUTHORIZATION_FAILED, ())
    assert [code for code, _ in await create(plant, row(), row(), user="alice")] == [
        Code.CLUSTER_AUTHORIZATION_FAILED
    ] * 2
    answer = await plant.ask("alice", ApiKey.DELETE_ACLS, 3, {"filters": [of()]})
    assert [each.error_code for each in answer.filter_results] == [Code.CLUSTER_AUTHORIZATION_FAILED]
    assert await expressions(plant) == {}
    assert {(each["user"], each["api"], each["allowed"]) for each in plant.told} == {
        ("alice", "DescribeAcls", False),
        ("alice", "CreateAcls", False),
        ("alice", "DeleteAcls", False),
    }


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["/s:t", "s..t"])
async def test_a_row_is_made_shown_in_force_and_deleted_under_each_name(
    plant: SecuredNode, version: int, name: str
) -> None:
    assert await create(plant, row(resource_name=name), row(DESCRIBE), version=version) == [(Code.NONE, "")] * 2
    assert await expressions(plant) == {("topic", "/s:t", "produce"): "u:bob"}
    bob = plant.connection("bob")
    assert plant.parts.authorizer.allows(bob, Permission.PRODUCE, Kind.TOPIC, "/s:t")
    expected = [("/s:t", "User:bob", WRITE), ("/s:t", "User:bob", DESCRIBE)]
    assert await shown(plant, resource_type_filter=TOPIC) == expected
    assert await shown(plant, resource_name_filter=name, pattern_type_filter=2) == expected
    assert await shown(plant, principal_filter="User:alice") == []
    answer = await plant.ask(
        ROOT, ApiKey.DELETE_ACLS, version, {"filters": [of(resource_name_filter=name), of(permission_type=2)]}
    )
    first, second = answer.filter_results
    assert [(each.error_code, each.resource_name, int(each.operation)) for each in first.matching_acls] == [
        (0, "/s:t", WRITE),
        (0, "/s:t", DESCRIBE),
    ]
    assert (second.error_code, second.matching_acls) == (0, ())
    assert await expressions(plant) == {("topic", "/s:t", "produce"): ""}
    assert not plant.parts.authorizer.allows(bob, Permission.PRODUCE, Kind.TOPIC, "/s:t")
    changes = [each for each in plant.told if each["action"] == "access"]
    assert [(each["user"], each["kind"], each["name"], each["reason"]) for each in changes] == [
        (ROOT, "topic", "/s:t", "produce is now `u:bob`"),
        (ROOT, "topic", "/s:t", "produce is now ``"),
    ]


@pytest.mark.parametrize(
    ("wrong", "code", "says"),
    [
        ({"permission_type": 2}, Code.INVALID_REQUEST, "there are no ACLs of DENY"),
        ({"permission_type": 9}, Code.INVALID_REQUEST, "there is no permission type 9"),
        ({"host": "10.0.0.1"}, Code.INVALID_REQUEST, "the host is *, not '10.0.0.1'"),
        ({"operation": 1}, Code.INVALID_REQUEST, "ANY is an operation of filters"),
        ({"operation": 0}, Code.INVALID_REQUEST, "there is no operation 0"),
        ({"operation": 12}, Code.INVALID_REQUEST, "no permission for IDEMPOTENT_WRITE on a topic"),
        ({"resource_type": 7}, Code.INVALID_REQUEST, "no access expressions for USER"),
        ({"resource_type": 6}, Code.INVALID_REQUEST, "no access expressions for DELEGATION_TOKEN"),
        ({"resource_type": 0}, Code.INVALID_REQUEST, "there is no resource type 0"),
        ({"resource_pattern_type": 2}, Code.INVALID_REQUEST, "LITERAL or PREFIXED"),
        ({"principal": "Group:ops"}, Code.INVALID_REQUEST, "not of the form User:NAME"),
        ({"principal": "bob"}, Code.INVALID_REQUEST, "not of the form User:NAME"),
        ({"principal": "User:a\nb"}, Code.INVALID_REQUEST, "unprintable"),
        ({"resource_name": "/s:none"}, Code.UNKNOWN_TOPIC_OR_PARTITION, "there is no topic /s:none"),
        ({"resource_name": "a b"}, Code.INVALID_REQUEST, "topics hold letters"),
        (
            {"resource_name": "/none:", "resource_pattern_type": PREFIXED},
            Code.UNKNOWN_TOPIC_OR_PARTITION,
            "there is no stream /none",
        ),
        ({"resource_name": "/a b/", "resource_pattern_type": PREFIXED}, Code.INVALID_REQUEST, "a stream's path is"),
        (
            {"resource_type": GROUP, "resource_name": "g" * 250, "resource_pattern_type": PREFIXED, "operation": READ},
            Code.INVALID_REQUEST,
            "at most 249",
        ),
    ],
)
async def test_what_no_expression_says_is_refused_and_the_rest_is_done(
    plant: SecuredNode, wrong: dict[str, Any], code: Code, says: str
) -> None:
    refused, done = await create(plant, row(**wrong), row())
    assert refused[0] is code
    assert says in refused[1]
    assert done == (Code.NONE, "")
    assert await expressions(plant) == {("topic", "/s:t", "produce"): "u:bob"}


async def test_a_group_is_granted_by_its_very_name_shown_so_and_taken(plant: SecuredNode) -> None:
    await plant.access("group-prefix", "g", "consume", "u:alice")
    asked = {"resource_type": GROUP, "resource_name": "g1"}
    assert await create(plant, row(READ, **asked), row(DESCRIBE, **asked)) == [(Code.NONE, "")] * 2
    held = await expressions(plant)
    assert held["group", "g1", "consume"] == "u:alice | u:bob"
    assert held["group-prefix", "g", "consume"] == "u:alice"
    bob = plant.connection("bob")
    allowed = [
        name for name in ("g1", "g11", "g") if plant.parts.authorizer.allows(bob, Permission.CONSUME, Kind.GROUP, name)
    ]
    assert allowed == ["g1"]
    of_g1 = {"resource_type_filter": GROUP, "resource_name_filter": "g1", "pattern_type_filter": LITERAL}
    assert {(name, who) for name, who, _ in await shown(plant, **of_g1)} == {("g1", "User:alice"), ("g1", "User:bob")}
    match = await shown(plant, resource_type_filter=GROUP, resource_name_filter="g1", pattern_type_filter=2)
    assert {name for name, _, _ in match} == {"g1", "g"}
    answer = await plant.ask(ROOT, ApiKey.DELETE_ACLS, 3, {"filters": [of(principal_filter="User:bob", **of_g1)]})
    assert [each.error_code for each in answer.filter_results[0].matching_acls] == [0, 0]
    assert (await expressions(plant))["group", "g1", "consume"] == "u:alice"


async def test_create_of_a_topic_is_a_success_once_the_topic_is_there(plant: SecuredNode) -> None:
    assert await create(plant, row(CREATE), row(WRITE), row(DESCRIBE)) == [(Code.NONE, "")] * 3
    assert await expressions(plant) == {("topic", "/s:t", "produce"): "u:bob"}
    assert CREATE not in {operation for _, _, operation in await shown(plant, resource_type_filter=TOPIC)}
    ((code, message),) = await create(plant, row(CREATE, resource_name="/s:none"))
    assert (code, "there is no topic /s:none" in message) == (Code.UNKNOWN_TOPIC_OR_PARTITION, True)
    ((code, message),) = await create(plant, row(CREATE, resource_name="/s:", resource_pattern_type=PREFIXED))
    assert (code, "CREATE cannot be granted alone" in message) == (Code.INVALID_REQUEST, True)
    assert not plant.parts.authorizer.allows(plant.connection("bob"), Permission.TOPIC, Kind.TOPIC, "/s:t")


async def test_an_expression_without_a_form_is_named(plant: SecuredNode) -> None:
    await plant.access("stream", "/s", "produce", "u:alice & !g:out")
    says = "`produce` of stream /s is `u:alice & !g:out`, which is not a plain OR of users, so ACLs cannot change it"
    ((code, message),) = await create(plant, row())
    assert (code, message.startswith(says)) == (Code.INVALID_REQUEST, True)
    answer = await plant.ask(
        ROOT,
        ApiKey.DELETE_ACLS,
        3,
        {"filters": [of(resource_type_filter=TOPIC, resource_name_filter="/s:", pattern_type_filter=PREFIXED), of()]},
    )
    first, second = answer.filter_results
    assert (first.error_code, first.error_message.startswith(says)) == (Code.INVALID_REQUEST, True)
    assert second.error_code == 0
    assert await expressions(plant) == {("stream", "/s", "produce"): "u:alice & !g:out"}


async def test_of_many_edits_at_one_time_none_is_lost(plant: SecuredNode) -> None:
    users = [f"user-{index}" for index in range(20)]
    foreign = [
        plant.access("group", f"g-{index}", "consume", "u:x") for index in range(20)
    ]  # a concurrent edit, as if by another node
    done = await asyncio.gather(*(create(plant, row(principal=f"User:{each}")) for each in users), *foreign)
    assert all(each == [(Code.NONE, "")] for each in done[: len(users)])
    found = (await expressions(plant))["topic", "/s:t", "produce"]
    assert found == " | ".join(f"u:{each}" for each in sorted(users))


async def test_an_edit_by_another_node_meanwhile_is_kept(plant: SecuredNode, monkeypatch: pytest.MonkeyPatch) -> None:
    submit, others = plant.parts.catalog.submit, ["u:carol"]

    async def slow(command: Any, **options: Any) -> Any:
        if type(command).__name__ == "SetAccess" and command.expected and others:
            await plant.access("stream", "/s", "produce", others.pop())
        return await submit(command, **options)

    monkeypatch.setattr(plant.parts.catalog, "submit", slow)
    assert await create(plant, row()) == [(Code.NONE, "")]
    assert (await expressions(plant))["topic", "/s:t", "produce"] == "u:bob | u:carol"


async def test_requests_have_bounds(plant: SecuredNode) -> None:
    found = await create(plant, *([row()] * (MAX_CREATIONS + 1)))
    assert {code for code, _ in found} == {Code.INVALID_REQUEST}
    answer = await plant.ask(ROOT, ApiKey.DELETE_ACLS, 3, {"filters": [of()] * (MAX_FILTERS + 1)})
    assert {each.error_code for each in answer.filter_results} == {Code.INVALID_REQUEST}
    answer = await plant.ask(ROOT, ApiKey.DESCRIBE_ACLS, 3, of(resource_type_filter=0))
    assert answer.error_code == Code.INVALID_REQUEST


async def test_without_security_again_they_are_gone(plant: SecuredNode) -> None:
    await create(plant, row())
    await plant.parts.catalog.submit(SecureCluster(on=False))
    assert [code for code, _ in await create(plant, row())] == [Code.SECURITY_DISABLED]


async def test_librdkafkas_admin_client_makes_finds_and_deletes_them(plant: SecuredNode) -> None:
    await plant.access("cluster", "", "admin", f"u:{ROOT} | u:ANONYMOUS")
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{plant.parts.node.port}"})

    def acl(operation: AclOperation, name: str = "/s:", *, user: str = "User:bob") -> AclBinding:
        return AclBinding(
            ResourceType.TOPIC, name, ResourcePatternType.PREFIXED, user, "*", operation, AclPermissionType.ALLOW
        )

    every = AclBindingFilter(
        ResourceType.TOPIC,
        None,
        ResourcePatternType.ANY,
        "User:bob",
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    made = [acl(AclOperation.WRITE), acl(AclOperation.DESCRIBE), acl(AclOperation.READ, "/plant/")]
    for future in admin.create_acls(made).values():
        await asyncio.to_thread(future.result, 30)
    found = await asyncio.to_thread(admin.describe_acls(every).result, 30)
    assert set(found) == {*made, acl(AclOperation.DESCRIBE, "/plant/")}
    (refused,) = admin.create_acls([acl(AclOperation.CREATE)]).values()
    with pytest.raises(KafkaException, match="CREATE cannot be granted alone"):
        await asyncio.to_thread(refused.result, 30)
    (deleted,) = admin.delete_acls([every]).values()
    assert len(await asyncio.to_thread(deleted.result, 30)) == 4
    assert await asyncio.to_thread(admin.describe_acls(every).result, 30) == []

"""Consumer groups and their committed offsets through the bytes of their APIs, on a node with a real catalog."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import Code, KafkaError, StorageFull
from headrace.kafka.authorized_operations import GROUP_OPERATIONS, NOT_ASKED, bits
from headrace.kafka.groups import MAX_REBALANCE_MS
from headrace.node import Node
from headrace.node.parts import NodeParts
from headrace.security.access_rules import Kind, Permission
from headrace.security.kafka_acls import AclOperation
from headrace.wire.api_keys import ApiKey
from kit.access import User, put, secure
from kit.group_calls import (
    SUBSCRIPTION,
    Ask,
    alone,
    asker,
    codes,
    commit,
    committed_offsets,
    fetched,
    join,
    let_sessions_be_short,
    sync,
    until,
)
from kit.parts import options


@pytest.fixture
def ask(broker: NodeParts) -> Ask:
    return asker(broker)


# --- every version


@pytest.mark.parametrize("version", range(10))
async def test_life_of_a_member_in_every_version(broker: NodeParts, ask: Ask, orders: str, version: int) -> None:
    def at_most(key: ApiKey) -> int:
        low, high = broker.dispatcher.apis[key].versions
        return max(low, min(version, high))

    joined = await join(ask, version=version)
    assert joined.error_code == Code.NONE
    assert (joined.generation_id, joined.protocol_name, joined.leader) == (1, "range", joined.member_id)
    assert [(m.member_id, m.metadata) for m in joined.members] == [(joined.member_id, SUBSCRIPTION)]
    synced = await sync(ask, joined, at_most(ApiKey.SYNC_GROUP), plan={joined.member_id: b"all"})
    assert (synced.error_code, synced.assignment) == (Code.NONE, b"all")
    me = {"group_id": "g", "member_id": joined.member_id}
    beat = await ask(ApiKey.HEARTBEAT, at_most(ApiKey.HEARTBEAT), generation_id=joined.generation_id, **me)
    assert beat.error_code == Code.NONE
    committed = await commit(ask, committed_offsets(orders, 42), at_most(ApiKey.OFFSET_COMMIT), joined)
    assert codes(committed) == [Code.NONE]
    fetch_version = at_most(ApiKey.OFFSET_FETCH)
    wanted = [{"name": orders, "partition_indexes": [0]}]
    answer = await ask(
        ApiKey.OFFSET_FETCH,
        fetch_version,
        **(
            {"groups": [{"group_id": "g", "topics": wanted}]}
            if fetch_version >= 8
            else {"group_id": "g", "topics": wanted}
        ),
    )
    (topic,) = answer.groups[0].topics if fetch_version >= 8 else answer.topics
    assert topic.partitions[0].committed_offset == 42
    described = await ask(ApiKey.DESCRIBE_GROUPS, at_most(ApiKey.DESCRIBE_GROUPS), groups=["g"])
    assert described.groups[0].group_state == "Stable"
    assert described.groups[0].members[0].client_host == "/127.0.0.1"
    leave_version = at_most(ApiKey.LEAVE_GROUP)
    left = await ask(
        ApiKey.LEAVE_GROUP,
        leave_version,
        **({"group_id": "g", "members": [{"member_id": joined.member_id}]} if leave_version >= 3 else me),
    )
    assert left.error_code == Code.NONE
    listed = await ask(ApiKey.LIST_GROUPS, at_most(ApiKey.LIST_GROUPS))
    assert [group.group_id for group in listed.groups] == ["g"]
    deleted = await ask(ApiKey.DELETE_GROUPS, at_most(ApiKey.DELETE_GROUPS), groups_names=["g"])
    assert deleted.results[0].error_code == Code.NONE
    assert await fetched(ask, None) == {}


@pytest.mark.parametrize("version", range(5))
async def test_every_group_is_coordinated_here(ask: Ask, broker: NodeParts, version: int) -> None:
    if version < 4:
        found = await ask(ApiKey.FIND_COORDINATOR, version, key="g")
        coordinators = [found]
    else:
        found = await ask(ApiKey.FIND_COORDINATOR, version, key_type=0, coordinator_keys=["g", "h"])
        coordinators = list(found.coordinators)
        assert [each.key for each in coordinators] == ["g", "h"]
    for each in coordinators:
        assert (each.error_code, each.node_id, each.host, each.port) == (
            0,
            broker.node.node_id,
            broker.node.host,
            broker.node.port,
        )


async def test_transactions_have_no_coordinator_yet(ask: Ask) -> None:
    """The code is final for every client, and Java's client and librdkafka show its message."""
    found = await ask(ApiKey.FIND_COORDINATOR, 4, key_type=1, coordinator_keys=["t"])
    assert found.coordinators[0].error_code == Code.CLUSTER_AUTHORIZATION_FAILED
    assert "transactions are not supported" in found.coordinators[0].error_message


# --- groups


async def test_two_members_share_a_generation(ask: Ask) -> None:
    one, two = await asyncio.gather(join(ask, client_id="one"), join(ask, client_id="two"))
    leader, follower = (one, two) if one.members else (two, one)
    assert leader.generation_id == follower.generation_id
    assert {member.member_id for member in leader.members} == {one.member_id, two.member_id}
    waiting = asyncio.create_task(sync(ask, follower))
    led = await sync(ask, leader, plan={leader.member_id: b"l", follower.member_id: b"f"})
    assert (led.assignment, (await waiting).assignment) == (b"l", b"f")


@pytest.mark.parametrize(
    ("key", "fields"),
    [
        (ApiKey.HEARTBEAT, {"generation_id": 1, "member_id": "m"}),
        (ApiKey.LEAVE_GROUP, {"members": [{"member_id": "m"}]}),
        (ApiKey.OFFSET_DELETE, {"topics": []}),
        (ApiKey.SYNC_GROUP, {"generation_id": 1, "member_id": "m", "protocol_type": "c", "protocol_name": "r"}),
        (ApiKey.JOIN_GROUP, {"session_timeout": 30_000, "member_id": "", "protocol_type": "consumer"}),
    ],
)
async def test_group_needs_an_id(ask: Ask, key: ApiKey, fields: dict[str, Any]) -> None:
    assert (await ask(key, group_id="", **fields)).error_code == Code.INVALID_GROUP_ID


async def test_sync_of_version_5_names_its_protocol(ask: Ask) -> None:
    joined = await join(ask)
    answer = await ask(ApiKey.SYNC_GROUP, 5, group_id="g", generation_id=1, member_id=joined.member_id)
    assert answer.error_code == Code.INCONSISTENT_GROUP_PROTOCOL


async def test_members_go_on_after_the_node_restarts(tmp_path: Path) -> None:
    node = Node(options(tmp_path))
    await node.start()
    await node.parts.topics.resolve(["orders"], create=True)
    ask = asker(node.parts)
    member = await alone(ask, group_instance_id="i")
    await commit(ask, committed_offsets("orders", 7), member=member)
    await node.stop()
    node = Node(options(tmp_path))
    await node.start()
    try:
        ask = asker(node.parts)
        beat = await ask(ApiKey.HEARTBEAT, group_id="g", generation_id=member.generation_id, member_id=member.member_id)
        assert beat.error_code == Code.NONE
        assert codes(await commit(ask, committed_offsets("orders", 8), member=member)) == [Code.NONE]
        assert await fetched(ask, None) == {("orders", 0): 8}
        back = await join(ask, group_instance_id="i")
        assert back.generation_id == member.generation_id
        assert (await sync(ask, back)).assignment == b"all"
    finally:
        await node.stop()


async def test_silent_member_is_removed_by_the_clock(broker: NodeParts) -> None:
    await let_sessions_be_short(broker)
    ask = asker(broker)
    await alone(ask, session_timeout=50)
    await until(ask, "g", "Empty")


async def test_client_that_goes_away_while_it_joins_leaves_its_member_for_a_session(broker: NodeParts) -> None:
    ask = asker(broker)
    member = await alone(ask)
    gone = asyncio.create_task(join(ask, client_id="gone"))
    await until(ask, "g", "PreparingRebalance")
    gone.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await gone
    again = await join(ask, member_id=member.member_id)
    assert again.generation_id == member.generation_id + 1
    assert {each.member_id.partition("-")[0] for each in again.members} == {"app", "gone"}


async def test_assignment_that_cannot_be_stored_reaches_nobody(
    broker: NodeParts, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = await join(ask)

    async def full(command: object, *, here: bool) -> object:
        raise StorageFull("no room")

    with monkeypatch.context() as patched:
        patched.setattr(broker.catalog, "submit", full)
        answer = await sync(ask, joined, plan={joined.member_id: b"all"})
        assert (answer.error_code, answer.assignment) == (Code.COORDINATOR_NOT_AVAILABLE, b"")
    again = await join(ask, member_id=joined.member_id)
    answer = await sync(ask, again, plan={joined.member_id: b"all"})
    assert (answer.error_code, answer.assignment) == (Code.NONE, b"all")


async def test_waiting_requests_are_answered_when_the_node_stops(broker: NodeParts, ask: Ask) -> None:
    member = await alone(ask)
    waiting = asyncio.create_task(join(ask, client_id="new"))
    await until(ask, "g", "PreparingRebalance")
    broker.coordination.close()
    assert (await waiting).error_code == Code.COORDINATOR_NOT_AVAILABLE
    assert (await join(ask, member_id=member.member_id)).error_code == Code.COORDINATOR_NOT_AVAILABLE


# --- committed offsets


async def test_while_the_coordinator_loads_members_live_and_join_again(
    broker: NodeParts, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients do not handle the loading error here: aiokafka stops its heartbeats, and Java's consumer ends."""

    async def loads() -> None:
        raise KafkaError(Code.COORDINATOR_LOAD_IN_PROGRESS)

    monkeypatch.setattr(broker.coordination, "service", loads)
    beat = {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None}
    assert (await ask(ApiKey.HEARTBEAT, **beat)).error_code == Code.NONE
    sync = {"protocol_type": "consumer", "protocol_name": "range", "assignments": []}
    assert (await ask(ApiKey.SYNC_GROUP, **beat, **sync)).error_code == Code.REBALANCE_IN_PROGRESS


# --- operators


async def test_groups_are_listed_by_state(ask: Ask, orders: str) -> None:
    await commit(ask, committed_offsets(orders, 1), group="simple")
    await alone(ask, "busy")
    listed = await ask(ApiKey.LIST_GROUPS)
    assert {(g.group_id, g.protocol_type, g.group_state) for g in listed.groups} == {
        ("simple", "", "Empty"),
        ("busy", "consumer", "Stable"),
    }
    listed = await ask(ApiKey.LIST_GROUPS, states_filter=["stable"])
    assert [group.group_id for group in listed.groups] == ["busy"]
    for wanted, found in (("classic", {"simple", "busy"}), ("consumer", set()), ("share", set())):
        listed = await ask(ApiKey.LIST_GROUPS, 5, types_filter=[wanted.capitalize()])
        assert {group.group_id for group in listed.groups} == found
        assert {group.group_type for group in listed.groups} <= {"classic"}


async def test_description_shows_the_members(ask: Ask) -> None:
    member = await alone(ask, group_instance_id="i")
    described = await ask(ApiKey.DESCRIBE_GROUPS, groups=["g", "nobody's"])
    mine, nobodys = described.groups
    assert (mine.group_state, mine.protocol_type, mine.protocol_data) == ("Stable", "consumer", "range")
    (shown,) = mine.members
    assert (shown.member_id, shown.group_instance_id, shown.client_id) == (member.member_id, "i", "app")
    assert (shown.member_metadata, shown.member_assignment) == (SUBSCRIPTION, b"all")
    assert (nobodys.error_code, nobodys.group_state) == (Code.NONE, "Dead")


@pytest.mark.parametrize("version", range(3, 6))
async def test_all_that_can_be_done_to_a_group_is_told_where_it_is_asked_for(ask: Ask, version: int) -> None:
    await alone(ask)
    for asked, told in ((True, 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11), (False, -(2**31))):
        answer = await ask(ApiKey.DESCRIBE_GROUPS, version, groups=["g"], include_authorized_operations=asked)
        assert answer.groups[0].authorized_operations == told


async def test_groups_with_members_are_not_deleted(ask: Ask, orders: str) -> None:
    await alone(ask, "busy")
    await commit(ask, committed_offsets(orders, 1), group="simple")
    answer = await ask(ApiKey.DELETE_GROUPS, groups_names=["busy", "simple", "nobody's"])
    assert {result.group_id: int(result.error_code) for result in answer.results} == {
        "busy": Code.NON_EMPTY_GROUP,
        "simple": Code.NONE,
        "nobody's": Code.GROUP_ID_NOT_FOUND,
    }
    assert await fetched(ask, None, "simple") == {}
    assert codes(await commit(ask, committed_offsets(orders, 1), group="simple")) == [Code.NONE]


async def test_groups_that_lost_their_members_while_the_node_was_down_become_empty(tmp_path: Path) -> None:
    node = Node(options(tmp_path))
    await node.start()
    await let_sessions_be_short(node.parts)
    await alone(asker(node.parts), session_timeout=200)
    await node.stop()
    node = Node(options(tmp_path))
    await node.start()
    try:
        ask = asker(node.parts)
        await (await node.parts.coordination.service()).warm()
        async with asyncio.timeout(100):
            while True:  # listing does not load the group, so only the warm-up can end its members
                listed = await ask(ApiKey.LIST_GROUPS, states_filter=["Empty"])
                if listed.groups:
                    break
                await asyncio.sleep(0.001)
    finally:
        await node.stop()


@pytest.mark.parametrize(("named", "kept"), [(2**31 - 1, MAX_REBALANCE_MS), (-(2**31), 1), (0, 1), (60_000, 60_000)])
async def test_how_long_a_rebalance_may_last_is_bounded_whatever_a_member_names(
    broker: NodeParts, ask: Ask, named: int, kept: int
) -> None:
    joined = await join(ask, rebalance_timeout=named)
    service = await broker.coordination.service()
    member = service._coordinator._groups["g"].members.get(joined.member_id)
    assert member is not None
    assert member.rebalance_timeout_ms == kept


# --- what a client may do with groups


@pytest.fixture
async def secured(broker: NodeParts, orders: str) -> NodeParts:
    """Alice and bob may consume; only bob may use bob's groups."""
    await put(
        broker,
        {
            (Kind.STREAM, "/default", Permission.CONSUME): "u:alice | u:bob",
            (Kind.GROUP_PREFIX, "bob-", Permission.CONSUME): "u:bob",
            (Kind.GROUP_PREFIX, "bob-", Permission.ADMIN): "u:keeper",
        },
    )
    await secure(broker)
    return broker


async def test_whoever_consumes_something_uses_a_group_of_which_nothing_is_said(secured: NodeParts) -> None:
    alice, mallory = User(secured, "alice"), User(secured, "mallory")
    joined = await alone(alice.ask)
    assert codes(await commit(alice.ask, committed_offsets("orders", 3), member=joined)) == [Code.NONE]
    assert await fetched(alice.ask, None) == {("orders", 0): 3}
    assert (await join(mallory.ask)).error_code == Code.GROUP_AUTHORIZATION_FAILED


async def test_a_member_that_may_no_longer_be_one_hears_so_at_its_next_request(secured: NodeParts) -> None:
    alice = User(secured, "alice")
    joined = await alone(alice.ask)
    me = {"group_id": "g", "member_id": joined.member_id, "generation_id": joined.generation_id}
    assert (await alice.ask(ApiKey.HEARTBEAT, **me)).error_code == Code.NONE
    await put(secured, {(Kind.GROUP, "g", Permission.CONSUME): "u:bob"})
    refused = Code.GROUP_AUTHORIZATION_FAILED
    assert (await alice.ask(ApiKey.HEARTBEAT, **me)).error_code == refused
    assert codes(await commit(alice.ask, committed_offsets("orders", 3), member=joined)) == [refused]


async def test_lists_and_descriptions_have_the_groups_that_a_client_may_describe(secured: NodeParts) -> None:
    alice, bob, keeper = (User(secured, name) for name in ("alice", "bob", "keeper"))
    await alone(alice.ask, "shared")
    await alone(bob.ask, "bob-app")
    for client, seen in ((alice, ["shared"]), (bob, ["bob-app", "shared"]), (keeper, ["bob-app"])):
        listed = await client.ask(ApiKey.LIST_GROUPS)
        assert sorted(group.group_id for group in listed.groups) == seen
        described = await client.ask(ApiKey.DESCRIBE_GROUPS, groups=["shared", "bob-app", "bob-none"])
        found = [group.group_id for group in described.groups if not group.error_code]
        assert set(found) - {"bob-none"} == set(seen)


async def test_operations_on_a_group_are_those_that_a_client_may_perform(secured: NodeParts) -> None:
    keeper, bob = User(secured, "keeper"), User(secured, "bob")

    async def told(client: User, *, asked: bool = True) -> int:
        answer = await client.ask(ApiKey.DESCRIBE_GROUPS, groups=["bob-app"], include_authorized_operations=asked)
        return int(answer.groups[0].authorized_operations)

    assert await told(bob) == bits([AclOperation.READ, AclOperation.DESCRIBE])
    assert await told(keeper) == GROUP_OPERATIONS - bits([AclOperation.READ])
    assert await told(bob, asked=False) == NOT_ASKED
    await secure(secured, on=False)
    assert await told(User(secured)) == GROUP_OPERATIONS


async def test_of_several_groups_those_that_may_be_deleted_are(secured: NodeParts) -> None:
    bob, keeper = User(secured, "bob"), User(secured, "keeper")
    await commit(bob.ask, committed_offsets("orders", 3), group="bob-app")
    answer = await keeper.ask(ApiKey.DELETE_GROUPS, groups_names=["g", "bob-app", "bob-none"])
    assert [(each.group_id, each.error_code) for each in answer.results] == [
        ("g", Code.GROUP_AUTHORIZATION_FAILED),
        ("bob-app", Code.NONE),
        ("bob-none", Code.GROUP_ID_NOT_FOUND),
    ]


async def test_of_several_coordinators_those_are_told_that_may_be_asked_for(secured: NodeParts) -> None:
    found = await User(secured, "alice").ask(ApiKey.FIND_COORDINATOR, key_type=0, coordinator_keys=["g", "bob-app"])
    assert [(each.key, each.error_code, each.port > 0) for each in found.coordinators] == [
        ("g", Code.NONE, True),
        ("bob-app", Code.GROUP_AUTHORIZATION_FAILED, False),
    ]
    found = await User(secured, "mallory").ask(ApiKey.FIND_COORDINATOR, 0, key="g")
    assert found.error_code == Code.GROUP_AUTHORIZATION_FAILED

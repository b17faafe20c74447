"""Consumer groups and their cursors through the bytes of their APIs, on a node with a real catalog."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.errors import Code, KafkaError, StorageFull
from headrace.coordination.limits import GroupLimits
from headrace.coordination.service import make_service
from headrace.kafka.groups import MOST_REBALANCE_MS
from headrace.node import Node
from headrace.node.parts import NodeParts
from headrace.wire import generic_codec
from headrace.wire.api_keys import ApiKey
from kit.parts import handler, options

Ask = Callable[..., Awaitable[Any]]

SUBSCRIPTION = b"\0\0\0\0\0\1\0\6orders\0\0\0\0"
"""Of a consumer, to the topic `orders`."""


def asker(broker: NodeParts) -> Ask:
    """Asks as a client of that name would, through request and response bytes."""

    async def ask(key: ApiKey, version: int | None = None, /, client_id: str = "app", **fields: Any) -> Any:
        version = broker.dispatcher.apis[key].versions.highest if version is None else version
        request = generic_codec.decode_request(key, version, generic_codec.encode_request(key, version, fields))
        session = SimpleNamespace(client_id=client_id, peer="127.0.0.1:5000", listener="")
        answer = await handler(broker, key)(request, session)
        return generic_codec.decode_response(key, version, generic_codec.encode_response(key, version, answer))

    return ask


@pytest.fixture
def ask(broker: NodeParts) -> Ask:
    return asker(broker)


@pytest.fixture
async def orders(broker: NodeParts) -> str:
    """A topic of the default stream."""
    (topic,) = await broker.topics.resolve(["orders"], create=True)
    assert topic.topic_id
    return "orders"


async def join(ask: Ask, group: str = "g", member_id: str = "", version: int = 9, **more: Any) -> Any:
    fields: dict[str, Any] = {
        "group_id": group,
        "session_timeout": 30_000,
        "rebalance_timeout": 60_000,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": SUBSCRIPTION}],
    }
    result = await ask(ApiKey.JOIN_GROUP, version, **fields | more)
    if result.error_code == Code.MEMBER_ID_REQUIRED:
        return await join(ask, group, result.member_id, version, **more)
    return result


async def sync(ask: Ask, joined: Any, version: int = 5, group: str = "g", plan: Mapping[str, bytes] = {}) -> Any:
    assignments = [{"member_id": member, "assignment": each} for member, each in plan.items()]
    return await ask(
        ApiKey.SYNC_GROUP,
        version,
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=assignments,
    )


async def alone(ask: Ask, group: str = "g", **more: Any) -> Any:
    """A group of one member that has its assignment."""
    joined = await join(ask, group, **more)
    assert joined.error_code == Code.NONE
    synced = await sync(ask, joined, group=group, plan={joined.member_id: b"all"})
    assert (synced.error_code, synced.assignment) == (Code.NONE, b"all")
    return joined


async def until(ask: Ask, group: str, *states: str) -> None:
    """Wait until the group is in one of these states."""
    async with asyncio.timeout(100):
        while True:
            described = await ask(ApiKey.DESCRIBE_GROUPS, groups=[group])
            if described.groups[0].group_state in states:
                return
            await asyncio.sleep(0.001)


def cursors(name: str, *offsets: int, metadata: str | None = "") -> list[dict[str, Any]]:
    partitions = [
        {"partition_index": index, "committed_offset": offset, "committed_metadata": metadata}
        for index, offset in enumerate(offsets)
    ]
    return [{"name": name, "partitions": partitions}]


async def commit(ask: Ask, topics: list[dict[str, Any]], version: int = 9, member: Any = None, group: str = "g") -> Any:
    return await ask(
        ApiKey.OFFSET_COMMIT,
        version,
        group_id=group,
        generation_id_or_member_epoch=member.generation_id if member else -1,
        member_id=member.member_id if member else "",
        topics=topics,
    )


async def fetched(ask: Ask, topics: list[tuple[str, list[int]]] | None, group: str = "g") -> dict[tuple[str, int], int]:
    asked = None if topics is None else [{"name": name, "partition_indexes": parts} for name, parts in topics]
    answer = await ask(ApiKey.OFFSET_FETCH, groups=[{"group_id": group, "topics": asked}])
    (found,) = answer.groups
    assert found.error_code == Code.NONE
    return {
        (topic.name, part.partition_index): part.committed_offset for topic in found.topics for part in topic.partitions
    }


def codes(answer: Any) -> list[int]:
    return [int(part.error_code) for topic in answer.topics for part in topic.partitions]


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
    committed = await commit(ask, cursors(orders, 42), at_most(ApiKey.OFFSET_COMMIT), joined)
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
    """The code is final for every client, and one with which Java's and librdkafka show the message."""
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
    await commit(ask, cursors("orders", 7), member=member)
    await node.stop()
    node = Node(options(tmp_path))
    await node.start()
    try:
        ask = asker(node.parts)
        beat = await ask(ApiKey.HEARTBEAT, group_id="g", generation_id=member.generation_id, member_id=member.member_id)
        assert beat.error_code == Code.NONE
        assert codes(await commit(ask, cursors("orders", 8), member=member)) == [Code.NONE]
        assert await fetched(ask, None) == {("orders", 0): 8}
        back = await join(ask, group_instance_id="i")
        assert back.generation_id == member.generation_id
        assert (await sync(ask, back)).assignment == b"all"
    finally:
        await node.stop()


async def let_sessions_be_short(broker: NodeParts) -> None:
    (await broker.coordination.service()).close()
    limits = GroupLimits(initial_rebalance_delay_ms=10, min_session_timeout_ms=50)
    broker.coordination._service = make_service(runtime=broker.runtime, catalog=broker.catalog, limits=limits)


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


# --- cursors


async def test_each_partition_of_a_commit_has_its_own_code(ask: Ask, orders: str) -> None:
    topics = cursors(orders, 1, 2) + cursors("no-such-topic", 3) + cursors("not/a/name", 4)
    assert codes(await commit(ask, topics)) == [
        Code.NONE,
        Code.UNKNOWN_TOPIC_OR_PARTITION,  # it has one partition
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert await fetched(ask, None) == {(orders, 0): 1}


@pytest.mark.parametrize(("metadata", "code"), [("x" * 4096, 0), ("x" * 4097, 12), ("ä" * 2048, 0), ("ä" * 2049, 12)])
async def test_metadata_is_bounded_in_bytes(ask: Ask, orders: str, metadata: str, code: int) -> None:
    assert codes(await commit(ask, cursors(orders, 1, metadata=metadata))) == [code]


async def test_commits_are_fenced(ask: Ask, orders: str) -> None:
    member = await alone(ask)
    stale = SimpleNamespace(generation_id=member.generation_id - 1, member_id=member.member_id)
    stranger = SimpleNamespace(generation_id=member.generation_id, member_id="stranger")
    assert codes(await commit(ask, cursors(orders, 1), member=stale)) == [Code.ILLEGAL_GENERATION]
    assert codes(await commit(ask, cursors(orders, 1), member=stranger)) == [Code.UNKNOWN_MEMBER_ID]
    assert codes(await commit(ask, cursors(orders, 1))) == [Code.UNKNOWN_MEMBER_ID]
    assert codes(await commit(ask, cursors(orders, 1), member=member, group="other")) == [Code.ILLEGAL_GENERATION]
    assert await fetched(ask, None) == {}


async def test_commit_that_cannot_be_stored_is_to_be_repeated(
    broker: NodeParts, ask: Ask, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(command: object, *, here: bool) -> object:
        raise StorageFull("no room")

    monkeypatch.setattr(broker.catalog, "submit", full)
    assert codes(await commit(ask, cursors(orders, 1))) == [Code.COORDINATOR_NOT_AVAILABLE]


async def test_a_commit_that_is_too_large_is_refused_and_stops_nobody(ask: Ask, orders: str) -> None:
    """It would be one frame of the catalog's log, and too long for any follower."""
    many = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": "x" * 4096}] * 8_300
    assert set(codes(await commit(ask, [{"name": orders, "partitions": many}]))) == {Code.INVALID_COMMIT_OFFSET_SIZE}
    assert codes(await commit(ask, cursors(orders, 2))) == [0]
    assert await fetched(ask, None) == {(orders, 0): 2}


async def test_while_the_coordinator_loads_members_live_and_join_again(
    broker: NodeParts, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients do not know the error for it here: aiokafka ends its heartbeats at it, Java's consumer ends."""

    async def loads() -> None:
        raise KafkaError(Code.COORDINATOR_LOAD_IN_PROGRESS)

    monkeypatch.setattr(broker.coordination, "service", loads)
    beat = {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None}
    assert (await ask(ApiKey.HEARTBEAT, **beat)).error_code == Code.NONE
    sync = {"protocol_type": "consumer", "protocol_name": "range", "assignments": []}
    assert (await ask(ApiKey.SYNC_GROUP, **beat, **sync)).error_code == Code.REBALANCE_IN_PROGRESS


async def test_all_forms_of_a_name_are_one_cursor(ask: Ask, orders: str) -> None:
    await commit(ask, cursors("/default:orders", 5))
    forms = ["orders", "/default:orders", "default..orders"]
    assert await fetched(ask, [(form, [0]) for form in forms]) == {(form, 0): 5 for form in forms}


async def test_cursor_that_nobody_committed_is_minus_one(ask: Ask, orders: str) -> None:
    asked = [(orders, [0, 9]), ("no-such-topic", [0])]
    assert await fetched(ask, asked) == {(orders, 0): -1, (orders, 9): -1, ("no-such-topic", 0): -1}


async def test_cursors_of_several_groups_in_one_request(ask: Ask, orders: str) -> None:
    for offset, group in enumerate(["a", "b"]):
        topic = {
            "partition_index": 0,
            "committed_offset": offset,
            "committed_metadata": group,
            "committed_leader_epoch": 3,
        }
        await commit(ask, [{"name": orders, "partitions": [topic]}], group=group)
    groups = [{"group_id": group, "topics": None} for group in ["a", "b", "c"]]
    answer = await ask(ApiKey.OFFSET_FETCH, 9, groups=groups, require_stable=True)
    parts = [[part for topic in group.topics for part in topic.partitions] for group in answer.groups]
    assert [[(p.committed_offset, p.metadata, p.committed_leader_epoch) for p in each] for each in parts] == [
        [(0, "a", 3)],
        [(1, "b", 3)],
        [],
    ]


async def test_cursors_of_topics_in_use_are_not_deleted(ask: Ask, broker: NodeParts, orders: str) -> None:
    await broker.topics.resolve(["bills"], create=True)
    await commit(ask, cursors(orders, 1) + cursors("bills", 2))
    await alone(ask)  # subscribed to orders
    topics = [{"name": name, "partitions": [{"partition_index": 0}]} for name in [orders, "bills", "none"]]
    answer = await ask(ApiKey.OFFSET_DELETE, group_id="g", topics=topics)
    assert codes(answer) == [Code.GROUP_SUBSCRIBED_TO_TOPIC, Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION]
    assert await fetched(ask, None) == {(orders, 0): 1}


async def test_cursors_of_an_unknown_or_foreign_group_are_not_deleted(ask: Ask, orders: str) -> None:
    topics = [{"name": orders, "partitions": [{"partition_index": 0}]}]
    answer = await ask(ApiKey.OFFSET_DELETE, group_id="nobody's", topics=topics)
    assert answer.error_code == Code.GROUP_ID_NOT_FOUND
    await join(ask, "workers", protocol_type="connect")
    answer = await ask(ApiKey.OFFSET_DELETE, group_id="workers", topics=topics)
    assert answer.error_code == Code.NON_EMPTY_GROUP


# --- operators


async def test_groups_are_listed_by_state(ask: Ask, orders: str) -> None:
    await commit(ask, cursors(orders, 1), group="simple")
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
    await commit(ask, cursors(orders, 1), group="simple")
    answer = await ask(ApiKey.DELETE_GROUPS, groups_names=["busy", "simple", "nobody's"])
    assert {result.group_id: int(result.error_code) for result in answer.results} == {
        "busy": Code.NON_EMPTY_GROUP,
        "simple": Code.NONE,
        "nobody's": Code.GROUP_ID_NOT_FOUND,
    }
    assert await fetched(ask, None, "simple") == {}
    assert codes(await commit(ask, cursors(orders, 1), group="simple")) == [Code.NONE]


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
            while True:  # listing does not load the group, so it is the warm-up that ends its members
                listed = await ask(ApiKey.LIST_GROUPS, states_filter=["Empty"])
                if listed.groups:
                    break
                await asyncio.sleep(0.001)
    finally:
        await node.stop()


@pytest.mark.parametrize(("named", "kept"), [(2**31 - 1, MOST_REBALANCE_MS), (-(2**31), 1), (0, 1), (60_000, 60_000)])
async def test_how_long_a_rebalance_may_last_is_bounded_whatever_a_member_names(
    broker: NodeParts, ask: Ask, named: int, kept: int
) -> None:
    joined = await join(ask, rebalance_timeout=named)
    service = await broker.coordination.service()
    member = service._coordinator._groups["g"].members.get(joined.member_id)
    assert member is not None
    assert member.rebalance_timeout_ms == kept

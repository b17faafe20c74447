"""Offsets that groups commit, fetch and delete."""

from types import SimpleNamespace

import pytest

from headrace.base.errors import Code, StorageFull
from headrace.node.parts import NodeParts
from headrace.security.access_rules import Kind, Permission
from headrace.wire.api_keys import ApiKey
from kit.access import User, put, secure
from kit.group_calls import Ask, alone, asker, codes, commit, committed_offsets, fetched, join


@pytest.fixture
def ask(broker: NodeParts) -> Ask:
    return asker(broker)


async def test_each_partition_of_a_commit_has_its_own_code(ask: Ask, orders: str) -> None:
    topics = (
        committed_offsets(orders, 1, 2) + committed_offsets("no-such-topic", 3) + committed_offsets("not/a/name", 4)
    )
    assert codes(await commit(ask, topics)) == [
        Code.NONE,
        Code.UNKNOWN_TOPIC_OR_PARTITION,  # it has one partition
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert await fetched(ask, None) == {(orders, 0): 1}


@pytest.mark.parametrize(("metadata", "code"), [("x" * 4096, 0), ("x" * 4097, 12), ("ä" * 2048, 0), ("ä" * 2049, 12)])
async def test_metadata_is_bounded_in_bytes(ask: Ask, orders: str, metadata: str, code: int) -> None:
    assert codes(await commit(ask, committed_offsets(orders, 1, metadata=metadata))) == [code]


async def test_commits_are_fenced(ask: Ask, orders: str) -> None:
    member = await alone(ask)
    stale = SimpleNamespace(generation_id=member.generation_id - 1, member_id=member.member_id)
    stranger = SimpleNamespace(generation_id=member.generation_id, member_id="stranger")
    assert codes(await commit(ask, committed_offsets(orders, 1), member=stale)) == [Code.ILLEGAL_GENERATION]
    assert codes(await commit(ask, committed_offsets(orders, 1), member=stranger)) == [Code.UNKNOWN_MEMBER_ID]
    assert codes(await commit(ask, committed_offsets(orders, 1))) == [Code.UNKNOWN_MEMBER_ID]
    assert codes(await commit(ask, committed_offsets(orders, 1), member=member, group="other")) == [
        Code.ILLEGAL_GENERATION
    ]
    assert await fetched(ask, None) == {}


async def test_commit_that_cannot_be_stored_is_to_be_repeated(
    broker: NodeParts, ask: Ask, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(command: object, *, here: bool) -> object:
        raise StorageFull("no room")

    monkeypatch.setattr(broker.catalog, "submit", full)
    assert codes(await commit(ask, committed_offsets(orders, 1))) == [Code.COORDINATOR_NOT_AVAILABLE]


async def test_a_commit_that_is_too_large_is_refused_and_stops_nobody(ask: Ask, orders: str) -> None:
    """Its command would be one frame of the catalog's log, too long for any follower."""
    many = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": "x" * 4096}] * 8_300
    assert set(codes(await commit(ask, [{"name": orders, "partitions": many}]))) == {Code.INVALID_COMMIT_OFFSET_SIZE}
    assert codes(await commit(ask, committed_offsets(orders, 2))) == [0]
    assert await fetched(ask, None) == {(orders, 0): 2}


async def test_all_forms_of_a_name_are_one_committed_offset(ask: Ask, orders: str) -> None:
    await commit(ask, committed_offsets("/default:orders", 5))
    forms = ["orders", "/default:orders", "default..orders"]
    assert await fetched(ask, [(form, [0]) for form in forms]) == {(form, 0): 5 for form in forms}


async def test_committed_offset_that_nobody_committed_is_minus_one(ask: Ask, orders: str) -> None:
    asked = [(orders, [0, 9]), ("no-such-topic", [0])]
    assert await fetched(ask, asked) == {(orders, 0): -1, (orders, 9): -1, ("no-such-topic", 0): -1}


async def test_committed_offsets_of_several_groups_in_one_request(ask: Ask, orders: str) -> None:
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


async def test_committed_offsets_of_topics_in_use_are_not_deleted(ask: Ask, broker: NodeParts, orders: str) -> None:
    await broker.topics.resolve(["bills"], create=True)
    await commit(ask, committed_offsets(orders, 1) + committed_offsets("bills", 2))
    await alone(ask)  # the group is subscribed to orders
    topics = [{"name": name, "partitions": [{"partition_index": 0}]} for name in [orders, "bills", "none"]]
    answer = await ask(ApiKey.OFFSET_DELETE, group_id="g", topics=topics)
    assert codes(answer) == [Code.GROUP_SUBSCRIBED_TO_TOPIC, Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION]
    assert await fetched(ask, None) == {(orders, 0): 1}


async def test_committed_offsets_of_an_unknown_or_foreign_group_are_not_deleted(ask: Ask, orders: str) -> None:
    topics = [{"name": orders, "partitions": [{"partition_index": 0}]}]
    answer = await ask(ApiKey.OFFSET_DELETE, group_id="nobody's", topics=topics)
    assert answer.error_code == Code.GROUP_ID_NOT_FOUND
    await join(ask, "workers", protocol_type="connect")
    answer = await ask(ApiKey.OFFSET_DELETE, group_id="workers", topics=topics)
    assert answer.error_code == Code.NON_EMPTY_GROUP


async def test_of_several_topics_those_that_a_client_may_read_are_committed_fetched_and_deleted(
    broker: NodeParts, orders: str
) -> None:
    await broker.topics.resolve(["written", "hidden"], create=True)
    admin = User(broker)
    assert (
        codes(await commit(admin.ask, committed_offsets("hidden", 7) + committed_offsets("written", 8)))
        == [Code.NONE] * 2
    )
    await put(
        broker,
        {
            (Kind.TOPIC, "/default:orders", Permission.CONSUME): "u:alice",
            (Kind.TOPIC, "/default:written", Permission.PRODUCE): "u:alice",
            (Kind.GROUP, "g", Permission.CONSUME): "u:alice",
            (Kind.GROUP, "g", Permission.ADMIN): "u:alice",
        },
    )
    await secure(broker)
    alice, refused = User(broker, "alice"), Code.TOPIC_AUTHORIZATION_FAILED
    names = ["written", "default..orders", "hidden", "none", "a b"]
    topics = [each for name in names for each in committed_offsets(name, 5)]
    assert codes(await commit(alice.ask, topics)) == [
        refused,  # the client may describe the topic, but not read it
        Code.NONE,
        refused,
        refused,
        Code.UNKNOWN_TOPIC_OR_PARTITION,  # not a valid name
    ]
    assert await fetched(alice.ask, None) == {("orders", 0): 5, ("written", 0): 8}, "what it may describe"
    asked = [{"name": name, "partition_indexes": [0]} for name in names]
    for version in (1, 5, 7):
        answer = await alice.ask(ApiKey.OFFSET_FETCH, version, group_id="g", topics=asked)
        assert [(part.committed_offset, part.error_code) for each in answer.topics for part in each.partitions] == [
            (8, Code.NONE),
            (5, Code.NONE),
            (-1, refused),
            (-1, refused),
            (-1, Code.NONE),
        ]
    deleted = await alice.ask(
        ApiKey.OFFSET_DELETE,
        group_id="g",
        topics=[{"name": name, "partitions": [{"partition_index": 0}]} for name in names],
    )
    assert deleted.error_code == Code.NONE
    assert codes(deleted) == [refused, Code.NONE, refused, refused, Code.UNKNOWN_TOPIC_OR_PARTITION]
    await secure(broker, on=False)
    assert await fetched(admin.ask, None) == {("hidden", 0): 7, ("written", 0): 8}


@pytest.mark.parametrize("version", [1, 2, 7, 9])
async def test_offsets_of_a_group_that_a_client_may_not_describe_are_refused_in_every_version(
    broker: NodeParts, orders: str, version: int
) -> None:
    await put(
        broker, {(Kind.STREAM, "/default", Permission.CONSUME): "u:alice", (Kind.GROUP, "g", Permission.CONSUME): ""}
    )
    await secure(broker)
    topics = [{"name": orders, "partition_indexes": [0]}]
    fields = {"groups": [{"group_id": "g", "topics": topics}]} if version >= 8 else {"group_id": "g", "topics": topics}
    answer = await User(broker, "alice").ask(ApiKey.OFFSET_FETCH, version, **fields)
    found = answer.groups[0] if version >= 8 else answer
    if version >= 2:
        assert found.error_code == Code.GROUP_AUTHORIZATION_FAILED
    assert [part.committed_offset for topic in found.topics for part in topic.partitions] == [-1]

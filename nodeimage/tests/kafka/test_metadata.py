"""The topics that a client sees, the operations that it may perform on them, and the topics that it creates by
asking."""

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import Millis
from headrace.catalog.policy import StreamPolicy
from headrace.catalog.streams import CreateStream
from headrace.kafka.authorized_operations import CLUSTER_OPERATIONS, NOT_ASKED, TOPIC_OPERATIONS, bits
from headrace.node.parts import NodeParts
from headrace.partitions.topics import Topic
from headrace.security.access_rules import Kind, Permission
from headrace.security.kafka_acls import AclOperation
from headrace.wire.metadata import MetadataResponse
from kit.access import AuditTold, User, put, secure

READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE


@pytest.fixture
async def secured(broker: NodeParts) -> NodeParts:
    """A stream that alice may read, except one topic; and a topic that she may write to in another stream."""
    for path in ("/read", "/write", "/shut"):
        await broker.catalog.submit(
            CreateStream(path=path, policy=StreamPolicy(auto_create=path != "/shut"), now=Millis(1))
        )
    await broker.topics.resolve(["/read:a", "/read:b", "/read:closed", "/write:t", "/write:u", "bare"], create=True)
    await put(
        broker,
        {
            (Kind.CLUSTER, "", Permission.ADMIN): "u:root",
            (Kind.STREAM, "/read", Permission.CONSUME): "u:alice",
            (Kind.TOPIC, "/read:closed", Permission.CONSUME): "",
            (Kind.TOPIC, "/write:t", Permission.PRODUCE): "u:alice",
            (Kind.STREAM, "/shut", Permission.PRODUCE): "u:alice",
        },
    )
    await secure(broker)
    return broker


def names(response: MetadataResponse) -> list[str]:
    return sorted(str(topic.name) for topic in response.topics)


@pytest.mark.parametrize("version", [1, 9, 12])
async def test_a_list_has_what_the_client_may_describe(secured: NodeParts, version: int) -> None:
    audit = AuditTold(secured)
    assert names(await User(secured, "alice").metadata(None, version)) == ["/read:a", "/read:b", "/write:t"]
    assert names(await User(secured, "mallory").metadata(None, version)) == []
    assert len((await User(secured, "root").metadata(None, version)).topics) == 6
    assert audit.events == [], "a list leaves out, and says nothing"
    await secure(secured, on=False)
    assert len((await User(secured).metadata(None, version)).topics) == 6


async def test_a_named_topic_is_refused_whether_it_is_there_or_not_and_the_others_are_told_of(
    secured: NodeParts,
) -> None:
    asked = ["/read:a", "/read:closed", "/write:u", "/write:none", "read..b", "a b"]
    answer = await User(secured, "alice").metadata(asked)
    assert [(topic.name, topic.error) for topic in answer.topics] == [
        ("/read:a", 0),
        ("/read:closed", 29),
        ("/write:u", 29),
        ("/write:none", 29),
        ("read..b", 0),
        ("a b", Code.INVALID_TOPIC_EXCEPTION),
    ]
    assert [len(topic.partitions) for topic in answer.topics] == [1, 0, 0, 0, 1, 0]
    assert {topic.topic_id for topic in answer.topics if topic.error} == {bytes(16)}


async def test_operations_are_those_of_each_topic_and_of_each_client(secured: NodeParts) -> None:
    alice, root = User(secured, "alice"), User(secured, "root")
    for asked in (["/read:a", "/write:t"], None):
        for _ in range(2):  # the second time from cached entries
            told = await alice.metadata(asked, 10, operations=True)
            found = {topic.name: topic.operations for topic in told.topics}
            assert found["/read:a"] == bits([READ, DESCRIBE])
            assert found["/write:t"] == bits([WRITE, DESCRIBE])
            assert told.operations == bits([AclOperation.IDEMPOTENT_WRITE])
            told = await root.metadata(asked, 10, operations=True)
            assert {topic.operations for topic in told.topics} == {TOPIC_OPERATIONS}
            assert told.operations == CLUSTER_OPERATIONS - bits([AclOperation.CLUSTER_ACTION]), "nobody is a replica"
            assert {topic.operations for topic in (await alice.metadata(asked, 10)).topics} == {NOT_ASKED}
    await secure(secured, on=False)
    told = await alice.metadata(None, 10, operations=True)
    assert {topic.operations for topic in told.topics} == {TOPIC_OPERATIONS}
    assert told.operations == CLUSTER_OPERATIONS


async def test_by_its_id_a_topic_has_its_name_for_those_alone_who_may_describe_it(secured: NodeParts) -> None:
    seen, hidden = await secured.topics.resolve(["/read:a", "/read:closed"])
    assert isinstance(seen, Topic)
    assert isinstance(hidden, Topic)
    answer = await User(secured, "alice").metadata([seen.topic_id, hidden.topic_id, bytes([7] * 16)])
    assert [(topic.name, topic.error) for topic in answer.topics] == [
        ("/read:a", 0),
        (None, Code.UNKNOWN_TOPIC_ID),
        (None, Code.UNKNOWN_TOPIC_ID),
    ]


async def test_a_topic_is_made_for_a_client_that_may_make_it(secured: NodeParts) -> None:
    await put(secured, {(Kind.STREAM, "/read", Permission.TOPIC): "u:maker"})
    maker, alice = User(secured, "maker"), User(secured, "alice")
    refused, at_shut = (await alice.metadata(["/read:new", "/shut:new"], create=True)).topics
    assert (refused.error, at_shut.error) == (29, Code.UNKNOWN_TOPIC_OR_PARTITION), "which makes none for anybody"
    assert isinstance((await secured.topics.resolve(["/read:new"]))[0], KafkaError)
    assert [topic.error for topic in (await maker.metadata(["/read:new"])).topics] == [Code.UNKNOWN_TOPIC_OR_PARTITION]
    assert [topic.error for topic in (await maker.metadata(["/read:new"], create=True)).topics] == [0]
    assert [topic.error for topic in (await alice.metadata(["/read:new"], create=True)).topics] == [0], "it is there"


async def test_a_change_holds_for_entries_that_were_made_before(secured: NodeParts) -> None:
    alice = User(secured, "alice")
    assert [topic.error for topic in (await alice.metadata(["/read:a"])).topics] == [0]
    await put(secured, {(Kind.STREAM, "/read", Permission.CONSUME): None})
    assert [topic.error for topic in (await alice.metadata(["/read:a"])).topics] == [29]
    assert names(await alice.metadata(None)) == ["/write:t"]

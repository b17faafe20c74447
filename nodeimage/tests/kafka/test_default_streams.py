"""The listener determines what a bare name means: for each API that takes topic names, and each that returns them.

Two clients use the name `orders`: for one it is `/default:orders`, for the other `/sensors:orders`. The second topic
has two partitions and one record, the first has one partition and three records, so that answers show which topic was
meant.
"""

import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import Millis
from headrace.catalog.policy import StreamPolicy
from headrace.catalog.streams import CreateStream
from headrace.node.parts import NodeParts
from headrace.partitions.topics import Topic
from headrace.security.access_rules import Kind, Permission
from headrace.wire.api_keys import ApiKey
from kit.access import User, put, secure
from kit.group_calls import alone, join

RECORDS = {"/default": 3, "/sensors": 1}
PARTITIONS = {"/default": 1, "/sensors": 2}
NAME = "orders"


class Both:
    """The two clients, and the two topics."""

    def __init__(self, parts: NodeParts) -> None:
        self.parts = parts
        self.users = {path: User(parts, "root", default_stream=path) for path in RECORDS}

    async def begin(self) -> None:
        await self.parts.catalog.submit(CreateStream(path="/sensors", policy=StreamPolicy(), now=Millis(1)))
        for path, user in self.users.items():
            topic = {"name": NAME, "num_partitions": PARTITIONS[path], "replication_factor": -1}
            answer = await user.ask(ApiKey.CREATE_TOPICS, topics=[topic], timeout=1000)
            assert [each.error_code for each in answer.topics] == [0]
            for _ in range(RECORDS[path]):
                assert (await user.produce(NAME))[NAME].error == 0
        assert await self.ends() == RECORDS

    async def topic(self, path: str) -> Topic:
        (found,) = await self.parts.topics.resolve([f"{path}:{NAME}"])
        assert isinstance(found, Topic)
        return found

    async def ends(self) -> dict[str, int]:
        """The ends of both topics, by full names, independently of either client."""
        found = {}
        for path in RECORDS:
            partition = await self.parts.partitions.leader(await self.topic(path), 0)
            found[path] = int(partition.high_watermark)
        return found


@pytest.fixture
async def both(broker: NodeParts) -> Both:
    made = Both(broker)
    await made.begin()
    return made


async def end_by_list_offsets(user: User, name: str) -> int:
    part = {"partition_index": 0, "timestamp": -1}
    answer = await user.ask(ApiKey.LIST_OFFSETS, 6, replica_id=-1, topics=[{"name": name, "partitions": [part]}])
    return int(answer.topics[0].partitions[0].offset)


async def end_by_fetch(user: User, name: str) -> int:
    answer = await user.fetch(name)
    return answer.topics[0].partitions[0].high_watermark


async def end_by_epoch(user: User, name: str) -> int:
    asked = [{"topic": name, "partitions": [{"partition": 0, "leader_epoch": 0}]}]
    answer = await user.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, topics=asked)
    return int(answer.topics[0].partitions[0].end_offset)


async def end_by_produce(user: User, name: str) -> int:
    return int((await user.produce(name))[name].base_offset)


async def end_by_fetch_session(user: User, name: str) -> int:
    begun = await user.fetch(name, session=(0, 0))
    await user.produce(name)
    answer = await user.fetch(session=(begun.session_id, 1))
    return answer.topics[0].partitions[0].high_watermark - 1


async def end_by_delete_records(user: User, name: str) -> int:
    part = {"partition_index": 0, "offset": -1}
    answer = await user.ask(ApiKey.DELETE_RECORDS, topics=[{"name": name, "partitions": [part]}], timeout=1000)
    return int(answer.topics[0].partitions[0].low_watermark)


ENDS: list[Callable[[User, str], Awaitable[int]]] = [
    end_by_list_offsets,
    end_by_fetch,
    end_by_epoch,
    end_by_produce,
    end_by_fetch_session,
    end_by_delete_records,
]


@pytest.mark.parametrize("end", ENDS, ids=lambda each: each.__name__.removeprefix("end_by_"))
@pytest.mark.parametrize("path", RECORDS)
async def test_a_bare_name_means_the_topic_of_the_clients_own_default_stream(
    both: Both, path: str, end: Callable[[User, str], Awaitable[int]]
) -> None:
    (other,) = RECORDS.keys() - {path}
    before = await both.topic(other)
    assert await end(both.users[path], NAME) == RECORDS[path]
    assert (await both.ends())[other] == RECORDS[other]
    partition = await both.parts.partitions.leader(before, 0)
    assert partition.log_start == 0


@pytest.mark.parametrize("end", ENDS, ids=lambda each: each.__name__.removeprefix("end_by_"))
@pytest.mark.parametrize("form", ["{path}:orders", "{alias}..orders"], ids=["full", "alias"])
async def test_a_full_name_and_an_alias_mean_the_same_to_everybody(
    both: Both, form: str, end: Callable[[User, str], Awaitable[int]]
) -> None:
    for path, user in (("/sensors", both.users["/default"]), ("/default", both.users["/sensors"])):
        assert await end(user, form.format(path=path, alias=path[1:])) == RECORDS[path]


@pytest.mark.parametrize("path", RECORDS)
async def test_lists_have_topics_of_the_default_stream_by_bare_names_and_others_by_full_ones(
    both: Both, path: str
) -> None:
    (other,) = RECORDS.keys() - {path}
    user = both.users[path]
    for _ in range(2):  # the second time from the cached answer
        listed = {each.name: len(each.partitions) for each in (await user.metadata(None)).topics}
        assert listed == {NAME: PARTITIONS[path], f"{other}:{NAME}": PARTITIONS[other]}
        ids = [(await both.topic(each)).topic_id for each in (path, other)]
        assert [each.name for each in (await user.metadata(ids)).topics] == [NAME, f"{other}:{NAME}"]
        named = (await user.metadata([NAME, f"{path}:{NAME}"])).topics
        assert {each.topic_id for each in named} == {ids[0]}
        assert [each.name for each in named] == [NAME, f"{path}:{NAME}"]
    dirs = await user.ask(ApiKey.DESCRIBE_LOG_DIRS, topics=None)
    assert {each.name for each in dirs.results[0].topics} == {NAME, f"{other}:{NAME}"}
    dirs = await user.ask(ApiKey.DESCRIBE_LOG_DIRS, topics=[{"topic": NAME, "partitions": [0, 1]}])
    assert [len(each.partitions) for each in dirs.results[0].topics] == [PARTITIONS[path]]


@pytest.mark.parametrize("path", RECORDS)
async def test_topics_are_made_grown_altered_and_deleted_in_the_default_stream(both: Both, path: str) -> None:
    (other,) = RECORDS.keys() - {path}
    user, untouched = both.users[path], await both.topic(other)
    made = (await user.metadata(["by-use"], create=True)).topics
    assert [each.error for each in made] == [0]
    (topic,) = await both.parts.topics.resolve([f"{path}:by-use"])
    assert isinstance(topic, Topic)
    again = await user.ask(
        ApiKey.CREATE_TOPICS, topics=[{"name": NAME, "num_partitions": 1, "replication_factor": -1}], timeout=1000
    )
    assert again.topics[0].error_code == Code.TOPIC_ALREADY_EXISTS
    grown = await user.ask(
        ApiKey.CREATE_PARTITIONS, topics=[{"name": NAME, "count": 5, "assignments": None}], timeout=1000
    )
    assert grown.results[0].error_code == 0
    for key in (ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.ALTER_CONFIGS):
        config = {"name": "retention.ms", "value": str(int(key)), "config_operation": 0}
        altered = await user.ask(key, resources=[{"resource_type": 2, "resource_name": NAME, "configs": [config]}])
        assert altered.responses[0].error_code == 0
        asked = {"resource_type": 2, "resource_name": NAME, "configuration_keys": ["retention.ms"]}
        described = await user.ask(ApiKey.DESCRIBE_CONFIGS, resources=[asked])
        assert [each.value for each in described.results[0].configs] == [str(int(key))]
    changed = await both.topic(path)
    assert (changed.partition_count, dict(changed.configs)) == (5, {"retention.ms": str(int(ApiKey.ALTER_CONFIGS))})
    deleted = await user.ask(ApiKey.DELETE_TOPICS, topics=[{"name": NAME, "topic_id": None}], timeout=1000)
    assert deleted.responses[0].error_code == 0
    (gone,) = await both.parts.topics.resolve([f"{path}:{NAME}"])
    assert isinstance(gone, KafkaError)
    assert await both.topic(other) is untouched
    assert (untouched.partition_count, dict(untouched.configs)) == (PARTITIONS[other], {})


async def test_who_deletes_a_topic_by_its_id_is_told_its_name_at_his_listener(both: Both) -> None:
    topic_id = uuid.UUID(bytes=(await both.topic("/sensors")).topic_id)
    answer = await both.users["/default"].ask(
        ApiKey.DELETE_TOPICS, topics=[{"name": None, "topic_id": topic_id}], timeout=1000
    )
    assert [(each.error_code, each.name) for each in answer.responses] == [(0, f"/sensors:{NAME}")]


async def commit(user: User, group: str, name: str, offset: int) -> int:
    part = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
    answer = await user.ask(
        ApiKey.OFFSET_COMMIT,
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[{"name": name, "partitions": [part]}],
    )
    return int(answer.topics[0].partitions[0].error_code)


async def committed(user: User, group: str, *names: str) -> dict[str, int]:
    topics = [{"name": each, "partition_indexes": [0]} for each in names] or None
    answer = await user.ask(ApiKey.OFFSET_FETCH, groups=[{"group_id": group, "topics": topics}])
    return {each.name: each.partitions[0].committed_offset for each in answer.groups[0].topics}


async def test_a_group_has_the_same_topics_by_whichever_listener(both: Both) -> None:
    here, there = both.users["/default"], both.users["/sensors"]
    assert await commit(here, "g", NAME, 3) == 0
    assert await commit(there, "g", NAME, 1) == 0
    assert await committed(here, "g") == {NAME: 3, f"/sensors:{NAME}": 1}
    assert await committed(there, "g") == {NAME: 1, f"/default:{NAME}": 3}
    assert await committed(there, "g", NAME, "default..orders") == {NAME: 1, "default..orders": 3}
    parts = [{"partition_index": 0}]
    deleted = await there.ask(ApiKey.OFFSET_DELETE, group_id="g", topics=[{"name": NAME, "partitions": parts}])
    assert deleted.topics[0].partitions[0].error_code == 0
    assert await committed(there, "g") == {f"/default:{NAME}": 3}


async def test_a_subscription_is_to_the_topics_of_the_members_own_listener(both: Both) -> None:
    here, there = both.users["/default"], both.users["/sensors"]
    await alone(there.ask, "g")
    with capture_logs() as logs:
        refused = await join(here.ask, "g")
    assert refused.error_code == Code.INCONSISTENT_GROUP_PROTOCOL
    (told,) = [each for each in logs if each["event"] == "a member names other topics than its group"]
    assert (told["group"], told["client"], told["peer"]) == ("g", "app", here.connection.peer)
    assert (
        "mean topics of /default (the default of its listener), and those of the "
        "group's other members mean topics of /sensors" in told["reason"]
    )
    parts = [{"partition_index": 0}]
    topics = [{"name": NAME, "partitions": parts}, {"name": f"/sensors:{NAME}", "partitions": parts}]
    deleted = await here.ask(ApiKey.OFFSET_DELETE, group_id="g", topics=topics)
    assert [each.partitions[0].error_code for each in deleted.topics] == [0, Code.GROUP_SUBSCRIBED_TO_TOPIC]


async def test_producers_replicas_and_leaders_are_told_of_the_default_streams_topic(both: Both) -> None:
    for path, user in both.users.items():
        last = PARTITIONS[path] - 1
        asked = [{"name": NAME, "partition_indexes": [last, last + 1]}]
        answer = await user.ask(ApiKey.DESCRIBE_PRODUCERS, topics=asked)
        codes = [each.error_code for each in answer.topics[0].partitions]
        assert codes == [0, Code.UNKNOWN_TOPIC_OR_PARTITION]
        elect = [{"topic": NAME, "partitions": [last, last + 1]}]
        answer = await user.ask(ApiKey.ELECT_LEADERS, election_type=0, topic_partitions=elect, timeout=1000)
        codes = [each.error_code for each in answer.replica_election_results[0].partition_result]
        assert codes == [Code.ELECTION_NOT_NEEDED, Code.UNKNOWN_TOPIC_OR_PARTITION]


async def test_a_nodes_defaults_are_those_of_the_stream_in_which_topics_are_made_by_bare_names(both: Both) -> None:
    changes = {"default_partitions": 7}
    await both.parts.admin.call(
        "stream.alter", {"path": "/sensors", "changes": changes}, both.users["/sensors"].connection
    )
    found = {}
    for path, user in both.users.items():
        asked = {"resource_type": 4, "resource_name": "1", "configuration_keys": ["num.partitions"]}
        answer = await user.ask(ApiKey.DESCRIBE_CONFIGS, resources=[asked])
        found[path] = answer.results[0].configs[0].value
    assert found == {"/default": "1", "/sensors": "7"}


async def test_acls_by_a_bare_name_are_of_the_default_streams_topic(both: Both) -> None:
    await put(both.parts, {(Kind.CLUSTER, "", Permission.ADMIN): "u:root"})
    await secure(both.parts)
    creation = {
        "resource_type": 2,
        "resource_name": NAME,
        "resource_pattern_type": 3,
        "principal": "User:alice",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    answer = await both.users["/sensors"].ask(ApiKey.CREATE_ACLS, creations=[creation])
    assert [each.error_code for each in answer.results] == [0]
    shown = {}
    for path, user in both.users.items():
        asked = {
            "resource_type_filter": 2,
            "resource_name_filter": NAME,
            "pattern_type_filter": 3,
            "principal_filter": None,
            "host_filter": None,
            "operation": 1,
            "permission_type": 1,
        }
        answer = await user.ask(ApiKey.DESCRIBE_ACLS, **asked)
        shown[path] = [each.resource_name for each in answer.resources]
    assert shown == {"/default": [], "/sensors": [f"/sensors:{NAME}"]}
    alice = {path: User(both.parts, "alice", default_stream=path) for path in RECORDS}
    assert await alice["/sensors"].fetch_codes(NAME) == [0]
    assert await alice["/default"].fetch_codes(NAME) == [Code.TOPIC_AUTHORIZATION_FAILED]
    assert await alice["/default"].fetch_codes(f"/sensors:{NAME}") == [0]


async def test_headraces_own_calls_take_bare_names_alike(both: Both) -> None:
    for path, user in both.users.items():
        shown: Any = await both.parts.admin.call("topic.show", {"topic": NAME}, user.connection)
        assert shown["topic"] == f"{path}:{NAME}"
        chain: Any = await both.parts.admin.call("chain", {"topic": NAME}, user.connection)
        assert len(chain) == PARTITIONS[path]
        rolled: Any = await both.parts.admin.call("roll", {"topic": NAME}, user.connection)
        assert rolled["topic"] == f"{path}:{NAME}"


async def test_a_default_stream_that_is_not_there_has_no_topics(both: Both) -> None:
    user = User(both.parts, "root", default_stream="/nowhere")
    (found,) = (await user.metadata([NAME], create=True)).topics
    assert (found.error, found.partitions) == (Code.UNKNOWN_TOPIC_OR_PARTITION, [])
    assert (await user.produce(NAME))[NAME].error == Code.UNKNOWN_TOPIC_OR_PARTITION
    topic = {"name": NAME, "num_partitions": 1, "replication_factor": -1}
    answer = await user.ask(ApiKey.CREATE_TOPICS, topics=[topic], timeout=1000)
    assert answer.topics[0].error_code == Code.INVALID_TOPIC_EXCEPTION
    assert (
        answer.topics[0].error_message
        == "there is no stream /nowhere; create it first: headrace stream create /nowhere"
    )

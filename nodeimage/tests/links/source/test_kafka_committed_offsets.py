"""Committed offsets of an Apache Kafka cluster whose groups come and go, and whose coordinators are not ready."""

from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from headrace.base.addresses import Address
from headrace.base.errors import Code, KafkaError
from headrace.kafka_client.client import Client
from headrace.links.source import kafka_committed_offsets
from headrace.links.source.kafka_committed_offsets import KafkaCommittedOffsets, whole_group
from headrace.links.source.kafka_topics import KafkaTopics
from headrace.security.client_security import security_of
from headrace.wire import generic_codec
from headrace.wire.api_keys import ApiKey
from headrace.wire.header import RequestHeader
from headrace.wire.metadata import PartitionMeta, TopicMeta
from kit.fake_kafka import FakeKafka

ID = bytes(range(16))


class Coordinator:
    """The only node of a Kafka cluster, which coordinates all groups."""

    def __init__(self) -> None:
        self.committed: dict[str, int] = {}
        self.listing = Code.NONE
        self.loading: set[str] = set()
        self.code = Code.COORDINATOR_LOAD_IN_PROGRESS
        """The error for a group that is loading."""

    def answer(self, header: RequestHeader, body: memoryview) -> bytes:
        key, version = header.api_key, header.api_version
        generic_codec.prepare(key, version)
        if key == ApiKey.LIST_GROUPS:
            groups = [{"group_id": each, "protocol_type": "consumer"} for each in self.committed]
            said = {"error_code": int(self.listing), "groups": [] if self.listing else groups}
        else:
            asked = generic_codec.decode_request(key, version, body)
            said = {"groups": [self._group(each.group_id) for each in asked.groups]}
        return generic_codec.encode_response(key, version, said)

    def _group(self, group: str) -> dict[str, object]:
        if group in self.loading:
            return {"group_id": group, "error_code": int(self.code), "topics": []}
        partition = {"partition_index": 0, "committed_offset": self.committed.get(group, -1), "metadata": ""}
        return {"group_id": group, "error_code": 0, "topics": [{"name": "t", "partitions": [partition]}]}


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


@pytest.fixture
async def committed_offsets(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[KafkaCommittedOffsets]:
    monkeypatch.setattr(kafka_committed_offsets, "pace_s", lambda _rows: 0.0)
    topics = [TopicMeta(0, "t", ID, False, [PartitionMeta(0, 0, 1, 0, [1], [1], [])])]
    async with FakeKafka(coordinator.answer, topics=topics) as server:
        client = Client([Address("127.0.0.1", server.port)], security=security_of({}))
        yield KafkaCommittedOffsets(client, KafkaTopics(client))
        await client.close()


async def test_groups_that_go_while_committed_offsets_are_listed_stop_nothing(
    coordinator: Coordinator, committed_offsets: KafkaCommittedOffsets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_committed_offsets, "GROUPS", 2)
    coordinator.committed = {"a": 1, "b": 2, "c": 3, "d": 4}
    answer = coordinator._group

    def looked_for_changes_meanwhile(group: str) -> dict[str, object]:
        if group == "b":
            del coordinator.committed["c"]
            committed_offsets._coordinators = {
                each: node for each, node in committed_offsets._coordinators.items() if each != "c"
            }
        return answer(group)

    monkeypatch.setattr(coordinator, "_group", looked_for_changes_meanwhile)
    page = await committed_offsets.page(after=None, limit=100)
    assert [(each.key.group, each.offset) for each in page.committed_offsets] == [("a", 1), ("b", 2), ("d", 4)]


async def test_a_node_that_does_not_list_its_groups_yet_is_an_error(
    coordinator: Coordinator, committed_offsets: KafkaCommittedOffsets
) -> None:
    coordinator.committed = {"a": 1}
    coordinator.listing = Code.COORDINATOR_LOAD_IN_PROGRESS
    for asked in (committed_offsets.page(after=None, limit=100), committed_offsets.of_keys([whole_group("a")])):
        with pytest.raises(KafkaError) as raised:
            await asked
        assert raised.value.code is Code.COORDINATOR_LOAD_IN_PROGRESS
    assert await committed_offsets.changed() == []
    coordinator.listing = Code.NONE
    assert await committed_offsets.changed() == [whole_group("a")]
    assert [each.offset for each in (await committed_offsets.page(after=None, limit=100)).committed_offsets] == [1]


@pytest.mark.parametrize("code", [Code.COORDINATOR_LOAD_IN_PROGRESS, Code.NOT_COORDINATOR])
async def test_a_group_whose_coordinator_is_not_ready_is_an_error_and_its_committed_offsets_come_later(
    coordinator: Coordinator, committed_offsets: KafkaCommittedOffsets, code: Code
) -> None:
    coordinator.committed = {"a": 1, "b": 2}
    coordinator.loading, coordinator.code = {"b"}, code
    with pytest.raises(KafkaError) as raised:
        await committed_offsets.page(after=None, limit=100)
    assert raised.value.code is code
    with pytest.raises(KafkaError):
        await committed_offsets.of_keys([whole_group("b")])
    assert await committed_offsets.changed() == []
    coordinator.loading = set()
    assert await committed_offsets.changed() == [whole_group("b")]
    assert [each.offset for each in await committed_offsets.of_keys([whole_group("b")])] == [2]


async def test_a_group_that_may_not_be_asked_for_keeps_no_other_back(
    coordinator: Coordinator, committed_offsets: KafkaCommittedOffsets
) -> None:
    coordinator.committed = {"a": 1, "b": 2}
    coordinator.loading, coordinator.code = {"a"}, Code.GROUP_AUTHORIZATION_FAILED
    with capture_logs() as logs:
        for _ in range(3):
            page = await committed_offsets.page(after=None, limit=100)
    assert [(each["group"], each["reason"]) for each in logs] == [("a", "GROUP_AUTHORIZATION_FAILED")]
    assert [(each.key.group, each.offset) for each in page.committed_offsets] == [("b", 2)]

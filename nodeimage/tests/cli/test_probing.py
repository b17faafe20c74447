import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.addresses import parse_addresses
from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.base.ids import NodeId
from headrace.cli.probing import (
    PARTITIONS_A_NODE,
    REMEMBERED,
    STREAM,
    TOPIC,
    TTL_MS,
    Probe,
    Result,
    Tally,
    assigned,
    wanted_partitions,
)
from headrace.kafka_client.client import Client
from headrace.security.client_security import Security
from headrace.wire.batch import build_batch
from headrace.wire.fetch import FetchResponse, FetchResult, FetchTopicResult
from headrace.wire.metadata import Broker, MetadataResponse, PartitionMeta, TopicMeta
from headrace.wire.produce import ProduceResult
from kit.own_ports import own_port

LEADERS = st.dictionaries(st.integers(0, 20), st.integers(1, 6))
NODES = st.lists(st.integers(1, 6), unique=True)


@given(LEADERS, NODES)
def test_each_node_gets_a_partition_that_it_leads(leaders: dict[int, int], nodes: list[int]) -> None:
    found = assigned(leaders, nodes)
    assert set(found) == set(nodes) & set(leaders.values())
    assert all(leaders[partition] == node for node, partition in found.items())


@given(LEADERS, NODES)
def test_partitions_are_added_for_nodes_without_one_and_not_for_ever(leaders: dict[int, int], nodes: list[int]) -> None:
    wanted = wanted_partitions(leaders, nodes)
    assert len(leaders) <= wanted <= max(len(leaders), PARTITIONS_A_NODE * len(nodes))
    assert wanted == len(leaders) or set(nodes) - set(leaders.values())


def test_a_tally_has_a_row_for_each_node() -> None:
    tally = Tally()
    tally.add([Result(node=2, partition=0, produce_s=0.001, roundtrip_s=0.002), Result(node=1, error="silent")])
    assert tally.has_failed
    tally.add([Result(node=2, partition=0, produce_s=0.003, roundtrip_s=0.004), Result(node=1)])
    first, second = tally.rows()
    assert (first["node"], first["probed"], first["failed"], first["produce_p50_ms"]) == (1, 2, 1, None)
    assert (second["produce_p50_ms"], second["produce_p99_ms"], second["roundtrip_max_ms"]) == (1.0, 3.0, 4.0)


def test_a_tally_does_not_grow_for_ever() -> None:
    tally = Tally()
    tally.add([Result(node=1, produce_s=float(number), roundtrip_s=1.0) for number in range(REMEMBERED + 5)])
    (row,) = tally.rows()
    assert row["probed"] == REMEMBERED + 5
    assert row["produce_p99_ms"] == (REMEMBERED + 4 - 100) * 1000.0
    assert not tally.has_failed


def client_of(bootstrap: str) -> Client:
    return Client(parse_addresses([bootstrap]), security=Security())


async def test_it_makes_its_stream_and_reads_its_record_back(cluster: Any) -> None:
    client = client_of(cluster.bootstrap)
    probe = Probe(client, size=1_000)
    await probe.prepare()
    for _ in range(2):
        (result,) = await probe.round()
        assert (result.node, result.partition, result.error) == (1, 0, "")
        assert result.produce_s is not None
        assert result.roundtrip_s is not None
        assert 0 < result.produce_s <= result.roundtrip_s
    await client.close()
    assert cluster.admin("stream.show", {"path": STREAM})["ttl_ms"] == TTL_MS
    assert cluster.admin("topic.show", {"topic": TOPIC})["partitions"][0]["end"] >= 2


async def test_a_topic_that_is_deleted_meanwhile_is_created_again(cluster: Any) -> None:
    """A round without a topic probed nothing, and reported no error for ever."""
    client = client_of(cluster.bootstrap)
    probe = Probe(client, size=100)
    await probe.prepare()
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    (future,) = admin.delete_topics([TOPIC]).values()
    await asyncio.to_thread(future.result, 30)
    (result,) = await probe.round()
    assert (result.partition, result.error) == (0, "")
    assert result.roundtrip_s is not None
    await client.close()


async def test_a_cluster_that_is_not_there_is_an_error_at_first_and_a_failure_later(new_cluster: Any) -> None:
    nobody = client_of(f"127.0.0.1:{own_port()}")
    with pytest.raises(HeadraceError, match="cannot be reached"):
        await Probe(nobody).prepare()
    await nobody.close()
    cluster = new_cluster()
    client = client_of(cluster.bootstrap)
    probe = Probe(client, timeout_s=5.0)
    await probe.prepare()
    cluster.kill()
    (result,) = await probe.round()
    assert (result.node, result.produce_s) == (1, None)
    assert result.error
    cluster.start()
    (result,) = await probe.round()
    assert result.error == ""
    await client.close()


class Played:
    """A cluster of two nodes whose answers the test decides."""

    def __init__(self) -> None:
        self.leaders = {0: 1, 1: 2}
        self.produced: list[int] = []
        self.produce_error = 0
        self.value: bytes | None = None
        """The value that is read instead of the record's."""
        self.refuses: KafkaError | None = None
        self.added = 0
        self.asked: list[int] = []
        self._kept: dict[int, memoryview | bytes] = {}

    async def metadata(self, topics: object = (), *, node: int = -1) -> MetadataResponse:
        self.asked.append(node)
        partitions = [PartitionMeta(0, number, leader, 0, [], [], []) for number, leader in self.leaders.items()]
        brokers = [Broker(1, "a", 1, None), Broker(2, "b", 2, None)]
        return MetadataResponse(0, brokers, "c", 1, [TopicMeta(0, TOPIC, bytes(16), False, partitions)])

    async def reach(self, node: NodeId, **_: object) -> None:
        return None

    async def ask(self, *_: object) -> Any:
        self.added += 1

        class Answer:
            error_code = int(Code.TOPIC_AUTHORIZATION_FAILED)
            error_message = "no"

        class Response:
            results = (Answer(),)

        return Response()

    async def produce(self, node: NodeId, partitions: Sequence[Any], **_: object) -> list[ProduceResult]:
        (part,) = partitions
        self.produced.append(node)
        if self.produce_error:
            error, self.produce_error = self.produce_error, 0
            if error == Code.NOT_LEADER_OR_FOLLOWER:
                self.leaders = {0: 2, 1: 1}
            return [ProduceResult(TOPIC, part.partition, error)]
        self._kept[node] = part.records
        return [ProduceResult(TOPIC, part.partition, 0, base_offset=0)]

    async def fetch(self, node: NodeId, *_: object) -> FetchResponse:
        if self.refuses is not None:
            raise self.refuses
        records = self._kept[node] if self.value is None else bytes(build_batch([(0, None, self.value, ())]))
        return FetchResponse(0, 0, 0, [FetchTopicResult(None, bytes(16), [FetchResult(0, 0, records=[records])])])


async def probed(played: Played) -> list[Result]:
    probe = Probe(played, timeout_s=5.0)  # type: ignore[arg-type]
    await probe.prepare()
    return await probe.round()


async def test_a_partition_that_moves_is_followed() -> None:
    played = Played()
    played.produce_error = Code.NOT_LEADER_OR_FOLLOWER
    results = await probed(played)
    assert [each.error for each in results] == ["", ""]
    assert sorted(played.produced) == [1, 1, 2]


async def test_another_record_in_its_place_is_a_failure() -> None:
    played = Played()
    played.value = b"another"
    assert ["holds another record" in each.error for each in await probed(played)] == [True, True]


async def test_what_a_node_refuses_is_told() -> None:
    played = Played()
    played.produce_error = Code.TOPIC_AUTHORIZATION_FAILED
    assert sorted(each.error.partition(":")[0] for each in await probed(played)) == ["", "topic authorization failed"]
    played = Played()
    played.refuses = KafkaError(Code.KAFKA_STORAGE_ERROR, "the disk failed")
    assert [each.error for each in await probed(played)] == ["the disk failed"] * 2


async def test_a_node_that_leads_nothing_is_asked_for_metadata_and_the_topic_grows_once() -> None:
    played = Played()
    played.leaders = {0: 1, 1: 1}
    probe = Probe(played)  # type: ignore[arg-type]
    await probe.prepare()
    for _ in range(3):
        first, second = await probe.round()
        assert first.partition == 0
        assert (second.partition, second.produce_s, second.error) == (None, None, "")
    assert played.added == 1  # not repeated: the user lacks the right
    assert 2 in played.asked

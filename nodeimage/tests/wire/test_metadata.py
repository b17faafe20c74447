import time
import uuid
from collections.abc import Sequence

import kio.index
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.metadata import MetadataRequest as KafkaPythonRequest
from kio.serial import entity_reader

from headrace.base.errors import MalformedRequest
from headrace.wire import generic_codec
from headrace.wire.api_keys import ApiKey
from headrace.wire.metadata import (
    NO_OPERATIONS,
    Broker,
    MetadataRequest,
    MetadataResponse,
    PartitionMeta,
    TopicMeta,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from kit.cpu_time import no_collections

VERSIONS = range(13)
versions = st.sampled_from(VERSIONS)
int32 = st.integers(-(2**31), 2**31 - 1)
names = st.text(min_size=1, max_size=12)
ids = st.binary(min_size=16, max_size=16).filter(any)
NO_ID = bytes(16)


@st.composite
def requests(draw: st.DrawFn) -> tuple[int, MetadataRequest]:
    """A version, and a request with only the fields of that version."""
    version = draw(versions)
    topic = st.tuples(names, st.none())
    if version >= 10:
        topic |= st.tuples(st.none(), ids)
    topics = draw(st.none() | st.lists(topic, min_size=0 if version else 1, max_size=5))
    flag = st.booleans()
    return version, MetadataRequest(
        topics,
        draw(flag) if version >= 4 else True,
        draw(flag) if 8 <= version <= 10 else False,
        draw(flag) if version >= 8 else False,
    )


@given(requests(), st.binary(max_size=9))
def test_a_request_comes_back_from_behind_any_header(asked: tuple[int, MetadataRequest], header: bytes) -> None:
    version, request = asked
    assert decode_request(header + encode_request(version, request), len(header), version) == request


@given(requests())
def test_a_request_has_the_bytes_of_kafkas_schema(asked: tuple[int, MetadataRequest]) -> None:
    version, request = asked
    topics = request.topics
    if topics is None and version == 0:
        topics = []
    fields = {
        "topics": None if topics is None else [{"name": name, "topic_id": topic_id} for name, topic_id in topics],
        "allow_auto_topic_creation": request.allow_auto_create,
        "include_cluster_authorized_operations": request.cluster_operations,
        "include_topic_authorized_operations": request.topic_operations,
    }
    raw = encode_request(version, request)
    assert raw == generic_codec.encode_request(ApiKey.METADATA, version, fields)
    entity, end = entity_reader(kio.index.load_request_schema(3, version))(raw, 0)
    assert end == len(raw)
    assert (entity.topics is None) == (topics is None)
    assert [topic.name for topic in entity.topics or ()] == [name for name, _ in topics or ()]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_of_kafka_python_is_understood(version: int) -> None:
    topic = KafkaPythonRequest.MetadataRequestTopic
    asked = KafkaPythonRequest(
        topics=[topic(name="sensors", version=version)],
        allow_auto_topic_creation=True,
        include_topic_authorized_operations=True,
        version=version,
    )
    raw = bytes(asked.encode(version=version))
    assert decode_request(raw, 0, version) == MetadataRequest([("sensors", None)], True, False, version >= 8)


@pytest.mark.parametrize("version", VERSIONS)
def test_all_topics_and_no_topics_are_told_apart(version: int) -> None:
    everything = MetadataRequest(None, True)
    assert decode_request(encode_request(version, everything), 0, version) == everything
    nothing = MetadataRequest([], True)
    if version:
        assert decode_request(encode_request(version, nothing), 0, version) == nothing
    else:
        with pytest.raises(ValueError, match="no topics"):
            encode_request(version, nothing)
        with pytest.raises(MalformedRequest):
            decode_request(b"\xff\xff\xff\xff", 0, 0)


nodes = st.lists(int32, max_size=4)
partitions = st.builds(
    PartitionMeta,
    error=st.integers(-1, 107),
    partition=int32,
    leader=int32,
    leader_epoch=int32,
    replicas=nodes,
    isr=nodes,
    offline=nodes,
)
topic_metas = st.builds(
    TopicMeta,
    error=st.integers(-1, 107),
    name=names,
    topic_id=ids,
    internal=st.booleans(),
    partitions=st.lists(partitions, max_size=3),
    operations=int32,
)
brokers = st.builds(Broker, int32, names, int32, st.none() | names)


def known_by(version: int, topic: TopicMeta) -> TopicMeta:
    """`topic` without the fields that `version` lacks."""
    kept: Sequence[PartitionMeta] = [
        one._replace(leader_epoch=one.leader_epoch if version >= 7 else -1, offline=one.offline if version >= 5 else [])
        for one in topic.partitions
    ]
    return TopicMeta(
        topic.error,
        topic.name,
        topic.topic_id if version >= 10 else NO_ID,
        version >= 1 and topic.internal,
        kept,
        topic.operations if version >= 8 else NO_OPERATIONS,
    )


@given(versions, st.lists(brokers, max_size=3), st.none() | names, int32, st.lists(topic_metas, max_size=3))
def test_a_response_comes_back_as_far_as_its_version_goes(
    version: int, given_brokers: list[Broker], cluster: str | None, controller: int, topics: list[TopicMeta]
) -> None:
    raw = encode_response(
        version,
        throttle_ms=9,
        brokers=given_brokers,
        cluster_id=cluster,
        controller_id=controller,
        topics=topics,
        operations=7,
    )
    assert decode_response(raw, 0, version) == MetadataResponse(
        9 if version >= 3 else 0,
        given_brokers if version >= 1 else [broker._replace(rack=None) for broker in given_brokers],
        cluster if version >= 2 else None,
        controller if version >= 1 else -1,
        [known_by(version, topic) for topic in topics],
        7 if 8 <= version <= 10 else NO_OPERATIONS,
    )


@given(versions, st.lists(brokers, max_size=3), st.none() | names, int32, st.lists(topic_metas, max_size=3))
def test_a_response_has_the_bytes_of_kafkas_schema(
    version: int, given_brokers: list[Broker], cluster: str | None, controller: int, topics: list[TopicMeta]
) -> None:
    raw = encode_response(
        version, throttle_ms=9, brokers=given_brokers, cluster_id=cluster, controller_id=controller, topics=topics
    )
    fields = {
        "throttle_time": 9,
        "brokers": [broker._asdict() for broker in given_brokers],
        "cluster_id": cluster,
        "controller_id": controller,
        "topics": [
            {
                "error_code": topic.error,
                "name": topic.name,
                "topic_id": topic.topic_id,
                "is_internal": topic.internal,
                "topic_authorized_operations": topic.operations,
                "partitions": [
                    {
                        "error_code": one.error,
                        "partition_index": one.partition,
                        "leader_id": one.leader,
                        "leader_epoch": one.leader_epoch,
                        "replica_nodes": one.replicas,
                        "isr_nodes": one.isr,
                        "offline_replicas": one.offline,
                    }
                    for one in topic.partitions
                ],
            }
            for topic in topics
        ],
    }
    assert raw == generic_codec.encode_response(ApiKey.METADATA, version, fields)
    entity, end = entity_reader(kio.index.load_response_schema(3, version))(raw, 0)
    assert end == len(raw)
    assert [topic.name for topic in entity.topics] == [topic.name for topic in topics]
    assert [tuple(one.isr_nodes) for topic in entity.topics for one in topic.partitions] == [
        tuple(one.isr) for topic in topics for one in topic.partitions
    ]


def test_an_unknown_topic_id_is_answered_without_a_name() -> None:
    topic = TopicMeta(100, None, uuid.uuid4().bytes, False, [])
    raw = encode_response(12, brokers=[], cluster_id=None, controller_id=1, topics=[topic])
    assert decode_response(raw, 0, 12).topics == [topic]
    raw = encode_response(9, brokers=[], cluster_id=None, controller_id=1, topics=[topic])
    assert decode_response(raw, 0, 9).topics[0].name == ""


@given(requests(), st.data())
def test_a_truncated_request_is_malformed(asked: tuple[int, MetadataRequest], data: st.DataObject) -> None:
    version, request = asked
    raw = encode_request(version, request)
    with pytest.raises(MalformedRequest):
        decode_request(raw[: data.draw(st.integers(0, len(raw) - 1))], 0, version)


def test_librdkafkas_request_for_all_topics_is_read() -> None:
    """librdkafka 2.16 sends version 12 with three bytes more than the schema has."""
    assert decode_request(bytes(7), 0, 12) == MetadataRequest(None, False)


@pytest.mark.parametrize("version", [8, 12])
def test_ten_thousand_topics_take_milliseconds(version: int) -> None:
    partition = PartitionMeta(0, 0, 1, 5, (1,), (1,), ())
    topics = [
        TopicMeta(0, f"/factory/sensors:device-{i}", uuid.uuid4().bytes, False, [partition]) for i in range(10_000)
    ]
    with no_collections():
        start = time.thread_time()
        raw = encode_response(version, brokers=[], cluster_id="c", controller_id=1, topics=topics)
        spent = time.thread_time() - start
    assert len(decode_response(raw, 0, version).topics) == 10_000
    assert spent < 0.2  # about 0.02 s on an idle core

"""Volumes, Streams, Topics and users, against an API server and a cluster in memory."""

import asyncio
import base64

import pytest
from structlog.testing import capture_logs

from headrace.base.errors import Code, KafkaError
from headrace.store.kubernetes.api import ApiError, ApiSilent
from headrace_operator import specs
from headrace_operator.engine import Key
from headrace_operator.kinds import finalizers, kind, topic
from headrace_operator.specs import FINALIZER

from .fake_api import NOW, Object
from .fake_cluster import NS, World

REF = {"clusterRef": {"name": "c"}}
STREAM: Object = {**REF, "path": "/plant", "ttl": "7d"}
TOPIC: Object = {**REF, "stream": "/plant", "partitions": 3}


@pytest.fixture
async def world() -> World:
    made = World()
    await made.run(made.declare("StreamCluster", "c", {"nodes": 3}))
    return made


async def test_an_access_expression_that_cannot_be_read_is_a_condition(world: World) -> None:
    key = world.declare("Stream", "plant", {**STREAM, "permissions": {"produce": "u:alice |"}})
    await world.run(key)
    assert world.condition("Stream", "plant")[:2] == ("False", "BadExpression")
    assert "permissions.produce" in world.condition("Stream", "plant")[2]
    assert not world.cluster.streams
    world.declare("Stream", "plant", {**STREAM, "permissions": {"produce": "u:alice | g:ops & !u:bob"}})
    await world.run(key)
    assert world.condition("Stream", "plant")[0] == "True"


async def test_how_much_is_in_a_stream_is_shown(world: World) -> None:
    key = world.declare("Stream", "plant", STREAM)
    world.cluster.figures = {"messages": None, "bytes": None, "oldest_ms": None}
    await world.run(key)
    assert not {"messages", "bytes", "oldest"} & world.api.one("Stream", "plant")["status"].keys()
    world.start_operator()
    world.cluster.figures = {"messages": 7, "bytes": 900, "oldest_ms": 1_700_000_000_123}
    await world.run(key)
    status = world.api.one("Stream", "plant")["status"]
    assert (status["messages"], status["bytes"], status["oldest"]) == (7, 900, "2023-11-14T22:13:20Z")
    world.start_operator()
    world.cluster.figures = {"messages": 0, "bytes": 0, "oldest_ms": None}
    await world.run(key)
    assert world.api.one("Stream", "plant")["status"]["oldest"] == ""


async def test_a_stream_is_made_then_changed_then_left_alone(world: World) -> None:
    key = world.declare("Stream", "plant", STREAM)
    await world.run(key)
    assert world.cluster.streams["/plant"]["ttl_ms"] == 604_800_000
    assert world.condition("Stream", "plant")[0] == "True"
    world.declare("Stream", "plant", STREAM | {"ttl": "1h", "compression": "zstd"})
    await world.run(key)
    assert world.cluster.streams["/plant"]["ttl_ms"] == 3_600_000
    assert world.cluster.streams["/plant"]["compression"] == "zstd"
    writes, calls = len(world.api.writes), len(world.cluster.calls)
    for _ in range(3):
        await world.once(key)
    assert len(world.api.writes) == writes
    assert len(world.cluster.calls) == calls


async def test_a_topic_is_made_grows_and_follows_its_config(world: World) -> None:
    key = world.declare("Topic", "pumps", TOPIC | {"config": {"retention.ms": "1000"}})
    await world.run(key)
    assert world.cluster.topics["/plant:pumps"] == {"partitions": 3, "configs": {"retention.ms": "1000"}}
    assert world.api.one("Topic", "pumps")["status"]["partitions"] == 3
    world.declare("Topic", "pumps", TOPIC | {"partitions": 5})
    await world.run(key)
    assert world.cluster.topics["/plant:pumps"] == {"partitions": 5, "configs": {}}


@pytest.mark.parametrize(("lag", "ready"), [(2, "True"), (9, "False")])
async def test_a_topic_that_a_node_has_not_heard_of_yet_is_looked_for_again(
    world: World, monkeypatch: pytest.MonkeyPatch, lag: int, ready: str
) -> None:
    """Of several nodes, one made it and another is asked: that is no refusal, which would stand for minutes."""
    monkeypatch.setattr(topic, "SHOWN_S", (0.0, 0.0, 0.0))
    show = world.cluster.topic_show
    left = [lag]

    def shown(topic: str) -> Object:
        if topic in world.cluster.topics and left[0]:
            left[0] -= 1
            raise KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic}")
        return show(topic)

    monkeypatch.setattr(world.cluster, "topic_show", shown)
    again = await world.once(world.declare("Topic", "pumps", TOPIC))
    assert world.condition("Topic", "pumps")[0] == ready
    assert [call for call, _ in world.cluster.calls].count("CREATE_TOPICS") == 1
    if ready == "False":
        assert "has not heard of it yet" in world.condition("Topic", "pumps")[2]
        assert again == kind.AGAIN_S


async def test_fewer_partitions_are_a_condition(world: World) -> None:
    world.cluster.topics["/plant:pumps"] = {"partitions": 8, "configs": {}}
    await world.run(world.declare("Topic", "pumps", TOPIC))
    state, reason, message = world.condition("Topic", "pumps")
    assert (state, reason) == ("False", "Refused")
    assert "8 partitions" in message


async def test_a_volume_that_cannot_be_kept_is_a_condition(world: World) -> None:
    problem = "volume 'v' asks for 5 replicas on hosts of their own, and there are 3 hosts"
    world.cluster.volumes["v"] = {"volume": "v", "replicas": 5, "min_in_sync": 2, "problem": problem}
    await world.run(world.declare("Volume", "v", {**REF, "replicas": 5}))
    assert world.condition("Volume", "v") == ("False", "Impossible", problem)
    assert world.condition("Volume", "v", "Reconciled")[0] == "True"


async def test_a_volume_is_made_and_changed(world: World) -> None:
    key = world.declare("Volume", "v", {**REF, "replicas": 2, "minInSync": 1, "sizeLimit": "1Gi"})
    await world.run(key)
    assert world.cluster.volumes["v"]["size_limit"] == 2**30
    world.declare("Volume", "v", {**REF, "replicas": 3, "minInSync": 2, "sizeLimit": "1Gi"})
    await world.run(key)
    assert world.cluster.volumes["v"]["replicas"] == 3


async def test_an_unknown_cluster_is_a_condition_and_nobody_polls(world: World) -> None:
    key = world.declare("Stream", "plant", STREAM | {"clusterRef": {"name": "other"}})
    assert await world.once(key) is None
    state, reason, message = world.condition("Stream", "plant")
    assert (state, reason) == ("False", "NoCluster")
    assert "clusterRef" in message


async def test_a_cluster_that_comes_later_calls_those_that_wait_for_it(world: World) -> None:
    key = world.declare("Stream", "plant", STREAM | {"clusterRef": {"name": "later"}})
    await world.once(key)
    cluster = world.declare("StreamCluster", "later", {"nodes": 1})
    assert list(world.index.concerned(cluster, world.api.one("StreamCluster", "later"))) == [key]


@pytest.mark.parametrize(
    ("allowed", "ready"),
    [
        ({}, "False"),
        ({"names": ["other"]}, "True"),
        ({"names": ["*"]}, "True"),
        ({"selector": {"matchLabels": {"plant": "yes"}}}, "True"),
        ({"selector": {"matchLabels": {"plant": "no"}}}, "False"),
    ],
)
async def test_other_namespaces_use_a_cluster_that_allows_it(world: World, allowed: Object, ready: str) -> None:
    world.api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other", "labels": {"plant": "yes"}}})
    world.declare("StreamCluster", "c", {"nodes": 3, "allowedNamespaces": allowed})
    world.declare("Stream", "plant", STREAM | {"clusterRef": {"name": "c", "namespace": NS}}, namespace="other")
    await world.once(Key("Stream", "other", "plant"))
    assert world.condition("Stream", "plant")[0] == ready
    if ready == "False":
        assert world.condition("Stream", "plant")[1] == "NotAllowed"


async def test_of_two_that_clash_the_older_one_wins_and_the_other_takes_over_when_it_goes(world: World) -> None:
    young = world.declare("Stream", "a", STREAM, creationTimestamp="2026-02-02T00:00:00Z")
    old = world.declare("Stream", "b", STREAM | {"ttl": "1h"}, creationTimestamp="2026-01-01T00:00:00Z")
    for _ in range(2):
        await world.once(young)
        await world.once(old)
    assert world.condition("Stream", "b")[0] == "True"
    assert world.condition("Stream", "a")[1] == "Clash"
    assert "ns/b" in world.condition("Stream", "a")[2]
    assert world.cluster.streams["/plant"]["ttl_ms"] == 3_600_000
    gone = world.api.one("Stream", "b")
    world.api.remove("Stream", "b")
    world.cache.gone(old)
    assert list(world.index.concerned(old, gone)) == [young]
    await world.once(young)
    assert world.condition("Stream", "a")[0] == "True"


async def test_of_two_of_one_second_the_one_that_has_it_keeps_it(world: World) -> None:
    second = "2026-02-02T00:00:00Z"
    first = world.declare("Stream", "b", STREAM, creationTimestamp=second)
    await world.run(first)
    later = world.declare("Stream", "a", STREAM | {"ttl": "1h"}, creationTimestamp=second)
    for _ in range(2):
        await world.once(later)
        await world.once(first)
    assert world.condition("Stream", "b")[0] == "True"
    assert world.condition("Stream", "a")[1] == "Clash"
    assert world.cluster.streams["/plant"]["ttl_ms"] == 604_800_000


async def test_a_resource_that_its_cluster_does_not_allow_holds_nothing(world: World) -> None:
    world.api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}})
    reference = {"clusterRef": {"name": "c", "namespace": NS}}
    world.declare("Stream", "a", STREAM | reference, namespace="other", creationTimestamp="2026-01-01T00:00:00Z")
    own = world.declare("Stream", "b", STREAM, creationTimestamp="2026-02-02T00:00:00Z")
    await world.once(own)
    assert world.condition("Stream", "b")[0] == "True"


async def test_a_topic_that_came_before_its_stream_is_called_when_that_is_made(world: World) -> None:
    topic = world.declare("Topic", "pumps", TOPIC)
    world.declare("Topic", "others", TOPIC | {"stream": "/plants"})
    stream = world.declare("Stream", "plant", STREAM)
    await world.once(stream)
    assert world.woken == [topic]
    await world.once(stream)
    assert world.woken == [topic]


async def test_a_change_that_comes_with_the_answer_to_a_write_of_ours_is_looked_at(world: World) -> None:
    key = world.declare("Stream", "plant", STREAM)
    engine = world.engine()
    world.watch()
    heard = []
    world.cache.on_learnt(lambda key, _body: heard.append(key))
    world.declare("Stream", "plant", STREAM | {"ttl": "1h"})  # no watch has told of it
    await world.reconcilers["Stream"](key, world.cache.get(key))
    assert heard == [key]
    assert engine.queued == 1
    assert world.cache.get(key)["spec"]["ttl"] == "1h"
    world.declare("Stream", "plant", STREAM | {"reclaimPolicy": "Delete", "ttl": "1h"})
    await world.once(key)
    assert heard == [key], "our own finalizer and status are no change of somebody else's"
    assert engine.queued == 1


async def test_no_answer_is_a_condition_and_is_tried_again(world: World) -> None:
    world.cluster.away = True
    key = world.declare("Topic", "pumps", TOPIC)
    again = await world.once(key)
    assert again is not None
    assert 10 < again < 20
    assert world.condition("Topic", "pumps")[:2] == ("False", "NoAnswer")


# --- the end


async def test_retain_leaves_the_data_and_has_no_finalizer(world: World) -> None:
    key = world.declare("Stream", "plant", STREAM)
    await world.run(key)
    assert not world.api.one("Stream", "plant")["metadata"].get("finalizers")
    world.api.remove("Stream", "plant")
    await world.once(key)
    assert "/plant" in world.cluster.streams


async def ended(world: World) -> Key:
    key = world.declare("Stream", "plant", STREAM | {"reclaimPolicy": "Delete"})
    await world.run(key)
    assert world.api.one("Stream", "plant")["metadata"]["finalizers"] == [FINALIZER]
    world.api.remove("Stream", "plant")
    assert world.api.find("Stream")
    return key


async def test_delete_takes_the_data_with_it(world: World) -> None:
    await world.once(await ended(world))
    assert "/plant" not in world.cluster.streams
    assert not world.api.find("Stream")


async def test_what_is_gone_already_is_no_reason_to_wait(world: World) -> None:
    key = await ended(world)
    world.cluster.streams.clear()
    await world.once(key)
    assert not world.api.find("Stream")


async def test_the_finalizer_gives_up_when_the_cluster_is_gone(world: World) -> None:
    key = await ended(world)
    world.api.remove("StreamCluster", "c")
    await world.once(key)
    assert not world.api.find("Stream")
    assert "/plant" in world.cluster.streams


async def test_the_finalizer_waits_for_an_answer_but_not_in_a_namespace_that_ends(world: World) -> None:
    key = await ended(world)
    world.cluster.away = True
    assert await world.once(key) == 5.0
    assert world.condition("Stream", "plant")[1] == "NotDeleted"
    world.api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NS, "deletionTimestamp": NOW}})
    await world.once(key)
    assert not world.api.find("Stream")


@pytest.mark.parametrize("away", [False, True])
async def test_in_a_namespace_that_ends_finalizers_go_before_anything_is_deleted(world: World, away: bool) -> None:
    """The operator's rights there may be among the first that go."""
    deleting = {"reclaimPolicy": "Delete"}
    key = world.declare("Stream", "plant", STREAM | deleting)
    await world.run(key)
    cluster = world.declare("StreamCluster", "c", {"nodes": 3, **deleting})
    await world.run(cluster)
    world.cluster.away = away
    world.api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NS, "deletionTimestamp": NOW}})
    for each in (key, cluster, key, cluster):
        await world.once(each)
        assert not world.api.one(each.kind, each.name)["metadata"].get("finalizers")
    assert ("/plant" in world.cluster.streams) is away
    assert ("NotDeleted" in world.events()) is away


async def test_a_cluster_that_answers_too_late_holds_no_finalizer_in_a_namespace_that_ends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await ended(world)
    monkeypatch.setattr(kind, "ENDING_S", 0.01)
    monkeypatch.setattr(world.cluster, "call", lambda *_, **__: asyncio.sleep(60))
    world.api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NS, "deletionTimestamp": NOW}})
    await world.once(key)
    assert not world.api.find("Stream")


async def test_a_finalizer_that_may_not_be_taken_off_any_more_is_logged_and_fails_nothing(world: World) -> None:
    key = await ended(world)
    world.api.refuse = lambda method, path: ApiError(403, "forbidden") if method == "PATCH" else None
    with capture_logs() as logged:
        assert await world.once(key) is None
    (line,) = [each for each in logged if "finalizer" in each["event"]]
    assert (line["of"], line["finalizer"]) == (f"{NS}/plant", FINALIZER)


async def test_what_may_not_be_deleted_is_left_with_an_event(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    key = await ended(world)

    def refuse(**_: object) -> None:
        raise KafkaError(Code.POLICY_VIOLATION, "it takes topics that are named without a stream")

    monkeypatch.setattr(world.cluster, "stream_delete", refuse)
    await world.once(key)
    assert not world.api.find("Stream")
    assert "NotDeleted" in world.events()


async def test_when_the_operators_own_namespace_ends_no_finalizer_is_left(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = world.declare("Stream", "plant", STREAM | {"reclaimPolicy": "Delete"})
    await world.run(key)
    monkeypatch.setattr(finalizers, "OWN_NAMESPACE", "ops")
    world.api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ops", "deletionTimestamp": NOW}})
    await world.once(key)
    assert not world.api.one("Stream", "plant")["metadata"].get("finalizers")
    assert "/plant" in world.cluster.streams
    assert specs.FINALIZER == FINALIZER


async def test_a_policy_that_changes_takes_the_finalizer_off(world: World) -> None:
    key = world.declare("Stream", "plant", STREAM | {"reclaimPolicy": "Delete"})
    await world.run(key)
    world.declare("Stream", "plant", STREAM)
    await world.run(key)
    assert not world.api.one("Stream", "plant")["metadata"].get("finalizers")


# --- users


async def test_a_user_has_a_secret_whose_password_stays(world: World) -> None:
    key = world.declare("StreamUser", "alice", REF)
    await world.run(key)
    found = world.api.one("Secret", "alice")
    told = {name: base64.b64decode(value).decode() for name, value in found["data"].items()}
    assert told["bootstrap"] == "c-bootstrap.ns.svc:9092"
    assert "bootstrap.servers=c-bootstrap.ns.svc:9092" in told["client.properties"]
    assert found["metadata"]["ownerReferences"][0]["kind"] == "StreamUser"
    world.start_operator()
    await world.run(key)
    assert world.api.one("Secret", "alice")["data"] == found["data"]


async def test_a_secret_of_somebody_else_is_not_taken(world: World) -> None:
    world.api.put({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "alice", "namespace": NS}, "data": {}})
    await world.run(world.declare("StreamUser", "alice", REF))
    assert world.condition("StreamUser", "alice")[1] == "SecretTaken"
    assert world.api.one("Secret", "alice")["data"] == {}


async def test_a_secret_of_another_name_takes_the_place_of_the_former(world: World) -> None:
    key = world.declare("StreamUser", "alice", REF)
    await world.run(key)
    world.declare("StreamUser", "alice", {**REF, "secretName": "alice-kafka"})
    await world.run(key)
    assert [each["metadata"]["name"] for each in world.api.find("Secret") if "alice" in each["metadata"]["name"]] == [
        "alice-kafka"
    ]
    world.api.put({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "bobs", "namespace": NS}, "data": {}})
    world.api.one("StreamUser", "alice")["status"]["secret"] = "bobs"  # whoever says so
    world.watch()
    world.start_operator()
    await world.run(key)
    assert world.api.find("Secret", "bobs")


async def test_a_secret_that_cannot_be_is_a_condition_and_no_failure(world: World) -> None:
    def refuse(method: str, path: str) -> ApiError | None:
        refused = method == "PATCH" and "/secrets/" in path
        return ApiError(422, 'metadata.name: Invalid value: "Alice"') if refused else None

    world.api.refuse = refuse
    assert await world.once(world.declare("StreamUser", "alice", {**REF, "secretName": "Alice"})) == 60.0
    state, reason, message = world.condition("StreamUser", "alice")
    assert (state, reason) == ("False", "Refused")
    assert "Secret Alice" in message


# --- whatever happens in between


async def test_a_crash_after_any_write_comes_to_the_same() -> None:
    for fail_at in range(1, 12):
        world = World()
        await world.run(world.declare("StreamCluster", "c", {"nodes": 1}))
        keys = [
            world.declare("Stream", "plant", STREAM | {"reclaimPolicy": "Delete"}),
            world.declare("Topic", "pumps", TOPIC | {"reclaimPolicy": "Delete"}),
            world.declare("StreamUser", "alice", REF),
        ]
        world.api.fail_after = fail_at
        for end in (False, True):
            if end:
                for kind, name in (("Topic", "pumps"), ("Stream", "plant"), ("StreamUser", "alice")):
                    world.api.remove(kind, name)
            for key in keys * 2:
                try:
                    await world.run(key)
                except ApiSilent:
                    world.start_operator()
                    await world.run(key)
            assert bool(world.cluster.streams) is bool(world.cluster.topics) is not end
            assert bool(world.api.find("StreamUser")) is not end


async def test_a_conflict_on_a_finalizer_is_raised_and_the_next_try_works(world: World) -> None:
    key = world.declare("Stream", "plant", STREAM | {"reclaimPolicy": "Delete"})
    world.watch()
    body = world.cache.get(key)
    world.declare("Stream", "plant", STREAM | {"reclaimPolicy": "Delete", "ttl": "2h"})
    with pytest.raises(ApiError, match="modified"):
        await world.reconcilers["Stream"](key, body)
    await world.run(key)
    assert world.condition("Stream", "plant")[0] == "True"


async def test_a_resource_that_vanishes_before_its_status_is_written_is_forgotten(world: World) -> None:
    key = world.declare("Stream", "plant", STREAM)
    world.watch()
    body = world.cache.get(key)
    world.api.remove("Stream", "plant")
    await world.reconcilers["Stream"](key, body)
    assert world.cache.get(key) is None


async def test_a_stream_is_not_usable_by_what_was_said_of_it_before_it_was_changed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = world.declare("Stream", "s", {**REF, "path": "/plant", "volume": "default"})
    await world.run(key)
    show = world.cluster.stream_show
    problem = "volume 'far' asks for 3 replicas, and there is no node in zone z9"
    monkeypatch.setattr(
        world.cluster,
        "stream_show",
        lambda path, figures=False: (
            (shown := show(path, figures)) | {"problem": problem if shown["volume"] == "far" else None}
        ),
    )
    world.declare("Stream", "s", {**REF, "path": "/plant", "volume": "far"})
    await world.once(key)
    assert world.condition("Stream", "s", "Usable") == ("False", "Impossible", problem)


async def test_two_thousand_topics_at_rest_cost_no_write_and_are_looked_at_seldom() -> None:
    world = World()
    await world.run(world.declare("StreamCluster", "c", {"nodes": 1}))
    keys = [world.declare("Topic", f"t{number}", TOPIC) for number in range(2000)]
    world.watch()
    for key in keys:
        await world.reconcilers["Topic"](key, world.cache.get(key))
    writes = len(world.api.writes)
    again = [await world.reconcilers["Topic"](key, world.cache.get(key)) for key in keys]
    assert len(world.api.writes) == writes
    assert min(each for each in again if each is not None) > 500

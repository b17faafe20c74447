"""ReplicationLinks, against an API server and clusters in memory."""

import asyncio
import base64
import json
import time
from typing import Any

import pytest

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.store.kubernetes.api import ApiSilent
from headrace_operator.engine import Key
from headrace_operator.kinds import link as links
from headrace_operator.kinds.link_credentials import properties_of, without_secrets
from headrace_operator.kinds.link_status import Homes, judge, moved, turns
from headrace_operator.specs import FINALIZER

from .fake_api import Object
from .fake_cluster import NS, World

REF = {"clusterRef": {"name": "c"}}
OWN = "c-bootstrap.ns.svc:9092"
SOURCE = {"bootstrap": "north:9092", "stream": "/north"}
LINK: Object = {**REF, "source": SOURCE, "target": {"stream": "/plant"}}
PASSWORD = "open-sesame"


@pytest.fixture
async def world() -> World:
    made = World()
    await made.run(made.declare("StreamCluster", "c", {"nodes": 3}))
    return made


def declared(world: World, **spec: Any) -> Key:
    return world.declare("ReplicationLink", "l", {**LINK, **spec})


def status(world: World) -> Object:
    found: Object = world.api.one("ReplicationLink", "l")["status"]
    return found


def the_link(world: World, name: str = "l") -> Object:
    return world.cluster.links[OWN, name]


def has_secret(world: World, **data: str) -> None:
    encoded = {name: base64.b64encode(value.encode()).decode() for name, value in data.items()}
    world.api.put({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": NS}, "data": encoded})


SCRAM = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-256",
    "sasl.username": "outpost",
    "sasl.password": PASSWORD,
}
WITH_SECRET = {"source": {**SOURCE, "credentialsSecret": "s"}}


async def test_a_link_is_made_then_changed_then_left_alone(world: World) -> None:
    key = declared(world, throttle="1Mi", topics=["pump-*"])
    await world.run(key)
    made = the_link(world)
    assert (made["source"], made["source_stream"], made["stream"]) == (["north:9092"], "/north", "/plant")
    assert (made["throttle"], made["topics"], made["direction"]) == (1 << 20, ["pump-*"], "pull")
    for condition in ("Ready", "Reconciled", "Connected", "TopicsAccepted", "CaughtUp", "NothingDiverged"):
        assert world.condition("ReplicationLink", "l", condition)[0] == "True", condition
    assert status(world)["state"] == "CaughtUp"
    assert status(world)["link"] == "l"
    assert world.events().count("LinkCreated") == 1
    declared(world, topics=["*"], forwardWrites=True, source={**SOURCE, "bootstrap": "north:9092, north-2:9092"})
    await world.run(key)
    (altered,) = [params for method, params in world.cluster.calls if method == "link.alter"]
    assert altered == {
        "name": "l",
        "source": ["north:9092", "north-2:9092"],
        "topics": ["*"],
        "forward_writes": True,
        "throttle": 0,
    }
    writes, calls = len(world.api.writes), len(world.cluster.calls)
    for _ in range(3):
        await world.once(key)
    assert (len(world.api.writes), len(world.cluster.calls)) == (writes, calls)


async def test_a_link_has_not_caught_up_with_what_has_just_been_asked_for(world: World) -> None:
    key = declared(world, topics=["pump-*"])
    await world.run(key)
    declared(world, topics=["*"])
    await world.once(key)
    assert world.condition("ReplicationLink", "l", "CaughtUp")[:2] == ("False", "CatchingUp")
    assert "SourceLost" not in world.events()
    await world.once(key)
    assert world.condition("ReplicationLink", "l", "CaughtUp")[0] == "True"


async def test_a_link_is_paused_whatever_its_source_says_and_goes_on(world: World) -> None:
    key = declared(world)
    await world.run(key)
    world.cluster.refuses = KafkaError(Code.BROKER_NOT_AVAILABLE, "north-2:9092 cannot be reached")
    declared(world, paused=True, source={**SOURCE, "bootstrap": "north-2:9092"})
    await world.once(key)
    assert the_link(world)["state"] == "Paused"
    assert world.condition("ReplicationLink", "l", "Connected")[:2] == ("False", "LinkPaused")
    assert world.condition("ReplicationLink", "l", "Reconciled")[:2] == ("False", "SourceSilent")
    world.cluster.refuses = None
    declared(world, paused=False)
    await world.run(key)
    assert the_link(world)["state"] == "CaughtUp"
    assert world.condition("ReplicationLink", "l")[0] == "True"
    assert [each for each in world.events() if each in ("LinkPaused", "LinkResumed")] == ["LinkPaused", "LinkResumed"]


@pytest.mark.parametrize(
    ("code", "reason", "again_s"),
    [
        (Code.BROKER_NOT_AVAILABLE, "SourceSilent", 15),
        (Code.CLUSTER_AUTHORIZATION_FAILED, "SourceRefuses", 60),
        (Code.INVALID_CONFIG, "Refused", 60),
        (Code.UNKNOWN_TOPIC_OR_PARTITION, "Refused", 60),
    ],
)
async def test_a_source_that_cannot_be_copied_from_is_a_condition(
    world: World, code: Code, reason: str, again_s: float
) -> None:
    world.cluster.refuses = KafkaError(code, "what is wrong")
    key = declared(world)
    again = await world.once(key)
    assert world.condition("ReplicationLink", "l", "Reconciled") == ("False", reason, "what is wrong")
    assert world.condition("ReplicationLink", "l")[:2] == ("False", reason)
    assert world.condition("ReplicationLink", "l", "CaughtUp")[0] == "Unknown"
    assert again == pytest.approx(again_s, rel=0.11)
    assert not world.cluster.links
    world.cluster.refuses = None
    await world.run(key)
    assert world.condition("ReplicationLink", "l")[0] == "True"


async def test_a_lost_source_is_told_once_and_so_is_its_return(world: World) -> None:
    key = declared(world)
    await world.run(key)
    the_link(world).update(state="Connecting", since_ms=0, last_error="north:9092 cannot be reached")
    for _ in range(3):
        await world.once(key)
    assert world.condition("ReplicationLink", "l", "Connected")[1] == "SourceSilent"
    assert world.condition("ReplicationLink", "l")[2] == "north:9092 cannot be reached"
    assert world.condition("ReplicationLink", "l", "CaughtUp")[0] == "Unknown"
    the_link(world).update(state="CatchingUp", lag_seconds=40.0, lag_records=10)
    for _ in range(3):
        await world.once(key)
    assert world.condition("ReplicationLink", "l")[0] == "True"
    assert world.condition("ReplicationLink", "l", "CaughtUp")[:2] == ("False", "CatchingUp")
    assert [each for each in world.events() if each.startswith("Source")] == ["SourceLost", "SourceConnected"]


async def test_topics_that_are_refused_are_named(world: World) -> None:
    key = declared(world)
    await world.run(key)
    reason = "it has another id here: `headrace link adopt`"
    the_link(world)["refused"] = [{"topic": f"t{number}", "reason": reason} for number in range(30)]
    for _ in range(2):
        await world.once(key)
    state, why, message = world.condition("ReplicationLink", "l")
    assert (state, why) == ("False", "TopicsRefused")
    assert "t0: it has another id" in message
    assert "27 more" in message
    assert (status(world)["refusedTopics"], len(status(world)["refused"])) == (30, 20)
    assert world.events().count("TopicsRefused") == 1


async def test_records_that_diverged_are_told_and_are_no_failure(world: World) -> None:
    key = declared(world)
    await world.run(key)
    aside = {"topic": "pump", "into": "/plant:pump.diverged"}
    the_link(world)["diverged"] = [{**aside, "partition": 0, "records": 3}, {**aside, "partition": 1, "records": 4}]
    for _ in range(2):
        await world.once(key)
    assert world.condition("ReplicationLink", "l")[0] == "True"
    assert "7 of pump in /plant:pump.diverged" in world.condition("ReplicationLink", "l", "NothingDiverged")[2]
    assert status(world)["divergedRecords"] == 7
    assert world.events().count("RecordsDiverged") == 1


async def test_figures_are_shown_by_topic_group(world: World) -> None:
    key = declared(world, topics=["a-*", "b"])
    await world.run(key)
    lag = {"records": 5, "bytes": 500, "seconds": 1.5, "partitions": 2}
    the_link(world).update(lag_records=5, lag_bytes=500, lag_seconds=1.5, groups={"a-*": lag})
    the_link(world).update(last_error="a moment ago", last_error_ms=1_700_000_000_000)
    world.start_operator()
    await world.once(key)
    shown = status(world)
    assert (shown["lagRecords"], shown["lagBytes"], shown["lagSeconds"]) == (5, 500, 1.5)
    assert [(each["topics"], each["lagRecords"]) for each in shown["groups"]] == [("a-*", 5), ("b", 0)]
    assert (shown["lastError"], shown["lastErrorAt"]) == ("a moment ago", "2023-11-14T22:13:20Z")
    before = len(world.api.writes)
    the_link(world)["lag_records"] = 6
    await world.once(key)
    assert len(world.api.writes) == before, "figures alone are written once a minute"


# --- credentials


async def test_credentials_are_sent_once_for_each_version_of_their_secret_and_told_nowhere(world: World) -> None:
    has_secret(world, **SCRAM)
    key = declared(world, **WITH_SECRET)
    await world.run(key)
    assert the_link(world)["credentials"] == SCRAM
    world.start_operator()
    await world.once(key)
    assert "link.alter" not in [method for method, _ in world.cluster.calls]
    has_secret(world, **{**SCRAM, "sasl.password": "another-one"})
    for _ in range(3):
        await world.once(key)
    assert [params for method, params in world.cluster.calls if method == "link.alter"] == [
        {"name": "l", "credentials": {**SCRAM, "sasl.password": "another-one"}}
    ]
    the_link(world).update(state="Failed", last_error="north:9092: 'outpost' with another-one is refused")
    await world.once(key)
    assert "with *** is refused" in world.condition("ReplicationLink", "l", "Connected")[2]
    the_link(world).update(state="CaughtUp", last_error=None)
    world.start_operator()
    declared(world)
    for _ in range(3):
        await world.once(key)
    assert the_link(world)["credentials"] == {}
    assert [method for method, _ in world.cluster.calls].count("link.alter") == 2
    told = json.dumps([world.api.find("ReplicationLink"), world.api.find("Event")])
    assert PASSWORD not in told
    assert "another-one" not in told


async def test_credentials_are_sent_again_with_another_address_of_the_source(world: World) -> None:
    has_secret(world, **SCRAM)
    key = declared(world, **WITH_SECRET)
    await world.run(key)
    source = {**WITH_SECRET["source"], "bootstrap": "north-2:9092"}
    declared(world, source=source)
    for _ in range(3):
        await world.once(key)
    assert [params for method, params in world.cluster.calls if method == "link.alter"] == [
        {"name": "l", "source": ["north-2:9092"], "credentials": SCRAM}
    ]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({}, "it has no client properties"),
        ({"sasl.passwort": "x"}, "sasl.passwort is no property"),
        ({"security.protocol": "SSL", "ssl.ca.location": "/etc/passwd"}, "give ssl.ca.pem"),
        ({"client.properties": "security.protocol=SSL\nssl.ca.pem=-----BEGIN\nMIIsecret==\n"}, "a PEM of several"),
        ({"client.properties": "MIIsecret"}, "is not NAME=VALUE"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "needs sasl.username and sasl.password"),
    ],
)
async def test_a_secret_that_cannot_be_used_is_a_condition(world: World, data: dict[str, str], said: str) -> None:
    has_secret(world, **data)
    await world.run(declared(world, **WITH_SECRET))
    state, reason, message = world.condition("ReplicationLink", "l")
    assert (state, reason) == ("False", "BadSecret")
    assert said in message
    assert "MII" not in message
    assert not world.cluster.links


async def test_a_secret_that_is_not_there_is_looked_for_again(world: World) -> None:
    key = declared(world, **WITH_SECRET)
    assert await world.once(key) == pytest.approx(15, rel=0.11)
    assert world.condition("ReplicationLink", "l")[:2] == ("False", "NoSecret")
    has_secret(world, **SCRAM)
    await world.run(key)
    assert world.condition("ReplicationLink", "l")[0] == "True"


def test_the_secret_of_a_stream_user_will_do() -> None:
    values = {"bootstrap": "b:1", "user": "u", "password": "p"}
    values["client.properties"] = "bootstrap.servers=b:1\nsecurity.protocol=PLAINTEXT\nclient.id=u\n"
    encoded = {name: base64.b64encode(value.encode()).decode() for name, value in values.items()}
    assert properties_of({"data": encoded}) == {"security.protocol": "PLAINTEXT"}
    with pytest.raises(HeadraceError, match="user is no property"):
        properties_of({"data": {"user": encoded["user"]}})
    with pytest.raises(HeadraceError, match="is not text"):
        properties_of({"data": {"ssl.ca.pem": base64.b64encode(b"\xff\xfe").decode()}})


def test_what_is_no_secret_is_left_in_a_text() -> None:
    assert without_secrets("outpost: open-sesame", SCRAM) == "outpost: ***"


# --- sources and targets


@pytest.fixture
async def two(world: World) -> World:
    """A second cluster, in another namespace, that does not allow this one yet."""
    world.declare("StreamCluster", "d", {"nodes": 1}, namespace="far")
    return world


FAR = {"source": {"clusterRef": {"name": "d", "namespace": "far"}, "stream": "/north"}}


async def test_a_source_of_another_namespace_has_to_allow_it(two: World) -> None:
    key = declared(two, **FAR)
    assert await two.once(key) is None
    state, reason, message = two.condition("ReplicationLink", "l")
    assert (state, reason) == ("False", "NotAllowed")
    assert "StreamCluster far/d does not allow namespace ns" in message
    allowing = two.declare("StreamCluster", "d", {"nodes": 1, "allowedNamespaces": {"names": [NS]}}, namespace="far")
    assert key in two.index.concerned(Key("StreamCluster", "far", "d"), two.api.one("StreamCluster", "d"))
    assert allowing
    await two.run(key)
    assert the_link(two)["source"] == ["d-bootstrap.far.svc:9092"]
    assert the_link(two)["bootstrap"] == [OWN]


async def test_a_source_cluster_that_is_not_there_is_named(world: World) -> None:
    await world.once(declared(world, **FAR))
    assert world.condition("ReplicationLink", "l")[1] == "NoCluster"
    assert "source.clusterRef" in world.condition("ReplicationLink", "l")[2]


async def test_a_link_whose_source_is_no_resource_any_more_is_shown_as_it_is(two: World) -> None:
    two.declare("StreamCluster", "d", {"nodes": 1, "allowedNamespaces": {"names": ["*"]}}, namespace="far")
    key = declared(two, **FAR)
    await two.run(key)
    assert status(two)["state"] == "CaughtUp"
    younger = two.declare("ReplicationLink", "same", {**LINK, **FAR, "name": "l"})
    two.api.remove("StreamCluster", "d")
    two.watch()
    the_link(two).update(state="Connecting", lag_seconds=45.0, last_error=f"{PASSWORD} is refused")
    assert await two.once(key) == pytest.approx(links.LOOK_S, rel=0.11)
    assert two.condition("ReplicationLink", "l")[1] == "NoCluster"
    assert (status(two)["state"], status(two)["lagSeconds"]) == ("Connecting", 45.0)
    assert PASSWORD not in json.dumps(status(two)), "its Secret is not looked at, and may be in an error"
    await two.once(younger)
    assert "state" not in two.api.one("ReplicationLink", "same")["status"], "it is not this one's"


async def test_multi_home_has_the_source_copy_from_here_and_both_links_go_with_the_resource(two: World) -> None:
    two.declare("StreamCluster", "d", {"nodes": 1, "allowedNamespaces": {"names": ["*"]}}, namespace="far")
    key = declared(two, **FAR, mode="MultiHome")
    await two.run(key)
    back = two.cluster.links["d-bootstrap.far.svc:9092", "l"]
    assert (back["source"], back["source_stream"], back["stream"]) == ([OWN], "/plant", "/north")
    two.api.remove("ReplicationLink", "l")
    await two.once(key)
    assert not two.cluster.links
    assert not two.api.find("ReplicationLink")
    assert "/plant" in two.cluster.streams, "what was copied stays"


@pytest.fixture
async def both_ways(two: World) -> tuple[World, Key]:
    """A link that goes both ways, which is to go one way again."""
    two.declare("StreamCluster", "d", {"nodes": 1, "allowedNamespaces": {"names": ["*"]}}, namespace="far")
    key = declared(two, **FAR, mode="MultiHome")
    await two.run(key)
    declared(two, **FAR, mode="OneWay")
    return two, key


def is_one_way(world: World) -> bool:
    return list(world.cluster.links) == [(OWN, "l")] and the_link(world)["direction"] == "pull"


async def test_a_link_that_goes_one_way_again_takes_the_reverse_one_away(both_ways: tuple[World, Key]) -> None:
    world, key = both_ways
    await world.run(key)
    assert is_one_way(world)
    assert status(world)["reverseLink"] is False
    asked: list[str] = []
    world.cluster.asked = asked.append
    await world.once(key)
    assert set(asked) == {OWN}, "the source is asked no more"


@pytest.mark.parametrize(("method", "is_done"), [("link.alter", True), ("link.alter", False), ("link.delete", True)])
async def test_the_reverse_link_goes_though_an_answer_is_lost(
    both_ways: tuple[World, Key], method: str, is_done: bool
) -> None:
    world, key = both_ways
    world.cluster.loses = (method, is_done)
    await world.once(key)
    world.start_operator()
    await world.run(key)
    assert is_one_way(world)
    assert world.condition("ReplicationLink", "l")[0] == "True"


async def test_the_reverse_link_goes_when_the_source_answers_again(both_ways: tuple[World, Key]) -> None:
    world, key = both_ways
    world.cluster.silent = {"d-bootstrap.far.svc:9092"}
    for _ in range(2):
        await world.once(key)
    reason, message = world.condition("ReplicationLink", "l", "Reconciled")[1:]
    assert reason == "SourceSilent"
    assert "the source's link l still copies from here" in message
    world.start_operator()
    world.cluster.silent = set()
    await world.run(key)
    assert is_one_way(world)
    assert world.condition("ReplicationLink", "l")[0] == "True"


async def test_a_reverse_link_that_is_left_goes_with_the_resource(both_ways: tuple[World, Key]) -> None:
    world, key = both_ways
    world.cluster.silent = {"d-bootstrap.far.svc:9092"}
    await world.once(key)
    world.cluster.silent = set()
    world.api.remove("ReplicationLink", "l")
    await world.once(key)
    assert not world.cluster.links


async def test_a_reverse_link_whose_making_was_not_heard_of_goes_too(two: World) -> None:
    two.declare("StreamCluster", "d", {"nodes": 1, "allowedNamespaces": {"names": ["*"]}}, namespace="far")
    key = declared(two, **FAR, mode="MultiHome")
    await two.once(key)
    assert (status(two)["reverseLink"], two.cluster.links) == (True, {}), "it is noted first"
    two.cluster.loses = ("link.create", True)
    await two.once(key)
    del two.cluster.links[OWN, "l"]  # the source made its own, and the target failed then
    declared(two, **FAR, mode="OneWay")
    await two.run(key)
    assert is_one_way(two)


async def test_a_reverse_link_that_cannot_be_asked_about_is_told_of_once(world: World) -> None:
    reached = {"stream": "/plant", "bootstrap": "plant.example.com:9092"}
    key = declared(world, mode="MultiHome", target=reached)
    await world.run(key)
    declared(world, target=reached)
    for _ in range(3):
        await world.once(key)
    assert world.events().count("NotDeleted") == 1
    assert the_link(world)["direction"] == "pull"


async def test_a_reverse_link_by_an_address_of_its_own_goes_too(two: World) -> None:
    two.declare("StreamCluster", "d", {"nodes": 1, "allowedNamespaces": {"names": ["*"]}}, namespace="far")
    reached = {"stream": "/plant", "bootstrap": "plant.example.com:9092"}
    for one_way in (True, False):
        key = declared(two, **FAR, mode="MultiHome", target=reached)
        await two.run(key)
        if one_way:
            declared(two, **FAR, target=reached)
            await two.run(key)
            assert is_one_way(two)
        else:
            two.api.remove("ReplicationLink", "l")
            await two.once(key)
            assert not two.cluster.links


async def test_multi_home_needs_an_address_that_the_source_reaches(world: World) -> None:
    key = declared(world, mode="MultiHome")
    await world.once(key)
    assert world.condition("ReplicationLink", "l")[:2] == ("False", "NoAddress")
    assert "target.bootstrap" in world.condition("ReplicationLink", "l")[2]
    cluster = world.api.one("StreamCluster", "c")
    cluster["status"]["externalBootstrap"] = "10.0.0.1:30000"
    world.api._bump(cluster)
    await world.run(key)
    assert the_link(world)["bootstrap"] == ["10.0.0.1:30000"]
    declared(world, mode="MultiHome", target={"stream": "/plant", "bootstrap": "plant.example.com:9092"})
    await world.run(key)
    assert the_link(world)["bootstrap"] == ["plant.example.com:9092"]
    world.api.remove("ReplicationLink", "l")
    await world.once(key)
    assert "NotDeleted" in world.events(), "the reverse link is the source's"


async def test_a_stream_that_is_declared_comes_first_and_says_how_long_it_lives(world: World) -> None:
    stream = world.declare("Stream", "plant", {**REF, "path": "/plant", "ttl": "7d"})
    key = declared(world, target={"stream": "/plant", "ttl": "30d"})
    await world.once(key)
    assert world.condition("ReplicationLink", "l")[:2] == ("False", "TtlTwice")
    declared(world)
    await world.once(key)
    assert world.condition("ReplicationLink", "l")[:2] == ("False", "StreamFirst")
    world.woken.clear()
    await world.run(stream)
    assert world.woken == [key]
    await world.run(key)
    assert world.condition("ReplicationLink", "l")[0] == "True"
    assert world.cluster.streams["/plant"]["ttl_ms"] == 7 * 86_400_000


async def test_without_a_stream_the_link_says_how_long_the_copy_lives(world: World) -> None:
    key = declared(world, target={"stream": "/plant", "ttl": "30d"})
    await world.run(key)
    assert world.cluster.streams["/plant"]["ttl_ms"] == 30 * 86_400_000
    other = world.declare(
        "ReplicationLink",
        "m",
        {**LINK, "target": {"stream": "/plant", "ttl": "1d"}},
        creationTimestamp="2026-02-02T00:00:00Z",
    )
    await world.once(other)
    assert world.condition("ReplicationLink", "m")[1] == "TtlTwice"
    await world.run(key)
    assert world.cluster.streams["/plant"]["ttl_ms"] == 30 * 86_400_000


async def test_a_link_of_that_name_between_other_streams_is_left_alone(world: World) -> None:
    await world.run(declared(world))
    world.declare("ReplicationLink", "m", {**LINK, "name": "l", "target": {"stream": "/other"}})
    world.api.remove("ReplicationLink", "l")
    world.api.objects = {path: each for path, each in world.api.objects.items() if not path.endswith("/l")}
    await world.run(Key("ReplicationLink", NS, "m"))
    assert world.condition("ReplicationLink", "m")[:2] == ("False", "OtherLink")
    world.api.remove("ReplicationLink", "m")
    await world.once(Key("ReplicationLink", NS, "m"))
    assert not world.api.find("ReplicationLink")
    assert the_link(world)["stream"] == "/plant"


async def test_of_two_of_one_name_the_older_one_holds(world: World) -> None:
    await world.run(declared(world))
    young = world.declare("ReplicationLink", "m", {**LINK, "name": "l"}, creationTimestamp="2026-02-02T00:00:00Z")
    await world.once(young)
    assert world.condition("ReplicationLink", "m")[1] == "Clash"


# --- the end


async def test_retain_leaves_the_link(world: World) -> None:
    key = declared(world, reclaimPolicy="Retain")
    await world.run(key)
    assert not world.api.one("ReplicationLink", "l")["metadata"].get("finalizers")
    world.api.remove("ReplicationLink", "l")
    await world.once(key)
    assert (OWN, "l") in world.cluster.links


async def test_nothing_hangs_where_the_cluster_is_gone(world: World) -> None:
    key = declared(world)
    await world.run(key)
    assert world.api.one("ReplicationLink", "l")["metadata"]["finalizers"] == [FINALIZER]
    world.api.remove("ReplicationLink", "l")
    world.cluster.away = True
    assert await world.once(key) is not None
    assert world.condition("ReplicationLink", "l", "Reconciled")[1] == "NotDeleted"
    world.api.remove("StreamCluster", "c")
    world.api.objects = {path: each for path, each in world.api.objects.items() if "/streamclusters/" not in path}
    await world.once(key)
    assert not world.api.find("ReplicationLink")


async def test_a_crash_after_any_write_comes_to_the_same() -> None:
    for fail_at in range(1, 9):
        world = World()
        await world.run(world.declare("StreamCluster", "c", {"nodes": 1}))
        key = declared(world)
        world.api.fail_after = fail_at
        for end in (False, True):
            if end:
                world.api.remove("ReplicationLink", "l")
            for _ in range(2):
                try:
                    await world.run(key)
                except ApiSilent:
                    world.start_operator()
                    await world.run(key)
            assert bool(world.cluster.links) is bool(world.api.find("ReplicationLink")) is not end
        assert [method for method, _ in world.cluster.calls].count("link.create") == 1


# --- homes, and many links


async def test_homes_that_move_are_told(world: World) -> None:
    key = declared(world)
    world.cluster.homes = [{"home": [0, "north"]}, {"home": [0, "north"]}]
    await world.run(key)
    assert status(world)["topicsAtHome"] == 0
    world.cluster.homes = [{"home": [1, "own"]}, {"home": [1, "own"]}]
    for _ in range(2):
        await world.once(key)
    assert world.events().count("HomeMoved") == 1


async def test_the_home_of_a_topic_that_had_not_been_seen_yet_has_moved_too(world: World) -> None:
    key = declared(world)
    world.cluster.homes = [{"home": [0, "north"]}, {"home": [0, "own"]}]
    await world.run(key)
    world.cluster.homes += [{"home": [0, "own"]}, {"home": [3, "north"]}]
    await world.once(key)
    assert "HomeMoved" not in world.events(), "one was made here, and one was copied that had moved elsewhere"
    world.cluster.homes += [{"home": [2, "own"]}]
    for _ in range(2):
        await world.once(key)
    assert world.events().count("HomeMoved") == 1


def test_topics_that_are_made_or_deleted_move_no_home() -> None:
    assert moved(Homes(1, 2), Homes(1, 5), "/plant") is None
    assert moved(Homes(1, 2), Homes(0, 2), "/plant") is None
    assert moved(Homes(2, 3), Homes(0, 5), "/plant") is not None


async def test_what_is_remembered_of_links_that_are_gone_is_bounded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "ROOM", 3)
    for number in range(12):
        name = f"l{number}"
        await world.run(world.declare("ReplicationLink", name, {**LINK, "reclaimPolicy": "Retain"}))
        world.api.remove("ReplicationLink", name)
    reconciler: links.Links = world.reconcilers["ReplicationLink"].__self__  # type: ignore[attr-defined]
    assert len(reconciler._sent) <= 3 + 2
    assert len(reconciler._homes) <= 3 + 2


async def test_sources_that_are_silent_keep_nobody_else_waiting(world: World) -> None:
    keys = [world.declare("ReplicationLink", f"l{number}", LINK) for number in range(4)]
    world.watch()
    world.cluster.holds_sources = asyncio.Event()
    tasks = [
        asyncio.create_task(world.reconcilers["ReplicationLink"](key, world.cache.get(key)))  # type: ignore[arg-type]
        for key in keys
    ]
    done, pending = await asyncio.wait(tasks, timeout=5, return_when=asyncio.ALL_COMPLETED)
    assert len(pending) == world.cluster.held == links.AT_ONCE
    assert all(again is not None and again <= 2 * links.IN_TURN_S for again in (task.result() for task in done))
    assert sorted(
        each["status"]["conditions"][0]["reason"] for each in world.api.find("ReplicationLink") if "status" in each
    ) == ["InTurn", "InTurn"]
    world.cluster.holds_sources.set()
    await asyncio.gather(*pending)
    for key in keys:
        await world.run(key)
    assert len(world.cluster.links) == 4


async def test_a_link_that_has_not_connected_yet_is_looked_at_again_soon(world: World) -> None:
    key = declared(world)
    await world.run(key)
    the_link(world).update(state="Connecting", since_ms=0)
    assert await world.once(key) == pytest.approx(links.SOON_S, rel=0.11)
    assert world.condition("ReplicationLink", "l")[:2] == ("Unknown", "Connecting")


async def test_a_link_that_is_not_as_it_should_be_is_looked_at_more_often(world: World) -> None:
    key = declared(world)
    await world.run(key)
    link = the_link(world)
    assert await world.once(key) == pytest.approx(links.LOOK_S, rel=0.11)
    link.update(state="Connecting", since_ms=time.time() * 1000)
    assert await world.once(key) == pytest.approx(links.SOON_S, rel=0.11)
    assert world.condition("ReplicationLink", "l", "Connected")[0] == "True", "it may be for a moment alone"
    link.update(since_ms=0, last_error="no connection within 10 s")
    assert await world.once(key) == pytest.approx(links.TROUBLED_S, rel=0.11)
    assert world.condition("ReplicationLink", "l", "Connected")[:2] == ("False", "SourceSilent")
    link.update(state="CatchingUp", lag_seconds=40.0, last_error=None)
    assert await world.once(key) == pytest.approx(links.TROUBLED_S, rel=0.11)
    for state in ("CaughtUp", "Failed"):
        link.update(state=state)
        assert await world.once(key) == pytest.approx(links.LOOK_S, rel=0.11), state


def test_a_node_that_starts_anew_is_no_lost_source_and_a_moment_behind_is_not_behind() -> None:
    shown: Object = {"state": "Connecting", "since_ms": 95_000, "last_error": None}
    before = {
        "conditions": [
            {"type": "Connected", "status": "True", "reason": "Answers", "message": ""},
            {"type": "CaughtUp", "status": "True", "reason": "CaughtUp", "message": ""},
        ]
    }
    found = {each.type: each for each in judge(shown, before, now=100.0)}
    assert found["Connected"].ok
    assert found["CaughtUp"].ok
    assert turns(before, list(found.values()), "/plant") == []
    assert {each.type: each.ok for each in judge(shown, before, now=110.0)}["Connected"] is None
    assert {each.type: each.ok for each in judge(shown, {}, now=100.0)}["Connected"] is None
    behind = {**shown, "state": "CatchingUp", "lag_seconds": 5.0}
    assert {each.type: each.ok for each in judge(behind, before, now=1.0)}["CaughtUp"]
    assert not {each.type: each.ok for each in judge(behind, {}, now=1.0)}["CaughtUp"]

"""ReplicationLinks, against an API server and clusters in memory."""

import asyncio
import base64
import json
import time
from typing import Any

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.store.kubernetes.api import ApiSilent
from headrace_operator.engine import Key
from headrace_operator.kinds import link as links
from headrace_operator.specs import FINALIZER

from ..fake_api import Object
from ..fake_cluster import NS, World

REF = {"clusterRef": {"name": "c"}}
OWN = "c-bootstrap.ns.svc:9092"
SOURCE = {"bootstrap": "north:9092", "stream": "/north"}
LINK: Object = {**REF, "source": SOURCE, "target": {"stream": "/plant"}}
PASSWORD = "open-sesame"


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


FAR = {"source": {"clusterRef": {"name": "d", "namespace": "far"}, "stream": "/north"}}


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
    """A link in both directions that is to become one-way again."""
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
    del two.cluster.links[OWN, "l"]  # the source created its link, and then the target failed
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


# --- deletion


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

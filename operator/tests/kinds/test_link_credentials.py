"""A link's credentials: from which Secrets they come, when they are sent, and that they are never shown."""

import base64
import json

import pytest

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.security.client_security import security_of
from headrace_operator.builders.authorities import decoded
from headrace_operator.kinds.link_credentials import properties_of, without_secrets

from ..fake_cluster import World
from .test_link import LINK, PASSWORD, SCRAM, WITH_SECRET, declared, has_secret, status, the_link


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
        ({"sasl.passwort": "x"}, "sasl.passwort is not a security property"),
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
    with pytest.raises(HeadraceError, match="user is not a security property"):
        properties_of({"data": {"user": encoded["user"]}})
    with pytest.raises(HeadraceError, match="is not text"):
        properties_of({"data": {"ssl.ca.pem": base64.b64encode(b"\xff\xfe").decode()}})


def test_what_is_no_secret_is_left_in_a_text() -> None:
    assert without_secrets("outpost: open-sesame", SCRAM) == "outpost: ***"


async def test_a_user_that_is_declared_has_the_credentials_and_the_address(secure: World) -> None:
    await secure.run(secure.declare("StreamCluster", "c", {"nodes": 3, "security": {"enabled": True}, **SECOND}))
    source = {"clusterRef": {"name": "c"}, "stream": "/north", "userRef": {"name": "copier"}}
    secure.declare("StreamCluster", "near", {"nodes": 1})
    target = {"clusterRef": {"name": "near"}, "source": source, "target": {"stream": "/copy"}}
    key = secure.declare("ReplicationLink", "l", target)
    await secure.once(key)
    assert secure.condition("ReplicationLink", "l")[1] == "NoUser"
    user = {"clusterRef": {"name": "c"}, "listener": "secure", "secretName": "copier-kafka"}
    await secure.run(secure.declare("StreamUser", "copier", user))
    await secure.run(key)
    (link,) = [each for (where, _), each in secure.cluster.links.items() if where.startswith("near")]
    held = decoded(secure.api.one("Secret", "copier-kafka"))
    assert link["source"] == ["c-bootstrap.ns.svc:9192"]
    assert link["credentials"] == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "copier",
        "sasl.password": held["password"],
        "sasl.jaas.config": held["sasl.jaas.config"],
        "ssl.ca.pem": held["ca.crt"],
    }
    assert security_of(link["credentials"]).protocol == "SASL_SSL"


SECOND = {"listeners": {"secure": {}}}


BOTH = {"mode": "MultiHome", "target": {"stream": "/plant", "bootstrap": "plant:9092", "credentialsSecret": "s"}}


async def test_the_source_copies_from_here_by_the_credentials_of_the_target(world: World) -> None:
    has_secret(world, **SCRAM)
    key = declared(world, **BOTH)
    await world.run(key)
    back = world.cluster.links["north:9092", "l"]
    assert (back["source"], back["credentials"]) == (["plant:9092"], SCRAM)
    assert the_link(world)["credentials"] == {}
    assert status(world)["reverseCredentialsVersion"].startswith("s@")
    world.start_operator()
    await world.run(key)
    assert "link.alter" not in [method for method, _ in world.cluster.calls]
    has_secret(world, **{**SCRAM, "sasl.password": "another-sesame"})
    await world.run(key)
    assert world.cluster.links["north:9092", "l"]["credentials"]["sasl.password"] == "another-sesame"
    elsewhere = {"stream": "/plant", "bootstrap": "plant:9093", "credentialsSecret": "s"}
    await world.run(declared(world, mode="MultiHome", target=elsewhere))
    back = world.cluster.links["north:9092", "l"]
    assert (back["source"], back["credentials"]["sasl.password"]) == (["plant:9093"], "another-sesame")
    told = json.dumps([world.api.find("ReplicationLink"), world.api.find("Event")])
    assert "sesame" not in told


async def test_what_the_source_says_of_the_credentials_of_the_target_is_not_told(world: World) -> None:
    has_secret(world, **SCRAM)
    world.cluster.refuses = KafkaError(Code.SASL_AUTHENTICATION_FAILED, f"wrong: {PASSWORD}")
    await world.run(declared(world, **BOTH))
    assert "wrong: ***" in world.condition("ReplicationLink", "l")[2]


async def test_a_declared_user_of_the_target_says_where_the_source_comes_in(secure: World) -> None:
    await secure.run(secure.declare("StreamCluster", "c", {"nodes": 3, "security": {"enabled": True}, **SECOND}))
    user = {"clusterRef": {"name": "c"}, "listener": "secure"}
    await secure.run(secure.declare("StreamUser", "northern", user))
    target = {"stream": "/plant", "userRef": {"name": "northern"}}
    key = secure.declare("ReplicationLink", "l", {**LINK, "mode": "MultiHome", "target": target})
    await secure.run(key)
    back = secure.cluster.links["north:9092", "l"]
    assert back["source"] == ["c-bootstrap.ns.svc:9192"]
    assert back["credentials"]["sasl.username"] == "northern"

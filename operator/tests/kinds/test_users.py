"""StreamUsers: each has its own Secret, whose password is kept."""

import base64
from typing import Any

import pytest
from cryptography import x509

from headrace.base.errors import Code, KafkaError
from headrace.store.kubernetes.api import ApiError
from headrace_operator.builders.authorities import FORCE, decoded
from headrace_operator.engine import Key
from headrace_operator.kinds.kind import EARLY_S
from headrace_operator.kinds.users import TOLD
from headrace_operator.specs import FINALIZER

from ..fake_cluster import NS, World
from .declared import REF

ALICE = Key("StreamUser", NS, "alice")


async def declared(world: World, **fields: Any) -> dict[str, str]:
    """Return the content of alice's Secret after a reconcile."""
    await world.run(world.declare("StreamUser", "alice", {**REF, **fields}))
    return decoded(world.api.one("Secret", "alice"))


def annotated(world: World, name: str, value: str) -> None:
    found = world.api.one("StreamUser", "alice")
    world.api.put({**found, "metadata": {**found["metadata"], "annotations": {name: value}}})


async def test_a_user_of_a_secure_cluster_can_come_in(secure: World) -> None:
    held = await declared(secure, groups=["ops", "sensors"], quotas={"producerByteRate": 1000})
    assert secure.cluster.users["alice"] == {"groups": ["ops", "sensors"], "password": held["password"]}
    assert secure.cluster.quotas["alice"] == {"producer_byte_rate": 1000.0}
    assert held["bootstrap"] == "c-bootstrap.ns.svc:9092"
    assert "security.protocol=SASL_SSL" in held["client.properties"]
    assert held["ca.crt"] == decoded(secure.api.one("Secret", "c-ca"))["ca.crt"]
    assert "ScramLoginModule" in held["sasl.jaas.config"]
    assert secure.condition("StreamUser", "alice")[0] == "True"
    secure.start_operator()
    assert await secure.once(ALICE) == EARLY_S
    await secure.once(Key("StreamCluster", NS, "c"))
    before = len(secure.cluster.calls), list(secure.api.writes)
    await secure.once(ALICE)
    assert (len(secure.cluster.calls), secure.api.writes) == before


async def test_a_user_may_prove_who_it_is_by_a_certificate_alone(secure: World) -> None:
    spec = {"nodes": 3, "security": {"enabled": True}, "listeners": {"internal": {"protocol": "SSL"}}}
    await secure.run(secure.declare("StreamCluster", "c", spec))
    await secure.run(secure.declare("StreamUser", "alice", REF))
    assert secure.condition("StreamUser", "alice")[1] == "NoWayIn"
    held = await declared(secure, authentication={"tls": {}})
    assert secure.cluster.users["alice"] == {"groups": [], "password": None}
    certificate = x509.load_pem_x509_certificate(held["user.crt"].encode())
    ca = x509.load_pem_x509_certificate(decoded(secure.api.one("Secret", "c-clients-ca"))["ca.crt"].encode())
    certificate.verify_directly_issued_by(ca)
    assert certificate.subject.rfc4514_string() == "CN=alice"
    assert "ssl.key.location=/etc/headrace/user/user.key" in held["client.properties"]
    assert "password" not in held
    assert await declared(secure, authentication={"tls": {}}) == held
    annotated(secure, FORCE, "true")
    await secure.run(ALICE)
    assert decoded(secure.api.one("Secret", "alice"))["user.crt"] != held["user.crt"]
    assert not secure.api.one("StreamUser", "alice")["metadata"]["annotations"]


BOTH = {"authentication": {"scram": {}, "tls": {}}}
CERTIFICATE = {"authentication": {"tls": {}}}


async def test_a_user_that_shall_have_a_certificate_only_loses_its_password(secure: World) -> None:
    former = (await declared(secure, **BOTH))["password"]
    held = await declared(secure, **CERTIFICATE)
    assert secure.condition("StreamUser", "alice")[0] == "True"
    assert "password" not in held
    assert secure.cluster.users["alice"] == {"groups": [], "password": None}
    assert TOLD not in secure.api.one("Secret", "alice")["metadata"]["annotations"]
    before = len(secure.cluster.calls)
    await secure.run(ALICE)
    assert len(secure.cluster.calls) == before
    again = (await declared(secure, **BOTH))["password"]
    assert former != again == secure.cluster.users["alice"]["password"]


async def test_a_password_that_somebody_sets_for_a_user_with_a_certificate_only_is_removed(secure: World) -> None:
    await declared(secure, **CERTIFICATE)
    secure.cluster.users["alice"]["password"] = "set by hand"
    await secure.run(ALICE)
    assert secure.cluster.users["alice"]["password"] is None


async def test_a_password_that_cannot_be_removed_is_a_condition_until_it_is(secure: World) -> None:
    await declared(secure, **BOTH)
    secure.cluster.refuses = KafkaError(Code.POLICY_VIOLATION, "not now")
    await declared(secure, **CERTIFICATE)
    assert secure.condition("StreamUser", "alice")[:2] == ("False", "Refused")
    assert "not now" in secure.condition("StreamUser", "alice")[2]
    secure.cluster.refuses = None
    await secure.run(ALICE)
    assert secure.condition("StreamUser", "alice")[0] == "True"
    assert secure.cluster.users["alice"]["password"] is None


async def test_what_the_cluster_has_of_a_user_is_put_back(secure: World) -> None:
    held = await declared(secure, groups=["ops"])
    secure.cluster.users["alice"]["groups"] = ["admins"]
    secure.cluster.quotas["alice"] = {"consumer_byte_rate": 1.0}
    await secure.run(ALICE)
    assert (secure.cluster.users["alice"]["groups"], secure.cluster.quotas["alice"]) == (["ops"], {})
    del secure.cluster.users["alice"]
    await secure.run(ALICE)
    assert secure.cluster.users["alice"] == {"groups": ["ops"], "password": held["password"]}


async def test_a_password_of_somebodys_own_is_taken_up_when_it_changes(secure: World) -> None:
    own = {"authentication": {"scram": {"password": {"name": "own", "key": "word"}}}}
    await secure.run(secure.declare("StreamUser", "alice", {**REF, **own}))
    assert secure.condition("StreamUser", "alice")[1] == "NoSecret"
    for password, reason in (("c2hvcnQ=", "BadPassword"), ("/w==", "BadPassword"), ("bG9uZyBlbm91Z2g=", "Ready")):
        meta = {"name": "own", "namespace": NS}
        secure.api.put({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": {"word": password}})
        await secure.run(ALICE)
        assert secure.condition("StreamUser", "alice")[1] == reason
        assert "short" not in secure.condition("StreamUser", "alice")[2]
    assert secure.cluster.users["alice"]["password"] == "long enough"
    found = secure.api.one("Secret", "own")
    secure.api.put({**found, "data": {"word": "YW5vdGhlciBvbmU="}})
    await secure.run(ALICE)
    assert secure.cluster.users["alice"]["password"] == "another one"


async def test_a_password_is_made_anew_on_request(secure: World) -> None:
    before = (await declared(secure))["password"]
    annotated(secure, FORCE, "true")
    await secure.run(ALICE)
    after = decoded(secure.api.one("Secret", "alice"))["password"]
    assert before != after == secure.cluster.users["alice"]["password"]


async def test_a_password_whose_telling_was_lost_is_told_again(secure: World) -> None:
    await declared(secure)
    annotated(secure, FORCE, "true")
    secure.cluster.loses = ("user.passwd", False)
    await secure.once(ALICE)
    assert secure.condition("StreamUser", "alice")[1] == "NoAnswer"
    secure.start_operator()
    await secure.once(Key("StreamCluster", NS, "c"))
    await secure.run(ALICE)
    assert secure.cluster.users["alice"]["password"] == decoded(secure.api.one("Secret", "alice"))["password"]


@pytest.mark.parametrize("user", ["bob", "headrace-operator"])
async def test_nobody_elses_user_is_taken_over(secure: World, user: str) -> None:
    secure.cluster.users["bob"] = {"groups": ["admins"], "password": "bob's own"}
    await secure.run(secure.declare("StreamUser", "alice", {**REF, "user": user, "groups": ["ops"]}))
    assert secure.condition("StreamUser", "alice")[1] == "UserTaken"
    assert secure.cluster.users["bob"] == {"groups": ["admins"], "password": "bob's own"}
    assert not secure.api.find("Secret", "alice")
    secure.api.remove("StreamUser", "alice")
    await secure.run(ALICE)
    assert not secure.api.find("StreamUser")
    assert "bob" in secure.cluster.users


async def test_of_two_resources_about_one_user_the_older_holds(secure: World) -> None:
    await declared(secure)
    second = secure.declare("StreamUser", "second", {**REF, "user": "alice"}, creationTimestamp="2026-02-01T00:00:00Z")
    await secure.run(second)
    assert secure.condition("StreamUser", "second")[1] == "Clash"


async def test_with_the_resource_the_user_goes(secure: World) -> None:
    await declared(secure, quotas={"consumerByteRate": 7})
    assert secure.api.one("StreamUser", "alice")["metadata"]["finalizers"] == [FINALIZER]
    secure.cluster.away = True
    secure.api.remove("StreamUser", "alice")
    await secure.once(ALICE)
    assert secure.condition("StreamUser", "alice")[1] == "NotDeleted"
    assert "reclaimPolicy" not in secure.condition("StreamUser", "alice")[2], "it has none"
    secure.cluster.away = False
    await secure.run(ALICE)
    assert not secure.api.find("StreamUser")
    assert "alice" not in secure.cluster.users
    assert secure.cluster.quotas["alice"] == {}


async def test_with_the_resource_the_user_goes_even_if_its_secret_has_just_another_name(secure: World) -> None:
    await declared(secure)
    secure.declare("StreamUser", "alice", {**REF, "secretName": "alice-kafka"})
    secure.api.remove("StreamUser", "alice")
    await secure.run(ALICE)
    assert not secure.api.find("StreamUser")
    assert "alice" not in secure.cluster.users


async def test_the_user_of_a_secret_that_gets_another_name_stays_with_its_password(secure: World) -> None:
    before = await declared(secure)
    await secure.run(secure.declare("StreamUser", "alice", {**REF, "secretName": "alice-kafka"}))
    assert secure.condition("StreamUser", "alice")[0] == "True"
    assert not [each for each in secure.api.find("Secret") if each["metadata"]["name"] == "alice"]
    after = decoded(secure.api.one("Secret", "alice-kafka"))
    assert after["password"] == before["password"] == secure.cluster.users["alice"]["password"]


@pytest.mark.parametrize("more", [{}, {"secretName": "of-bob"}], ids=["alone", "with its Secret"])
async def test_a_user_of_another_name_takes_the_place_of_the_former(secure: World, more: dict[str, str]) -> None:
    await declared(secure, quotas={"consumerByteRate": 7})
    await secure.run(secure.declare("StreamUser", "alice", {**REF, "user": "bob", **more}))
    assert secure.condition("StreamUser", "alice")[0] == "True"
    assert "alice" not in secure.cluster.users
    assert secure.cluster.quotas["alice"] == {}
    held = decoded(secure.api.one("Secret", more.get("secretName", "alice")))
    assert secure.cluster.users["bob"] == {"groups": [], "password": held["password"]}
    secure.api.remove("StreamUser", "alice")
    await secure.run(ALICE)
    assert "bob" not in secure.cluster.users


async def test_a_user_stays_until_the_one_that_takes_its_place_can_be_made(secure: World) -> None:
    secure.cluster.users["bob"] = {"groups": ["admins"], "password": "bob's own"}
    await declared(secure)
    await secure.run(secure.declare("StreamUser", "alice", {**REF, "user": "bob"}))
    assert secure.condition("StreamUser", "alice")[1] == "UserTaken"
    assert secure.cluster.users["alice"]["password"] == decoded(secure.api.one("Secret", "alice"))["password"]
    secure.api.remove("StreamUser", "alice")
    await secure.run(ALICE)
    assert not secure.api.find("StreamUser")
    assert list(secure.cluster.users) == ["bob"]


async def test_a_former_user_that_another_resource_has_made_since_is_left_to_it(secure: World) -> None:
    secure.cluster.users["bob"] = {"groups": ["admins"], "password": "bob's own"}
    await declared(secure)
    await secure.run(secure.declare("StreamUser", "alice", {**REF, "user": "bob"}))
    del secure.cluster.users["alice"]
    await secure.run(secure.declare("StreamUser", "second", {**REF, "user": "alice"}))
    assert secure.condition("StreamUser", "second")[0] == "True"
    password = secure.cluster.users["alice"]["password"]
    del secure.cluster.users["bob"]
    await secure.run(ALICE)
    assert secure.condition("StreamUser", "alice")[0] == "True"
    assert secure.cluster.users["alice"]["password"] == password
    assert "bob" in secure.cluster.users


async def test_a_listener_that_is_not_there_is_a_condition(secure: World) -> None:
    await secure.run(secure.declare("StreamUser", "alice", {**REF, "listener": "secure"}))
    assert secure.condition("StreamUser", "alice")[1] == "NoListener"


async def test_a_listener_has_its_own_address_and_authority(secure: World) -> None:
    given = {"certificate": {"secretRef": {"name": "given"}}}
    spec = {"nodes": 3, "security": {"enabled": True}, "listeners": {"secure": given}}
    await secure.run(secure.declare("StreamCluster", "c", spec))
    meta = {"name": "given", "namespace": NS}
    secure.api.put({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": {"ca.crt": "UEVN"}})
    held = await declared(secure, listener="secure")
    assert (held["bootstrap"], held["ca.crt"]) == ("c-bootstrap.ns.svc:9192", "PEM")


async def test_a_listener_that_was_named_freely_is_told_by_its_port(secure: World) -> None:
    spec = {"nodes": 3, "security": {"enabled": True}, "listeners": {"additional": [{"name": "people", "port": 9300}]}}
    await secure.run(secure.declare("StreamCluster", "c", spec))
    held = await declared(secure, listener="people")
    assert held["bootstrap"] == "c-bootstrap.ns.svc:9300"
    assert "sasl.mechanism=SCRAM-SHA-512" in held["client.properties"]


async def test_a_listener_that_is_reached_from_outside_is_told_by_its_addresses_there(secure: World) -> None:
    more = {"name": "people", "port": 9300, "external": {"type": "NodePort"}}
    spec = {"nodes": 3, "security": {"enabled": True}, "listeners": {"additional": [more]}}
    key = secure.declare("StreamCluster", "c", spec)
    await secure.run(secure.declare("StreamUser", "alice", {**REF, "listener": "people"}))
    await secure.run(key)
    held = await declared(secure, listener="people")
    assert held["bootstrap"] == "10.0.0.1:30500,10.0.0.1:30510,10.0.0.1:30520"


@pytest.mark.parametrize(("own_too", "reason"), [(False, "NoWayIn"), (True, "Ready")])
async def test_no_certificate_is_made_for_a_listener_that_would_not_take_it(
    secure: World, own_too: bool, reason: str
) -> None:
    given = {"secretRef": {"name": "company"}, "includeClusterCa": own_too}
    more = {"name": "machines", "port": 9300, "protocol": "SSL", "clientCa": given}
    spec = {"nodes": 3, "security": {"enabled": True}, "listeners": {"additional": [more]}}
    await secure.run(secure.declare("StreamCluster", "c", spec))
    alice = {**REF, "listener": "machines", "authentication": {"tls": {}}}
    await secure.run(secure.declare("StreamUser", "alice", alice))
    assert secure.condition("StreamUser", "alice")[1] == reason


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

"""A cluster's security: from its start; turned on in an open cluster; and renewals."""

from typing import Any

import pytest
from cryptography import x509

from headrace.security.certificate_authority import KeyPair
from headrace_operator.builders import authorities
from headrace_operator.builders.authorities import FORCE, decoded
from headrace_operator.builders.certificates import pair_fault
from headrace_operator.builders.names import metadata
from headrace_operator.builders.secured_pods import Secured, secured_of
from headrace_operator.engine import Key
from headrace_operator.kinds import cluster_security
from headrace_operator.kinds.kind import EARLY_S

from ..fake_cluster import NS, World

KEY = Key("StreamCluster", NS, "c")
ON = {"enabled": True}
SPEC: dict[str, Any] = {"nodes": 3, "security": ON, "listeners": {"external": {"type": "NodePort"}}}


@pytest.fixture
async def secure() -> World:
    """A cluster that has security from its start."""
    world = World()
    world.cluster.levels = {**(world.cluster.levels or {}), "level": 2, "supported_by_all": 2}
    world.declare("StreamCluster", "c", SPEC)
    await world.run(KEY)
    return world


def held(world: World, name: str) -> dict[str, str]:
    return decoded(world.api.one("Secret", name))


def template(world: World) -> Secured | None:
    return secured_of(world.api.one("StatefulSet", "c")["spec"]["template"])


def force(world: World, name: str) -> None:
    found = world.api.one("Secret", name)
    annotations = {**(found["metadata"].get("annotations") or {}), FORCE: "true"}
    world.api.put({**found, "metadata": {**found["metadata"], "annotations": annotations}})


def is_forced(world: World, name: str) -> bool:
    return FORCE in (world.api.one("Secret", name)["metadata"].get("annotations") or {})


def later(world: World, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Advance the operator's clock."""
    at = cluster_security.time.time() + seconds
    monkeypatch.setattr(cluster_security.time, "time", lambda: at)
    world.start_operator()


async def test_a_new_cluster_is_closed_before_it_serves_anybody(secure: World) -> None:
    assert template(secure) == Secured("require", from_start=True)
    assert {each["metadata"]["name"] for each in secure.api.find("Secret")} == {
        *("c-cluster", "c-cluster-3", "c-cluster-ca", "c-clients-ca", "c-ca", "c-server", "c-peers", "c-operator")
    }
    for name in ("c-server", "c-peers"):
        values = held(secure, name)
        assert pair_fault(KeyPair(values["tls.crt"], values["tls.key"])) == ""
        assert values["ca.crt"] == held(secure, "c-ca")["ca.crt"] == held(secure, "c-cluster-ca")["ca.crt"]
    assert held(secure, "c-server")["clients-ca.crt"] == held(secure, "c-clients-ca")["ca.crt"]
    assert "ca.key" not in held(secure, "c-ca")
    volumes = {each["name"]: each for each in secure.api.one("StatefulSet", "c")["spec"]["template"]["spec"]["volumes"]}
    assert volumes["cluster"]["projected"]["sources"][0] == {"secret": {"name": "c-cluster-3"}}
    assert secure.condition("StreamCluster", "c", "Secured")[:2] == ("True", "Secured")
    assert secure.condition("StreamCluster", "c", "Certificates")[:2] == ("True", "Valid")
    assert secure.condition("StreamCluster", "c")[0] == "True"
    assert secure.cluster.expressions["cluster", "admin"] == "u:headrace-operator"
    assert secure.cluster.secured
    way = secure.routes.way("c-bootstrap.ns.svc:9092")
    assert way.access is not None
    assert way.access.security.password == held(secure, "c-operator")["password"]


async def test_nothing_is_written_while_nothing_changes(secure: World) -> None:
    secure.start_operator()
    before = list(secure.api.writes)
    await secure.once(KEY)
    assert secure.api.writes == before


async def test_a_cluster_that_is_there_keeps_its_openness_and_says_so(world: World) -> None:
    state, reason, message = world.condition("StreamCluster", "c", "Secured")
    assert (state, reason) == ("False", "Open")
    assert "spec.security.enabled" in message
    assert world.condition("StreamCluster", "c")[0] == "True"
    assert template(world) is None
    assert not world.routes.way("c-bootstrap.ns.svc:9092").access


async def test_it_is_turned_on_step_by_step(world: World) -> None:
    """First the level, then pods one by one, then only TLS between nodes; access checks last, as requested."""
    assert world.cluster.levels is not None
    world.cluster.levels["supported_by_all"] = 2
    listeners = {"internal": {"protocol": "PLAINTEXT"}, "secure": {}}
    open_still = {"nodes": 3, "security": {**ON, "authorization": False}, "listeners": listeners}
    world.declare("StreamCluster", "c", open_still)
    await world.once(KEY)
    assert ("features.upgrade", {"level": 2, "wait_s": 0}) in world.cluster.calls
    assert template(world) is None
    assert world.condition("StreamCluster", "c", "Secured")[1] == "LevelFirst"
    world.cluster.levels["level"] = 2
    await world.once(KEY)  # with it pods get a record that older versions refuse
    await world.once(KEY)
    assert template(world) == Secured("accept", from_start=False)
    assert world.condition("StreamCluster", "c", "Secured")[1] == "Rolling"
    world.cluster.converge()
    await world.run(KEY)
    assert template(world) == Secured("require", from_start=False)
    assert all(secured_of(pod) == Secured("require", from_start=False) for pod in world.api.find("Pod"))
    assert world.condition("StreamCluster", "c", "Secured")[1] == "NotChecked"
    assert not world.cluster.secured
    world.declare("StreamCluster", "c", {**open_still, "security": ON})
    await world.run(KEY)
    assert world.cluster.secured
    assert world.condition("StreamCluster", "c", "Secured")[1] == "OpenListener"
    world.declare("StreamCluster", "c", {"nodes": 3, "security": ON})
    await world.run(KEY)
    assert world.condition("StreamCluster", "c", "Secured")[1] == "Secured"


async def test_while_pods_get_it_those_that_have_it_are_asked_by_its_listener(world: World) -> None:
    assert world.cluster.levels is not None
    world.cluster.levels |= {"level": 2, "supported_by_all": 2}
    world.declare("StreamCluster", "c", {"nodes": 3, "security": ON})
    for _ in range(3):
        await world.once(KEY)
    world.cluster.converge()
    await world.once(KEY)
    assert {pod["metadata"]["name"]: secured_of(pod) is not None for pod in world.api.find("Pod")}["c-2"]
    assert world.routes.way("c-bootstrap.ns.svc:9092").address == "c-2.c-nodes.ns.svc:8092"
    assert world.routes.way("c-0.c-nodes.ns.svc:9092").access is None


async def test_an_authority_is_renewed_in_three_steps(secure: World, monkeypatch: pytest.MonkeyPatch) -> None:
    first, server = held(secure, "c-cluster-ca"), held(secure, "c-server")
    force(secure, "c-cluster-ca")
    await secure.run(KEY)
    assert not is_forced(secure, "c-cluster-ca")
    begun = held(secure, "c-cluster-ca")
    assert begun["ca.crt"] == first["ca.crt"]
    assert held(secure, "c-ca")["ca.crt"] == first["ca.crt"] + begun["next.crt"]
    assert held(secure, "c-server")["tls.crt"] == server["tls.crt"]
    pods = [pod["metadata"]["uid"] for pod in secure.api.find("Pod")]
    later(secure, monkeypatch, 3601)
    await secure.run(KEY)
    used = held(secure, "c-cluster-ca")
    assert used["ca.crt"] == begun["next.crt"]
    assert held(secure, "c-ca")["ca.crt"] == used["ca.crt"] + first["ca.crt"]
    assert held(secure, "c-server")["tls.crt"] != server["tls.crt"]
    assert held(secure, "c-peers")["ca.crt"] == held(secure, "c-ca")["ca.crt"]
    later(secure, monkeypatch, 3601)
    await secure.run(KEY)
    assert held(secure, "c-ca")["ca.crt"] == used["ca.crt"]
    assert pods == [pod["metadata"]["uid"] for pod in secure.api.find("Pod")]
    assert secure.events().count("AuthorityRenewed") == 3
    assert secure.events().count("CertificateRenewed") == 3  # the first one is an address outside


async def test_pods_are_made_to_look_again_as_soon_as_there_is_something_new(secure: World) -> None:
    def marks() -> set[str]:
        return {pod["metadata"]["annotations"]["headrace.dev/certificates"] for pod in secure.api.find("Pod")}

    before = marks()
    assert len(before) == 1
    force(secure, "c-server")
    await secure.run(KEY)
    assert len(marks()) == 1
    assert marks() != before


@pytest.mark.parametrize("name", ["c-cluster-ca", "c-clients-ca", "c-operator"])
async def test_what_cannot_be_had_again_is_not_made_over_what_is_there(secure: World, name: str) -> None:
    before = held(secure, "c-server")
    secure.api.remove("Secret", name)
    secure.start_operator()
    await secure.run(KEY)
    assert secure.condition("StreamCluster", "c", "Certificates")[:2] == ("False", "SecretLost")
    assert not secure.api.find("Secret", name)
    assert held(secure, "c-server") == before
    assert template(secure) == Secured("require", from_start=True)


async def test_a_cluster_that_is_applied_again_has_what_it_had(secure: World) -> None:
    """And without the operator's credentials nothing is created over the data."""
    before = held(secure, "c-cluster-ca"), held(secure, "c-operator")
    secure.api.remove("StreamCluster", "c")
    for name in ("c-0", "c-1", "c-2"):
        secure.api.remove("Pod", name)
    secure.start_operator()
    await secure.run(secure.declare("StreamCluster", "c", SPEC))
    assert (held(secure, "c-cluster-ca"), held(secure, "c-operator")) == before
    assert template(secure) == Secured("require", from_start=True)
    secure.api.remove("StreamCluster", "c")
    for name in ("c-0", "c-1", "c-2"):
        secure.api.remove("Pod", name)
    secure.api.remove("Secret", "c-operator")
    secure.start_operator()
    await secure.once(secure.declare("StreamCluster", "c", SPEC))
    assert secure.condition("StreamCluster", "c", "Certificates")[1] == "SecretLost"
    assert not secure.api.find("Secret", "c-operator")
    assert not secure.api.find("StatefulSet")


async def test_no_pod_is_made_without_the_security_that_it_should_have() -> None:
    world = World()
    mine = metadata("c-cluster-ca", NS, "c", owned_by=None)
    world.api.put({"apiVersion": "v1", "kind": "Secret", "metadata": mine, "data": {}})
    world.declare("StreamCluster", "c", SPEC)
    await world.run(KEY)
    assert world.condition("StreamCluster", "c", "Certificates")[1] == "CertificateUnfit"
    assert not world.api.find("StatefulSet")
    assert not world.api.find("Pod")


async def test_an_authority_that_cannot_be_used_is_left_and_told_of(secure: World) -> None:
    found = secure.api.one("Secret", "c-clients-ca")
    secure.api.put({**found, "data": {**found["data"], "ca.key": ""}})
    await secure.run(KEY)
    assert secure.condition("StreamCluster", "c", "Certificates")[:2] == ("False", "CertificateUnfit")
    assert "CertificateUnfit" in secure.events()


async def test_a_secret_of_somebody_else_is_not_taken() -> None:
    world = World()
    mine = {"name": "c-cluster-ca", "namespace": NS}
    world.api.put({"apiVersion": "v1", "kind": "Secret", "metadata": mine, "data": {}})
    world.declare("StreamCluster", "c", SPEC)
    await world.run(KEY)
    assert world.condition("StreamCluster", "c")[1] == "NameTaken"
    assert world.api.one("Secret", "c-cluster-ca")["data"] == {}
    assert not world.api.find("StatefulSet")


async def test_a_listener_that_was_added_is_reached_from_outside_where_it_says_so(secure: World) -> None:
    more: dict[str, Any] = {"name": "people", "port": 9300, "external": {"type": "NodePort", "host": "people.example"}}

    async def told(*additional: dict[str, Any]) -> set[tuple[str, ...]]:
        listeners = {**SPEC["listeners"], "additional": list(additional)}
        secure.declare("StreamCluster", "c", {**SPEC, "listeners": listeners})
        await secure.run(KEY)
        assert secure.condition("StreamCluster", "c", "Certificates")[1] == "Valid"
        return {tuple(sorted((node["spec"].get("advertised") or {}).values())) for node in secure.cluster.nodes()}

    assert await told(more) == {
        (f"10.0.0.1:{30000 + 10 * pod}", f"people.example:{30500 + 10 * pod}") for pod in range(3)
    }
    status = secure.api.one("StreamCluster", "c")["status"]
    assert status["externalBootstrap"] == "10.0.0.1:30000,10.0.0.1:30010,10.0.0.1:30020"
    assert status["externalBootstraps"] == {
        "people": ",".join(f"people.example:{30500 + 10 * pod}" for pod in range(3))
    }
    names = x509.load_pem_x509_certificate(held(secure, "c-server")["tls.crt"].encode()).extensions
    shown = names.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "people.example" in shown.get_values_for_type(x509.DNSName)

    # inside only
    assert await told({"name": "people", "port": 9300}) == {(f"10.0.0.1:{30000 + 10 * pod}",) for pod in range(3)}
    assert secure.api.one("StreamCluster", "c")["status"]["externalBootstraps"] == {}
    assert not [each for each in secure.api.find("Service") if "-9300-" in each["metadata"]["name"]]


async def test_a_certificate_by_reference_is_looked_at(secure: World) -> None:
    outside = {"type": "NodePort", "certificate": {"secretRef": {"name": "given"}}}
    secure.declare("StreamCluster", "c", {**SPEC, "listeners": {"external": outside}})
    await secure.run(KEY)
    assert secure.condition("StreamCluster", "c", "Certificates")[1] == "NoSecret"
    values = held(secure, "c-server")
    other = held(secure, "c-peers")
    for pair, reason in (((values["tls.crt"], other["tls.key"]), "CertificateUnfit"), (None, "Valid")):
        certificate, key = pair or (values["tls.crt"], values["tls.key"])
        data = authorities.encoded({"tls.crt": certificate, "tls.key": key})
        meta = {"name": "given", "namespace": NS}
        secure.api.put({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": data})
        await secure.run(KEY)
        assert secure.condition("StreamCluster", "c", "Certificates")[1] == reason


async def test_what_nodes_say_of_their_files_is_told(secure: World) -> None:
    secure.cluster.listeners = [{"name": "internal", "problem": ""}, {"name": "external", "problem": "it is not PEM"}]
    await secure.run(KEY)
    state, reason, message = secure.condition("StreamCluster", "c", "Certificates")
    assert (state, reason) == ("False", "NodeDisagrees")
    assert message.endswith("listener external: it is not PEM")
    assert "NodeDisagrees" in secure.events()


async def test_addresses_outside_are_in_the_certificate(secure: World) -> None:
    from cryptography import x509

    certificate = x509.load_pem_x509_certificate(held(secure, "c-server")["tls.crt"].encode())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1"]


async def test_a_cluster_that_knows_the_operator_no_more_is_not_asked_in_clear(secure: World) -> None:
    secure.cluster.refuses_operator = "c-bootstrap and the operator do not know each other"
    await secure.once(KEY)
    state, reason, message = secure.condition("StreamCluster", "c", "Available")
    assert (state, reason) == ("False", "NoAnswer")
    assert "do not know each other" in message
    assert secure.routes.way("c-bootstrap.ns.svc:9092").access is not None


async def test_with_delete_all_secrets_go(secure: World) -> None:
    secure.declare("StreamCluster", "c", {**SPEC, "reclaimPolicy": "Delete"})
    await secure.run(KEY)
    secure.api.remove("StreamCluster", "c")
    for pod in secure.api.find("Pod"):
        secure.api.remove("Pod", pod["metadata"]["name"])
    for _ in range(3):
        await secure.once(KEY)
        for pod in secure.api.find("Pod"):
            secure.api.remove("Pod", pod["metadata"]["name"])
    assert not secure.api.find("StreamCluster")
    assert not secure.api.find("Secret")


async def test_no_secret_is_in_any_other_object(secure: World) -> None:
    secrets = [value for each in secure.api.find("Secret") for value in decoded(each).values() if len(value) > 20]
    rest = str([each for each in secure.api.objects.values() if each["kind"] != "Secret"])
    assert not [value for value in secrets if value in rest and "CERTIFICATE" not in value]


async def test_what_lies_in_a_paused_cluster_is_looked_after(secure: World) -> None:
    found = secure.api.one("StreamCluster", "c")
    annotations = {"headrace.dev/paused": "true"}
    secure.api.put({**found, "metadata": {**found["metadata"], "annotations": annotations}})
    secure.start_operator()
    stream = secure.declare("Stream", "plant", {"clusterRef": {"name": "c"}, "path": "/plant"})
    assert await secure.once(stream) == EARLY_S
    assert not secure.cluster.streams
    await secure.once(KEY)
    await secure.run(stream)
    assert "/plant" in secure.cluster.streams

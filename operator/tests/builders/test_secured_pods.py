"""What security adds to pods, and its stages in the pods of a cluster."""

import pytest

from headrace_operator.builders.secured_pods import (
    ACCEPT,
    REQUIRE,
    Secured,
    hosts,
    next_secured,
    secured_of,
    serves_operator,
)

from .test_cluster import built

SPEC = {"security": {"enabled": True}, "listeners": {"external": {"type": "NodePort"}}}
ALL = Secured(REQUIRE, from_start=True)


def test_a_cluster_without_security_is_as_it_ever_was() -> None:
    made = built({"listeners": {"external": {"type": "NodePort"}}})
    command = made.stateful_set()["spec"]["template"]["spec"]["containers"][0]["command"]
    assert not [each for each in command if each.startswith("--") and each not in ("--cluster", "--shards")]
    assert {each["kind"] for each in made.all()}.isdisjoint({"NetworkPolicy"})
    assert "c-listeners" not in str(made.all())


def test_pods_have_files_arguments_and_ports() -> None:
    made = built(SPEC).with_security(ALL)
    pod = made.stateful_set()["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    told = " ".join(container["command"])
    assert "--listeners-folder /etc/headrace/listeners --peer-tls /etc/headrace/peers --peer-tls-mode require" in told
    assert "--bootstrap-admin /etc/headrace/operator/admin.toml --secure" in told
    assert secured_of({"spec": pod}) == ALL
    assert serves_operator({"spec": pod})
    volumes = {each["name"]: each.get("secret", each.get("configMap", {})) for each in pod["volumes"]}
    assert volumes["headrace-server"] == {"secretName": "plant-server", "defaultMode": 0o440}
    assert {each["mountPath"] for each in container["volumeMounts"]} >= {"/etc/headrace/peers", "/etc/headrace/server"}
    env = {each["name"]: each.get("value") for each in container["env"]}
    assert env["HEADRACE_BOOTSTRAP"] == "plant-bootstrap.factory.svc:8092"
    assert env["HEADRACE_CONFIG"] == "/etc/headrace/operator/client.properties"
    (bootstrap,) = [each for each in made.all() if each["metadata"]["name"] == "plant-bootstrap"]
    assert [each["port"] for each in bootstrap["spec"]["ports"]] == [9092, 8092]


def test_nothing_that_nodes_read_again_has_pods_made_anew() -> None:
    changed = {**SPEC, "security": {"enabled": True, "certificates": {"validityDays": 10, "renewalDays": 1}}}
    assert built(SPEC).with_security(ALL).rolled() == built(changed).with_security(ALL).rolled()
    assert built(SPEC).with_security(ALL).rolled() != built(SPEC).rolled()
    other = {**SPEC, "listeners": {"external": {"type": "NodePort", "protocol": "SSL"}}}
    assert built(SPEC).with_security(ALL).rolled() != built(other).with_security(ALL).rolled()


@pytest.mark.parametrize(
    ("template", "pods", "is_new", "then"),
    [
        (None, [], True, ALL),
        (None, [None, None], False, Secured(ACCEPT, False)),
        (Secured(ACCEPT, False), [Secured(ACCEPT, False), None], False, Secured(ACCEPT, False)),
        (Secured(ACCEPT, False), [Secured(ACCEPT, False)] * 2, False, Secured(REQUIRE, False)),
        (Secured(ACCEPT, False), [], False, Secured(ACCEPT, False)),
        (Secured(REQUIRE, False), [Secured(ACCEPT, False), None], False, Secured(REQUIRE, False)),
        (ALL, [ALL], False, ALL),
    ],
)
def test_nodes_that_speak_in_clear_go_by_both(
    template: Secured | None, pods: list[Secured | None], is_new: bool, then: Secured
) -> None:
    assert next_secured(template, pods, is_new=is_new, authorization=True) == then


def test_nodes_check_from_their_start_on_what_is_checked() -> None:
    assert next_secured(None, [], is_new=True, authorization=False) == Secured(REQUIRE, False)
    assert next_secured(ALL, [ALL], is_new=False, authorization=False) == Secured(REQUIRE, False)


def test_a_certificate_has_the_names_of_pods_and_services() -> None:
    found = hosts("c", "ns", ["10.0.0.1"])
    assert {"*.c-nodes.ns.svc", "c-bootstrap.ns.svc", "c-bootstrap", "localhost", "10.0.0.1"} <= set(found)


def test_an_open_listener_is_said_to_nodes() -> None:
    made = built({**SPEC, "listeners": {"internal": {"protocol": "PLAINTEXT"}}})
    made = made.with_security(Secured(REQUIRE, from_start=False))
    assert made.stateful_set()["spec"]["template"]["spec"]["containers"][0]["command"][-1] == "--allow-anonymous"


def test_more_listeners_have_ports_everywhere_and_their_certificates() -> None:
    more = {"name": "people", "port": 9310, "certificate": {"secretRef": {"name": "given"}}}
    spec = {**SPEC, "shards": 2, "listeners": {"additional": [more]}}
    made = built(spec).with_security(ALL)
    pod = made.stateful_set()["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    declared = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert (declared["people-0"], declared["people-1"]) == (9310, 9311)
    assert all(len(name) <= 15 for name in declared)
    volumes = {each["name"]: each.get("secret", {}).get("secretName") for each in pod["volumes"]}
    assert volumes["headrace-server-people"] == "given"
    services = {each["metadata"]["name"]: each for each in made.all() if each["kind"] == "Service"}
    bootstrap, nodes = (services[f"plant-{name}"]["spec"]["ports"] for name in ("bootstrap", "nodes"))
    assert ("people", 9310) in [(each["name"], each["port"]) for each in bootstrap]
    assert [each["port"] for each in nodes if each["name"].startswith("people-")] == [9310, 9311]
    assert made.rolled() != built({**spec, "listeners": {}}).with_security(ALL).rolled()


def test_authorities_that_are_given_are_no_reason_to_make_pods_anew() -> None:
    """Their files are: nodes reload the files' content."""
    one, other = (
        {"name": "machines", "port": 9300, "protocol": "SSL", "clientCa": {"secretRef": {"name": name}}}
        for name in ("a", "b")
    )
    first, second = ({**SPEC, "listeners": {"additional": [each]}} for each in (one, other))
    assert built(first).with_security(ALL).rolled() == built(second).with_security(ALL).rolled()

"""Who reaches a cluster's pods."""

from headrace_operator.builders.secured_pods import REQUIRE, Secured

from .test_cluster import built, by_kind

ALL = Secured(REQUIRE, from_start=True)


def test_clients_ports_are_for_everybody_and_the_others_for_those_who_need_them() -> None:
    spec = {"security": {"enabled": True}, "listeners": {"external": {"type": "NodePort"}}, "shards": 2}
    (policy,) = by_kind(built(spec).with_security(ALL), "NetworkPolicy")
    clients, peers, operator, admin = policy["spec"]["ingress"]
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    assert "from" not in clients
    assert [(each["port"], each["endPort"]) for each in clients["ports"]] == [(9092, 9093), (19092, 19093)]
    assert [each["port"] for each in peers["ports"]] == [7092]
    assert peers["from"] == [{"podSelector": policy["spec"]["podSelector"]}]
    assert [each["port"] for each in operator["ports"]] == [8092]
    of_operator, _ = operator["from"]
    assert of_operator["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "headrace-operator"}
    assert admin["ports"] == [{"protocol": "TCP", "port": 8080}]
    assert {"namespaceSelector": {"matchLabels": {"headrace.dev/metrics": "true"}}} in admin["from"]


def test_it_can_be_left_to_somebody_else() -> None:
    made = built({"security": {"enabled": True, "networkPolicy": False}}).with_security(ALL)
    assert not by_kind(made, "NetworkPolicy")


def test_more_listeners_are_for_everybody_too() -> None:
    more = {"additional": [{"name": "people", "port": 9310}]}
    (policy,) = by_kind(built({"security": {"enabled": True}, "listeners": more}).with_security(ALL), "NetworkPolicy")
    clients, _, operator, _ = policy["spec"]["ingress"]
    assert [each["port"] for each in clients["ports"]] == [9092, 9310]
    assert [each["port"] for each in operator["ports"]] == [8092]

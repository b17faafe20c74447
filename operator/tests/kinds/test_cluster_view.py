"""A cluster's state in a line; and addresses for clients outside."""

from typing import Any

import msgspec
import pytest

from headrace_operator.builders.listeners import Port
from headrace_operator.kinds.cluster_view import (
    QUIET_S,
    WORKING_S,
    ObservedCluster,
    annotation,
    claim_ordinal,
    is_record,
    node_ordinal,
    ordinal,
    outside_address,
)
from headrace_operator.specs import Additional, External, Listener


def seen(**fields: Any) -> ObservedCluster:
    nothing: dict[str, Any] = dict.fromkeys(("pods", "nodes", "services", "claims"), ())
    return ObservedCluster(**{"stateful_set": None, "secret": None, "status": None, **nothing, **fields})


@pytest.mark.parametrize(
    ("name", "number"), [("c-0", 0), ("c-12", 12), ("data-my-c-3", 3), ("c-2/1", 2), ("c", -1), ("", -1), ("c-x", -1)]
)
def test_pods_claims_and_slots_bear_their_number(name: str, number: int) -> None:
    assert ordinal(name) == number
    assert claim_ordinal({"metadata": {"name": name}}) == number
    assert node_ordinal({"status": {"slot": name}}) == number


def test_a_condition_is_said_once_and_the_sooner_look_counts() -> None:
    one = seen()
    one.note("Sized", True, "AsAsked")
    one.note("Sized", False, "Shrinking", again_s=3)
    one.note("Current", True, "AllCurrent")
    assert [(each.type, each.ok) for each in one.conditions] == [("Sized", False), ("Current", True)]
    assert one.again_s == 3


def test_pods_that_are_away_are_told_the_stuck_ones_first() -> None:
    one = seen(stuck={"c-2": "no place"}, coming={"c-0": "", "c-1": "pulls its image", "c-3": ""})
    assert one.told_of_away() == "c-2 (no place), c-0, c-1 (pulls its image) and 1 more"
    assert one.note_away("Sized", 5)
    (condition,) = one.conditions
    assert (condition.reason, one.again_s) == ("PodsCannotRun", QUIET_S)
    assert condition.message.startswith("1 of 5 pods are ready; not c-2")
    assert one.told_of_stuck() == "c-2: no place"


def test_pods_that_come_by_themselves_are_looked_at_sooner() -> None:
    one = seen(coming={"c-0": ""})
    assert one.note_away("Sized", 3)
    assert (one.conditions[0].reason, one.again_s) == ("Starting", WORKING_S)
    assert not seen().note_away("Sized", 3)
    assert seen().told_of_stuck() == ""


def test_a_secret_is_the_clusters_record_by_what_it_has_where_its_labels_were_lost() -> None:
    assert is_record({"metadata": {}, "data": {"record": "x"}}, "c")
    assert not is_record({"metadata": {}, "data": {"password": "x"}}, "c")
    assert not is_record({"metadata": {}}, "c")
    assert annotation({"metadata": {}}, "a") == ""


def port(**external: Any) -> Port:
    return Port("external", 19092, msgspec.convert(external, External))


NODE_PORTS = {"spec": {"ports": [{"nodePort": 30_001}, {"nodePort": 30_002}]}}
WORKER = {"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}}
BALANCED: dict[str, Any] = {"spec": {"ports": []}, "status": {"loadBalancer": {"ingress": [{"ip": "fd00::7"}]}}}


def test_with_node_ports_clients_reach_the_worker() -> None:
    assert outside_address(port(type="NodePort"), NODE_PORTS, WORKER, 1) == "10.0.0.1:30002"
    outside = {"status": {"addresses": [*WORKER["status"]["addresses"], {"type": "ExternalIP", "address": "1.2.3.4"}]}}
    assert outside_address(port(type="NodePort"), NODE_PORTS, outside, 0) == "1.2.3.4:30001"
    assert outside_address(port(type="NodePort", host="h"), NODE_PORTS, None, 0) == "h:30001"
    assert outside_address(port(type="NodePort"), NODE_PORTS, None, 0) == ""
    assert outside_address(port(type="NodePort"), NODE_PORTS, WORKER, 2) == "", "it has no port yet"


def test_with_a_load_balancer_clients_reach_what_it_was_given() -> None:
    first = outside_address(port(type="LoadBalancer"), BALANCED, None, 0)
    assert first.startswith("[fd00::7]:")
    assert outside_address(port(type="LoadBalancer"), BALANCED, None, 1) != first
    assert outside_address(port(type="LoadBalancer"), {"spec": {}, "status": {}}, None, 0) == ""


def test_a_listener_that_was_added_has_its_own_ports() -> None:
    more = {"name": "people", "port": 9300, "external": {"type": "LoadBalancer"}}
    people = Port("people", 9300, msgspec.convert(more, Additional))
    assert outside_address(people, BALANCED, None, 1) == "[fd00::7]:9301"
    more["external"] = {"type": "NodePort", "host": "h"}
    people = Port("people", 9300, msgspec.convert(more, Additional))
    assert outside_address(people, NODE_PORTS, None, 1) == "h:30002"


def test_without_a_port_outside_or_its_service_there_is_no_address() -> None:
    assert outside_address(Port("internal", 9092, Listener()), NODE_PORTS, WORKER, 0) == ""
    assert outside_address(port(type="NodePort"), None, WORKER, 0) == ""

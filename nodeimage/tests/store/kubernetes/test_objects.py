import uuid
from typing import Any

import msgspec
import pytest

from headrace.base.errors import CorruptLog
from headrace.base.ids import ContainerId, Epoch, NodeId
from headrace.store.kubernetes import objects
from headrace.store.kubernetes.objects import CONFIG_MAPS, CONTAINERS, LEASES, NODES, Object, Resource
from headrace.store.record_types import ContainerRecord, LeaseRecord, NodeRecord, Record, VolumeRecord, decode

FORMAT, RUN = uuid.UUID(int=5), uuid.UUID(int=6)
NODE = NodeRecord(
    NodeId(7), FORMAT, RUN, "c-0.c-nodes.ns.svc", 9092, "worker", 7092, "10.0.0.7", zone="east", slot="c-0/0", full=True
)
CONTAINER = ContainerRecord(
    ContainerId(12),
    "data",
    NodeId(7),
    Epoch(3),
    ((NodeId(7), FORMAT),),
    (NodeId(7), NodeId(8)),
    min_in_sync=2,
    wanted=3,
)
LEASE = LeaseRecord(NodeId(7), RUN, 4, 99)


def written(
    key: str, record: Record, *, into: Object | None = None, now: str = "2026-01-01T00:00:00.000000Z"
) -> Object:
    where = objects.place("c", key)
    found = objects.fresh("c", "ns", where) if into is None else into
    made = objects.with_record(found, key, msgspec.json.encode(record), now=now)
    made["metadata"] = {**made["metadata"], "resourceVersion": "41"}
    return made


@pytest.mark.parametrize(
    ("key", "record", "resource", "name"),
    [
        ("node/7", NODE, NODES, "c-7"),
        ("container/12", CONTAINER, CONTAINERS, "c-12"),
        ("controller", LEASE, LEASES, "c-controller"),
        ("volume/a_B", VolumeRecord("a_B", replicas=3, labels={"x": "y"}), CONFIG_MAPS, "c-store"),
    ],
)
def test_a_record_comes_back_from_its_object(key: str, record: Any, resource: Resource, name: str) -> None:
    made = written(key, record)
    assert objects.place("c", key) == objects.Place(resource, name)
    assert made["metadata"]["name"] == name
    assert made["metadata"]["labels"] == {"headrace.dev/cluster": "c"}
    (found,) = objects.records(resource, "c", made)
    assert (found.key, found.version) == (key, 41)
    assert decode(found.value, type(record), key) == record


def test_the_operator_s_wishes_are_read_and_never_written_but_for_drain() -> None:
    wished = written("node/7", NODE)
    wished["spec"] = {"drain": True, "advertised": {"external": "1.2.3.4:30001"}, "zone": "west"}
    (found,) = objects.records(NODES, "c", wished)
    node = decode(found.value, NodeRecord, found.key)
    assert (node.draining, node.zone, node.address("external")) == (True, "west", ("1.2.3.4", 30001))
    again = written("node/7", msgspec.structs.replace(node, draining=False), into=wished)
    assert again["spec"] == {**wished["spec"], "drain": False}
    assert "advertised" not in again["status"]


def test_fields_of_later_versions_stay() -> None:
    made = written("container/12", CONTAINER)
    made["status"]["colour"] = "blue"
    made["spec"] = {"tone": "dark"}
    again = written("container/12", CONTAINER, into=made)
    assert (again["status"]["colour"], again["spec"]) == ("blue", {"tone": "dark"})
    (found,) = objects.records(CONTAINERS, "c", again)
    assert decode(found.value, ContainerRecord, found.key) == CONTAINER


def test_a_write_changes_its_object_always() -> None:
    made = written("container/12", CONTAINER)
    again = written("container/12", CONTAINER, into=made, now="later")
    assert again["metadata"]["annotations"] == {objects.TOUCHED: "later"}
    assert {**again, "metadata": made["metadata"]} == made


def test_records_of_a_config_map_keep_out_of_each_other_s_way() -> None:
    both = written("volume/b", VolumeRecord("b"), into=written("volume/a", VolumeRecord("a")))
    assert [each.key for each in objects.records(CONFIG_MAPS, "c", both)] == ["volume/a", "volume/b"]
    left = objects.without_record(both, "volume/a")
    assert left is not None
    assert left["data"].keys() == {"volume.b"}
    assert objects.without_record(written("node/7", NODE), "node/7") is None


@pytest.mark.parametrize(
    ("resource", "found"),
    [
        (CONTAINERS, {"status": {"inSync": 5}}),
        (CONTAINERS, {"status": {"primary": 1}}),
        (LEASES, {"spec": {"holderIdentity": "somebody"}}),
        (NODES, {"status": "up"}),
    ],
)
def test_an_object_that_holds_no_record_is_named(resource: Resource, found: Object) -> None:
    with pytest.raises(CorruptLog, match="c-9"):
        objects.records(resource, "c", {"metadata": {"name": "c-9", "resourceVersion": "4"}, **found})


@pytest.mark.parametrize("resource", [NODES, CONTAINERS, LEASES, CONFIG_MAPS])
def test_an_object_without_a_record_holds_none(resource: Resource) -> None:
    bare = {"metadata": {"name": "c-9", "resourceVersion": "4"}, "spec": {}}
    assert objects.records(resource, "c", bare) == []


@pytest.mark.parametrize(
    ("prefix", "kinds"),
    [
        ("", {NODES, CONTAINERS, LEASES, CONFIG_MAPS}),
        ("node/", {NODES}),
        ("node/1", {NODES}),
        ("n", {NODES, CONFIG_MAPS}),
        ("container/", {CONTAINERS}),
        ("controller", {LEASES, CONFIG_MAPS}),
        ("volume/", {CONFIG_MAPS}),
    ],
)
def test_only_kinds_that_may_hold_a_prefix_are_asked_for(prefix: str, kinds: set[Resource]) -> None:
    asked = {each for each in (NODES, CONTAINERS, LEASES, CONFIG_MAPS) if objects.may_hold(each, prefix)}
    assert asked == kinds

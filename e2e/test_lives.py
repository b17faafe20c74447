"""Resources, charts and namespaces that are deleted: retained data exist when they are created again, and nothing
hangs.
"""

import time
import uuid
from collections.abc import Iterator

import kube
import pytest
from confluent_kafka import Producer

from kit.cluster_clients import Load, make_topics, read_back
from kit.cluster_history import Where

RECORDS = 100
ENDS_S = 60.0
AGAIN_S = 150.0


@pytest.fixture
def doomed(kind: None) -> Iterator[kube.Cluster]:
    """In its own namespace, a cluster, a Stream and a Topic that are deleted with all their data."""
    name = f"e2e-{uuid.uuid4().hex[:6]}"
    kube.kubectl("create", "namespace", name)
    cluster = kube.Cluster("d", name, nodes=1, reclaimPolicy="Delete")
    cluster.apply()
    declare(cluster, "gone", "Delete")
    topic = {"clusterRef": {"name": "d"}, "stream": "/gone", "partitions": 3, "reclaimPolicy": "Delete"}
    kube.apply(kube.resource("Topic", "gone", name, topic))
    cluster.await_ready()
    for kind_ in ("stream", "topic"):
        kube.until(f"the {kind_} is there", lambda kind_=kind_: kube.is_ready(kind_, "gone", name))
        found = kube.get(kind_, "gone", name)
        assert found is not None
        assert found["metadata"]["finalizers"]
    yield cluster
    kube.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")


def declare(cluster: kube.Cluster, name: str, policy: str) -> None:
    """Apply a Stream at the path `/name`."""
    spec = {"clusterRef": {"name": cluster.name}, "path": f"/{name}", "reclaimPolicy": policy}
    kube.apply(kube.resource("Stream", name, cluster.namespace, spec))


def write(cluster: kube.Cluster, topic: str) -> dict[Where, list[tuple[int, bytes]]]:
    """Write RECORDS to a new topic; return them as they must be read back."""
    make_topics(cluster, [topic], 1)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    values = [f"{topic}/{number}".encode() for number in range(RECORDS)]
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0
    return {Where(topic, 0): list(enumerate(values))}


def streams(cluster: kube.Cluster) -> set[str]:
    """Return the paths of the cluster's streams."""
    return {each["path"] for each in cluster.headrace("stream", "list")}


def test_a_stream_that_is_deleted_leaves_its_records_unless_it_says_otherwise(three: kube.Cluster) -> None:
    load = Load(three)
    written = {}
    for name, policy in (("stays", "Retain"), ("goes", "Delete")):
        declare(three, name, policy)
        kube.until("the Stream is there", lambda name=name: kube.is_ready("stream", name, three.namespace))
        written[name] = write(three, f"/{name}:records")
    began = time.monotonic()
    kube.kubectl("delete", "stream", "stays", "goes", "-n", three.namespace)
    deleted = time.monotonic() - began
    assert "/stays" in streams(three)
    assert "/goes" not in streams(three)
    for name, policy in (("stays", "Retain"), ("goes", "Delete")):
        declare(three, name, policy)
        kube.until("the Stream is there again", lambda name=name: kube.is_ready("stream", name, three.namespace))
    seconds = time.monotonic() - began
    assert read_back(three, written["stays"]) == written["stays"]
    assert three.headrace("stream", "show", "/goes")["topics"] == 0
    load.finish()
    kube.report("6 Streams are deleted", seconds, deleted_s=kube.below(deleted, ENDS_S))


def test_a_cluster_that_is_deleted_under_its_streams_and_applied_again_has_everything(three: kube.Cluster) -> None:
    declare(three, "kept", "Delete")  # once its cluster is gone, the policy neither blocks nor deletes anything
    kube.until("the Stream is there", lambda: kube.is_ready("stream", "kept", three.namespace))
    written = write(three, "/kept:records")
    load = Load(three)
    kube.forgive_commits(load)
    ids, claims = three.ids(), three.claims()
    since = time.monotonic()
    kube.kubectl("delete", "streamcluster", three.name, "-n", three.namespace)
    kube.until("its pods are gone", lambda: not three.pods(), timeout_s=ENDS_S)
    gone = time.monotonic() - since

    def told() -> bool:
        return kube.condition(kube.get("stream", "kept", three.namespace), "Ready")[1] == "NoCluster"

    kube.until("its Stream says so", told)
    assert three.ids() == ids
    assert three.claims() == claims
    again = time.monotonic()
    three.apply()
    load.await_writes(again, within_s=AGAIN_S)
    writes = time.monotonic() - again
    three.await_ready()
    assert three.ids() == ids
    kube.until("its Stream is there again", lambda: kube.is_ready("stream", "kept", three.namespace))
    seconds = time.monotonic() - since
    assert read_back(three, written) == written
    load.finish()
    kube.report("6 a StreamCluster is deleted and applied again", seconds, gone_s=gone, applied_again_writes_s=writes)


def test_storage_containers_that_are_deleted_are_brought_back_from_the_folders(three: kube.Cluster) -> None:
    load = Load(three)
    kube.forgive_commits(load)
    load.forgive_missing_containers()
    before = {number: each["epoch"] for number, each in three.containers().items()}
    since = time.monotonic()
    kube.kubectl("delete", "storagecontainers", "-n", three.namespace, "-l", f"headrace.dev/cluster={three.name}")
    kube.until("its condition says so", lambda: three.condition("Available")[1] == "RecordsLost")
    told = time.monotonic() - since

    def recovered() -> bool:
        return bool(three.headrace("recover-store", "--pod", "--yes")["done"])

    kube.until("the records are back", recovered)
    back = time.monotonic()
    load.await_writes(back, within_s=AGAIN_S)
    writes = time.monotonic() - since
    three.await_ready()
    now = {number: each["epoch"] for number, each in three.containers().items()}
    assert [number for number, epoch in before.items() if now.get(number, 0) <= epoch] == []
    load.finish()
    kube.report("6 StorageContainers are deleted", time.monotonic() - since, told_s=told, writes_again_s=writes)


def test_a_namespace_ends_with_all_that_is_in_it(doomed: kube.Cluster) -> None:
    took = kube.delete_namespace(doomed.namespace, within_s=ENDS_S)
    kube.report("6 a namespace is deleted", took, gone_s=kube.below(took, ENDS_S))


def test_charts_that_are_uninstalled_and_installed_again_leave_everything_as_it_was(three: kube.Cluster) -> None:
    declare(three, "through", "Delete")
    kube.until("the Stream is there", lambda: kube.is_ready("stream", "through", three.namespace))
    written = write(three, "/through:records")
    load = Load(three)
    lives = three.lives()
    since = time.monotonic()
    kube.uninstall()
    uninstalled = time.monotonic() - since
    stream = kube.get("stream", "through", three.namespace)
    assert stream is not None
    assert not stream["metadata"].get("finalizers")
    load.await_writes(time.monotonic())
    kube.install()
    three.await_ready()

    def finalizers() -> list[str]:
        return list((kube.get("stream", "through", three.namespace) or {})["metadata"].get("finalizers") or [])

    kube.until("the Stream is reconciled again", finalizers)
    seconds = time.monotonic() - since
    assert three.lives() == lives
    assert read_back(three, written) == written
    load.await_writes(time.monotonic())
    pause = load.longest_pause(since, time.monotonic())
    load.finish()
    kube.report(
        *("6 charts are uninstalled and installed again", seconds),
        uninstall_s=kube.below(uninstalled, ENDS_S),
        without_a_write_s=pause,
    )


def test_a_namespace_ends_after_the_operator_was_uninstalled(doomed: kube.Cluster) -> None:
    try:
        kube.uninstall()
        took = kube.delete_namespace(doomed.namespace, within_s=ENDS_S)
    finally:
        kube.install()
    kube.report("6 a namespace is deleted after the charts", took, gone_s=kube.below(took, ENDS_S))


def test_the_operators_own_namespace_ends_and_nothing_waits_for_it(three: kube.Cluster, doomed: kube.Cluster) -> None:
    load = Load(three)
    lives = three.lives()
    try:
        own = kube.delete_namespace(kube.SYSTEM, within_s=ENDS_S)
        others = kube.delete_namespace(doomed.namespace, within_s=ENDS_S)
    finally:
        kube.until(
            "its namespace can be created again",
            lambda: not kube.kubectl(*("get", "namespace", kube.SYSTEM, "-o", "name", "--ignore-not-found")),
        )
        kube.install()
    three.await_ready()
    assert three.lives() == lives
    load.finish()
    kube.report(
        *("6 the operator's own namespace is deleted", own + others),
        own_s=kube.below(own, ENDS_S),
        others_s=kube.below(others, ENDS_S),
    )

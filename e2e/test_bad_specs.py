"""Impossible specs: refused at once, or reported by a condition saying what to change, without a storm of retries."""

import re
import time
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

import kube
import pytest

BEHAVIOUR = "10 bad specs"
SETTLED_S = 20.0
QUIET_S = 60.0
LOOK_S = 2.0
WRITES = 2
"""The maximum number of writes to one resource that stays faulty, within QUIET_S."""
FIGURES = {
    "reconciles_a_minute": 'headrace_operator_reconciles_total{outcome="done"}',
    "failed_reconciles_a_minute": 'headrace_operator_reconciles_total{outcome="failed"}',
    "writes_a_minute": "headrace_operator_writes_total",
}
"""The operator's metrics, by their name in the report."""

SQL = {"sql": "SELECT key, value FROM input"}
COPY = {
    "input": {"stream": "/bad/in", "topics": ["parts"]},
    "output": {"stream": "/bad/in", "topic": "copies"},
    "application": SQL,
    "driver": {"cpu": "100m", "memory": "512Mi"},
}
NIGHTLY = {"availableNow": True, "schedule": "0 3 * * *"}

COPIED = {"stream": "/bad/copy"}
KAFKA = {"bootstrap": "127.0.0.1:1"}


class Bad(NamedTuple):
    """A faulty resource, and what must be reported about it."""

    kind: str
    name: str
    spec: kube.Body
    condition: str
    reason: str
    said: str


REFUSED: list[tuple[str, kube.Body, str]] = [
    ("Volume", {"replicas": 2, "minInSync": 3}, "minInSync is above replicas"),
    ("Volume", {"replicas": 10}, "replicas"),
    ("StreamCluster", {"replication": {"replicas": 2, "minInSync": 3}}, "ask for fewer in sync, or for more replicas"),
    ("StreamCluster", {"storage": {"size": "much"}}, "spec.storage.size"),
    ("Stream", {"path": "no-slash"}, "spec.path"),
    ("Stream", {"path": "/ttl", "ttl": "soon"}, "spec.ttl"),
    ("Topic", {"stream": "/bad/in", "partitions": 0}, "spec.partitions"),
    ("StreamJob", {**COPY, "trigger": {**NIGHTLY, "schedule": "every night"}}, "spec.trigger.schedule"),
    ("StreamJob", {**COPY, "trigger": {"schedule": "0 3 * * *"}}, "goes with trigger.availableNow: true"),
    ("StreamJob", {**COPY, "executors": 2}, "ReadWriteMany claim"),
    ("StreamJob", {**COPY, "application": {}}, "exactly one of configMap, path, url and sql"),
    ("ReplicationLink", {"source": {"stream": "/n"}, "target": COPIED}, "give either source.bootstrap or"),
    ("ReplicationLink", {"source": {"bootstrap": "n"}, "target": COPIED}, "spec.source.bootstrap"),
    ("ReplicationLink", {"source": KAFKA, "target": COPIED, "mode": "MultiHome"}, "a source that is Headrace"),
]
"""Specs that the CRD refuses."""
CHANGES: list[tuple[str, kube.Body, kube.Body, str]] = [
    ("Stream", {"path": "/bad/change"}, {"path": "/bad/changed"}, "path cannot change"),
    (
        "Topic",
        {"stream": "/bad/in", "name": "falls", "partitions": 4},
        {"stream": "/bad/in", "name": "falls", "partitions": 3},
        "partitions cannot fall",
    ),
]
CONDITIONS = [
    Bad("Volume", "wide", {"replicas": 9, "minInSync": 2, "spread": "required"}, "Reconciled", "Refused", "node"),
    Bad("Topic", "nowhere", {"stream": "/bad/none"}, "Reconciled", "Refused", "/bad/none"),
    Bad("Stream", "of-nobody", {"path": "/x", "clusterRef": {"name": "nobody"}}, "Reconciled", "NoCluster", "nobody"),
    Bad("ReplicationLink", "silent", {"source": KAFKA, "target": COPIED}, "Reconciled", "SourceSilent", "127.0.0.1:1"),
    Bad(
        "ReplicationLink",
        "without-secret",
        {"source": {**KAFKA, "credentialsSecret": "no-such-secret"}, "target": COPIED},
        "Reconciled",
        "NoSecret",
        "no-such-secret",
    ),
    Bad(
        "ReplicationLink",
        "of-itself",
        {"source": {"clusterRef": {"name": "c"}, "stream": "/bad/in"}, "target": COPIED},
        "Reconciled",
        "Refused",
        "this cluster itself",
    ),
    Bad("StreamUser", "of-nobody", {"clusterRef": {"name": "nobody"}}, "Reconciled", "NoCluster", "nobody"),
    Bad(
        "Stream",
        "unread",
        {"path": "/bad/unread", "permissions": {"produce": "g:sensors &"}},
        "Reconciled",
        "BadExpression",
        "permissions.produce",
    ),
    Bad(
        "StreamJob",
        "impossible-time",
        {**COPY, "trigger": {**NIGHTLY, "schedule": "99 99 * * *"}},
        "Reconciled",
        "Refused",
        "schedule",
    ),
    Bad("StreamJob", "by-nobody", {**COPY, "user": "nobody"}, "Reconciled", "NoUser", "nobody"),
    Bad("StreamJob", "without-claim", {**COPY, "checkpoint": {"claim": "none"}}, "Reconciled", "NoClaim", "none"),
    Bad(
        "StreamJob",
        "alone",
        {**COPY, "executors": 1, "checkpoint": {"claim": "alone"}},
        "Reconciled",
        "NotShared",
        "ReadWriteMany",
    ),
    Bad(
        "StreamJob",
        "without-file",
        {**COPY, "application": {"configMap": {"name": "none"}}},
        "Reconciled",
        "NoApplication",
        "none",
    ),
    Bad(
        "StreamJob",
        "by-value",
        {**COPY, "parameters": {"password": "known"}},
        "Reconciled",
        "WrongSpec",
        "valueFrom.secretKeyRef",
    ),
    Bad(
        "StreamJob",
        "without-secret",
        {**COPY, "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "no-such-secret", "key": "a"}}}]},
        "Running",
        "PodsCannotRun",
        "no-such-secret",
    ),
]
"""Specs that no CRD can refuse; the resources stay for `test_nothing_is_tried_again_and_again`."""


def manifest(three: kube.Cluster, kind: str, name: str, spec: kube.Body) -> kube.Body:
    """Return the resource, with its cluster if it needs a reference and has none."""
    reference = {} if kind == "StreamCluster" else {"clusterRef": {"name": three.name}}
    return kube.resource(kind, name, three.namespace, {**reference, **spec})


@pytest.fixture(scope="module", autouse=True)
def _surroundings(spark_image: None, three: kube.Cluster) -> None:
    claim: kube.Body = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "alone", "namespace": three.namespace},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    kube.apply(
        manifest(three, "Stream", "in", {"path": "/bad/in"}),
        manifest(three, "Topic", "parts", {"stream": "/bad/in"}),
        claim,
    )
    kube.until("the topic is there", lambda: kube.is_ready("topic", "parts", three.namespace))


def said(three: kube.Cluster, bad: Bad) -> Callable[[], str]:
    """Return a function that returns the condition's message, once the condition is False for the expected reason."""

    def found() -> str:
        status, reason, message = kube.condition(kube.get(bad.kind, bad.name, three.namespace), bad.condition)
        assert (status, reason) == ("False", bad.reason), f"{bad.condition} is {status} {reason}: {message}"
        assert bad.said in message, message
        return message

    return found


@pytest.mark.parametrize(("of", "spec", "words"), REFUSED)
def test_it_is_refused_at_once(three: kube.Cluster, of: str, spec: kube.Body, words: str) -> None:
    with kube.reported(f"{BEHAVIOUR}: refused by the CRD"), pytest.raises(AssertionError, match=re.escape(words)):
        kube.apply(manifest(three, of, "refused", spec))


@pytest.mark.parametrize(("of", "spec", "change", "words"), CHANGES)
def test_a_change_is_refused_at_once(
    three: kube.Cluster, of: str, spec: kube.Body, change: kube.Body, words: str
) -> None:
    with kube.reported(f"{BEHAVIOUR}: a change refused by the CRD"):
        kube.apply(manifest(three, of, "changes", spec))
        kube.until("it is ready", lambda: kube.is_ready(of, "changes", three.namespace))
        with pytest.raises(AssertionError, match=re.escape(words)):
            kube.apply(manifest(three, of, "changes", change))


@pytest.mark.parametrize("bad", CONDITIONS, ids=lambda bad: f"{bad.kind} {bad.reason}")
def test_a_condition_says_what_to_change(three: kube.Cluster, bad: Bad) -> None:
    with kube.reported(f"{BEHAVIOUR}: a condition says what to change") as figures:
        began = time.monotonic()
        kube.apply(manifest(three, bad.kind, bad.name, bad.spec))
        message = kube.until(f"{bad.kind} {bad.name} is {bad.reason}", said(three, bad), timeout_s=60)
        figures["after_s"] = round(time.monotonic() - began, 1)
        figures["said"] = str(message)[:160]
        assert kube.condition(kube.get(bad.kind, bad.name, three.namespace), "Ready")[0] == "False"


def test_the_older_of_two_streams_on_a_path_holds(three: kube.Cluster) -> None:
    with kube.reported(f"{BEHAVIOUR}: two Streams on a path"):
        kube.apply(manifest(three, "Stream", "older", {"path": "/bad/clash", "ttl": "1d"}))
        kube.until("the older one is ready", lambda: kube.is_ready("stream", "older", three.namespace))
        kube.apply(manifest(three, "Stream", "a-younger", {"path": "/bad/clash", "ttl": "2d"}))
        younger = Bad("Stream", "a-younger", {}, "Reconciled", "Clash", "older")
        kube.until("the younger one says so", said(three, younger), timeout_s=30)
        assert kube.is_ready("stream", "older", three.namespace)
        kube.kubectl("delete", "stream", "older", "-n", three.namespace)
        kube.until("the younger one holds now", lambda: kube.is_ready("stream", "a-younger", three.namespace))


def test_partitions_that_the_cluster_has_are_not_removed(three: kube.Cluster) -> None:
    with kube.reported(f"{BEHAVIOUR}: a Topic made again with fewer partitions"):
        kube.apply(manifest(three, "Topic", "shrinks", {"stream": "/bad/in", "partitions": 6}))
        kube.until("it is ready", lambda: kube.is_ready("topic", "shrinks", three.namespace))
        kube.kubectl("delete", "topic", "shrinks", "-n", three.namespace)
        kube.apply(manifest(three, "Topic", "shrinks", {"stream": "/bad/in", "partitions": 3}))
        told = said(three, Bad("Topic", "shrinks", {}, "Reconciled", "Refused", "6 partitions"))
        kube.until("it says so", told, timeout_s=30)
        kube.apply(manifest(three, "Topic", "shrinks", {"stream": "/bad/in", "partitions": 6}))
        kube.until("it is repaired", lambda: kube.is_ready("topic", "shrinks", three.namespace))


def test_a_cluster_says_what_it_cannot_have(three: kube.Cluster) -> None:
    with kube.reported(f"{BEHAVIOUR}: more replicas than nodes, storage that shrinks or cannot grow") as figures:
        with pytest.raises(AssertionError, match=r"storage\.size cannot shrink"):
            three.apply(storage={"size": "512Mi"})
        with pytest.raises(AssertionError, match=r"shards cannot fall|spec\.shards"):
            three.apply(storage={"size": "1Gi"}, shards=0)
        del three.spec["shards"]
        three.apply(replication={"replicas": 5, "minInSync": 2})
        lacking = Bad("StreamCluster", three.name, {}, "Redundant", "UnderReplicated", "")
        figures["said"] = kube.until("it says that replicas have no place", said(three, lacking), timeout_s=90)[:160]
        assert kube.condition(three.body, "Available")[0] == "True"
        three.apply(replication={"replicas": 3, "minInSync": 2})
        three.await_ready()
        three.apply(storage={"size": "2Gi"})
        stays = Bad("StreamCluster", three.name, {}, "Storage", "CannotGrow", "2Gi")
        kube.until("it says that claims cannot grow", said(three, stays), timeout_s=60)
        assert kube.condition(three.body, "Available")[0] == "True"
        three.apply(storage={"size": "1Gi"})
        three.await_ready()


def test_nothing_is_tried_again_and_again(three: kube.Cluster) -> None:
    with kube.reported(f"{BEHAVIOUR}: no storm of retries") as figures:
        time.sleep(SETTLED_S)  # new resources are retried more often; from here on nothing changes
        pods = {pod["metadata"]["uid"] for pod in kube.listed("pods", three.namespace)}
        started = kube.operator_figures()
        versions = defaultdict(set)
        deadline = time.monotonic() + QUIET_S
        while time.monotonic() < deadline:
            for each in kube.listed("headrace", three.namespace):
                versions[each["kind"], each["metadata"]["name"]].add(each["metadata"]["resourceVersion"])
            time.sleep(LOOK_S)
        ended = kube.operator_figures()
        bad = {(each.kind, each.name) for each in CONDITIONS}
        written = {which: len(versions[which]) - 1 for which in bad}
        assert max(written.values()) <= WRITES, written
        assert {pod["metadata"]["uid"] for pod in kube.listed("pods", three.namespace)} == pods
        for figure, name in FIGURES.items():
            figures[figure] = round((ended[name] - started[name]) / (QUIET_S / 60))
        figures["bad_resources"] = len(CONDITIONS)
        figures["their_status_writes"] = sum(written.values())

"""Thousands of Topic resources, and many more topics without resources: what they cost the operator."""

import json
import time

import kube
from confluent_kafka.admin import AdminClient, NewTopic

from kit.cluster_clients import Load, at

RESOURCES = 2_000
RECONCILED_S = 180.0
MEMORY_MIB = 300.0
IDLE_RESOURCES = 200
IDLE_MEMORY_MIB = 150.0
IDLE_CORE_PERCENT = 2.0
TOPICS = 100_000
AT_ONCE = 1_000
MADE_S = 60.0
QUIET_S = 60.0
WRITES_EACH = 4
"""The maximum number of writes to a new Topic: its status when it is seen, and when its figures are known; with some
reserve.
"""
MORE_MIB = 20.0


def declare(cluster: kube.Cluster, names: list[str]) -> None:
    """Create Topic resources."""
    spec = {"clusterRef": {"name": cluster.name}, "stream": "/declared", "partitions": 1}
    items = [kube.resource("Topic", name, cluster.namespace, spec) for name in names]
    manifests = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    kube.kubectl("create", "-f", "-", "--validate=false", stdin=manifests, timeout_s=RECONCILED_S)


def await_topics(cluster: kube.Cluster, count: int, timeout_s: float) -> None:
    """Wait until `count` Topics are ready."""
    ready = '{range .items[*]}{.status.conditions[?(@.type=="Ready")].status}{"\\n"}{end}'

    def all_ready() -> bool:
        states = kube.kubectl("get", "topics", "-n", cluster.namespace, "-o", f"jsonpath={ready}").split()
        assert states.count("True") == count, f"{states.count('True')} of {count} are ready"
        return True

    kube.until("all Topics are ready", all_ready, timeout_s=timeout_s, every_s=3)


def versions(cluster: kube.Cluster) -> dict[str, str]:
    """Return each Topic's version, which every write changes."""
    shown = '{range .items[*]}{.metadata.name}={.metadata.resourceVersion}{"\\n"}{end}'
    lines = kube.kubectl("get", "topics", "-n", cluster.namespace, "-o", f"jsonpath={shown}").split()
    return dict(line.split("=") for line in lines)


def over_a_quiet_time(cluster: kube.Cluster) -> tuple[float, float, int]:
    """Return (share of a core, reconciles, Topics that were written to) over a time in which nothing is changed."""
    before, (_, core), wrote = versions(cluster), kube.operator_process(), reconciles()
    began = time.monotonic()
    time.sleep(QUIET_S)
    (_, after), seconds = kube.operator_process(), time.monotonic() - began
    now = versions(cluster)
    return (after - core) / seconds, reconciles() - wrote, sum(now[name] != each for name, each in before.items())


def reconciles() -> float:
    """Return how many reconciles the operator has finished, successful or not."""
    figures = kube.operator_figures()
    return sum(value for name, value in figures.items() if name.startswith("headrace_operator_reconciles_total"))


def writes() -> float:
    """Return how many writes the operator has sent to the API server."""
    return kube.operator_figures()["headrace_operator_writes_total"]


def stream(cluster: kube.Cluster, name: str) -> None:
    """Apply a Stream at the path `/name`."""
    spec = {"clusterRef": {"name": cluster.name}, "path": f"/{name}"}
    kube.apply(kube.resource("Stream", name, cluster.namespace, spec))
    kube.until("the Stream is there", lambda: kube.is_ready("stream", name, cluster.namespace))


def test_an_operator_of_two_hundred_resources_is_idle(three: kube.Cluster) -> None:
    stream(three, "declared")
    began = time.monotonic()
    declare(three, [f"idle-{number}" for number in range(IDLE_RESOURCES)])
    await_topics(three, IDLE_RESOURCES, RECONCILED_S)
    took = time.monotonic() - began
    time.sleep(QUIET_S)  # figures are written once more
    core, _, written = over_a_quiet_time(three)
    memory, _ = kube.operator_process()
    kube.report(
        *("8 two hundred Topics", took),
        resources=IDLE_RESOURCES,
        memory_mib=kube.below(memory, IDLE_MEMORY_MIB),
        core_percent=kube.below(100 * core, IDLE_CORE_PERCENT),
        written_when_idle=written,
    )
    assert written == 0


def test_two_thousand_topics_are_reconciled_and_left_alone(three: kube.Cluster) -> None:
    stream(three, "declared")
    there = len(versions(three))
    load = Load(three, writers=1)
    wrote = writes()
    began = time.monotonic()
    declare(three, [f"many-{number}" for number in range(RESOURCES - there)])
    created = time.monotonic() - began
    await_topics(three, RESOURCES, RECONCILED_S)
    took = time.monotonic() - began
    each = (writes() - wrote) / (RESOURCES - there)
    load.finish()
    time.sleep(QUIET_S)
    core, looked, written = over_a_quiet_time(three)
    memory, _ = kube.operator_process()
    kube.report(
        *("8 two thousand Topics", took),
        resources=RESOURCES,
        created_s=created,
        reconciled_s=kube.below(took, RECONCILED_S),
        memory_mib=kube.below(memory, MEMORY_MIB),
        writes_each=kube.below(each, WRITES_EACH),
        core_percent_when_idle=100 * core,
        reconciles_when_idle=kube.below(looked, 1.5 * RESOURCES),  # a sweep reconciles each once
        written_when_idle=kube.below(written, RESOURCES / 100),
    )


def test_a_hundred_thousand_topics_that_are_no_resources_cost_the_operator_nothing(three: kube.Cluster) -> None:
    stream(three, "data")
    load = Load(three, writers=1)
    memory_before, _ = kube.operator_process()
    core_before, looked_before, _ = over_a_quiet_time(three)
    admin = AdminClient(at(three.bootstrap))
    began = time.monotonic()
    for first in range(0, TOPICS, AT_ONCE):
        wanted = [NewTopic(f"/data:{number}", 1) for number in range(first, first + AT_ONCE)]
        made = admin.create_topics(wanted, operation_timeout=MADE_S, request_timeout=MADE_S)
        for future in made.values():
            future.result(MADE_S)
    took = time.monotonic() - began

    def counted() -> bool:
        found = (kube.get("stream", "data", three.namespace) or {}).get("status", {}).get("topics")
        assert found == TOPICS, f"{found} are counted"
        return True

    kube.until("the Stream counts them", counted, timeout_s=240, every_s=3)
    core, looked, _ = over_a_quiet_time(three)
    memory, _ = kube.operator_process()
    load.finish()
    kube.report(
        *("8 topics that are no resources", took),
        topics=TOPICS,
        memory_mib=kube.below(memory, memory_before + MORE_MIB),
        memory_before_mib=memory_before,
        core_percent=kube.below(100 * core, 100 * core_before + IDLE_CORE_PERCENT),
        core_percent_before=100 * core_before,
        reconciles=int(looked),
        reconciles_before=int(looked_before),
    )

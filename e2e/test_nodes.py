"""Pods, workers and claims that fail or are deleted: no acknowledged record is lost, and writes continue."""

import time

import kube
import pytest

from kit.cluster_clients import Load

GO_ON_S = 15.0
PAUSE_S = 5.0
SILENT_WORKER_S = 90.0
"""Time limit with a worker that closes no connection: clients wait for its answer, 60 s by librdkafka's default."""
BACK_S = 600.0


@pytest.mark.ci_part
def test_clients_inside_and_outside(three: kube.Cluster) -> None:
    began = time.monotonic()
    load = Load(three)
    inside = f"{three.name}-bootstrap.{three.namespace}.svc:9092"
    script = (
        "from confluent_kafka import Producer, Consumer\n"
        f"p = Producer({{'bootstrap.servers': '{inside}', 'acks': 'all'}})\n"
        "[p.produce('inside', str(i)) for i in range(100)]\n"
        "assert p.flush(30) == 0\n"
        f"c = Consumer({{'bootstrap.servers': '{inside}', 'group.id': 'g', 'auto.offset.reset': 'earliest'}})\n"
        "c.subscribe(['inside'])\n"
        "got = []\n"
        "while len(got) < 100: got += [m.value() for m in c.consume(100, 30)]\n"
        "print('read', len(got))\n"
    )
    pod = kube.resource("Pod", "client", three.namespace, {})
    pod |= {"apiVersion": "v1"}
    pod["spec"] = {
        "restartPolicy": "Never",
        "containers": [{"name": "client", "image": kube.IMAGES["node"], "command": ["python", "-c", script]}],
    }
    kube.apply(pod)

    def ended() -> str:
        phase = ((kube.get("pod", "client", three.namespace) or {}).get("status") or {}).get("phase", "")
        return phase if phase in ("Succeeded", "Failed") else ""

    assert kube.until("the client in the pod has ended", ended, timeout_s=120) == "Succeeded"
    assert "read 100" in kube.kubectl("logs", "client", "-n", three.namespace)
    seconds = time.monotonic() - began
    history = load.finish()
    kube.report("1 clients inside and outside", seconds, records_outside=len(history.times), records_inside=100)


@pytest.mark.ci_part
@pytest.mark.parametrize("how", ["delete", "kill -9"])
def test_a_pod_that_goes_takes_nothing_with_it(three: kube.Cluster, how: str) -> None:
    load = Load(three)
    pod = three.busiest(load.led_by).pod
    before = three.lives()
    since = time.monotonic()
    if how == "delete":
        kube.kubectl("delete", "pod", pod, "-n", three.namespace, "--wait=false")
    else:
        three.kill(pod)
    went_on = load.await_writes(since, within_s=GO_ON_S)
    three.await_other_life(pod, before)
    three.await_ready()
    whole = time.monotonic() - since
    load.await_writes(time.monotonic(), within_s=GO_ON_S)
    pause = load.longest_pause(since, time.monotonic())
    load.finish()
    three.await_told("NodeChanged", "PrimaryMoved", "RedundancyChanged")
    kube.report(
        *(f"2 a pod goes: {how}", whole),
        without_a_write_s=kube.below(pause, PAUSE_S),
        every_partition_again_s=kube.below(went_on, GO_ON_S),
    )


def test_a_claim_that_is_deleted_with_its_pod_is_replaced(three: kube.Cluster) -> None:
    load = Load(three)
    gone = three.busiest(load.led_by)
    before, claims = three.ids(), three.claims()
    since = time.monotonic()
    kube.kubectl("delete", "pvc", f"data-{gone.pod}", "-n", three.namespace, "--wait=false")
    kube.kubectl("delete", "pod", gone.pod, "-n", three.namespace, "--wait=false")
    went_on = load.await_writes(since, within_s=GO_ON_S)

    def replaced() -> bool:
        now = three.ids()
        return len(now) == len(before) and gone.node_id not in now and now - before == {max(now)}

    kube.until("another node is in its place, and the former one is removed", replaced, timeout_s=240)
    three.await_ready()
    assert three.claims()[f"data-{gone.pod}"] != claims[f"data-{gone.pod}"]
    whole = time.monotonic() - since
    load.await_writes(time.monotonic(), within_s=GO_ON_S)
    pause = load.longest_pause(since, time.monotonic())
    load.finish()
    three.await_told("ReplicasChanged", "NodeRemoved")
    kube.report(
        *("2 a pod goes with its claim", whole),
        without_a_write_s=kube.below(pause, PAUSE_S),
        every_partition_again_s=kube.below(went_on, GO_ON_S),
    )


@pytest.mark.timeout(1500, func_only=True)
def test_a_worker_that_stops_and_comes_back(three: kube.Cluster) -> None:
    load = Load(three)
    pod = three.busiest(load.led_by).pod
    before = three.lives()
    worker = next(each["spec"]["nodeName"] for each in three.pods() if each["metadata"]["name"] == pod)
    since = time.monotonic()
    with kube.stopped(worker):
        stopped = time.monotonic()
        load.fresh_writes_go_on(within_s=GO_ON_S)
        new_clients = time.monotonic() - stopped
        went_on = load.await_writes(since, within_s=SILENT_WORKER_S)
    three.await_other_life(pod, before)
    three.await_ready(BACK_S)
    whole = time.monotonic() - since
    load.await_writes(time.monotonic(), within_s=GO_ON_S)
    pause = load.longest_pause(since, time.monotonic())
    load.finish()
    kube.report(
        *("2 a worker stops and comes back", whole),
        new_clients_s=kube.below(new_clients, GO_ON_S),
        without_a_write_s=pause,
        every_partition_again_s=kube.below(went_on, SILENT_WORKER_S),
    )

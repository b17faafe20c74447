"""Pods that go, and come back: no acknowledged record is lost, and writes go on."""

import time

import kube
import pytest
from cluster_clients import Load

GO_ON_S = 15.0


def test_clients_inside_and_outside(three: kube.Cluster) -> None:
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
    load.finish()


@pytest.mark.parametrize("how", ["delete", "kill -9"])
def test_a_pod_that_goes_takes_nothing_with_it(three: kube.Cluster, how: str) -> None:
    load = Load(three)
    pod = f"{three.name}-1"
    before = kube.get("pod", pod, three.namespace)
    since = time.monotonic()
    if how == "delete":
        kube.kubectl("delete", "pod", pod, "-n", three.namespace, "--wait=false", "--grace-period=0", "--force")
    else:
        kube.kubectl("exec", pod, "-n", three.namespace, "--", "sh", "-c", "kill -9 1", check=False)
        worker = before["spec"]["nodeName"]
        kube.run("docker", "exec", worker, "pkill", "-9", "-f", "headrace.node", check=False)
    load.await_writes(since, within_s=GO_ON_S)
    three.await_ready()
    load.await_writes(time.monotonic(), within_s=GO_ON_S)
    load.finish()

"""Pods that are made anew since the resource asks for other ones, under load: what is held of every roll."""

import json
import threading
import time
from typing import Any

import kube

from kit.cluster_clients import Load
from kit.machine_disk import machine_disk

ROLLED_S = 400.0
LOOK_S = 0.5
CALM_S = 15.0
"""After the machine's disk has stood still: any replica may be behind, whoever rolls what."""


class Watch(threading.Thread):
    """Looks at a cluster while its pods are made anew: which of them are away, or lack what others have."""

    def __init__(self, cluster: kube.Cluster) -> None:
        super().__init__(daemon=True)
        self.stopping = threading.Event()
        self.most: list[str] = []
        """Pods that were not what they should be, at the worst moment."""
        self.looks = 0
        self.seen: list[str] = []
        """What changed, with the seconds since it began."""
        self.error: Exception | None = None
        self._cluster = cluster
        self._pods = {f"{cluster.name}-{index}" for index in range(cluster.spec["nodes"])}
        self._by_id = {node.node_id: node.pod for node in cluster.nodes.values()}

    def run(self) -> None:
        try:
            self._watch()
        except Exception as error:
            self.error = error

    def _watch(self) -> None:
        began = time.monotonic()
        before: set[str] = set()
        while not self.stopping.wait(LOOK_S):
            away = self._away()
            now = time.monotonic()
            if away != before:
                self.seen.append(f"{now - began:.1f} {sorted(away)}")
            before = away
            if machine_disk().stood_still(now - CALM_S, now):
                continue
            self.looks += 1
            if len(away) > len(self.most):
                self.most = sorted(away)

    def _away(self) -> set[str]:
        """Pods are looked at before containers: one that is away then has to catch up before the next one goes."""
        labels = f"headrace.dev/cluster={self._cluster.name}"
        found = kube.kubectl("get", "pods,storagecontainers", "-n", self._cluster.namespace, "-l", labels, "-o", "json")
        away = set(self._pods)
        for each in json.loads(found)["items"]:
            if each["kind"] == "Pod":
                if kube.is_up(each):
                    away.discard(each["metadata"]["name"])
            elif each["status"]["state"] != "deleted":
                lacking = set(each["status"]["replicas"]) - kube.in_sync(each["status"])
                away |= {self._by_id[number] for number in lacking}
        return away


def roll(cluster: kube.Cluster, *, behaviour: str = "", **changes: Any) -> None:
    """Change the resource under load; each pod is made anew, and none before all that went before are whole.

    `behaviour`: as it is reported, where it is not about the changes themselves.
    """
    load = Load(cluster)
    before = cluster.lives()
    watch = Watch(cluster)
    watch.start()
    since = time.monotonic()
    cluster.apply(**changes)

    def rolled() -> bool:
        now = cluster.lives()
        same = [pod for pod, life in before.items() if now.get(pod, life) == life]
        assert not same, f"{same}: {cluster.condition('Current')}"
        return True

    try:
        kube.until("all pods are made anew", rolled, timeout_s=ROLLED_S, every_s=1)
        cluster.await_ready()
    finally:
        watch.stopping.set()
        watch.join()
    seconds = time.monotonic() - since
    load.await_writes(time.monotonic())
    pause = load.longest_pause(since, time.monotonic())
    history = load.finish()  # an error of any produce is a fault
    assert watch.error is None
    assert watch.looks > 10
    assert len(watch.most) == 1, f"{watch.most} were away, or behind, at a time: {watch.seen}"
    behaviour = behaviour or f"4 another {', '.join(changes)}"
    kube.report(behaviour, seconds, produced=len(history.times), failed=0, without_a_write_s=pause)

"""Rolling restarts under load after changes of the resource, and the checks that hold for each of them."""

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
"""Seconds after the machine's disk has stalled in which any replica may be behind, independently of restarts."""


class Watch(threading.Thread):
    """Observes a cluster during a rolling restart: which pods are away, or lack replicas."""

    def __init__(self, cluster: kube.Cluster) -> None:
        super().__init__(daemon=True)
        self.stopping = threading.Event()
        self.most: list[str] = []
        """The most pods that were away or behind at the same time."""
        self.looks = 0
        self.seen: list[str] = []
        """The changes, with the seconds since the start."""
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
        """Return the pods that are away or behind. Pods are listed before containers, so that the result never mixes
        two restarts: a pod that is away in the first list has to catch up before the next one is restarted.
        """
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
    """Change the resource under load; each pod is recreated, and none before all former ones have caught up.

    `behaviour`: its name in the report, if the test is not about the changes themselves.
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
        kube.until("all pods are recreated", rolled, timeout_s=ROLLED_S, every_s=1)
        cluster.await_ready()
    finally:
        watch.stopping.set()
        watch.join()
    seconds = time.monotonic() - since
    load.await_writes(time.monotonic())
    pause = load.longest_pause(since, time.monotonic())
    history = load.finish()  # fails on any produce error
    assert watch.error is None
    assert watch.looks > 10
    assert len(watch.most) == 1, f"{watch.most} were away, or behind, at a time: {watch.seen}"
    behaviour = behaviour or f"4 another {', '.join(changes)}"
    kube.report(behaviour, seconds, produced=len(history.times), failed=0, without_a_write_s=pause)

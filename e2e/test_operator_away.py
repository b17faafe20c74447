"""The operator is killed, restarted, upgraded, absent: that restarts no storage pod, and failover does not need it."""

import time

import kube

from kit.cluster_clients import Load

PAUSE_S = 5.0
LOOKED_S = 120.0


def deployment(*command: str) -> str:
    """Run kubectl on the operator's Deployment."""
    verb, *more = command
    return kube.kubectl(*verb.split(), "deployment/headrace", "-n", kube.SYSTEM, *more)


def await_another(before: str) -> float:
    """Wait until another operator runs and has reconciled everything; return the seconds that it took."""
    since = time.monotonic()
    kube.until("another operator runs", lambda: kube.operator_pod() != before, timeout_s=LOOKED_S)

    def looked() -> bool:
        found = kube.operator_figures()
        there = sum(value for name, value in found.items() if name.startswith("headrace_operator_resources{"))
        done = sum(value for name, value in found.items() if name.startswith("headrace_operator_reconciles_total"))
        return 0 < there <= done

    kube.until("it has reconciled everything", looked, timeout_s=LOOKED_S, every_s=1)
    return time.monotonic() - since


def test_an_operator_that_is_killed_restarted_or_upgraded_restarts_no_storage_pod(three: kube.Cluster) -> None:
    load = Load(three)
    lives, image = three.lives(), three.pods()[0]["spec"]["containers"][0]["image"]
    began = time.monotonic()
    before = kube.operator_pod()
    kube.kubectl("delete", "pod", before, "-n", kube.SYSTEM, "--grace-period=0", "--force")
    killed = await_another(before)
    before = kube.operator_pod()
    deployment("rollout restart")
    restarted = await_another(before)
    before = kube.operator_pod()
    tags = {f"{value}.tag": "e2e-next" for value in ("image", "nodeImage")}
    for name in ("operator", "node"):
        kube.tag_on_workers(name, "e2e-next")
    try:
        kube.install(**tags)
        upgraded = await_another(before)
        three.await_ready()
        assert three.lives() == lives
        assert {pod["spec"]["containers"][0]["image"] for pod in three.pods()} == {image}
        three.scale(4)  # a new pod has the running version too
        three.await_ready()
        assert {pod["spec"]["containers"][0]["image"] for pod in three.pods()} == {image}
        three.scale(3)
        kube.until("there are three again", lambda: len(three.ids()) == len(three.claims()) == 3, timeout_s=240)
    finally:
        kube.install()
    three.await_ready()
    assert three.lives() == lives
    seconds = time.monotonic() - began
    pause = load.longest_pause(began, time.monotonic())
    load.finish()
    kube.report(
        "5 an operator is killed, restarted, upgraded",
        seconds,
        killed_s=killed,
        restarted_s=restarted,
        upgraded_s=upgraded,
        without_a_write_s=pause,
    )


def test_a_node_that_fails_while_there_is_no_operator_is_failed_over(three: kube.Cluster) -> None:
    load = Load(three)
    lives = three.lives()
    began = time.monotonic()
    deployment("scale", "--replicas=0")
    try:
        labels = "app.kubernetes.io/name=headrace-operator"
        kube.until("the operator is gone", lambda: not kube.listed("pods", kube.SYSTEM, labels=labels))
        killed = three.busiest(load.led_by).pod
        since = time.monotonic()
        three.kill(killed)
        went_on = load.await_writes(since)
        three.await_other_life(killed, lives)
        deleted = next(pod for pod in lives if pod != killed)

        def whole() -> bool:
            return all(len(kube.in_sync(each)) == 3 for each in three.containers().values())

        kube.until("it has caught up", whole)
        between = time.monotonic()
        kube.kubectl("delete", "pod", deleted, "-n", three.namespace)
        again = load.await_writes(between)
        kube.until("it has come back", lambda: sum(map(kube.is_up, three.pods())) == 3)
        kube.until("it has caught up", whole)
        pause = load.longest_pause(since, time.monotonic())
    finally:
        deployment("scale", "--replicas=1")
    three.await_ready()
    now = three.lives()
    assert {pod for pod in lives if now[pod] != lives[pod]} == {killed, deleted}
    load.await_writes(time.monotonic())
    load.finish()
    kube.report(
        *("5 nodes fail without an operator", time.monotonic() - began),
        without_a_write_s=kube.below(pause, PAUSE_S),
        every_partition_again_s=max(went_on, again),
    )

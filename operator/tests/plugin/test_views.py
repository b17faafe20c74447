from typing import Any

from headrace_operator.plugin import views

CLUSTER = {"headrace.dev/cluster": "c", "app.kubernetes.io/component": "storage"}


def node(number: int, slot: str, **spec: Any) -> dict[str, Any]:
    return {
        "kind": "StorageNode",
        "metadata": {"name": f"c-{number}", "namespace": "n", "labels": CLUSTER},
        "spec": spec,
        "status": {"nodeId": number, "slot": slot, "full": number == 2},
    }


def pod(name: str, *, ready: bool = True, **status: Any) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": str(ready)}]
    meta = {"name": name, "namespace": "n", "labels": CLUSTER}
    return {"metadata": meta, "spec": {"nodeName": "w"}, "status": {"conditions": conditions, **status}}


def test_a_node_has_its_pods_state_and_its_own_marks() -> None:
    crashing = [{"name": "node", "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]
    rows = views.nodes(
        [node(2, "c-1/0"), node(1, "c-0/0", drain=True), node(3, "c-9/0", clusterDeleted=True)],
        [pod("c-0"), pod("c-1", ready=False, containerStatuses=crashing), pod("c-3", ready=False, phase="Pending")],
    )
    told = [(each["node"], each["pod"], each["state"], each["restarts"], each["marks"]) for each in rows]
    assert told == [
        (1, "c-0", "ready", 0, "draining"),
        (2, "c-1", "CrashLoopBackOff", 3, "full"),
        (3, "c-9", "no pod", None, "cluster deleted"),
        (None, "c-3", "Pending", 0, ""),
    ]


def test_a_pod_that_goes_is_told_so() -> None:
    going = pod("c-0", ready=False)
    going["metadata"]["deletionTimestamp"] = "now"
    assert views.nodes([node(1, "c-0/0")], [going])[0]["state"] == "Terminating"


def test_what_is_not_so_comes_first() -> None:
    conditions = [
        {"type": "Ready", "status": "True", "reason": "AllWell"},
        {"type": "Sized", "status": "False", "reason": "Draining", "message": "m"},
    ]
    resource = {"kind": "StreamCluster", "metadata": {"name": "c"}, "status": {"conditions": conditions}}
    rows = views.conditions([resource])
    assert [(each["of"], each["condition"]) for each in rows] == [
        ("streamcluster/c", "Sized"),
        ("streamcluster/c", "Ready"),
    ]


def test_a_resource_that_nobody_has_looked_at_is_shown_too() -> None:
    (row,) = views.clusters([{"metadata": {"name": "c", "namespace": "n"}, "spec": {"nodes": 3}}])
    assert (row["ready"], row["nodes"], row["version"]) == ("Unknown", "0/3", None)
    (row,) = views.links([{"metadata": {"name": "l"}}])
    assert (row["ready"], row["cluster"], row["state"]) == ("Unknown", None, None)

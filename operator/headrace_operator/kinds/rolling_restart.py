"""Recreates the pods of a cluster after changes by the user: one at a time, each caught up before the next.

Before each step, the controller is asked whether any container could have more replicas in sync, and then every node
whether it can be spared: nodes know earlier, but each only about itself. A pod that is stopped first hands over the
containers that it leads. Pure, except for `RollingRestart`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from headrace_operator.builders.cluster import RESTART, ROLLED, ClusterObjects
from headrace_operator.builders.names import ADMIN_PORT, Manifest
from headrace_operator.kinds.causes import why_hopeless
from headrace_operator.kinds.cluster_view import SOON_S, WORKING_S, ObservedCluster, annotation, ordinal
from headrace_operator.kinds.reporting import Reporter
from headrace_operator.kube import Kube
from headrace_operator.pod_http import Pods

REVISION_LABEL: Final = "controller-revision-hash"
RESTARTS: Final = (RESTART, "kubectl.kubernetes.io/restartedAt")
"""Annotations of the template that request a restart: Headrace's, and the one that `kubectl rollout restart` sets on a
StatefulSet.
"""
SHOWN: Final = 3
"""The maximum number of pods that cannot be spared in a message."""


class RollingRestart:
    """Takes the next step of a rolling restart."""

    def __init__(self, *, kube: Kube, pods: Pods, reporter: Reporter) -> None:
        self._kube = kube
        self._pods = pods
        self._reporter = reporter

    async def step(self, objects: ClusterObjects, seen: ObservedCluster, size: int) -> None:
        """Recreate one pod, if that is possible now. Raises ApiError, ApiSilent."""
        wanted = objects.rolled()
        older = [
            pod
            for pod in seen.pods
            if annotation(pod, ROLLED) != wanted or _could_do_better(pod, seen) or _is_to_restart(pod, seen)
        ]
        if not older:
            if not seen.note_away("Current", size):
                seen.note("Current", True, "AllCurrent", f"{objects.image}")
            return
        names = ", ".join(sorted(pod["metadata"]["name"] for pod in older))
        chosen = choose(older)
        waits = why_wait(seen, older)
        if not waits and not is_hopeless(chosen):
            waits = await self._why_not_safe(seen.pods)
        if waits:
            reason = "PodsCannotRun" if seen.stuck else "Rolling"
            seen.note("Current", False, reason, f"{names} to be recreated; waiting: {waits}", again_s=WORKING_S)
            return
        meta = chosen["metadata"]
        why = "a restart was asked for" if _is_to_restart(chosen, seen) else "its template was changed"
        await self._reporter.tell(objects, "PodRolled", f"{meta['name']} is recreated, as {why}")
        await self._kube.delete("v1", "Pod", objects.namespace, meta["name"], uid=meta["uid"])
        seen.note("Current", False, "Rolling", f"{names} to be recreated", again_s=SOON_S)

    async def _why_not_safe(self, pods: Sequence[Manifest]) -> str:
        """Return which pods cannot be spared according to their nodes; "" if all can."""
        answers = await asyncio.gather(*(self._pods.get(pod, ADMIN_PORT, "/safez") for pod in pods))
        unsafe = []
        for pod, answer in zip(pods, answers, strict=True):
            name = pod["metadata"]["name"]
            if answer is None:
                unsafe.append(f"{name} does not say whether it can be spared")
            elif answer.status != HTTPStatus.OK:
                unsafe.append(f"without {name} {answer.text.strip()}")
        return "; ".join(unsafe[:SHOWN])


def choose(older: Sequence[Manifest]) -> Manifest:
    """Return the pod to recreate: hopeless ones first, then the one with the highest ordinal."""
    return max(older, key=lambda pod: (is_hopeless(pod), ordinal(pod["metadata"]["name"])))


def why_wait(seen: ObservedCluster, older: Sequence[Manifest]) -> str:
    """Return why no pod of `older` may be recreated now; "" if one may."""
    going = [pod["metadata"]["name"] for pod in seen.pods if pod["metadata"].get("deletionTimestamp")]
    if going:
        return f"{', '.join(going)} is being deleted"
    if any(is_hopeless(pod) for pod in older):
        return ""  # such a pod serves nobody, and may never do so without the change
    if seen.stuck or seen.coming:
        return f"{seen.told_of_away()} is not ready"
    if seen.status is None:
        return f"the cluster does not answer: {seen.problem}"
    unsafe = may_improve(seen.status)
    if unsafe:
        return f"container {', '.join(map(str, unsafe[:5]))}{' and more' if len(unsafe) > 5 else ''} catch up"
    return ""


def may_improve(status: Mapping[str, Any]) -> list[int]:
    """Return the containers with fewer replicas in sync than the existing nodes allow."""
    staying = sum(not str(node["state"]).startswith("drain") for node in status["nodes"])
    return [int(each["container"]) for each in status["lacking"] if each["in_sync"] < min(each["wanted"], staying)]


def _could_do_better(pod: Mapping[str, Any], seen: ObservedCluster) -> bool:
    """Return whether a pod cannot run, and a new one would differ, as the operator's template has changed."""
    newest = ((seen.stateful_set or {}).get("status") or {}).get("updateRevision")
    made_by = pod["metadata"].get("labels", {}).get(REVISION_LABEL)
    return is_hopeless(pod) and None not in (newest, made_by) and newest != made_by


def _is_to_restart(pod: Mapping[str, Any], seen: ObservedCluster) -> bool:
    """Return whether a restart was requested after the pod was created."""
    template = ((seen.stateful_set or {}).get("spec") or {}).get("template") or {"metadata": {}}
    return any(asked and annotation(pod, name) != asked for name in RESTARTS if (asked := annotation(template, name)))


def is_hopeless(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod cannot run without a change."""
    return bool(why_hopeless(pod))

"""Makes the pods of a cluster anew where the user asks for other ones: one at a time, each caught up before the next.

Before each, the controller is asked whether any container could have more replicas in sync, and then every node whether
it could be spared: they know sooner, and each only what it hears itself. A pod that is told to stop hands over what it
leads first. Pure, but for `RollingRestart`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from headrace_operator.builders.cluster import RESTART, ROLLED, ClusterObjects
from headrace_operator.builders.names import ADMIN_PORT, Manifest
from headrace_operator.kinds.causes import why_hopeless
from headrace_operator.kinds.cluster_view import SOON_S, WORKING_S, Seen, annotation, ordinal
from headrace_operator.kinds.reporting import Reporter
from headrace_operator.kube import Kube
from headrace_operator.pod_http import Pods

REVISION_LABEL: Final = "controller-revision-hash"
RESTARTS: Final = (RESTART, "kubectl.kubernetes.io/restartedAt")
"""Annotations of the template by which somebody asks for other pods of the same kind: ours, and what `kubectl rollout
restart` sets on a StatefulSet."""
SHOWN: Final = 3
"""Of those that cannot be spared, in a message."""


class RollingRestart:
    """Takes the next step."""

    def __init__(self, *, kube: Kube, pods: Pods, reporter: Reporter) -> None:
        self._kube = kube
        self._pods = pods
        self._reporter = reporter

    async def step(self, objects: ClusterObjects, seen: Seen, size: int) -> None:
        """Have one pod made anew, if that can be now. Raises ApiError, ApiSilent."""
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
            seen.note("Current", False, reason, f"{names} to be made anew; waits: {waits}", again_s=WORKING_S)
            return
        meta = chosen["metadata"]
        why = "a restart was asked for" if _is_to_restart(chosen, seen) else "its template was changed"
        await self._reporter.tell(objects, "PodRolled", f"{meta['name']} is made anew, as {why}")
        await self._kube.delete("v1", "Pod", objects.namespace, meta["name"], uid=meta["uid"])
        seen.note("Current", False, "Rolling", f"{names} to be made anew", again_s=SOON_S)

    async def _why_not_safe(self, pods: Sequence[Manifest]) -> str:
        """Which pods cannot be spared by what their nodes say themselves; "": all can."""
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
    """Those first that will not get anywhere as they are, then from the last one down."""
    return max(older, key=lambda pod: (is_hopeless(pod), ordinal(pod["metadata"]["name"])))


def why_wait(seen: Seen, older: Sequence[Manifest]) -> str:
    """Why no pod of `older` may go now; "": one may."""
    going = [pod["metadata"]["name"] for pod in seen.pods if pod["metadata"].get("deletionTimestamp")]
    if going:
        return f"{', '.join(going)} is on its way out"
    if any(is_hopeless(pod) for pod in older):
        return ""  # it serves nobody, and may never without the change
    if seen.stuck or seen.coming:
        return f"{seen.told_of_away()} is not ready"
    if seen.status is None:
        return f"the cluster does not answer: {seen.problem}"
    unsafe = may_improve(seen.status)
    if unsafe:
        return f"container {', '.join(map(str, unsafe[:5]))}{' and more' if len(unsafe) > 5 else ''} catch up"
    return ""


def may_improve(status: Mapping[str, Any]) -> list[int]:
    """Containers with fewer replicas in sync than they could have with the nodes that there are."""
    staying = sum(not str(node["state"]).startswith("drain") for node in status["nodes"])
    return [int(each["container"]) for each in status["lacking"] if each["in_sync"] < min(each["wanted"], staying)]


def _could_do_better(pod: Mapping[str, Any], seen: Seen) -> bool:
    """Whether it cannot run as it is, and a new one would be another: what an operator writes of itself has changed."""
    newest = ((seen.stateful_set or {}).get("status") or {}).get("updateRevision")
    made_by = pod["metadata"].get("labels", {}).get(REVISION_LABEL)
    return is_hopeless(pod) and None not in (newest, made_by) and newest != made_by


def _is_to_restart(pod: Mapping[str, Any], seen: Seen) -> bool:
    """Whether a restart was asked for after it was made."""
    template = ((seen.stateful_set or {}).get("spec") or {}).get("template") or {"metadata": {}}
    return any(asked and annotation(pod, name) != asked for name in RESTARTS if (asked := annotation(template, name)))


def is_hopeless(pod: Mapping[str, Any]) -> bool:
    """Whether it cannot run as it is."""
    return bool(why_hopeless(pod))

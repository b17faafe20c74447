"""Why a pod is missing, does not run or is not ready, and why a claim has no volume, in Kubernetes' own words. Pure.

Some causes are in the status of pods, the others only in events: a pod that a quota or a LimitRange refuses is never
created, and its StatefulSet or Job has an event instead; a claim of a missing storage class has an event too.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from headrace_operator.specs import quantity

HOPELESS: Final = frozenset(
    {
        "CrashLoopBackOff",
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImageInspectError",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    }
)
ADVICE: Final[Mapping[str, str]] = {
    "OOMKilled": "it needs more memory than its limit",
    "Evicted": "its worker was short of a resource",
}
WARNING: Final = "Warning"
BOUND: Final = "pv.kubernetes.io/bind-completed"
"""Annotation of a claim that Kubernetes has bound to a volume."""
_MESSAGE: Final = 400
"""The maximum number of characters of Kubernetes' message that are kept."""

Object = Mapping[str, Any]


def is_ready(pod: Object) -> bool:
    """Return whether a pod is ready and is not being deleted."""
    if pod["metadata"].get("deletionTimestamp"):
        return False
    conditions = pod.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def why_hopeless(pod: Object) -> str:
    """Return why a pod cannot run without a change: a missing image, a crashing container, no worker; "" if there is no
    such cause.
    """
    if pod["metadata"].get("deletionTimestamp") or is_ready(pod):
        return ""
    status = pod.get("status", {})
    for each in _containers(pod):
        waiting = each.get("state", {}).get("waiting") or {}
        if waiting.get("reason") in HOPELESS:
            return "; ".join(filter(None, (_reason_with_message(waiting), _last_end(each))))
    for each in status.get("conditions", []):
        if each["type"] == "PodScheduled" and each["status"] == "False" and each.get("reason") == "Unschedulable":
            return _reason_with_message(each)
    if status.get("phase") == "Failed":
        ends = [_last_end(each) for each in _containers(pod)]
        return _with_advice(status) or next(filter(None, ends), "its containers have ended")
    return ""


def why_not_ready(pod: Object, events: Sequence[Object] = ()) -> str:
    """Like `why_hopeless`, including causes that may pass by themselves; "" if none is known. `events`: the pod's
    events.
    """
    if why := why_hopeless(pod):
        return why
    if pod["metadata"].get("deletionTimestamp"):
        return "it is being deleted"
    if is_ready(pod):
        return ""
    for each in _containers(pod):
        if ended := _last_end(each):
            return ended
    newest = max(_events_about(pod, events), key=_last_observed, default=None)
    if newest is not None and newest.get("type") == WARNING:
        return _reason_with_message(newest)
    for each in _containers(pod):
        waiting = each.get("state", {}).get("waiting") or {}
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return _reason_with_message(waiting)
    return ""


def why_missing(pod: str, events: Sequence[Object]) -> str:
    """Return why a pod was not created, from the newest event of its creator; "" if that names no cause."""
    named = [each for each in events if re.search(rf"(?<![\w.-]){re.escape(pod)}(?![\w.-])", _text(each))]
    newest = max(named, key=_last_observed, default=None)
    if newest is None or newest.get("type") != WARNING:
        return ""
    return _shortened(_text(newest))


def why_refused(events: Sequence[Object]) -> str:
    """Return why an object could not create its pods, from its newest event; "" if that names no cause."""
    newest = max(events, key=_last_observed, default=None)
    return _shortened(_text(newest)) if newest is not None and newest.get("type") == WARNING else ""


def why_unbound(claim: Object, events: Sequence[Object]) -> str:
    """Return why a claim has no volume, as far as Kubernetes says; "" if it has one, or gets one once its pod is
    scheduled.
    """
    phase = (claim.get("status") or {}).get("phase")
    if phase == "Lost":
        return f"its volume {claim['spec'].get('volumeName', '')} is gone"
    if phase != "Pending" or claim["metadata"].get("deletionTimestamp"):
        return ""
    newest = max(_events_about(claim, events), key=_last_observed, default=None)
    if newest is None or newest.get("reason") in ("WaitForFirstConsumer", "WaitForPodScheduled"):
        return ""
    if newest.get("type") != WARNING and newest.get("reason") != "FailedBinding":
        return ""  # in progress: Provisioning, ExternalProvisioning
    return _reason_with_message(newest)


def is_unbound(claim: Object) -> bool:
    """Return whether a claim has no volume, or has lost it."""
    return (claim.get("status") or {}).get("phase") in ("Pending", "Lost")


def is_never_bound(claim: Object) -> bool:
    """Return whether a claim has never had a volume, so that it can hold no data."""
    is_pending = (claim.get("status") or {}).get("phase") == "Pending"
    bound = BOUND in (claim["metadata"].get("annotations") or {})
    return is_pending and not claim["spec"].get("volumeName") and not bound


def is_stale(claim: Object, *, size: str, class_: str | None, cause: str) -> bool:
    """Return whether a claim that never had a volume differs from what is requested now; a claim cannot be changed.
    `cause`: why it has no volume, as far as known.
    """
    if claim["metadata"].get("deletionTimestamp") or not is_never_bound(claim):
        return False
    present = claim["spec"].get("storageClassName")
    if class_ is None:  # the server chose its default class: stale only if there is no such class
        is_other = bool(present) and "not found" in cause and f'"{present}"' in cause
    else:
        is_other = present != class_
    return is_other or quantity(claim["spec"]["resources"]["requests"]["storage"]) != quantity(size)


def _events_about(found: Object, events: Sequence[Object]) -> list[Object]:
    """Return the events of this very object, not of a former one of its name."""
    uid = found["metadata"].get("uid")
    return [each for each in events if (each.get("involvedObject") or {}).get("uid") in (None, "", uid)]


def _containers(pod: Object) -> list[Object]:
    status = pod.get("status", {})
    return [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]


def _last_end(container: Object) -> str:
    """Return how a container's last run ended; "" if it has not ended, or ended without error."""
    for state in (container.get("state") or {}, container.get("lastState") or {}):
        ended = state.get("terminated")
        if ended and (ended.get("exitCode") or ended.get("reason") == "OOMKilled"):
            reason = str(ended.get("reason") or "Error")
            text = f"it ended with {reason} (exit code {ended.get('exitCode', '?')})"
            times = int(container.get("restartCount") or 0)
            often = f", after {times} restarts" if times > 1 else ""
            message = str(ended.get("message") or "").strip()
            parts = (f"{text}{often}", ADVICE.get(reason), _shortened(message.splitlines()[-1]) if message else "")
            return ": ".join(filter(None, parts))
    return ""


def _with_advice(status: Object) -> str:
    return ": ".join(filter(None, (_reason_with_message(status), ADVICE.get(str(status.get("reason"))))))


def _reason_with_message(found: Object) -> str:
    return f"{found.get('reason', '')}: {_shortened(_text(found))}".strip(": ")


def _text(found: Object) -> str:
    return str(found.get("message") or found.get("note") or "")


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MESSAGE else f"{text[:_MESSAGE]}..."


def _last_observed(event: Object) -> str:
    """Return when an event was last observed. All forms of the times begin alike, so text compares them."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    made = event["metadata"].get("creationTimestamp")
    return max((str(each) for each in (*times, made) if each), default="")

"""The status of a StreamJob, from its objects and its driver's report. Pure.

A driver reports its queries over HTTP while it runs (headrace_spark.job.progress), and leaves its last report as its
container's termination message (headrace_spark.job.ends), which is read after it has ended. States:

    Suspended   by spec.suspend
    Starting    no query runs yet: the pod is not ready, or the driver waits for a stream, a topic, Java
    Running     queries run
    Failed      the last run failed; a continuous driver, and a Job with tries left, start again
    Scheduled   between two runs of a schedule
    Done        a finished Job
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from headrace_operator.builders.job_definition import UI_PORT
from headrace_operator.builders.job_pods import DEFINITION
from headrace_operator.builders.names import Manifest
from headrace_operator.kinds.causes import why_hopeless
from headrace_operator.specs import JobSpec
from headrace_operator.status import Condition, instant

_REASONS: Final = {"failed": "QueryFailed", "wrong": "JobWrong", "absent": "NotThere", "stopped": "Stopped"}
"""The reason of a condition, by the kind of end that the driver reported."""


@dataclass(frozen=True, slots=True)
class ObservedJob:
    """The observed state of a job's objects."""

    workload: Manifest | None = None
    driver: Manifest | None = None
    """The newest driver's pod."""
    executors: Sequence[Manifest] = ()
    told: Mapping[str, Any] = field(default_factory=dict)
    """The driver's status; {} if it does not answer."""
    cause: str = ""
    """Why there is no driver, or why it does not run, beyond what its own status says."""
    definition: str = ""
    """The digest of what the driver is to run; "" if any definition is accepted."""

    @property
    def is_current(self) -> bool:
        """Whether the driver runs what the job asks for now."""
        known = ((self.driver or {"metadata": {}})["metadata"].get("annotations") or {}).get(DEFINITION)
        return not self.definition or known in (None, self.definition)


def newest_driver(pods: Sequence[Manifest]) -> Manifest | None:
    """Return the newest driver among a job's pods; None if there is none."""
    drivers = [pod for pod in pods if _label(pod, "app.kubernetes.io/component") == "job-driver"]
    return max(drivers, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")), default=None)


def executors(pods: Sequence[Manifest]) -> list[Manifest]:
    """Return the executors among a job's pods."""
    return [pod for pod in pods if _label(pod, "spark-role") == "executor"]


def is_over(pod: Manifest) -> bool:
    """Return whether a pod has ended and will not run again."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def last_word(driver: Manifest | None) -> Mapping[str, Any]:
    """Return what a driver reported when it last ended; {} if it has not ended, or reported nothing."""
    ended = _terminated(driver)
    try:
        found = json.loads(ended.get("message") or "null")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def restarts(driver: Manifest | None) -> int:
    """Return how often the driver's container has been restarted."""
    return sum(int(each.get("restartCount", 0)) for each in _containers(driver))


def why_ended(driver: Manifest | None) -> tuple[str, str] | None:
    """Return (reason, message) of the end of a driver's last run; None if it has not ended, or ended well."""
    ended = _terminated(driver)
    if not ended or ended.get("exitCode") == 0:
        return None
    word = last_word(driver)
    if ended.get("reason") == "OOMKilled":  # the driver's own report is only a symptom
        said = f"; its last message: {word['failure']}" if word.get("failure") else ""
        code = ended.get("exitCode", "?")
        return (
            "OOMKilled",
            f"the driver needed more memory than its limit: raise driver.memory (exit code {code}){said}",
        )
    if word.get("failure"):
        return _REASONS.get(str(word.get("end")), "QueryFailed"), str(word["failure"])
    reason = str(ended.get("reason") or "Error")
    return reason, f"the driver ended with exit code {ended.get('exitCode', '?')} ({reason}) and reported nothing"


def judge(spec: JobSpec, seen: ObservedJob) -> tuple[str, list[Condition]]:
    """Return the state and the conditions."""
    found = [Condition("Reconciled", True, "AsAsked")]
    if spec.suspend:
        return "Suspended", [*found, Condition("Running", False, "Suspended", "spec.suspend is set")]
    if not seen.is_current and seen.driver is not None and not is_over(seen.driver):
        text = f"{seen.driver['metadata']['name']} still runs the former definition"
        return "Starting", [*found, Condition("Running", False, "Starting", text)]
    if seen.told.get("state") in ("Running", "Done"):  # Done: the driver is about to end
        return "Running", [*found, Condition("Running", True, "Running")]
    end = end_of(seen.workload)
    if end == "Done":
        return "Done", [*found, Condition("Running", True, "Done")]
    failure = why_ended(seen.driver)
    if end == "Failed":
        reason, message = failure or ("JobFailed", _condition(seen.workload, "Failed").get("message", "the job failed"))
        return "Failed", [*found, Condition("Running", False, reason, message)]
    waits = seen.driver is None or is_over(seen.driver)
    if spec.trigger.schedule is not None and waits:
        state = Condition("Running", True, "Scheduled") if failure is None else Condition("Running", False, *failure)
        return "Scheduled", [*found, state]
    if failure is not None:
        return "Failed", [*found, Condition("Running", False, *failure)]
    # Without a driver, the cause is all there is to say. With one, its startup state already says why it is stuck, and
    # the cause is added only if it says something else.
    stuck = why_hopeless(seen.driver) if seen.driver is not None else seen.cause
    text = "; ".join(filter(None, (_startup_state(seen.driver), seen.cause if seen.cause not in stuck else "")))
    if stuck and seen.driver is None:
        text = f"{text}: {stuck}" if stuck not in text else text
    return "Starting", [*found, Condition("Running", False, "PodsCannotRun" if stuck else "Starting", text)]


def figures(spec: JobSpec, state: str, seen: ObservedJob, *, name: str, namespace: str) -> dict[str, Any]:
    """Return the fields of the status; None for a field that is unknown or does not apply."""
    told = seen.told or (last_word(seen.driver) if state in ("Done", "Failed", "Scheduled") else {})
    running = [pod for pod in seen.executors if pod.get("status", {}).get("phase") == "Running"]
    progress = told.get("last_progress_ms")
    last_run = (seen.workload or {}).get("status", {}).get("lastScheduleTime")
    return {
        "state": state,
        "executors": len(running),
        "executorsWanted": told.get("wanted_executors") if spec.autoscale is not None else None,
        "restarts": restarts(seen.driver),
        "lagRecords": told.get("lag_records") if told.get("lag_known", True) else None,
        "lagSeconds": told.get("lag_s") if told.get("lag_known", True) else None,
        "recordsPerSecond": told.get("records_per_s") if seen.told else 0.0,
        "batchSeconds": told.get("batch_s"),
        "records": told.get("records"),
        "lastProgress": instant(progress / 1000) if progress else None,
        "lastScheduled": last_run,
        "ui": f"http://{name}-job-ui.{namespace}.svc:{UI_PORT}",
    }


def end_of(workload: Manifest | None) -> str | None:
    """Return "Done" or "Failed" if a workload has finally ended; else None."""
    workload = workload or {}
    match workload.get("kind"):
        case "Job":
            if _condition(workload, "Complete"):
                return "Done"
            return "Failed" if _condition(workload, "Failed") else None
        case "SparkApplication":
            state = workload.get("status", {}).get("applicationState", {}).get("state")
            return {"COMPLETED": "Done", "FAILED": "Failed", "SUBMISSION_FAILED": None}.get(str(state))
        case _:
            return None


def _startup_state(driver: Manifest | None) -> str:
    """Return what a driver that runs no query yet is doing."""
    if driver is None:
        return "there is no driver yet"
    for each in driver.get("status", {}).get("conditions", []):
        if each.get("type") == "PodScheduled" and each.get("status") == "False":
            return f"the driver cannot be scheduled: {each.get('message', '')}"
    for each in _containers(driver):
        waiting = each.get("state", {}).get("waiting")
        if waiting:
            return f"the driver is waiting: {waiting.get('reason', '')} {waiting.get('message', '')}".rstrip()
    phase = driver.get("status", {}).get("phase", "Unknown")
    return "the driver is starting its queries" if phase == "Running" else f"the driver is {phase}"


def _containers(driver: Manifest | None) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = (driver or {}).get("status", {}).get("containerStatuses", [])
    return found


def _terminated(driver: Manifest | None) -> Mapping[str, Any]:
    """Return how the driver's container last ended; {} if it has not."""
    for each in _containers(driver):
        found = each.get("state", {}).get("terminated") or each.get("lastState", {}).get("terminated")
        if found:
            return dict(found)
    return {}


def _condition(workload: Manifest | None, kind: str) -> Mapping[str, Any]:
    for each in (workload or {}).get("status", {}).get("conditions", []):
        if each.get("type") == kind and each.get("status") == "True":
            return dict(each)
    return {}


def _label(pod: Manifest, name: str) -> str:
    return str(pod["metadata"].get("labels", {}).get(name, ""))

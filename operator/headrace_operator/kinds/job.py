"""StreamJob: its workload, how it gets on, and how many executors it has.

The driver tells of its queries over HTTP (headrace_spark.job.progress), and is asked every few seconds; what it says
goes to the status, and with `autoscale` decides on the executors: one more while the lag is above what is allowed, one
less after it has been far below for a while. A change of executors starts the driver again, from its checkpoint.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import msgspec

from headrace_operator.builders.job import DEFINITION, PROGRESS_PORT, UI_PORT, JobObjects
from headrace_operator.builders.names import JOB_LABEL, Manifest
from headrace_operator.engine import Body, Cache, Key
from headrace_operator.kinds.references import Unresolved, resolve
from headrace_operator.kinds.reporting import Reporter
from headrace_operator.kube import Kube
from headrace_operator.specs import GROUP, Autoscale, JobSpec
from headrace_operator.status import Condition

ASK_S: Final = 10.0
AGAIN_S: Final = 15.0
ANSWER_S: Final = 3.0
MORE_AFTER_S: Final = 30.0
LESS_AFTER_S: Final = 120.0
EXECUTORS: Final = f"{GROUP}/executors"
"""Annotation of the StreamJob's workload: what autoscaling has come to."""


@dataclass(slots=True)
class Scaling:
    """What autoscaling remembers of a job."""

    executors: int
    changed_at: float
    idle_since: float | None = None


def scaled(present: Scaling, asked: Autoscale, *, lag_s: float, now: float) -> Scaling:
    """One more, one less, or as it was. Pure."""
    executors = min(max(present.executors, asked.min), asked.max)
    if executors != present.executors:
        return Scaling(executors, now)
    if lag_s > asked.lag_seconds:
        if executors < asked.max and now - present.changed_at >= MORE_AFTER_S:
            return Scaling(executors + 1, now)
        return Scaling(executors, present.changed_at)
    if lag_s > asked.lag_seconds / 4:
        return Scaling(executors, present.changed_at)
    idle_since = present.idle_since if present.idle_since is not None else now
    if executors > asked.min and now - max(idle_since, present.changed_at) >= LESS_AFTER_S:
        return Scaling(executors - 1, now)
    return Scaling(executors, present.changed_at, idle_since)


class Jobs:
    """Reconciles StreamJobs."""

    def __init__(self, *, kube: Kube, reporter: Reporter, cache: Cache, image: str) -> None:
        """`image`: of drivers and executors, where neither resource nor cluster names one."""
        self._kube = kube
        self._reporter = reporter
        self._cache = cache
        self._image = image
        self._scaling: dict[str, Scaling] = {}
        self._restarts: dict[str, int] = {}

    async def reconcile(self, key: Key, body: Body | None) -> float | None:
        """See engine.Reconcile."""
        if body is None or body["metadata"].get("deletionTimestamp"):
            return None
        spec = msgspec.convert(body["spec"], JobSpec)
        uid = body["metadata"]["uid"]
        try:
            _, cluster, _ = resolve(self._cache, body, spec.cluster_ref)
            await self._check(key, spec)
        except Unresolved as error:
            await self._reporter.report(body, [error.condition], {"state": "Refused"})
            return AGAIN_S
        image = spec.image or cluster.spark.image or self._image
        executors = await self._executors(key, spec, uid)
        objects = JobObjects(dict(body), spec, image=image, executors=executors)
        claim = objects.own_claim()
        if claim is not None:
            await self._kube.create(claim)
        await self._apply(objects)
        pods = [pod for pod in await self._kube.list("v1", "Pod", key.namespace, labels={JOB_LABEL: key.name})]
        driver = next((pod for pod in pods if pod["metadata"]["labels"].get("app.kubernetes.io/component") == "job"), None)
        told = await self._ask(driver)
        self._scale(uid, spec, told)
        await self._tell_restarts(objects, driver)
        await self._reporter.report(body, self._conditions(spec, driver, told), self._figures(objects, driver, pods, told))
        return ASK_S

    # --- steps

    async def _check(self, key: Key, spec: JobSpec) -> None:
        """What the CRD cannot see. Raises Unresolved."""
        file = spec.application.config_map
        if file is not None:
            found = await self._kube.get("v1", "ConfigMap", key.namespace, file.name)
            if found is None or file.key not in (found.get("data") or {}):
                raise Unresolved("NoApplication", f"there is no ConfigMap {file.name} with {file.key} in it")
        if spec.checkpoint.claim is not None:
            claim = await self._kube.get("v1", "PersistentVolumeClaim", key.namespace, spec.checkpoint.claim)
            if claim is None:
                raise Unresolved("NoClaim", f"there is no PersistentVolumeClaim {spec.checkpoint.claim}")
            if spec.distributed and "ReadWriteMany" not in claim["spec"].get("accessModes", []):
                raise Unresolved("NotShared", f"{spec.checkpoint.claim} is not ReadWriteMany: executors write there too")

    async def _executors(self, key: Key, spec: JobSpec, uid: str) -> int:
        if spec.autoscale is None:
            self._scaling.pop(uid, None)
            return spec.executors
        if uid not in self._scaling:
            workload = await self._kube.get("apps/v1", "StatefulSet", key.namespace, key.name)
            known = (workload or {}).get("metadata", {}).get("annotations", {}).get(EXECUTORS, "")
            first = int(known) if known.isdecimal() else spec.autoscale.min
            self._scaling[uid] = Scaling(first, time.monotonic())
        return self._scaling[uid].executors

    async def _apply(self, objects: JobObjects) -> None:
        for manifest in objects.all():
            if manifest["kind"] == "Job" and await self._replaces(manifest):
                continue
            await self._kube.apply(manifest)

    async def _replaces(self, manifest: Manifest) -> bool:
        """Whether a Job of another definition has to go first: what a Job runs cannot change."""
        meta = manifest["metadata"]
        present = await self._kube.get("batch/v1", "Job", meta["namespace"], meta["name"])
        if present is None:
            return False
        old = present["spec"]["template"]["metadata"].get("annotations", {}).get(DEFINITION)
        if old == manifest["spec"]["template"]["metadata"]["annotations"][DEFINITION]:
            return False
        await self._kube.delete("batch/v1", "Job", meta["namespace"], meta["name"], propagation="Foreground")
        return True

    async def _ask(self, driver: Manifest | None) -> Mapping[str, Any]:
        address = (driver or {}).get("status", {}).get("podIP")
        if not address:
            return {}
        timeout = aiohttp.ClientTimeout(total=ANSWER_S)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as http,
                http.get(f"http://{address}:{PROGRESS_PORT}/status") as answer,
            ):
                return dict(await answer.json())
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return {}

    def _scale(self, uid: str, spec: JobSpec, told: Mapping[str, Any]) -> None:
        if spec.autoscale is not None and told.get("state") == "Running":
            present = self._scaling[uid]
            self._scaling[uid] = scaled(present, spec.autoscale, lag_s=float(told["lag_s"]), now=time.monotonic())

    async def _tell_restarts(self, objects: JobObjects, driver: Manifest | None) -> None:
        if driver is None:
            return
        uid = driver["metadata"]["uid"]
        restarts = _restarts(driver)
        before = self._restarts.get(uid)
        self._restarts[uid] = restarts
        if before is not None and restarts > before:
            why = _last_end(driver)
            await self._reporter.tell(objects, "JobRestarted", f"the driver goes on from its checkpoint: {why}", warning=True)

    # --- what is said

    def _conditions(self, spec: JobSpec, driver: Manifest | None, told: Mapping[str, Any]) -> Sequence[Condition]:
        found = [Condition("Reconciled", True, "AsAsked")]
        if spec.suspend:
            return [*found, Condition("Running", False, "Suspended", "spec.suspend is set")]
        if spec.trigger.available_now:
            return found
        if told.get("state") == "Running":
            return [*found, Condition("Running", True, "Running")]
        if told.get("failure"):
            return [*found, Condition("Running", False, "QueryFailed", told["failure"])]
        phase = (driver or {}).get("status", {}).get("phase", "no pod")
        return [*found, Condition("Running", False, "Starting", f"the driver: {phase}; {_last_end(driver)}".rstrip("; "))]

    def _figures(
        self, objects: JobObjects, driver: Manifest | None, pods: Sequence[Manifest], told: Mapping[str, Any]
    ) -> dict[str, Any]:
        executors = [pod for pod in pods if pod["metadata"]["labels"].get("spark-role") == "executor"]
        running = [pod for pod in executors if pod.get("status", {}).get("phase") == "Running"]
        last = told.get("last_progress_ms")
        phase = (driver or {}).get("status", {}).get("phase")
        return {
            "state": told.get("state") or {"Succeeded": "Done", "Failed": "Failed"}.get(phase or "", "Starting"),
            "executors": len(running),
            "restarts": 0 if driver is None else _restarts(driver),
            "lagRecords": told.get("lag_records"),
            "lagSeconds": told.get("lag_s"),
            "recordsPerSecond": told.get("records_per_s"),
            "batchSeconds": told.get("batch_s"),
            "lastProgress": _instant(last) if last else None,
            "ui": f"http://{objects.name}-ui.{objects.namespace}.svc:{UI_PORT}",
        }


def _restarts(driver: Manifest) -> int:
    return sum(each.get("restartCount", 0) for each in driver.get("status", {}).get("containerStatuses", []))


def _last_end(driver: Manifest | None) -> str:
    """How its container ended last, if it did."""
    for each in (driver or {}).get("status", {}).get("containerStatuses", []):
        for state in ("waiting", "terminated"):
            now = each.get("state", {}).get(state) or each.get("lastState", {}).get(state)
            if now:
                return f"{now.get('reason', '')} {now.get('message', '')} exit {now.get('exitCode', '-')}".strip()
    return ""


def _instant(milliseconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(milliseconds / 1000))

"""StreamJob: reconciles its objects, and reports its progress.

The operator asks the driver over HTTP, so that the driver needs no rights and no writes to report progress;
`job_status` interprets the answer. The driver decides itself how many executors there are
(headrace_spark.job.autoscale), whether or not the operator runs; the operator only shows their number. This module
alone ensures three things: a job that changes its form waits until the former workload and its pods are gone, so there
are never two writers of a checkpoint; a finished run is repeated only if the StreamJob itself asks for another; and
executors that outlived their driver's container are deleted.
"""

import json
import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec
import structlog

from headrace.base.errors import HeadraceError
from headrace.store.kubernetes.api import ApiError
from headrace_operator.admin import Calls
from headrace_operator.builders.digest import digest
from headrace_operator.builders.job import FORMS, SPARK_API, JobObjects
from headrace_operator.builders.job_definition import Placed, fault, group_name
from headrace_operator.builders.job_pods import ASKED, DEFINITION, PROGRESS_PORT, claim_name, driver_selector
from headrace_operator.builders.listeners import ports
from headrace_operator.builders.names import JOB_LABEL, SECURE_PORT, Manifest, bootstrap
from headrace_operator.engine import Body, Cache, Key
from headrace_operator.kinds.causes import (
    is_never_bound,
    is_ready,
    is_stale,
    is_unbound,
    why_hopeless,
    why_not_ready,
    why_refused,
    why_unbound,
)
from headrace_operator.kinds.job_status import (
    ObservedJob,
    end_of,
    executors,
    figures,
    is_over,
    judge,
    newest_driver,
    restarts,
    why_ended,
)
from headrace_operator.kinds.references import Unresolved, invalid, resolve
from headrace_operator.kinds.reporting import Reporter
from headrace_operator.kube import REFUSALS, Kube, path_of
from headrace_operator.pod_http import Pods
from headrace_operator.specs import ClusterSpec, JobSpec

log = structlog.get_logger()

ASK_S: Final = 10.0
"""Seconds between two looks at a job that starts, fails, or whose executors are scaled."""
STEADY_S: Final = 30.0
QUIET_S: Final = 60.0
"""Seconds between two looks at a job that is suspended, done, or between two runs."""
AGAIN_S: Final = 15.0
ANSWER_S: Final = 5.0
TYPES: Final = ("Reconciled", "Running")
COUNTS: Final = ("state", "restarts", "executors", "executorsWanted")
"""Status fields that are written as soon as they change."""


class Jobs:
    """Reconciles StreamJobs."""

    def __init__(self, *, kube: Kube, admin: Calls, pods: Pods, reporter: Reporter, cache: Cache, image: str) -> None:
        """`image`: of drivers and executors, if neither the resource nor the cluster names one."""
        self._kube = kube
        self._admin = admin
        self._pods = pods
        self._reporter = reporter
        self._cache = cache
        self._image = image
        self._known: dict[Key, tuple[str, int, int | None]] = {}
        """Driver, restarts and executors as last seen, for events."""
        self._formed: dict[Key, tuple[str, int]] = {}
        """The uid and generation for which no workload of another form is left."""

    async def reconcile(self, key: Key, body: Body | None) -> float | None:
        """See engine.Reconcile."""
        if body is None or body["metadata"].get("deletionTimestamp"):
            self._known.pop(key, None)
            self._formed.pop(key, None)
            return None
        try:
            spec = msgspec.convert(body["spec"], JobSpec)
        except msgspec.ValidationError as error:
            await self._reporter.report(body, [invalid(error)], {"state": "Refused"}, types=TYPES)
            return None
        try:
            placed = await self._place(key, body, spec)
            objects = JobObjects(dict(body), placed)
            await self._make_room(key, objects, body)
            await self._apply(objects)
        except Unresolved as error:
            state = "Replacing" if error.condition.reason == "Replacing" else "Refused"
            await self._reporter.report(body, [error.condition], {"state": state}, types=TYPES)
            return AGAIN_S
        seen = await self._see(objects)
        state, conditions = judge(spec, seen)
        await self._delete_ended_executors(objects, seen)
        if spec.suspend:
            await self._end_runs(seen)
        await self._tell(key, objects, seen)
        shown = figures(spec, state, seen, name=key.name, namespace=key.namespace)
        if state != "Done" and not seen.told.get("lag_known", bool(seen.told)):
            shown |= await self._committed_lag(key, spec)
        await self._reporter.report(body, conditions, shown, types=TYPES, counts=COUNTS)
        if state in ("Suspended", "Done", "Scheduled"):
            return QUIET_S
        return STEADY_S if state == "Running" and spec.autoscale is None else ASK_S

    # --- what the job depends on

    async def _place(self, key: Key, body: Body, spec: JobSpec) -> Placed:
        """Return the job with what its cluster and namespace give it. Raises Unresolved for faults that the CRD cannot
        detect.
        """
        _, cluster, _ = resolve(self._cache, body, spec.cluster_ref)
        spec = msgspec.structs.replace(spec, spark_conf=cluster.spark.spark_conf | spec.spark_conf)
        wrong = fault(spec)
        if wrong is not None:
            raise Unresolved("WrongSpec", wrong)
        await self._check_claim(key, spec)
        return Placed(
            name=key.name,
            namespace=key.namespace,
            spec=spec,
            image=spec.image or cluster.spark.image or self._image,
            image_pull_policy=_pull_policy(spec, cluster),
            secret=await self._secret(key, spec, cluster),
            bootstrap=self._bootstrap(key, spec),
            file_digest=await self._file_digest(key, spec),
        )

    async def _check_claim(self, key: Key, spec: JobSpec) -> None:
        name = spec.checkpoint.claim
        if name is None:
            return
        claim = await self._kube.get("v1", "PersistentVolumeClaim", key.namespace, name)
        if claim is None:
            raise Unresolved(
                "NoClaim", f"there is no PersistentVolumeClaim {name}: create it, or leave checkpoint.claim out"
            )
        if spec.distributed and "ReadWriteMany" not in claim["spec"].get("accessModes", []):
            raise Unresolved(
                "NotShared",
                f"PersistentVolumeClaim {name} is not ReadWriteMany, and executors write there too:"
                " name one that is, or set executors to 0",
            )

    def _bootstrap(self, key: Key, spec: JobSpec) -> str:
        """Return the bootstrap address for the job's user; "" for the cluster's bootstrap Service."""
        user = None if spec.user is None else self._cache.get(Key("StreamUser", key.namespace, spec.user))
        if user is None or (user.get("spec") or {}).get("listener") != "secure":
            return ""
        host, _, _ = bootstrap(spec.cluster_ref.name, spec.cluster_ref.namespace or key.namespace).rpartition(":")
        return f"{host}:{SECURE_PORT}"

    async def _secret(self, key: Key, spec: JobSpec, cluster: ClusterSpec) -> str | None:
        if (given := spec.credentials_secret) is not None:
            found = await self._kube.get("v1", "Secret", key.namespace, given)
            if "client.properties" not in ((found or {}).get("data") or {}):
                raise Unresolved("NoSecret", f"there is no Secret {given} with client.properties in it: create it")
            return given
        if spec.user is None:
            if cluster.security.enabled and not ports(cluster)[0].lets_anybody_in:
                raise Unresolved("NoUser", "the cluster requires authentication: name a StreamUser in spec.user")
            return None
        user = self._cache.get(Key("StreamUser", key.namespace, spec.user))
        if user is None:
            raise Unresolved("NoUser", f"there is no StreamUser {spec.user} in namespace {key.namespace}")
        name = str((user.get("spec") or {}).get("secretName") or spec.user)
        if await self._kube.get("v1", "Secret", key.namespace, name) is None:
            raise Unresolved("NoSecret", f"StreamUser {spec.user} has no Secret {name} (yet): see its conditions")
        return name

    async def _file_digest(self, key: Key, spec: JobSpec) -> str:
        file = spec.application.config_map
        if file is None:
            return ""
        found = await self._kube.get("v1", "ConfigMap", key.namespace, file.name)
        text = ((found or {}).get("data") or {}).get(file.key)
        if text is None:
            raise Unresolved("NoApplication", f"there is no ConfigMap {file.name} with {file.key} in it")
        return digest(str(text))

    # --- the job's objects

    async def _make_room(self, key: Key, objects: JobObjects, body: Body) -> None:
        """Delete workloads of a former form. Raises Unresolved while there is one."""
        meta = body["metadata"]
        if self._formed.get(key) == (meta["uid"], meta["generation"]):
            return
        left = []
        is_there = False
        for api_version, kind in FORMS:
            present = await self._kube.get(api_version, kind, objects.placed.namespace, objects.placed.base)
            if present is None:
                continue
            if not _is_of(present, meta["uid"]):
                raise Unresolved(
                    "NameTaken", f"{kind} {objects.placed.base} is somebody else's: give this job another name"
                )
            is_there = is_there or (api_version, kind) == objects.form
            if (api_version, kind) != objects.form:
                await self._delete_workload(api_version, kind, objects)
                left.append(kind)
        if left:
            raise Unresolved("Replacing", f"waits until its former {', '.join(left)} has ended")
        if not is_there:
            await self._await_former_drivers(objects)
        self._formed[key] = (meta["uid"], meta["generation"])

    async def _await_former_drivers(self, objects: JobObjects) -> None:
        """Check that no former driver is left: a deleted workload may leave one for a while, also a deleted StreamJob
        of the same name, whose checkpoint claim this job continues from. Raises Unresolved while there is one for which
        Kubernetes itself would not make the new driver wait.
        """
        placed = objects.placed
        pods = await self._kube.list("v1", "Pod", placed.namespace, labels=driver_selector(placed.name))
        takes_over = f"{placed.base}-0" if objects.form[1] == "StatefulSet" else None
        names = [str(pod["metadata"]["name"]) for pod in pods if not is_over(pod)]
        if others := sorted(name for name in names if name != takes_over):
            raise Unresolved("Replacing", f"waits until {', '.join(others)}, a driver of a former job, has ended")

    async def _apply(self, objects: JobObjects) -> None:
        """Apply the objects. Raises Unresolved if the API server refuses one."""
        for manifest in objects.all():
            if ASKED in manifest["metadata"].get("annotations", {}):
                present = await self._kube.get(*objects.form, objects.placed.namespace, objects.placed.base)
                if present is not None and await self._stays_done(present, manifest):
                    continue
                if manifest["kind"] == "Job":
                    await self._make_room_for_run(objects, manifest, present)
            if manifest["kind"] == "PersistentVolumeClaim":
                await self._make_room_for_claim(manifest)
            try:
                await self._kube.apply(manifest)
            except ApiError as error:
                if error.status == HTTPStatus.NOT_FOUND and manifest["apiVersion"] == SPARK_API:
                    raise Unresolved("NoSparkOperator", "engine kubeflow needs the Spark operator's CRDs") from error
                if error.status not in REFUSALS:
                    raise
                what = f"{manifest['kind']} {manifest['metadata']['name']}"
                raise Unresolved("Refused", f"{what} was refused: {error}") from error

    async def _stays_done(self, present: Manifest, manifest: Manifest) -> bool:
        """Return whether the finished run is the one that the StreamJob asks for, whatever image or settings a new run
        would have.
        """
        if end_of(present) != "Done":
            return False
        asked = manifest["metadata"]["annotations"][ASKED]
        known = (present["metadata"].get("annotations") or {}).get(ASKED)
        if known is None:  # created by a version that did not note it
            await self._kube.merge(path_of(manifest), {"metadata": {"annotations": {ASKED: asked}}})
        return known in (None, asked)

    async def _make_room_for_run(self, objects: JobObjects, manifest: Manifest, present: Manifest | None) -> None:
        """Delete a Job with another definition, since its template is immutable. Raises Unresolved until it is gone."""
        if present is None:
            await self._await_former_drivers(objects)
            return
        wanted = manifest["metadata"]["annotations"][DEFINITION]
        if present["metadata"].get("annotations", {}).get(DEFINITION) == wanted:
            return
        await self._delete_workload("batch/v1", "Job", objects)
        raise Unresolved("Replacing", "waits until the Job of the former definition has ended")

    async def _make_room_for_claim(self, manifest: Manifest) -> None:
        """Delete a claim that never had a volume and differs from what is asked for: it holds nothing, and cannot
        change. Raises Unresolved until it is gone.
        """
        meta, spec = manifest["metadata"], manifest["spec"]
        where = meta["namespace"], meta["name"]
        present = await self._kube.get("v1", "PersistentVolumeClaim", *where)
        if present is None or not is_never_bound(present):
            return
        size, class_ = spec["resources"]["requests"]["storage"], spec.get("storageClassName")
        cause = "" if class_ is not None else await self._why_unbound(*where)
        if is_stale(present, size=size, class_=class_, cause=cause):
            meta = present["metadata"]
            await self._kube.delete(
                "v1", "PersistentVolumeClaim", *where, uid=meta.get("uid"), version=meta.get("resourceVersion")
            )
            raise Unresolved("Replacing", f"claim {meta['name']} never had a volume, and is recreated as asked for now")

    async def _delete_workload(self, api_version: str, kind: str, objects: JobObjects) -> None:
        """Delete in the foreground: the object stays until its pods are gone."""
        placed = objects.placed
        await self._kube.delete(api_version, kind, placed.namespace, placed.base, propagation="Foreground")

    # --- observation and report

    async def _see(self, objects: JobObjects) -> ObservedJob:
        placed = objects.placed
        pods = await self._kube.list("v1", "Pod", placed.namespace, labels={JOB_LABEL: placed.name})
        workload = None
        if objects.form[1] != "StatefulSet":
            found = await self._kube.get(*objects.form, placed.namespace, placed.base)
            workload = None if found is None else {**found, "kind": objects.form[1]}
        driver = newest_driver(pods)
        told = await self._ask(driver)
        cause = "" if told else await self._cause(objects, workload, driver)
        return ObservedJob(workload, driver, executors(pods), told, cause, self._definition(objects))

    def _definition(self, objects: JobObjects) -> str:
        """Return the digest of what a continuous driver is to run; "" for runs that end, whose workload is replaced
        instead.
        """
        return objects.what_it_runs if objects.form[1] == "StatefulSet" else ""

    async def _cause(self, objects: JobObjects, workload: Manifest | None, driver: Manifest | None) -> str:
        """Return why there is no driver, or why it does not run; requests events only if nothing else explains it."""
        placed, causes = objects.placed, []
        maker, name = objects.form[1], placed.base
        if placed.spec.suspend or end_of(workload) is not None:
            return ""
        if maker == "CronJob":
            active = ((workload or {}).get("status") or {}).get("active")
            if not active:
                return ""
            maker, name = "Job", str(active[0]["name"])
        if driver is None:
            causes.append(why_refused(await self._kube.events_of(maker, placed.namespace, name)))
        elif not is_over(driver) and not is_ready(driver) and not why_hopeless(driver):
            pod = driver["metadata"]["name"]
            causes.append(why_not_ready(driver, await self._kube.events_of("Pod", placed.namespace, pod)))
        if placed.spec.checkpoint.url is None and (driver is None or not is_ready(driver)):
            name = placed.spec.checkpoint.claim or claim_name(placed)
            if why := await self._why_unbound(placed.namespace, name):
                causes.append(f"claim {name}: {why}")
        return "; ".join(filter(None, causes))

    async def _why_unbound(self, namespace: str, name: str) -> str:
        claim = await self._kube.get("v1", "PersistentVolumeClaim", namespace, name)
        if claim is None or not is_unbound(claim):
            return ""
        return why_unbound(claim, await self._kube.events_of("PersistentVolumeClaim", namespace, name))

    async def _ask(self, driver: Manifest | None) -> Mapping[str, Any]:
        """Return the driver's status; {} if it does not answer."""
        if driver is None or is_over(driver):
            return {}
        answer = await self._pods.get(driver, PROGRESS_PORT, "/status")
        if answer is None or answer.status != HTTPStatus.OK:
            return {}
        try:
            told = json.loads(answer.text)
        except ValueError:
            return {}
        return told if isinstance(told, dict) else {}

    async def _committed_lag(self, key: Key, spec: JobSpec) -> dict[str, Any]:
        """Return the lag by the committed offsets, for a job whose driver does not report it (yet); {} if it is
        unknown.
        """
        where = bootstrap(spec.cluster_ref.name, spec.cluster_ref.namespace or key.namespace)
        records, behind_since_ms = 0, float("inf")
        try:
            for each in spec.all_inputs:
                group = each.options.get("group") or group_name(key.namespace, key.name, each.name)
                shown = await self._admin.call(where, "groups.show", {"group": group}, patience_s=ANSWER_S)
                records += int(shown["lag"])
                behind = [part["committed_ms"] for part in shown["partitions"] if part["lag"] and part["committed_ms"]]
                behind_since_ms = min([behind_since_ms, *behind])
        except HeadraceError as error:
            log.info("the lag of a job is not known", of=f"{key.namespace}/{key.name}", error=str(error))
            return {}
        if not spec.all_inputs:
            return {}
        seconds = max(0.0, time.time() - behind_since_ms / 1000) if records and behind_since_ms < float("inf") else 0.0
        return {"lagRecords": records, "lagSeconds": round(seconds, 1)}

    async def _delete_ended_executors(self, objects: JobObjects, seen: ObservedJob) -> None:
        """Delete executors that have ended: a driver whose container was restarted does not know them."""
        for pod in seen.executors:
            if is_over(pod):
                meta = pod["metadata"]
                why = why_not_ready(pod)
                # For other causes the driver ended the executor, or reports the failure itself.
                if "OOMKilled" in why or "Evicted" in why:
                    await self._reporter.tell(objects, "ExecutorFailed", f"{meta['name']}: {why}", warning=True)
                await self._kube.delete("v1", "Pod", meta["namespace"], meta["name"], uid=meta["uid"])

    async def _end_runs(self, seen: ObservedJob) -> None:
        """Delete active runs of a suspended schedule: suspending only prevents new runs."""
        if seen.workload is None or seen.workload["kind"] != "CronJob":
            return
        for run in seen.workload.get("status", {}).get("active") or []:
            namespace = seen.workload["metadata"]["namespace"]
            await self._kube.delete(
                "batch/v1", "Job", namespace, run["name"], uid=run.get("uid"), propagation="Background"
            )

    async def _tell(self, key: Key, objects: JobObjects, seen: ObservedJob) -> None:
        """Record events: the driver was restarted, the number of executors was changed."""
        if seen.driver is None:
            return
        before = self._known.get(key)
        wanted = seen.told.get("wanted_executors", before[2] if before is not None else None)
        now = (str(seen.driver["metadata"]["uid"]), restarts(seen.driver), wanted)
        self._known[key] = now
        if before is None:
            return
        runs_on = objects.form[1] == "StatefulSet"
        if now[:2] != before[:2] and (runs_on or now[0] == before[0]):
            reason = why_ended(seen.driver)
            ended = "its program had ended" if now[0] == before[0] else "its pod was recreated"
            why = ended if reason is None else f"{reason[0]}: {reason[1]}"
            await self._reporter.tell(
                objects, "JobRestarted", f"the driver continues from its checkpoint: {why}", warning=True
            )
        if wanted is not None and before[2] is not None and wanted != before[2]:
            lag = f"{seen.told.get('lag_records')} records, {seen.told.get('lag_s')} s"
            await self._reporter.tell(objects, "JobScaled", f"executors: {before[2]} to {wanted}; lag {lag}")


def _pull_policy(spec: JobSpec, cluster: ClusterSpec) -> str | None:
    return spec.image_pull_policy or cluster.spark.image_pull_policy


def _is_of(present: Manifest, uid: str) -> bool:
    owners: Sequence[Mapping[str, Any]] = present["metadata"].get("ownerReferences", [])
    return any(each.get("uid") == uid for each in owners)

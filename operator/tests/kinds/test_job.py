"""A StreamJob's objects and status, over an API server of dicts and a driver that answers."""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from aiohttp import web

from headrace.base.errors import Code, KafkaError
from headrace.store.kubernetes.api import ApiError
from headrace_operator.builders.job_definition import group_name
from headrace_operator.builders.job_pods import ASKED
from headrace_operator.engine import Cache, Key
from headrace_operator.kinds import job as job_kind
from headrace_operator.kinds.job import Jobs
from headrace_operator.kinds.job_status import ObservedJob, judge
from headrace_operator.kinds.reporting import Reporter
from headrace_operator.pod_http import PodHttp
from headrace_operator.specs import JobSpec
from headrace_spark.job import Job

KEY = Key("StreamJob", "plant", "copy")
SPEC: dict[str, Any] = {
    "clusterRef": {"name": "quickstart"},
    "input": {"stream": "/factory"},
    "output": {"stream": "/factory", "topic": "copies"},
    "application": {"sql": "SELECT key, value FROM input"},
}
SCALED = {"autoscale": {"min": 1, "max": 3}, "checkpoint": {"claim": "shared"}}
TOLD = {
    "state": "Running", "lag_records": 7, "lag_s": 2.5, "records_per_s": 11.0, "batch_s": 0.4, "records": 90,
    "last_progress_ms": 1_700_000_000_000, "wanted_executors": None,
}  # fmt: skip


class FakeKube:
    """Kube over dicts."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.statuses: list[dict[str, Any]] = []
        self.events: list[tuple[str, str]] = []
        self.others_events: dict[tuple[str, str], list[dict[str, Any]]] = {}
        """Kubernetes' events, by kind and name."""
        self.deleted: list[tuple[str, str, str | None]] = []
        self.refuses: dict[str, ApiError] = {}
        self.lingers = False

    async def apply(self, manifest: dict[str, Any]) -> dict[str, Any]:
        if (error := self.refuses.get(manifest["kind"])) is not None:
            raise error
        at = manifest["kind"], manifest["metadata"]["name"]
        known = self.objects.get(at, {})
        self.objects[at] = manifest | ({"status": known["status"]} if "status" in known else {})
        return self.objects[at]

    async def apply_status(self, resource: Mapping[str, Any], status: Mapping[str, Any]) -> Mapping[str, Any]:
        self.statuses.append(dict(status))
        return {**resource, "status": status}

    async def merge(self, where: str, patch: Mapping[str, Any]) -> None:
        found = self.objects["Job", where.rpartition("/")[2]]
        found["metadata"]["annotations"] |= patch["metadata"]["annotations"]

    async def get(self, _api: str, kind: str, _namespace: str | None, name: str) -> dict[str, Any] | None:
        return self.objects.get((kind, name))

    async def list(
        self, _api: str, kind: str, _namespace: str | None, *, labels: Mapping[str, str] | None = None
    ) -> Sequence[dict[str, Any]]:
        return [
            each
            for (each_kind, _), each in self.objects.items()
            if each_kind == kind and (labels or {}).items() <= each["metadata"]["labels"].items()
        ]

    async def delete(
        self, _api: str, kind: str, _namespace: str | None, name: str, *, uid: str | None = None,
        version: str | None = None, propagation: str | None = None,
    ) -> None:  # fmt: skip
        self.deleted.append((kind, name, propagation))
        if not self.lingers:
            self.objects.pop((kind, name), None)

    async def tell(self, resource: Mapping[str, Any], *, reason: str, message: str, **_: object) -> bool:
        self.events.append((reason, message))
        return True

    async def events_of(self, kind: str, _namespace: str, name: str) -> Sequence[dict[str, Any]]:
        return self.others_events.get((kind, name), [])

    def kinds(self) -> set[str]:
        return {kind for kind, _ in self.objects}


class FakeAdmin:
    """The cluster's answers about consumer groups."""

    def __init__(self) -> None:
        self.groups: dict[str, dict[str, Any]] = {}

    async def call(
        self, where: str, method: str, params: Mapping[str, Any], *, patience_s: float | None = None
    ) -> dict[str, Any]:
        assert (where, method) == ("quickstart-bootstrap.plant.svc:9092", "groups.show")
        if params["group"] not in self.groups:
            raise KafkaError(Code.GROUP_ID_NOT_FOUND, f"there is no group {params['group']!r}")
        return self.groups[params["group"]]


class World:
    """The reconciler and its surroundings."""

    def __init__(self) -> None:
        self.kube = FakeKube()
        self.admin = FakeAdmin()
        self.cache = Cache()
        self.generation = 0
        self.seen = 0
        self.start_operator()
        self.sees("StreamCluster", "quickstart", {})

    def start_operator(self, *, image: str = "spark:1") -> None:
        """Start a new operator, with nothing remembered."""
        self.jobs = Jobs(  # type: ignore[arg-type]
            kube=self.kube,
            admin=self.admin,
            pods=PodHttp(),
            reporter=Reporter(self.kube),
            cache=self.cache,
            image=image,
        )

    def sees(self, kind: str, name: str, spec: dict[str, Any]) -> None:
        self.seen += 1
        meta = {"namespace": "plant", "name": name, "uid": name, "resourceVersion": str(self.seen)}
        self.cache.take({"kind": kind, "metadata": meta, "spec": spec}, deleted=False)

    async def reconcile(self, **fields: Any) -> tuple[float | None, dict[str, Any]]:
        """Return the seconds until the next look, and the status."""
        self.generation += 1
        meta = {"namespace": "plant", "name": "copy", "uid": "u-1", "generation": self.generation}
        body = {
            "apiVersion": "headrace.dev/v1alpha1",
            "kind": "StreamJob",
            "metadata": meta,
            "spec": {**SPEC, **fields},
        }
        again = await self.jobs.reconcile(KEY, body)
        return again, self.kube.statuses[-1]

    def pod(self, name: str = "copy-job-0", component: str = "job-driver", **status: Any) -> dict[str, Any]:
        labels = {"headrace.dev/job": "copy", "app.kubernetes.io/component": component}
        if component == "job-executor":
            labels["spark-role"] = "executor"
        made = {
            "metadata": {
                "name": name, "namespace": "plant", "uid": name, "labels": labels, "creationTimestamp": f"t-{name}",
            },
            "status": status,
        }  # fmt: skip
        self.kube.objects["Pod", name] = made
        return made


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
async def told(monkeypatch: pytest.MonkeyPatch):
    """Set the answer of a driver at 127.0.0.1."""
    answer: dict[str, Any] = dict(TOLD)

    async def status(_: web.Request) -> web.Response:
        return web.json_response(answer)

    app = web.Application()
    app.router.add_get("/status", status)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    monkeypatch.setattr(job_kind, "PROGRESS_PORT", runner.addresses[0][1])
    yield answer
    await runner.cleanup()


def running(status: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(each for each in status["conditions"] if each["type"] == "Running")
    return found


def ended(code: int, word: dict[str, Any] | None = None, *, now: str = "waiting", **more: Any) -> list[dict[str, Any]]:
    """Return container statuses of a driver whose last run ended like this."""
    last = {"terminated": {"exitCode": code, "reason": "Error", "message": json.dumps(word) if word else ""}}
    state = last if now == "terminated" else {now: {"reason": "CrashLoopBackOff"}}
    return [{"name": "driver", "state": state, "lastState": last, "restartCount": 1, **more}]


async def test_a_job_gets_its_objects_and_starts(world: World) -> None:
    again, status = await world.reconcile()
    assert again == job_kind.ASK_S
    assert world.kube.kinds() == {"ServiceAccount", "ConfigMap", "Service", "PersistentVolumeClaim", "StatefulSet"}
    assert status["state"] == "Starting"
    assert running(status)["reason"] == "Starting"
    assert status["ui"] == "http://copy-job-ui.plant.svc:4040"


async def test_what_the_driver_tells_is_shown(world: World, told: dict[str, Any]) -> None:
    world.pod(phase="Running", podIP="127.0.0.1")
    world.pod("e-1", "job-executor", phase="Running")
    world.pod("e-2", "job-executor", phase="Pending")
    again, status = await world.reconcile()
    assert again == job_kind.STEADY_S
    shown = {
        "state": "Running", "lagRecords": 7, "lagSeconds": 2.5, "recordsPerSecond": 11.0, "batchSeconds": 0.4,
        "records": 90, "executors": 1, "restarts": 0, "lastProgress": "2023-11-14T22:13:20Z",
    }  # fmt: skip
    assert shown.items() <= status.items()
    assert running(status)["status"] == "True"
    assert "executorsWanted" not in status


async def test_scaling_is_shown_and_told(world: World, told: dict[str, Any]) -> None:
    world.kube.objects["PersistentVolumeClaim", "shared"] = {"spec": {"accessModes": ["ReadWriteMany"]}}
    world.pod(phase="Running", podIP="127.0.0.1")
    told["wanted_executors"] = 1
    await world.reconcile(**SCALED)
    told["wanted_executors"] = 2
    again, status = await world.reconcile(**SCALED)
    assert again == job_kind.ASK_S
    assert status["executorsWanted"] == 2
    assert world.kube.events == [("JobScaled", "executors: 1 to 2; lag 7 records, 2.5 s")]


async def test_a_restart_is_an_event_with_the_drivers_last_word(world: World) -> None:
    world.pod(phase="Running", containerStatuses=[{"name": "driver", "restartCount": 0}])
    await world.reconcile()
    word = {"end": "absent", "failure": "stream /factory has no topic pumps: make it"}
    world.pod(phase="Running", containerStatuses=ended(3, word))
    _, status = await world.reconcile()
    assert status["state"] == "Failed"
    assert running(status)["reason"] == "NotThere"
    assert running(status)["message"] == word["failure"]
    ((reason, message),) = world.kube.events
    assert reason == "JobRestarted"
    assert message.endswith("NotThere: stream /factory has no topic pumps: make it")
    await world.reconcile()
    assert len(world.kube.events) == 1


async def test_executors_that_outlived_their_driver_are_cleared_away(world: World) -> None:
    world.pod("e-1", "job-executor", phase="Failed")
    world.pod("e-2", "job-executor", phase="Running")
    await world.reconcile()
    assert world.kube.deleted == [("Pod", "e-1", None)]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"clusterRef": {"name": "other"}}, "NoCluster"),
        ({"application": {"configMap": {"name": "code"}}}, "NoApplication"),
        ({"checkpoint": {"claim": "gone"}}, "NoClaim"),
        ({"checkpoint": {"claim": "narrow"}, "executors": 1}, "NotShared"),
        ({"user": "nobody"}, "NoUser"),
        ({"user": "alice"}, "NoSecret"),
        ({"user": "broken"}, "NoSecret"),
        ({"parameters": {"password": "x"}}, "WrongSpec"),
    ],
)
async def test_what_is_missing_is_a_condition(world: World, fields: dict[str, Any], reason: str) -> None:
    world.kube.objects["PersistentVolumeClaim", "narrow"] = {"spec": {"accessModes": ["ReadWriteOnce"]}}
    world.sees("StreamUser", "alice", {"clusterRef": {"name": "quickstart"}})
    world.sees("StreamUser", "broken", {"clusterRef": "quickstart", "secretName": "s"})  # its own condition says so
    again, status = await world.reconcile(**fields)
    assert again == job_kind.AGAIN_S
    assert status["state"] == "Refused"
    assert [(each["type"], each["status"], each["reason"]) for each in status["conditions"]] == [
        ("Ready", "False", reason), ("Reconciled", "False", reason), ("Running", "Unknown", "NotLookedAt"),
    ]  # fmt: skip
    assert world.kube.kinds() == {"PersistentVolumeClaim"}


async def test_a_jobs_spark_settings_stand_over_its_clusters(world: World) -> None:
    world.sees("StreamCluster", "quickstart", {"spark": {"sparkConf": {"spark.a": "1", "spark.b": "1"}}})
    await world.reconcile(sparkConf={"spark.b": "2"})
    conf = json.loads(world.kube.objects["ConfigMap", "copy-job"]["data"]["job.json"])["conf"]
    assert (conf["spark.a"], conf["spark.b"]) == ("1", "2")
    world.sees("StreamCluster", "quickstart", {"spark": {"sparkConf": {"spark.hadoop.fs.s3a.secret.key": "x"}}})
    _, status = await world.reconcile()
    assert status["conditions"][0]["reason"] == "WrongSpec"
    assert "its cluster's" in status["conditions"][0]["message"]


async def test_what_the_api_server_refuses_is_a_condition(world: World) -> None:
    world.kube.refuses["CronJob"] = ApiError(422, "schedule: Invalid value: 61 * * * *")
    _, status = await world.reconcile(trigger={"availableNow": True, "schedule": "61 * * * *"})
    assert status["state"] == "Refused"
    assert "CronJob copy-job was refused" in status["conditions"][0]["message"]
    world.kube.refuses["CronJob"] = ApiError(503, "later")
    with pytest.raises(ApiError):
        await world.reconcile(trigger={"availableNow": True, "schedule": "1 * * * *"})


async def test_kubeflow_without_its_operator_is_a_condition(world: World) -> None:
    world.kube.refuses["SparkApplication"] = ApiError(404, "page not found")
    world.kube.objects["PersistentVolumeClaim", "shared"] = {"spec": {"accessModes": ["ReadWriteMany"]}}
    _, status = await world.reconcile(engine="kubeflow", executors=1, checkpoint={"claim": "shared"})
    assert status["conditions"][0]["reason"] == "NoSparkOperator"


async def test_another_form_waits_until_the_former_is_gone(world: World) -> None:
    await world.reconcile()
    world.kube.lingers = True
    again, status = await world.reconcile(trigger={"availableNow": True})
    assert (again, status["state"]) == (job_kind.AGAIN_S, "Replacing")
    assert world.kube.deleted == [("StatefulSet", "copy-job", "Foreground")]
    assert "Job" not in world.kube.kinds()
    del world.kube.objects["StatefulSet", "copy-job"]
    await world.reconcile(trigger={"availableNow": True})
    assert "Job" in world.kube.kinds()


async def test_a_job_whose_definition_changes_is_run_anew_after_the_former_run(world: World) -> None:
    now = {"trigger": {"availableNow": True}}
    await world.reconcile(**now)
    await world.reconcile(**now)
    assert world.kube.deleted == []
    _, status = await world.reconcile(**now, parameters={"a": "b"})
    assert status["state"] == "Replacing"
    assert world.kube.deleted == [("Job", "copy-job", "Foreground")]
    _, status = await world.reconcile(**now, parameters={"a": "b"})
    assert status["state"] == "Starting"


NOW = {"trigger": {"availableNow": True}}
KUBEFLOW = {**NOW, "engine": "kubeflow", "executors": 1, "checkpoint": {"claim": "shared"}}


async def done(world: World) -> dict[str, Any]:
    """A finished Job, as it is in `objects`."""
    await world.reconcile(**NOW)
    return is_through(world, "Job")


def is_through(world: World, kind: str) -> dict[str, Any]:
    found = world.kube.objects[kind, "copy-job"]
    state = {"applicationState": {"state": "COMPLETED"}}
    found["status"] = {"conditions": [{"type": "Complete", "status": "True"}]} if kind == "Job" else state
    return found


async def test_a_run_that_is_done_is_run_again_for_nothing_but_its_own_spec(world: World) -> None:
    job = await done(world)
    world.start_operator(image="spark:2")
    world.sees("StreamCluster", "quickstart", {"spark": {"sparkConf": {"spark.a": "1"}}})
    for fields in (NOW, {**NOW, "suspend": True}, NOW, {**NOW, "reclaimPolicy": "Delete", "executors": 0}):
        _, status = await world.reconcile(**fields)
        assert world.kube.deleted == []
        assert world.kube.objects["Job", "copy-job"] is job
    assert status["state"] == "Done"
    _, status = await world.reconcile(**NOW, parameters={"a": "b"})
    assert status["state"] == "Replacing"
    assert world.kube.deleted == [("Job", "copy-job", "Foreground")]


async def test_a_run_that_is_done_since_before_that_was_noted_stays_done(world: World) -> None:
    job = await done(world)
    del job["metadata"]["annotations"][ASKED]
    world.start_operator(image="spark:2")
    for _ in range(2):
        _, status = await world.reconcile(**NOW)
        assert (status["state"], world.kube.deleted) == ("Done", [])
    await world.reconcile(**NOW, parameters={"a": "b"})
    assert world.kube.deleted == [("Job", "copy-job", "Foreground")]


async def test_a_run_that_is_not_done_goes_on_with_the_new_image(world: World) -> None:
    await world.reconcile(**NOW)
    world.start_operator(image="spark:2")
    await world.reconcile(**NOW)
    assert world.kube.deleted == [("Job", "copy-job", "Foreground")]


async def test_a_spark_application_that_is_done_is_left_as_it_is_too(world: World) -> None:
    world.kube.objects["PersistentVolumeClaim", "shared"] = {"spec": {"accessModes": ["ReadWriteMany"]}}
    await world.reconcile(**KUBEFLOW)
    application = is_through(world, "SparkApplication")
    world.start_operator(image="spark:2")
    await world.reconcile(**KUBEFLOW)
    assert world.kube.objects["SparkApplication", "copy-job"] is application
    await world.reconcile(**KUBEFLOW, parameters={"a": "b"})
    assert world.kube.objects["SparkApplication", "copy-job"]["spec"]["image"] == "spark:2"


@pytest.mark.parametrize(
    ("trigger", "kind", "left"),
    [
        ({"availableNow": True}, "Job", "copy-job-x7k2p"),
        ({"availableNow": True}, "Job", "copy-job-0"),
        ({"availableNow": True, "schedule": "@daily"}, "CronJob", "copy-job-0"),
        ({}, "StatefulSet", "copy-job-x7k2p"),
    ],
)
async def test_a_driver_that_is_left_of_a_former_job_is_waited_for(
    world: World, trigger: dict[str, Any], kind: str, left: str
) -> None:
    """A StreamJob that is deleted and recreated continues from the same claim: otherwise there would be two writers of
    it.
    """
    world.pod("done", phase="Succeeded")
    world.pod(left, phase="Running")
    again, status = await world.reconcile(trigger=trigger)
    assert (again, status["state"]) == (job_kind.AGAIN_S, "Replacing")
    assert left in status["conditions"][0]["message"]
    assert kind not in world.kube.kinds()
    del world.kube.objects["Pod", left]
    await world.reconcile(trigger=trigger)
    assert kind in world.kube.kinds()


async def test_a_job_that_is_deleted_by_hand_runs_again_once_its_driver_has_ended(world: World) -> None:
    body_of = {"trigger": {"availableNow": True}}
    await world.reconcile(**body_of)
    world.generation -= 1  # nothing new is asked for
    del world.kube.objects["Job", "copy-job"]
    world.pod("copy-job-x7k2p", phase="Running")
    _, status = await world.reconcile(**body_of)
    assert status["state"] == "Replacing"
    assert "Job" not in world.kube.kinds()


async def test_a_stateful_set_takes_its_driver_over(world: World) -> None:
    world.pod("copy-job-0", phase="Running")
    await world.reconcile()
    assert "StatefulSet" in world.kube.kinds()


async def test_a_run_of_a_schedule_that_is_suspended_ends(world: World) -> None:
    trigger = {"availableNow": True, "schedule": "@daily"}
    await world.reconcile(trigger=trigger)
    run = {"name": "copy-job-29", "uid": "run"}
    world.kube.objects["CronJob", "copy-job"]["status"] = {"active": [run]}
    await world.reconcile(trigger=trigger)
    assert world.kube.deleted == []
    _, status = await world.reconcile(trigger=trigger, suspend=True)
    assert status["state"] == "Suspended"
    assert world.kube.deleted == [("Job", "copy-job-29", "Background")]


async def test_what_is_somebody_elses_is_left_alone(world: World) -> None:
    world.kube.objects["StatefulSet", "copy-job"] = {"metadata": {"name": "copy-job"}}
    _, status = await world.reconcile()
    assert status["conditions"][0]["reason"] == "NameTaken"
    assert world.kube.deleted == []


def seen(spec: dict[str, Any], **parts: Any) -> tuple[str, str]:
    state, conditions = judge(msgspec.convert({**SPEC, **spec}, JobSpec), ObservedJob(**parts))
    return state, conditions[-1].reason


def driver(containers: list[dict[str, Any]], phase: str = "Running", **status: Any) -> dict[str, Any]:
    return {"metadata": {"labels": {}}, "status": {"phase": phase, "containerStatuses": containers, **status}}


# --- causes, in the words of Kubernetes 1.34


def told_by_kubernetes(reason: str, message: str) -> list[dict[str, Any]]:
    return [{"metadata": {"name": "e"}, "type": "Warning", "reason": reason, "message": message}]


async def test_an_executor_that_had_too_little_memory_is_told(world: World) -> None:
    killed = {"name": "e", "state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}
    world.pod("e-1", "job-executor", phase="Failed", containerStatuses=[killed])
    world.pod("e-2", "job-executor", phase="Succeeded")
    await world.reconcile()
    assert [reason for reason, _ in world.kube.events] == ["ExecutorFailed"]
    assert "OOMKilled" in world.kube.events[0][1]


@pytest.mark.parametrize("fields", [{}, {"trigger": {"availableNow": True}}])
async def test_a_driver_that_a_quota_refuses_says_so(world: World, fields: dict[str, Any]) -> None:
    said = 'pods "copy-job-0" is forbidden: exceeded quota: compute, requested: requests.cpu=1, used: requests.cpu=4'
    for kind in ("StatefulSet", "Job"):
        world.kube.others_events[kind, "copy-job"] = told_by_kubernetes("FailedCreate", f"create Pod failed: {said}")
    _, status = await world.reconcile(**fields)
    assert running(status)["reason"] == "PodsCannotRun"
    assert said in running(status)["message"]
    assert [reason for reason, _ in world.kube.events] == ["PodsCannotRun"]


async def test_a_driver_that_waits_for_its_claim_or_a_mount_says_so(world: World) -> None:
    world.pod(phase="Pending")
    missing = 'MountVolume.SetUp failed for volume "application" : configmap "code" not found'
    world.kube.others_events["Pod", "copy-job-0"] = told_by_kubernetes("FailedMount", missing)
    _, status = await world.reconcile()
    assert missing in running(status)["message"]
    claim = world.kube.objects["PersistentVolumeClaim", "copy-job-checkpoint"]
    claim["status"] = {"phase": "Pending"}
    no_class = 'storageclass.storage.k8s.io "fats" not found'
    world.kube.others_events["PersistentVolumeClaim", "copy-job-checkpoint"] = told_by_kubernetes(
        "ProvisioningFailed", no_class
    )
    _, status = await world.reconcile()
    assert f"claim copy-job-checkpoint: ProvisioningFailed: {no_class}" in running(status)["message"]


async def test_a_checkpoint_that_never_had_a_volume_is_made_anew_with_another_class(world: World) -> None:
    await world.reconcile(checkpoint={"class": "fats"})
    at = "PersistentVolumeClaim", "copy-job-checkpoint"
    world.kube.objects[at]["status"] = {"phase": "Pending"}
    _, status = await world.reconcile(checkpoint={"class": "fast"})
    assert status["conditions"][0]["reason"] == "Replacing"
    await world.reconcile(checkpoint={"class": "fast"})
    assert world.kube.objects[at]["spec"]["storageClassName"] == "fast"
    world.kube.objects[at]["status"] = {"phase": "Bound"}
    world.kube.deleted.clear()
    await world.reconcile(checkpoint={"class": "other"})
    assert not world.kube.deleted, "there is a checkpoint in it"


async def test_the_lag_of_a_driver_that_starts_again_is_that_of_the_committed_offsets(
    world: World, told: dict[str, Any]
) -> None:
    pod = world.pod(phase="Running", podIP="127.0.0.1")
    _, status = await world.reconcile()
    assert status["lagRecords"] == 7, "by its own word"
    behind = {"lag": 40, "committed_ms": (time.time() - 30) * 1000}
    done = {"lag": 0, "committed_ms": 1}
    world.admin.groups["plant.copy"] = {"lag": 40, "partitions": [behind, done]}
    told |= {"lag_known": False, "lag_records": 0, "lag_s": 0.0}
    _, status = await world.reconcile()
    assert status["lagRecords"] == 40, "it has not looked yet"
    assert 29 <= status["lagSeconds"] <= 60
    pod["status"]["podIP"] = ""
    world.admin.groups["plant.copy"]["lag"] = 50
    _, status = await world.reconcile()
    assert status["lagRecords"] == 50
    told |= {"lag_known": True, "lag_records": 3}
    pod["status"]["podIP"] = "127.0.0.1"
    _, status = await world.reconcile()
    assert status["lagRecords"] == 3


def test_groups_are_named_as_the_driver_names_them() -> None:
    job = Job("plant.copy", "c:9092", "/nowhere")
    for name in ("input", "left"):
        assert group_name("plant", "copy", name) == job.group(name)


async def test_a_driver_of_a_former_definition_does_not_count_as_running(world: World, told: dict[str, Any]) -> None:
    pod = world.pod(phase="Running", podIP="127.0.0.1")
    await world.reconcile()
    template = world.kube.objects["StatefulSet", "copy-job"]["spec"]["template"]
    pod["metadata"]["annotations"] = dict(template["metadata"]["annotations"])
    _, status = await world.reconcile()
    assert running(status)["status"] == "True"
    _, status = await world.reconcile(application={"sql": "SELECT key FROM input"})
    assert (running(status)["status"], running(status)["reason"]) == ("False", "Starting")
    pod["metadata"]["annotations"] = dict(
        world.kube.objects["StatefulSet", "copy-job"]["spec"]["template"]["metadata"]["annotations"]
    )
    _, status = await world.reconcile(application={"sql": "SELECT key FROM input"})
    assert running(status)["status"] == "True"


async def test_a_job_goes_where_its_user_does_and_needs_one_where_nobody_else_is_let_in(world: World) -> None:
    secure = {"security": {"enabled": True}, "listeners": {"secure": {}}}
    world.sees("StreamCluster", "quickstart", secure)
    _, status = await world.reconcile()
    assert status["conditions"][0]["reason"] == "NoUser"
    world.sees("StreamUser", "alice", {"clusterRef": {"name": "quickstart"}, "listener": "secure"})
    world.kube.objects["Secret", "alice"] = {}
    await world.reconcile(user="alice")
    told = json.loads(world.kube.objects["ConfigMap", "copy-job"]["data"]["job.json"])
    assert told["bootstrap"] == "quickstart-bootstrap.plant.svc:9192"
    assert told["credentials"] == "/etc/headrace/user"
    _, status = await world.reconcile(credentialsSecret="given")  # a name
    assert status["conditions"][0]["reason"] == "NoSecret"
    world.kube.objects["Secret", "given"] = {"data": {"client.properties": "eA=="}}
    await world.reconcile(credentialsSecret="given")
    volumes = world.kube.objects["StatefulSet", "copy-job"]["spec"]["template"]["spec"]["volumes"]
    assert {"name": "user", "secret": {"secretName": "given", "defaultMode": 0o440}} in volumes
    world.sees("StreamCluster", "quickstart", {**secure, "listeners": {"internal": {"protocol": "PLAINTEXT"}}})
    await world.reconcile()
    told = json.loads(world.kube.objects["ConfigMap", "copy-job"]["data"]["job.json"])
    assert told["bootstrap"] == "quickstart-bootstrap.plant.svc:9092"

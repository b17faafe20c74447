"""A StreamJob's objects. Pure.

    continuous                 StatefulSet of one driver: a stable name, never two writers of the checkpoint
    availableNow               Job
    availableNow, schedule     CronJob, one run at a time
    engine: kubeflow           SparkApplication (sparkoperator.k8s.io/v1beta2), of either trigger, with executors

Without executors Spark runs in the driver's pod, and its checkpoint lies on a claim of its own, the same for every
form, so that a job may change its trigger and go on. With executors, which the driver asks Kubernetes for itself, it
lies where all of them write. All objects are owned by the StreamJob; the claim only where `reclaimPolicy` is Delete.
"""

import json
from typing import Any, Final

import msgspec
import yaml

from headrace_operator.builders.digest import digest
from headrace_operator.builders.job_definition import (
    BLOCKS_PORT,
    DRIVER_PORT,
    EXECUTOR_FILE,
    LEAST_BESIDE_DRIVER,
    LEAST_BESIDE_EXECUTOR,
    UI_PORT,
    Placed,
    beside_heap,
    definition,
    first_executors,
    spark_conf,
)
from headrace_operator.builders.job_pods import (
    ASKED,
    DEFINITION,
    PROGRESS_PORT,
    claim_name,
    driver_selector,
    driver_template,
    executor_template,
    pod_labels,
    submitted_driver_template,
)
from headrace_operator.builders.names import JOB_LABEL, Manifest, labels, owner
from headrace_operator.specs import JobSpec, Machine, quantity

SPARK_API: Final = "sparkoperator.k8s.io/v1beta2"
SPARK_VERSION: Final = "4.2.0"
PROGRAM: Final = "local:///opt/headrace/job.py"
"""Where spark/Dockerfile puts the driver's program, for spark-submit."""
RETRIES: Final = 6
WRONG: Final = 2
"""The driver's exit code where trying again changes nothing (headrace_spark.job.ends)."""
FORMS: Final = (
    ("apps/v1", "StatefulSet"),
    ("batch/v1", "Job"),
    ("batch/v1", "CronJob"),
    (SPARK_API, "SparkApplication"),
)
"""What a job may be."""


class JobObjects:
    """Builds them for one StreamJob."""

    def __init__(self, resource: Manifest, placed: Placed) -> None:
        self.resource = resource
        self.placed = placed
        self.account = placed.base
        self._spec = placed.spec

    def all(self) -> list[Manifest]:
        """In the order in which they are applied."""
        found = [self.service_account(), self.config_map(), self.driver_service(), self.ui_service()]
        if self._spec.distributed:
            found += [self.role(), self.role_binding()]
        claim = self.claim()
        if claim is not None:
            found.append(claim)
        return [*found, self.workload()]

    @property
    def form(self) -> tuple[str, str]:
        """What the job is: one of FORMS."""
        if self.placed.kubeflow:
            return FORMS[3]
        if not self._spec.trigger.available_now:
            return FORMS[0]
        return FORMS[1] if self._spec.trigger.schedule is None else FORMS[2]

    def config_map(self) -> Manifest:
        """The definition, and what executors are made from."""
        made = self._made("v1", "ConfigMap", self.placed.base)
        made["data"] = {"job.json": json.dumps(definition(self.placed), indent=1, sort_keys=True)}
        if self._spec.distributed and not self.placed.kubeflow:
            made["data"][EXECUTOR_FILE] = yaml.safe_dump(self._executor())
        return made

    # --- rights

    def service_account(self) -> Manifest:
        """Whom driver and executors are."""
        return self._made("v1", "ServiceAccount", self.account)

    def role(self) -> Manifest:
        """What a driver does that asks for executors: it makes pods and ends them, and is told to make nothing else.

        They have no names that a Role could tell apart from the namespace's other pods.
        """
        made = self._made("rbac.authorization.k8s.io/v1", "Role", self.account)
        verbs = ["get", "list", "watch", "create", "patch", "delete", "deletecollection"]
        made["rules"] = [{"apiGroups": [""], "resources": ["pods"], "verbs": verbs}]
        return made

    def role_binding(self) -> Manifest:
        """Gives it those rights."""
        made = self._made("rbac.authorization.k8s.io/v1", "RoleBinding", self.account)
        made["roleRef"] = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": self.account}
        made["subjects"] = [{"kind": "ServiceAccount", "name": self.account, "namespace": self.placed.namespace}]
        return made

    # --- network

    def driver_service(self) -> Manifest:
        """By which executors find the driver, and a StatefulSet names its pod; of the driver alone."""
        made = self._made("v1", "Service", f"{self.placed.base}-driver")
        ports = (("driver", DRIVER_PORT), ("blocks", BLOCKS_PORT), ("progress", PROGRESS_PORT))
        made["spec"] = {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": driver_selector(self.placed.name),
            "ports": [_port(name, port) for name, port in ports],
        }
        return made

    def ui_service(self) -> Manifest:
        """Spark's own pages; there as soon as Spark is, so before the first query runs."""
        made = self._made("v1", "Service", f"{self.placed.base}-ui")
        made["spec"] = {
            "publishNotReadyAddresses": True,
            "selector": driver_selector(self.placed.name),
            "ports": [_port("ui", UI_PORT)],
        }
        return made

    # --- the checkpoint

    def claim(self) -> Manifest | None:
        """Of a job that names none."""
        if not self._spec.own_claim:
            return None
        checkpoint = self._spec.checkpoint
        made = self._made("v1", "PersistentVolumeClaim", claim_name(self.placed))
        if self._spec.reclaim_policy != "Delete":
            del made["metadata"]["ownerReferences"]
        made["spec"] = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": checkpoint.size}},
        }
        if checkpoint.class_ is not None:
            made["spec"]["storageClassName"] = checkpoint.class_
        return made

    # --- the workload

    def workload(self) -> Manifest:
        """As `form` says."""
        match self.form:
            case (_, "StatefulSet"):
                return self._stateful_set()
            case (_, "Job"):
                return self._job()
            case (_, "CronJob"):
                return self._cron_job()
            case _:
                return self._spark_application()

    def _stateful_set(self) -> Manifest:
        made = self._made("apps/v1", "StatefulSet", self.placed.base)
        made["spec"] = {
            "replicas": 0 if self._spec.suspend else 1,
            "serviceName": f"{self.placed.base}-driver",
            # Not OrderedReady: by that a driver that never gets ready would not be replaced by a corrected one.
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": driver_selector(self.placed.name)},
            "template": self._driver("Always"),
        }
        return made

    def _job(self) -> Manifest:
        made = self._made("batch/v1", "Job", self.placed.base)
        made["spec"] = {**self._run(), "suspend": self._spec.suspend}
        made["metadata"]["annotations"] = {DEFINITION: digest(self._driver("Never")), ASKED: self._asked()}
        return made

    def _cron_job(self) -> Manifest:
        trigger = self._spec.trigger
        made = self._made("batch/v1", "CronJob", self.placed.base)
        made["spec"] = {
            "schedule": trigger.schedule,
            "suspend": self._spec.suspend,
            "concurrencyPolicy": "Forbid",
            "successfulJobsHistoryLimit": 1,
            "failedJobsHistoryLimit": 1,
            "jobTemplate": {"metadata": {"labels": self._labels()}, "spec": self._run()},
        }
        if trigger.time_zone is not None:
            made["spec"]["timeZone"] = trigger.time_zone
        return made

    def _run(self) -> Manifest:
        """What a Job does: a wrong job is not tried again, and an evicted driver is no failed try."""
        rules: list[Manifest] = [
            {
                "action": "FailJob",
                "onExitCodes": {"containerName": "driver", "operator": "In", "values": [WRONG]},
            },
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        ]
        return {
            "backoffLimit": RETRIES,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": rules},
            "template": self._driver("Never"),
        }

    def _spark_application(self) -> Manifest:
        spec, placed = self._spec, self.placed
        made = self._made(SPARK_API, "SparkApplication", placed.base)
        restart: Manifest = {"type": "Always"}
        if spec.trigger.available_now:
            made["metadata"]["annotations"] = {ASKED: self._asked()}
            restart = {
                "type": "OnFailure",
                "onFailureRetries": RETRIES,
                "onFailureRetryInterval": 10,
                "onSubmissionFailureRetries": RETRIES,
                "onSubmissionFailureRetryInterval": 10,
            }
        driver = submitted_driver_template(placed, account=self.account, digest=self.what_it_runs)
        made["spec"] = {
            "type": "Python",
            "pythonVersion": "3",
            "mode": "cluster",
            "sparkVersion": SPARK_VERSION,
            "image": placed.image,
            "mainApplicationFile": PROGRAM,
            "sparkConf": spark_conf(placed),
            "restartPolicy": restart,
            "suspend": spec.suspend,
            "driver": {
                **_machine(spec.driver, least=LEAST_BESIDE_DRIVER),
                "serviceAccount": self.account,
                "labels": pod_labels(placed, "job-driver"),
                "template": driver,
            },
            "executor": {
                **_machine(spec.executor, least=LEAST_BESIDE_EXECUTOR),
                "instances": first_executors(spec),
                "labels": pod_labels(placed, "job-executor"),
                "template": self._executor(),
            },
        }
        if placed.image_pull_policy is not None:
            made["spec"]["imagePullPolicy"] = placed.image_pull_policy
        if spec.image_pull_secrets:
            made["spec"]["imagePullSecrets"] = [each["name"] for each in spec.image_pull_secrets]
        return made

    # --- inside

    def _driver(self, restart: str) -> Manifest:
        return driver_template(self.placed, account=self.account, restart=restart, digest=self.what_it_runs)

    def _executor(self) -> Manifest:
        return executor_template(self.placed, account=self.account)

    @property
    def what_it_runs(self) -> str:
        """The digest of it, which its driver's pod has as DEFINITION."""
        executor = self._executor() if self._spec.distributed else None
        return digest([definition(self.placed), executor, self.placed.file_digest])

    def _asked(self) -> str:
        """Of the resource alone: not of its cluster, nor of this operator; and not of what changes no run."""
        asked = msgspec.convert(self.resource["spec"], JobSpec)
        return digest(_said(msgspec.structs.replace(asked, suspend=False, reclaim_policy="Retain")))

    def _labels(self) -> dict[str, str]:
        return {**labels(self._spec.cluster_ref.name, "job"), JOB_LABEL: self.placed.name}

    def _made(self, api_version: str, kind: str, name: str) -> Manifest:
        return {
            "apiVersion": api_version,
            "kind": kind,
            "metadata": {
                "name": name,
                "namespace": self.placed.namespace,
                "labels": self._labels(),
                "ownerReferences": [owner(self.resource)],
            },
        }


def _said(value: Any) -> Any:
    """What is not left to a default: another version has more fields, and says the same without them."""
    match value:
        case msgspec.Struct():
            fields = [(each, getattr(value, each.name)) for each in msgspec.structs.fields(value)]
            return {each.encode_name: _said(said) for each, said in fields if said != _default(each)}
        case list():
            return [_said(each) for each in value]
        case _:
            return value


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def _machine(machine: Machine, *, least: int) -> Manifest:
    """As a SparkApplication says it."""
    made: Manifest = {
        "cores": machine.cores,
        "memory": f"{quantity(machine.memory) // 2**20}m",
        "memoryOverhead": f"{beside_heap(machine.memory, least=least) // 2**20}m",
    }
    if machine.cpu is not None:
        made["coreRequest"] = machine.cpu
    return made


def _port(name: str, number: int) -> Manifest:
    return {"name": name, "port": number, "targetPort": number, "protocol": "TCP"}

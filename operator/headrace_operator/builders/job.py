"""A StreamJob's objects. Pure.

    continuous                 StatefulSet of one driver: a stable name, never two writers of the checkpoint
    availableNow               Job
    availableNow, schedule     CronJob, one run at a time
    engine: kubeflow           SparkApplication (sparkoperator.k8s.io/v1beta2), for either trigger, with executors

Without executors Spark runs in the driver's pod, and the checkpoint is on a claim that is the same for every form, so
that a job may change its trigger and continue. With executors, which the driver requests from Kubernetes itself, the
checkpoint is where all of them can write. All objects are owned by the StreamJob; the claim only if `reclaimPolicy` is
Delete.
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
    MIN_BESIDE_DRIVER,
    MIN_BESIDE_EXECUTOR,
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
"""The driver's program in the image of spark/Dockerfile, for spark-submit."""
RETRIES: Final = 6
WRONG: Final = 2
"""The driver's exit code if trying again cannot succeed (headrace_spark.job.ends)."""
FORMS: Final = (
    ("apps/v1", "StatefulSet"),
    ("batch/v1", "Job"),
    ("batch/v1", "CronJob"),
    (SPARK_API, "SparkApplication"),
)
"""API version and kind of the workloads that a job may be."""


class JobObjects:
    """Builds the objects of one StreamJob."""

    def __init__(self, resource: Manifest, placed: Placed) -> None:
        self.resource = resource
        self.placed = placed
        self.account = placed.base
        self._spec = placed.spec

    def all(self) -> list[Manifest]:
        """Return the objects in the order in which they are applied."""
        found = [self.service_account(), self.config_map(), self.driver_service(), self.ui_service()]
        if self._spec.distributed:
            found += [self.role(), self.role_binding()]
        claim = self.claim()
        if claim is not None:
            found.append(claim)
        return [*found, self.workload()]

    @property
    def form(self) -> tuple[str, str]:
        """The workload that the job is: one of FORMS."""
        if self.placed.kubeflow:
            return FORMS[3]
        if not self._spec.trigger.available_now:
            return FORMS[0]
        return FORMS[1] if self._spec.trigger.schedule is None else FORMS[2]

    def config_map(self) -> Manifest:
        """Return the ConfigMap with the job's definition and the executors' pod template."""
        made = self._made("v1", "ConfigMap", self.placed.base)
        made["data"] = {"job.json": json.dumps(definition(self.placed), indent=1, sort_keys=True)}
        if self._spec.distributed and not self.placed.kubeflow:
            made["data"][EXECUTOR_FILE] = yaml.safe_dump(self._executor())
        return made

    # --- rights

    def service_account(self) -> Manifest:
        """Return the identity of the driver and the executors."""
        return self._made("v1", "ServiceAccount", self.account)

    def role(self) -> Manifest:
        """Return the rights of a driver that requests executors: to create and delete pods; Spark is configured to
        create nothing else. Executors' names are not known in advance, so the Role covers all pods of the namespace.
        """
        made = self._made("rbac.authorization.k8s.io/v1", "Role", self.account)
        verbs = ["get", "list", "watch", "create", "patch", "delete", "deletecollection"]
        made["rules"] = [{"apiGroups": [""], "resources": ["pods"], "verbs": verbs}]
        return made

    def role_binding(self) -> Manifest:
        """Return the binding that grants the role to the driver."""
        made = self._made("rbac.authorization.k8s.io/v1", "RoleBinding", self.account)
        made["roleRef"] = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": self.account}
        made["subjects"] = [{"kind": "ServiceAccount", "name": self.account, "namespace": self.placed.namespace}]
        return made

    # --- network

    def driver_service(self) -> Manifest:
        """Return the headless Service by which executors find the driver, and which names a StatefulSet's pod."""
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
        """Return the Service of Spark's web pages, which are available before the first query runs."""
        made = self._made("v1", "Service", f"{self.placed.base}-ui")
        made["spec"] = {
            "publishNotReadyAddresses": True,
            "selector": driver_selector(self.placed.name),
            "ports": [_port("ui", UI_PORT)],
        }
        return made

    # --- the checkpoint

    def claim(self) -> Manifest | None:
        """Return the claim of a job that names none; None if the job names one."""
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
        """Return the workload that `form` names."""
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
            # Not OrderedReady: it would not replace a driver that never gets ready by a corrected one.
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
        """Return a Job's spec: a job that is wrong is not retried, and an evicted driver does not count as a failed
        try.
        """
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
                **_machine(spec.driver, least=MIN_BESIDE_DRIVER),
                "serviceAccount": self.account,
                "labels": pod_labels(placed, "job-driver"),
                "template": driver,
            },
            "executor": {
                **_machine(spec.executor, least=MIN_BESIDE_EXECUTOR),
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
        """The digest of what the job runs; the driver's pod has it as annotation DEFINITION."""
        executor = self._executor() if self._spec.distributed else None
        return digest([definition(self.placed), executor, self.placed.file_digest])

    def _asked(self) -> str:
        """Return the digest of the resource alone, without its cluster and this operator's version, and without fields
        that change no run.
        """
        asked = msgspec.convert(self.resource["spec"], JobSpec)
        return digest(_without_defaults(msgspec.structs.replace(asked, suspend=False, reclaim_policy="Retain")))

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


def _without_defaults(value: Any) -> Any:
    """Return the fields that differ from their defaults: another version may have more fields, and gives the same
    result.
    """
    match value:
        case msgspec.Struct():
            fields = [(each, getattr(value, each.name)) for each in msgspec.structs.fields(value)]
            return {each.encode_name: _without_defaults(said) for each, said in fields if said != _default(each)}
        case list():
            return [_without_defaults(each) for each in value]
        case _:
            return value


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def _machine(machine: Machine, *, least: int) -> Manifest:
    """Return a machine in the form of a SparkApplication."""
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

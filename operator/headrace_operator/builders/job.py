"""A StreamJob's objects. Pure.

A job that runs on is a StatefulSet of one driver: its name is stable, and there is never a second writer of its
checkpoint. `availableNow` is a Job, with a schedule a CronJob. Without executors Spark runs in the driver's pod, and its
checkpoint lies on the pod's own claim; with executors, which the driver asks Kubernetes for itself, it lies where all
of them write.
"""

import hashlib
import json
from typing import Any, Final

from headrace_operator.builders.names import JOB_LABEL, Manifest, bootstrap, labels, owner
from headrace_operator.specs import GROUP, JobSpec, quantity

DRIVER_PORT: Final = 7078
BLOCKS_PORT: Final = 7079
UI_PORT: Final = 4040
PROGRESS_PORT: Final = 4041
CHECKPOINT: Final = "/checkpoint"
APPLICATION: Final = "/etc/headrace/application"
JOB: Final = "/etc/headrace/job"
USER: Final = 10001
DEFINITION: Final = f"{GROUP}/definition"
"""Annotation of a job's pods: a hash of what they run, so that a change makes them anew."""
OVERHEAD_SHARE: Final = 0.4
"""Of memory beside Java's heap, for Python's workers (Spark's own default for Python on Kubernetes)."""


class JobObjects:
    """Builds them for one StreamJob."""

    def __init__(self, resource: Manifest, spec: JobSpec, *, image: str, executors: int | None = None) -> None:
        """`executors`: as many as autoscaling wants now."""
        self.resource = resource
        self._spec = spec
        self._image = spec.image or image
        self._executors = spec.executors if executors is None else executors
        self.name: str = resource["metadata"]["name"]
        self.namespace: str = resource["metadata"]["namespace"]

    def all(self) -> list[Manifest]:
        """In the order in which they are applied."""
        found = [self.service_account(), self.config_map(), self.driver_service(), self.ui_service()]
        if self._spec.distributed:
            found += [self.role(), self.role_binding()]
        return [*found, self.workload()]

    # --- what it runs

    def definition(self) -> dict[str, Any]:
        """What the driver reads (headrace_spark.job.Job)."""
        spec = self._spec
        ref = spec.cluster_ref
        application: dict[str, str] = {}
        if spec.application.config_map is not None:
            application["path"] = f"{APPLICATION}/{spec.application.config_map.key}"
        for form in ("path", "url", "sql"):
            if (value := getattr(spec.application, form)) is not None:
                application[form] = value
        found: dict[str, Any] = {
            "name": f"{self.namespace}.{self.name}",
            "bootstrap": bootstrap(ref.name, ref.namespace or self.namespace),
            "checkpoint": spec.checkpoint.url or f"{CHECKPOINT}/{self.name}",
            "available_now": spec.trigger.available_now,
            "interval": _spark_interval(spec.trigger.interval),
            "application": application,
            "parameters": spec.parameters,
            "master": "k8s://https://kubernetes.default.svc" if spec.distributed else f"local[{spec.driver.cores}]",
            "conf": self._conf(),
        }
        if spec.input is not None:
            found |= {
                "input_stream": spec.input.stream,
                "topics": spec.input.topics,
                "topic_pattern": spec.input.topic_pattern,
                "starting_offsets": spec.input.starting_offsets,
            }
        if spec.output is not None:
            found |= {"output_stream": spec.output.stream, "output_topic": spec.output.topic}
        return found

    def _conf(self) -> dict[str, str]:
        spec = self._spec
        heap = _heap(spec.driver.memory)
        conf = {"spark.driver.memory": heap, "spark.ui.port": str(UI_PORT)}
        if spec.distributed:
            prefix = "spark.kubernetes.executor"
            conf |= {
                "spark.driver.host": f"{self.name}-driver.{self.namespace}.svc",
                "spark.driver.port": str(DRIVER_PORT),
                "spark.driver.blockManager.port": str(BLOCKS_PORT),
                "spark.kubernetes.namespace": self.namespace,
                "spark.kubernetes.container.image": self._image,
                "spark.kubernetes.container.image.pullPolicy": "IfNotPresent",
                "spark.kubernetes.authenticate.serviceAccountName": self.account,
                "spark.kubernetes.executor.podNamePrefix": f"{self.name}-executor"[:47],
                f"{prefix}.label.{JOB_LABEL}": self.name,
                "spark.executor.instances": str(self._executors),
                "spark.executor.cores": str(spec.executor.cores),
                "spark.executor.memory": _heap(spec.executor.memory),
                "spark.executor.memoryOverheadFactor": str(OVERHEAD_SHARE),
            }
            if spec.checkpoint.claim is not None:
                volume = f"{prefix}.volumes.persistentVolumeClaim.checkpoint"
                conf[f"{volume}.options.claimName"] = spec.checkpoint.claim
                conf[f"{volume}.mount.path"] = CHECKPOINT
        return conf | dict(spec.spark_conf)

    def config_map(self) -> Manifest:
        """The definition, for the driver."""
        made = self._made("v1", "ConfigMap", f"{self.name}-job")
        made["data"] = {"job.json": json.dumps(self.definition(), indent=1, sort_keys=True)}
        return made

    # --- rights

    @property
    def account(self) -> str:
        return f"{self.name}-job"

    def service_account(self) -> Manifest:
        """Whom driver and executors are."""
        return self._made("v1", "ServiceAccount", self.account)

    def role(self) -> Manifest:
        """What a driver with executors does."""
        made = self._made("rbac.authorization.k8s.io/v1", "Role", self.account)
        verbs = ["get", "list", "watch", "create", "patch", "update", "delete", "deletecollection"]
        made["rules"] = [
            {
                "apiGroups": [""],
                "resources": ["pods", "services", "configmaps", "persistentvolumeclaims"],
                "verbs": verbs,
            }
        ]
        return made

    def role_binding(self) -> Manifest:
        """Gives it those rights."""
        made = self._made("rbac.authorization.k8s.io/v1", "RoleBinding", self.account)
        made["roleRef"] = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": self.account}
        made["subjects"] = [{"kind": "ServiceAccount", "name": self.account, "namespace": self.namespace}]
        return made

    # --- network

    def driver_service(self) -> Manifest:
        """By which executors find the driver; of the driver alone."""
        made = self._made("v1", "Service", f"{self.name}-driver")
        made["spec"] = {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": self._selector(),
            "ports": [
                {"name": name, "port": port, "targetPort": port, "protocol": "TCP"}
                for name, port in (("driver", DRIVER_PORT), ("blocks", BLOCKS_PORT), ("progress", PROGRESS_PORT))
            ],
        }
        return made

    def ui_service(self) -> Manifest:
        """Spark's own pages."""
        made = self._made("v1", "Service", f"{self.name}-ui")
        port = {"name": "ui", "port": UI_PORT, "targetPort": UI_PORT, "protocol": "TCP"}
        made["spec"] = {"selector": self._selector(), "ports": [port]}
        return made

    # --- the workload

    def workload(self) -> Manifest:
        """StatefulSet, Job or CronJob."""
        trigger = self._spec.trigger
        if not trigger.available_now:
            return self._stateful_set()
        job: Manifest = {
            "backoffLimit": 6,
            "suspend": self._spec.suspend,
            "ttlSecondsAfterFinished": 86_400,
            "template": self._template("OnFailure"),
        }
        if trigger.schedule is None:
            made = self._made("batch/v1", "Job", self.name)
            made["spec"] = job
            return made
        job.pop("suspend")
        made = self._made("batch/v1", "CronJob", self.name)
        made["spec"] = {
            "schedule": trigger.schedule,
            "suspend": self._spec.suspend,
            "concurrencyPolicy": "Forbid",
            "successfulJobsHistoryLimit": 3,
            "failedJobsHistoryLimit": 3,
            "jobTemplate": {"metadata": {"labels": self._labels()}, "spec": job},
        }
        if trigger.time_zone is not None:
            made["spec"]["timeZone"] = trigger.time_zone
        return made

    def own_claim(self) -> Manifest | None:
        """Of a Job's or CronJob's checkpoint; a StatefulSet makes its own. Outlives the job unless it is `Delete`."""
        if not self._has_own_claim or not self._spec.trigger.available_now:
            return None
        made = self._made("v1", "PersistentVolumeClaim", f"{self.name}-checkpoint")
        if self._spec.reclaim_policy != "Delete":
            del made["metadata"]["ownerReferences"]
        made["spec"] = self._claim()
        return made

    @property
    def _has_own_claim(self) -> bool:
        return self._spec.checkpoint.claim is None and self._spec.checkpoint.url is None

    def _claim(self) -> Manifest:
        checkpoint = self._spec.checkpoint
        claim: Manifest = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": checkpoint.size}},
        }
        if checkpoint.class_ is not None:
            claim["storageClassName"] = checkpoint.class_
        return claim

    def _stateful_set(self) -> Manifest:
        made = self._made("apps/v1", "StatefulSet", self.name)
        keep = "Delete" if self._spec.reclaim_policy == "Delete" else "Retain"
        made["spec"] = {
            "replicas": 0 if self._spec.suspend else 1,
            "serviceName": f"{self.name}-driver",
            "selector": {"matchLabels": self._selector()},
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": keep, "whenScaled": "Retain"},
            "template": self._template("Always"),
        }
        if self._has_own_claim:
            made["spec"]["volumeClaimTemplates"] = [
                {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "metadata": {"name": "checkpoint", "labels": self._selector()},
                    "spec": self._claim(),
                }
            ]
        return made

    def _template(self, restart: str) -> Manifest:
        spec = self._spec
        memory = int(quantity(spec.driver.memory))
        volumes: list[Manifest] = [
            {"name": "job", "configMap": {"name": f"{self.name}-job"}},
            {"name": "tmp", "emptyDir": {}},
        ]
        mounts: list[Manifest] = [
            {"name": "job", "mountPath": JOB, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
        ]
        if spec.application.config_map is not None:
            volumes.append({"name": "application", "configMap": {"name": spec.application.config_map.name}})
            mounts.append({"name": "application", "mountPath": APPLICATION, "readOnly": True})
        if spec.checkpoint.url is None:
            mounts.append({"name": "checkpoint", "mountPath": CHECKPOINT})
            if spec.checkpoint.claim is not None or spec.trigger.available_now:
                claim = spec.checkpoint.claim or f"{self.name}-checkpoint"
                volumes.append({"name": "checkpoint", "persistentVolumeClaim": {"claimName": claim}})
        digest = hashlib.sha256(json.dumps(self.definition(), sort_keys=True).encode()).hexdigest()[:16]
        return {
            "metadata": {"labels": self._labels() | self._selector(), "annotations": {DEFINITION: digest}},
            "spec": {
                "serviceAccountName": self.account,
                "restartPolicy": restart,
                "terminationGracePeriodSeconds": 30,
                "automountServiceAccountToken": spec.distributed,
                "securityContext": {
                    "runAsNonRoot": True,
                    "runAsUser": USER,
                    "runAsGroup": USER,
                    "fsGroup": USER,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "containers": [
                    {
                        "name": "driver",
                        "image": self._image,
                        "args": ["driver"],
                        "env": [
                            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                            *spec.env,
                        ],
                        "ports": [
                            {"name": "ui", "containerPort": UI_PORT},
                            {"name": "progress", "containerPort": PROGRESS_PORT},
                        ],
                        "livenessProbe": {
                            "httpGet": {"path": "/livez", "port": PROGRESS_PORT},
                            "initialDelaySeconds": 60,
                            "periodSeconds": 20,
                            "timeoutSeconds": 5,
                            "failureThreshold": 6,
                        },
                        "resources": {
                            "requests": {"cpu": str(spec.driver.cores), "memory": str(int(memory * (1 + OVERHEAD_SHARE)))},
                            "limits": {"memory": str(int(memory * (1 + OVERHEAD_SHARE)))},
                        },
                        "securityContext": {
                            "allowPrivilegeEscalation": False,
                            "readOnlyRootFilesystem": True,
                            "capabilities": {"drop": ["ALL"]},
                        },
                        "volumeMounts": mounts,
                    }
                ],
                "volumes": volumes,
            },
        }

    # --- inside

    def _labels(self) -> dict[str, str]:
        return {**labels(self._spec.cluster_ref.name, "job"), JOB_LABEL: self.name}

    def _selector(self) -> dict[str, str]:
        return {JOB_LABEL: self.name, "app.kubernetes.io/component": "job"}

    def _made(self, api_version: str, kind: str, name: str) -> Manifest:
        return {
            "apiVersion": api_version,
            "kind": kind,
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "labels": self._labels(),
                "ownerReferences": [owner(self.resource)],
            },
        }


def _heap(memory: str) -> str:
    return f"{max(256, quantity(memory) // 2**20)}m"


def _spark_interval(duration: str | None) -> str | None:
    """As Spark writes one."""
    if duration is None:
        return None
    words = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
    number = duration.rstrip("mshd")
    return f"{number} {words.get(duration[len(number) :], 'milliseconds')}"

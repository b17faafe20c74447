"""What a StreamJob's driver reads, and Spark's settings. Pure.

The definition is `headrace_spark.job.Job` as JSON, in a ConfigMap that anybody may read, so it holds no credentials.
Secrets reach driver and executors by reference only: `spec.user` as a mounted Secret, all others by `env[].valueFrom`.
A value in the resource that looks like a secret is refused (`fault`).
"""

import re
from dataclasses import dataclass
from typing import Any, Final

from headrace_operator.builders.names import bootstrap
from headrace_operator.specs import JobInput, JobSpec, quantity

DRIVER_PORT: Final = 7078
BLOCKS_PORT: Final = 7079
UI_PORT: Final = 4040
CHECKPOINT: Final = "/checkpoint"
APPLICATION: Final = "/etc/headrace/application"
JOB: Final = "/etc/headrace/job"
CREDENTIALS: Final = "/etc/headrace/user"
EXECUTOR_FILE: Final = "executor.yaml"
OVERHEAD_SHARE: Final = 0.4
"""Share of the heap's size that pods have as additional memory, for Java itself and Python's workers (Spark's default
for Python on Kubernetes).
"""
MIN_BESIDE_EXECUTOR: Final = 384 * 2**20
"""Least memory of an executor's pod besides the heap, in bytes (Spark's default)."""
MIN_BESIDE_DRIVER: Final = 640 * 2**20
"""Least memory of a driver's pod besides the heap, in bytes: more than an executor's, as the driver's program is Python
too.
"""

_SECRET: Final = re.compile(r"secret|passw(or)?d|token|access[._]?key|credential", re.IGNORECASE)
"""Names that look like secrets: Spark's `spark.redaction.regex`, extended."""
_WITH_PASSWORD: Final = re.compile(r"[^/]*//[^/@]*:[^/]*@")
"""A URL with a password. A URL may have a container's name before the `@`, which is not a secret."""
_OURS: Final = frozenset(
    {
        "spark.app.name",
        "spark.driver.blockManager.port",
        "spark.driver.host",
        "spark.driver.port",
        "spark.executor.instances",
        "spark.kubernetes.container.image",
        "spark.kubernetes.executor.podTemplateFile",
        "spark.kubernetes.namespace",
        "spark.master",
        "spark.submit.deployMode",
        "spark.ui.port",
    }
)
_WORDS: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


@dataclass(frozen=True, slots=True)
class Placed:
    """A StreamJob with what its cluster and namespace give it."""

    name: str
    namespace: str
    spec: JobSpec
    image: str
    image_pull_policy: str | None = None
    secret: str | None = None
    """The name of the Secret of the StreamUser that the job runs as."""
    bootstrap: str = ""
    """The bootstrap address for that user; "" for the cluster's bootstrap Service."""
    file_digest: str = ""
    """The digest of the application's file in its ConfigMap, so that a change of the file restarts the driver."""

    @property
    def base(self) -> str:
        """The name of the job's objects, distinct from those of a StreamCluster of the same name."""
        return f"{self.name}-job"

    @property
    def kubeflow(self) -> bool:
        """Whether the Kubeflow Spark operator runs the job."""
        return self.spec.engine == "kubeflow"


def group_name(namespace: str, name: str, input_name: str = "input") -> str:
    """Return the consumer group under which the driver commits an input's offsets (headrace_spark.job.Job.group)."""
    return f"{namespace}.{name}" if input_name == "input" else f"{namespace}.{name}.{input_name}"


def fault(spec: JobSpec) -> str | None:
    """Return what is wrong with a spec that CEL cannot check cheaply, and what to change; None if nothing is."""
    for name in spec.spark_conf:
        if name in _OURS:
            return f"sparkConf, the job's or its cluster's, sets {name}, which the operator sets itself: leave it out"
        if _SECRET.search(name):
            return (
                f"sparkConf, the job's or its cluster's, holds {name} by value: give it by reference, as the job's env"
                " with valueFrom.secretKeyRef"
            )
    for name in spec.parameters:
        if _SECRET.search(name):
            return f"parameters hold {name} by value: give it by reference, as env with valueFrom.secretKeyRef"
    for options in (*(each.options for each in spec.all_inputs), {} if spec.output is None else spec.output.options):
        for name in options:
            if _SECRET.search(name):
                return f"options hold {name} by value, where anybody may read it: leave it out"
    if _WITH_PASSWORD.match(spec.checkpoint.url or ""):
        return "checkpoint.url holds a password: give it by reference, as env with valueFrom.secretKeyRef"
    for each in spec.env:
        if _SECRET.search(str(each.get("name", ""))) and "value" in each:
            return f"env holds {each['name']} by value: give it by reference, with valueFrom.secretKeyRef"
    names = [each.name for each in spec.all_inputs]
    if len(set(names)) < len(names):
        return "two inputs have the same name: each is a table of its own, so name them apart"
    return None


def definition(placed: Placed) -> dict[str, Any]:
    """Return the definition that the driver reads."""
    spec = placed.spec
    ref = spec.cluster_ref
    found: dict[str, Any] = {
        "name": f"{placed.namespace}.{placed.name}",
        "bootstrap": placed.bootstrap or bootstrap(ref.name, ref.namespace or placed.namespace),
        "checkpoint": f"{(spec.checkpoint.url or CHECKPOINT).rstrip('/')}/{placed.name}",
        "available_now": spec.trigger.available_now,
        "interval": spark_duration(spec.trigger.interval),
        "application": _application(spec),
        "parameters": spec.parameters,
        "inputs": [_input(each) for each in spec.all_inputs],
    }
    if spec.output is not None:
        output = spec.output
        found["output"] = {
            "stream": output.stream,
            "topic": output.topic,
            "mode": output.mode,
            "options": output.options,
        }
    if placed.secret is not None:
        found["credentials"] = CREDENTIALS
    if spec.autoscale is not None:
        scale = spec.autoscale
        found["autoscale"] = {
            "min": scale.min,
            "max": scale.max,
            "lag_s": scale.lag_seconds,
            "up_after_s": scale.up_after_seconds,
            "down_after_s": scale.down_after_seconds,
        }
    if not placed.kubeflow:  # otherwise spark-submit gets them
        master = "k8s://https://kubernetes.default.svc" if spec.distributed else f"local[{spec.driver.cores}]"
        found |= {"master": master, "conf": spark_conf(placed)}
    return found


def spark_conf(placed: Placed) -> dict[str, str]:
    """Return Spark's settings. The user's override ours, except for those that `fault` refuses."""
    spec = placed.spec
    conf = {"spark.ui.port": str(UI_PORT)}
    if spec.distributed:
        conf |= _MIN_RIGHTS
    if not placed.kubeflow:
        conf["spark.driver.memory"] = _megabytes(quantity(spec.driver.memory))
        if spec.distributed:
            conf |= _distributed(placed)
    return conf | spec.spark_conf


_MIN_RIGHTS: Final = {
    "spark.kubernetes.executor.disableConfigMap": "true",
    "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
    "spark.kubernetes.driver.reusePersistentVolumeClaim": "false",
    "spark.kubernetes.driver.service.deleteOnTermination": "false",
}
"""The driver's account has rights to pods only, so Spark must not create, own or delete other objects."""


def _distributed(placed: Placed) -> dict[str, str]:
    """Return the settings of a driver in its pod that requests executors itself (Spark's client mode)."""
    spec = placed.spec
    conf = {
        "spark.driver.host": f"{placed.base}-driver.{placed.namespace}.svc",
        # "true" would give executors the address that the driver binds to
        "spark.kubernetes.executor.useDriverPodIP": "false",
        "spark.driver.port": str(DRIVER_PORT),
        "spark.driver.blockManager.port": str(BLOCKS_PORT),
        "spark.kubernetes.namespace": placed.namespace,
        "spark.kubernetes.container.image": placed.image,
        "spark.kubernetes.executor.podTemplateFile": f"{JOB}/{EXECUTOR_FILE}",
        "spark.executor.instances": str(first_executors(spec)),
        "spark.executor.cores": str(spec.executor.cores),
        "spark.executor.memory": _megabytes(quantity(spec.executor.memory)),
        "spark.executor.memoryOverheadFactor": str(OVERHEAD_SHARE),
    }
    if spec.executor.cpu is not None:
        conf["spark.kubernetes.executor.request.cores"] = spec.executor.cpu
    if placed.image_pull_policy is not None:
        conf["spark.kubernetes.container.image.pullPolicy"] = placed.image_pull_policy
    return conf


def first_executors(spec: JobSpec) -> int:
    """Return with how many executors a driver starts."""
    return spec.executors if spec.autoscale is None else spec.autoscale.min


def beside_heap(memory: str, *, least: int) -> int:
    """Return the bytes that a pod gets besides a Java heap of size `memory`."""
    return max(int(quantity(memory) * OVERHEAD_SHARE), least)


def spark_duration(duration: str | None) -> str | None:
    """Return a duration such as `90s` as Spark writes it."""
    if duration is None:
        return None
    number = duration.rstrip("mshd")
    return f"{number} {_WORDS[duration[len(number) :] or 'ms']}"


def _application(spec: JobSpec) -> dict[str, str]:
    application = spec.application
    if application.config_map is not None:
        return {"path": f"{APPLICATION}/{application.config_map.key}"}
    found = {"path": application.path, "url": application.url, "sql": application.sql}
    return {form: value for form, value in found.items() if value is not None}


def _input(asked: JobInput) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": asked.name,
        "stream": asked.stream,
        "topics": asked.topics,
        "starting_offsets": asked.starting_offsets,
        "options": asked.options,
    }
    if asked.topic_pattern is not None:
        found["topic_pattern"] = asked.topic_pattern
    if asked.watermark is not None:
        found["watermark"] = spark_duration(asked.watermark)
    return found


def _megabytes(count: int) -> str:
    return f"{max(256, count // 2**20)}m"

"""The pods of a StreamJob: its driver, and the template from which the driver creates executors. Pure.

Both run as an unprivileged user, on a read-only root file system, with the same mounts: application, credentials (a
Secret, by reference), and the checkpoint if it is on a claim. Only a driver with executors gets a token of the API
server.
"""

from typing import Any, Final

from headrace_operator.builders.images import pull_policy
from headrace_operator.builders.job_definition import (
    APPLICATION,
    BLOCKS_PORT,
    CHECKPOINT,
    CREDENTIALS,
    DRIVER_PORT,
    JOB,
    MIN_BESIDE_DRIVER,
    UI_PORT,
    Placed,
    beside_heap,
)
from headrace_operator.builders.names import JOB_LABEL, Manifest, labels
from headrace_operator.builders.pod_extras import add, security_context
from headrace_operator.specs import GROUP, quantity

PROGRESS_PORT: Final = 4041
DEFINITION: Final = f"{GROUP}/definition"
"""Annotation of a driver's pod, and of a Job: a digest of what it runs."""
ASKED: Final = f"{GROUP}/asked"
"""Annotation of a workload that runs once: a digest of what the StreamJob itself asked for."""
GRACE_S: Final = 40
"""Seconds that a driver's pod gets to end: the driver gives its queries 20 s, and Java needs some more."""


def driver_selector(name: str) -> dict[str, str]:
    """Return the labels that select the driver's pod but no executor's."""
    return {JOB_LABEL: name, "app.kubernetes.io/component": "job-driver"}


def pod_labels(placed: Placed, component: str) -> dict[str, str]:
    """Return a pod's labels. `component`: job-driver or job-executor."""
    return {**placed.spec.pod.labels, **labels(placed.spec.cluster_ref.name, component), JOB_LABEL: placed.name}


def driver_template(placed: Placed, *, account: str, restart: str, digest: str) -> Manifest:
    """Return the driver's pod template, for a StatefulSet or a Job. `digest`: of what the driver runs, so that a change
    of it recreates the pod.
    """
    spec = placed.spec
    beside = beside_heap(spec.driver.memory, least=MIN_BESIDE_DRIVER)
    memory = f"{(quantity(spec.driver.memory) + beside) // 2**20}Mi"
    container: Manifest = {
        "name": "driver",
        "image": placed.image,
        "imagePullPolicy": pull_policy(placed.image, placed.image_pull_policy),
        "args": ["job"],
        "env": _env(placed, driver=True),
        "ports": [
            {"name": name, "containerPort": port}
            for name, port in (
                ("driver", DRIVER_PORT),
                ("blocks", BLOCKS_PORT),
                ("ui", UI_PORT),
                ("progress", PROGRESS_PORT),
            )
        ],
        "startupProbe": _probe("/livez", period=2, failures=60),
        "livenessProbe": _probe("/livez", period=20, failures=6),
        "readinessProbe": _probe("/readyz", period=5, failures=2),
        "resources": {
            "requests": {"cpu": spec.driver.cpu or str(spec.driver.cores), "memory": memory},
            "limits": {"memory": memory},
        },
        "terminationMessagePolicy": "File",
    }
    made = _pod(placed, "job-driver", container, account=account, token=spec.distributed)
    made["metadata"]["annotations"][DEFINITION] = digest
    made["spec"] |= {"restartPolicy": restart, "terminationGracePeriodSeconds": GRACE_S}
    return made


def executor_template(placed: Placed, *, account: str) -> Manifest:
    """Return the pod from which Spark creates executors; Spark adds image, command, resources and its own variables."""
    container: Manifest = {"name": "spark-kubernetes-executor", "env": _env(placed, driver=False)}
    made = _pod(placed, "job-executor", container, account=account, token=False)
    return {"apiVersion": "v1", "kind": "Pod", **made}


def submitted_driver_template(placed: Placed, *, account: str, digest: str) -> Manifest:
    """Like `driver_template`, for a driver that spark-submit creates in its cluster mode."""
    container: Manifest = {
        "name": "spark-kubernetes-driver",
        "env": _env(placed, driver=True),
        "ports": [{"name": "progress", "containerPort": PROGRESS_PORT}],
        "livenessProbe": _probe("/livez", period=20, failures=9),
        "readinessProbe": _probe("/readyz", period=5, failures=2),
    }
    made = _pod(placed, "job-driver", container, account=account, token=True)
    made["metadata"]["annotations"][DEFINITION] = digest
    made["spec"]["terminationGracePeriodSeconds"] = GRACE_S
    return made


def _pod(placed: Placed, component: str, container: Manifest, *, account: str, token: bool) -> Manifest:
    pod = placed.spec.pod
    driver = component == "job-driver"
    mounts = _mounts(placed, driver=driver)
    container["volumeMounts"] = [mount for mount, _ in mounts]
    container["securityContext"] = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    spec: Manifest = {
        "serviceAccountName": account,
        "automountServiceAccountToken": token,
        "securityContext": security_context(pod.security_context),
        "containers": [container],
        "volumes": [{"name": mount["name"], **volume} for mount, volume in mounts],
    }
    for key, value in (
        ("nodeSelector", pod.node_selector),
        ("tolerations", pod.tolerations),
        ("affinity", pod.affinity),
        ("priorityClassName", pod.priority_class_name),
        ("imagePullSecrets", placed.spec.image_pull_secrets),
    ):
        if value:
            spec[key] = value
    if pod.sidecars:  # native sidecars, which end with the driver
        spec["initContainers"] = [{**each, "restartPolicy": "Always"} for each in pod.sidecars]
    add(pod, spec)
    metadata = {"labels": pod_labels(placed, component), "annotations": dict(pod.annotations)}
    return {"metadata": metadata, "spec": spec}


def _mounts(placed: Placed, *, driver: bool) -> list[tuple[Manifest, Manifest]]:
    """Return each mount with its volume."""
    spec = placed.spec
    found: list[tuple[Manifest, Manifest]] = [({"name": "tmp", "mountPath": "/tmp"}, {"emptyDir": {}})]
    if driver:
        found.append(_read_only("job", JOB, {"configMap": {"name": placed.base}}))
    if (file := spec.application.config_map) is not None:
        found.append(_read_only("application", APPLICATION, {"configMap": {"name": file.name}}))
    if placed.secret is not None:
        found.append(_read_only("user", CREDENTIALS, {"secret": {"secretName": placed.secret, "defaultMode": 0o440}}))
    if spec.checkpoint.url is None:
        claim = spec.checkpoint.claim or claim_name(placed)
        volume = {"persistentVolumeClaim": {"claimName": claim}}
        found.append(({"name": "checkpoint", "mountPath": CHECKPOINT}, volume))
    return found


def claim_name(placed: Placed) -> str:
    """Return the name of the claim that is created for a job that names none."""
    return f"{placed.base}-checkpoint"


def _read_only(name: str, path: str, volume: Manifest) -> tuple[Manifest, Manifest]:
    return {"name": name, "mountPath": path, "readOnly": True}, volume


def _env(placed: Placed, *, driver: bool) -> list[Any]:
    found: list[Any] = []
    if driver:
        found += [_from_field("POD_IP", "status.podIP"), _from_field("POD_NAME", "metadata.name")]
    if placed.spec.application.config_map is not None:  # workers also import modules that lie beside the application
        found.append({"name": "PYTHONPATH", "value": APPLICATION})
    return [*found, *placed.spec.env]


def _from_field(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _probe(path: str, *, period: int, failures: int) -> Manifest:
    return {
        "httpGet": {"path": path, "port": PROGRESS_PORT},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }

"""The objects of each form of a StreamJob, as readable snapshot files: tests/snapshots/job-*.yaml.

`HEADRACE_SNAPSHOTS=write pytest operator/tests/builders/test_job.py` rewrites them; then read the diff.
"""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from headrace_operator.builders.job import JobObjects
from headrace_operator.builders.job_definition import Placed
from headrace_operator.specs import JobSpec

from ..others_crds import check

SNAPSHOTS = Path(__file__).parents[1] / "snapshots"
SQL = {"sql": "SELECT key, value FROM input"}
COPY: dict[str, Any] = {
    "clusterRef": {"name": "quickstart"},
    "input": {"stream": "/factory", "topics": ["pumps"]},
    "output": {"stream": "/factory", "topic": "copies"},
    "application": SQL,
}
FORMS: dict[str, dict[str, Any]] = {
    "continuous": {"trigger": {"interval": "2s"}},
    "executors": {
        "trigger": {"interval": "2s"},
        "executors": 2,
        "executor": {"cores": 2, "cpu": "500m", "memory": "2Gi"},
        "checkpoint": {"claim": "shared"},
        "application": {"configMap": {"name": "code"}},
        "user": "alice",
        "env": [{"name": "API_TOKEN", "valueFrom": {"secretKeyRef": {"name": "api", "key": "token"}}}],
        "pod": {"tolerations": [{"operator": "Exists"}], "priorityClassName": "batch"},
    },
    "autoscale": {
        "autoscale": {"min": 1, "max": 4, "lagSeconds": 20},
        "checkpoint": {"url": "s3a://bucket/checkpoints"},
    },
    "available-now": {"trigger": {"availableNow": True}, "reclaimPolicy": "Delete"},
    "schedule": {
        "trigger": {"availableNow": True, "schedule": "*/5 * * * *", "timeZone": "Etc/UTC"},
        "suspend": True,
        "checkpoint": {"size": "5Gi", "class": "fast"},
    },
    "kubeflow": {"engine": "kubeflow", "executors": 2, "checkpoint": {"claim": "shared"}, "user": "alice"},
}


def objects(fields: dict[str, Any], **placing: Any) -> JobObjects:
    spec = msgspec.convert({**COPY, **fields}, JobSpec)
    resource = {
        "apiVersion": "headrace.dev/v1alpha1", "kind": "StreamJob",
        "metadata": {"name": "copy", "namespace": "plant", "uid": "u-1"}, "spec": {**COPY, **fields},
    }  # fmt: skip
    secret = None if spec.user is None else f"{spec.user}-secret"
    placed = Placed("copy", "plant", spec, "headrace/spark:1", secret=secret, **placing)
    return JobObjects(resource, placed)


def by_kind(fields: dict[str, Any], **placing: Any) -> dict[str, dict[str, Any]]:
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in objects(fields, **placing).all()}


class Readable(yaml.SafeDumper):
    """Writes multi-line text as block literals."""


Readable.add_representer(
    str, lambda to, text: to.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)
)


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_as_written(form: str) -> None:
    text = yaml.dump_all(objects(FORMS[form]).all(), Dumper=Readable, sort_keys=False, width=120)
    file = SNAPSHOTS / f"job-{form}.yaml"
    if os.environ.get("HEADRACE_SNAPSHOTS") == "write":
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert list(yaml.safe_load_all(text)) == list(yaml.safe_load_all(file.read_text()))


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        ("continuous", "StatefulSet"),
        ("executors", "StatefulSet"),
        ("autoscale", "StatefulSet"),
        ("available-now", "Job"),
        ("schedule", "CronJob"),
        ("kubeflow", "SparkApplication"),
    ],
)
def test_a_form_has_one_workload(form: str, kind: str) -> None:
    made = objects(FORMS[form])
    workloads = {"StatefulSet", "Job", "CronJob", "SparkApplication"}
    assert [each["kind"] for each in made.all() if each["kind"] in workloads] == [kind]
    assert made.form == (made.workload()["apiVersion"], kind)


@pytest.mark.parametrize("form", FORMS)
def test_all_goes_with_the_resource_but_a_retained_checkpoint(form: str) -> None:
    for each in objects(FORMS[form]).all():
        owners = each["metadata"].get("ownerReferences", [])
        retained = each["kind"] == "PersistentVolumeClaim" and form != "available-now"
        assert [one["uid"] for one in owners] == ([] if retained else ["u-1"]), each["kind"]


def test_suspend_keeps_everything_but_the_driver() -> None:
    assert by_kind({"suspend": True})["StatefulSet/copy-job"]["spec"]["replicas"] == 0
    for form, name in (("available-now", "Job/copy-job"), ("kubeflow", "SparkApplication/copy-job")):
        assert by_kind({**FORMS[form], "suspend": True})[name]["spec"]["suspend"] is True


def digest(fields: dict[str, Any], **placing: Any) -> str:
    template = by_kind(fields, **placing)["StatefulSet/copy-job"]["spec"]["template"]
    found: str = template["metadata"]["annotations"]["headrace.dev/definition"]
    return found


def asked(fields: dict[str, Any], **placing: Any) -> str:
    job = by_kind({**FORMS["available-now"], **fields}, **placing)["Job/copy-job"]
    found: str = job["metadata"]["annotations"]["headrace.dev/asked"]
    return found


def test_every_form_of_a_job_has_the_same_checkpoint() -> None:
    forms = [{"trigger": {"interval": "2s"}}, {"trigger": {"availableNow": True}}, FORMS["schedule"]]
    for fields in forms:
        assert "PersistentVolumeClaim/copy-job-checkpoint" in by_kind(fields)


# --- kubeflow

APPLICATION_FIELDS: dict[str, type] = {
    "type": str, "pythonVersion": str, "mode": str, "sparkVersion": str, "image": str, "imagePullPolicy": str,
    "imagePullSecrets": list, "mainApplicationFile": str, "sparkConf": dict, "restartPolicy": dict, "suspend": bool,
    "driver": dict, "executor": dict,
}  # fmt: skip
"""The fields of sparkoperator.k8s.io/v1beta2's SparkApplication that are used, from its schema (0.20 controller-gen,
August 2026); the API server would silently prune unknown ones.
"""
POD_FIELDS: dict[str, type] = {
    "cores": int, "coreRequest": str, "memory": str, "memoryOverhead": str, "labels": dict, "template": dict,
}  # fmt: skip
REQUIRED = {"driver", "executor", "mainApplicationFile", "sparkVersion", "type"}


@pytest.mark.parametrize("fields", [{}, {"trigger": {"availableNow": True}}, {"driver": {"cpu": "250m"}}])
def test_a_spark_application_fits_its_schema(fields: dict[str, Any]) -> None:
    spec = by_kind({**FORMS["kubeflow"], **fields})["SparkApplication/copy-job"]["spec"]
    assert spec.keys() >= REQUIRED
    for name, value in spec.items():
        assert isinstance(value, APPLICATION_FIELDS[name]), name
    for name, value in spec["driver"].items():
        assert isinstance(value, {**POD_FIELDS, "serviceAccount": str}[name]), name
    for name, value in spec["executor"].items():
        assert isinstance(value, {**POD_FIELDS, "instances": int}[name]), name
    assert spec["executor"]["instances"] >= 1
    assert spec["restartPolicy"]["type"] in ("Never", "Always", "OnFailure")
    assert (spec["restartPolicy"]["type"] == "OnFailure") == ("onFailureRetries" in spec["restartPolicy"])


def test_a_spark_application_fits_the_whole_crd_where_it_is_at_hand() -> None:
    """HEADRACE_SPARK_CRD names the CRD's file, in the version to check against."""
    file = os.environ.get("HEADRACE_SPARK_CRD")
    if not file:
        pytest.skip("HEADRACE_SPARK_CRD names no file")
    for fields in ({}, {"trigger": {"availableNow": True}}, {"driver": {"cpu": "250m"}}):
        check(by_kind({**FORMS["kubeflow"], **fields})["SparkApplication/copy-job"], Path(file))

"""What each form of a StreamJob becomes, in files that a person can read: tests/snapshots/job-*.yaml.

`HEADRACE_SNAPSHOTS=write pytest operator/tests/test_job_builders.py` writes them anew; then read the diff.
"""

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from headrace_operator.builders.job import JobObjects
from headrace_operator.builders.job_definition import Placed, definition, fault
from headrace_operator.specs import JobSpec
from headrace_spark.job import read

SNAPSHOTS = Path(__file__).parent / "snapshots"
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
    """Texts of several lines as they are."""


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


@pytest.mark.parametrize("form", FORMS)
def test_a_driver_reads_what_the_operator_writes(form: str) -> None:
    made = by_kind(FORMS[form])["ConfigMap/copy-job"]
    job = read(made["data"]["job.json"])
    assert job.name == "plant.copy"
    assert job.bootstrap == "quickstart-bootstrap.plant.svc:9092"
    assert job.reading()["stream"] == "/factory"
    assert job.available_now == (form in ("available-now", "schedule"))
    assert job.checkpoint == ("s3a://bucket/checkpoints/copy" if form == "autoscale" else "/checkpoint/copy")
    assert (job.autoscale is not None) == (form == "autoscale")
    assert (job.master is None) == (form == "kubeflow")


@pytest.mark.parametrize("form", ["executors", "kubeflow"])
def test_credentials_are_by_reference_alone(form: str) -> None:
    made = by_kind(FORMS[form])
    text = json.dumps(made)
    assert "Secret" not in {each["kind"] for each in made.values()}
    assert '"secretName": "alice-secret"' in text
    for each in made.values():
        if each["kind"] == "ConfigMap":
            assert "password" not in json.dumps(each)
    assert read(made["ConfigMap/copy-job"]["data"]["job.json"]).credentials == "/etc/headrace/user"


def test_executors_are_made_from_a_template_with_the_same_mounts_and_no_token() -> None:
    made = by_kind(FORMS["executors"])
    template = yaml.safe_load(made["ConfigMap/copy-job"]["data"]["executor.yaml"])
    driver = made["StatefulSet/copy-job"]["spec"]["template"]
    names = {each["name"] for each in template["spec"]["volumes"]}
    assert names == {"tmp", "application", "user", "checkpoint"}
    assert names < {each["name"] for each in driver["spec"]["volumes"]}
    assert template["spec"]["automountServiceAccountToken"] is False
    assert driver["spec"]["automountServiceAccountToken"] is True
    selector = made["Service/copy-job-driver"]["spec"]["selector"]
    assert selector.items() <= driver["metadata"]["labels"].items()
    assert not selector.items() <= template["metadata"]["labels"].items(), "executors look for the driver by it"
    conf = json.loads(made["ConfigMap/copy-job"]["data"]["job.json"])["conf"]
    assert conf["spark.driver.host"] == "copy-job-driver.plant.svc"
    assert conf["spark.kubernetes.executor.useDriverPodIP"] == "false", "else they are told to connect to 0.0.0.0"
    assert made["Service/copy-job-driver"]["spec"]["clusterIP"] == "None"


def test_a_driver_alone_may_ask_the_api_server_for_nothing() -> None:
    made = by_kind(FORMS["continuous"])
    assert not {each["kind"] for each in made.values()} & {"Role", "RoleBinding"}
    assert made["StatefulSet/copy-job"]["spec"]["template"]["spec"]["automountServiceAccountToken"] is False


def test_suspend_keeps_everything_but_the_driver() -> None:
    assert by_kind({"suspend": True})["StatefulSet/copy-job"]["spec"]["replicas"] == 0
    for form, name in (("available-now", "Job/copy-job"), ("kubeflow", "SparkApplication/copy-job")):
        assert by_kind({**FORMS[form], "suspend": True})[name]["spec"]["suspend"] is True


def digest(fields: dict[str, Any], **placing: Any) -> str:
    template = by_kind(fields, **placing)["StatefulSet/copy-job"]["spec"]["template"]
    found: str = template["metadata"]["annotations"]["headrace.dev/definition"]
    return found


def test_what_a_driver_runs_makes_it_anew_when_it_changes() -> None:
    first = digest(FORMS["executors"])
    assert digest(FORMS["executors"]) == first
    assert digest({**FORMS["executors"], "executors": 3}) != first
    assert digest({**FORMS["executors"], "parameters": {"a": "b"}}) != first
    assert digest(FORMS["executors"], file_digest="other") != first
    assert digest({**FORMS["executors"], "suspend": True}) == first


def asked(fields: dict[str, Any], **placing: Any) -> str:
    job = by_kind({**FORMS["available-now"], **fields}, **placing)["Job/copy-job"]
    found: str = job["metadata"]["annotations"]["headrace.dev/asked"]
    return found


def test_what_a_run_was_asked_for_changes_with_its_resource_alone() -> None:
    first = asked({})
    assert asked({}, file_digest="other") == first
    assert asked({"suspend": True, "reclaimPolicy": "Delete"}) == first
    assert asked({"executors": 0, "driver": {"cores": 1, "memory": "1Gi"}}) == first, "as other CRDs may fill it in"
    assert asked({"driver": {"memory": "2Gi"}}) != first
    one, other = ([{"name": "a", "stream": "/a", **more}] for more in ({}, {"startingOffsets": "earliest"}))
    assert asked({"input": None, "inputs": one}) == asked({"input": None, "inputs": other}) != first


def test_every_form_of_a_job_has_the_same_checkpoint() -> None:
    forms = [{"trigger": {"interval": "2s"}}, {"trigger": {"availableNow": True}}, FORMS["schedule"]]
    for fields in forms:
        assert "PersistentVolumeClaim/copy-job-checkpoint" in by_kind(fields)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"sparkConf": {"spark.master": "local"}}, "its cluster's, sets spark.master"),
        ({"sparkConf": {"spark.hadoop.fs.s3a.secret.key": "x"}}, "fs.s3a.secret.key by value"),
        ({"parameters": {"password": "x"}}, "parameters hold password by value"),
        ({"input": {"stream": "/in", "options": {"password": "x"}}}, "options hold password by value"),
        ({"output": {"stream": "/in", "options": {"authToken": "x"}}}, "options hold authToken by value"),
        ({"checkpoint": {"url": "s3a://key:x@bucket/here"}}, "checkpoint.url holds a password"),
        ({"env": [{"name": "AWS_ACCESS_KEY_ID", "value": "x"}]}, "env holds AWS_ACCESS_KEY_ID by value"),
        ({"inputs": [{"stream": "/a"}, {"stream": "/b"}], "input": None}, "two inputs have the same name"),
    ],
)
def test_what_cel_cannot_see_is_said(fields: dict[str, Any], said: str) -> None:
    assert said in (fault(msgspec.convert({**COPY, **fields}, JobSpec)) or "")


def test_what_is_right_has_no_fault() -> None:
    for fields in FORMS.values():
        assert fault(msgspec.convert({**COPY, **fields}, JobSpec)) is None


def test_several_inputs_are_tables_of_their_own() -> None:
    inputs = [{"name": "left", "stream": "/a"}, {"name": "right", "stream": "/b", "watermark": "90s"}]
    placed = objects({"input": None, "inputs": inputs}).placed
    job = read(json.dumps(definition(placed)))
    assert [job.reading(name)["stream"] for name in ("left", "right")] == ["/a", "/b"]
    assert job.group("left") == "plant.copy.left"
    assert job.inputs[1].watermark == "90 seconds"


# --- kubeflow

APPLICATION_FIELDS: dict[str, type] = {
    "type": str, "pythonVersion": str, "mode": str, "sparkVersion": str, "image": str, "imagePullPolicy": str,
    "imagePullSecrets": list, "mainApplicationFile": str, "sparkConf": dict, "restartPolicy": dict, "suspend": bool,
    "driver": dict, "executor": dict,
}  # fmt: skip
"""Of sparkoperator.k8s.io/v1beta2's SparkApplication, those that are used, as its schema has them (0.20 controller-gen,
August 2026); unknown ones the API server would prune without a word."""
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
    """HEADRACE_SPARK_CRD: the file of the CRD, of the version to judge by."""
    jsonschema = pytest.importorskip("jsonschema")
    file = os.environ.get("HEADRACE_SPARK_CRD")
    if not file:
        pytest.skip("HEADRACE_SPARK_CRD names no file")
    crd = yaml.load(Path(file).read_text(), Loader=yaml.CSafeLoader)
    schema = closed(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    for fields in ({}, {"trigger": {"availableNow": True}}, {"driver": {"cpu": "250m"}}):
        jsonschema.validate(by_kind({**FORMS["kubeflow"], **fields})["SparkApplication/copy-job"], schema)


def closed(schema: Any) -> Any:
    """A structural schema that refuses what it would prune."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: closed(value) for name, value in schema.items()}
    if found.get("x-kubernetes-int-or-string"):
        found.pop("anyOf", None)
        return {"type": ["integer", "string"]}
    if "properties" in found and not found.get("x-kubernetes-preserve-unknown-fields"):
        found["additionalProperties"] = False
    if "metadata" in found.get("properties", {}) and "spec" in found["properties"] and "kind" in found["properties"]:
        found["properties"]["metadata"] = {"type": "object"}
    return found


def test_volumes_and_sidecars_are_passed_on_to_driver_and_executors() -> None:
    pod = {
        "volumes": [{"name": "certs", "secret": {"secretName": "s"}}],
        "volumeMounts": [{"name": "certs", "mountPath": "/certs"}],
        "sidecars": [{"name": "proxy", "image": "p"}],
        "initContainers": [{"name": "first", "image": "f"}],
        "securityContext": {},
    }
    made = by_kind({**FORMS["executors"], "pod": pod})
    driver = next(each for name, each in made.items() if name.startswith("StatefulSet/"))["spec"]["template"]
    config = next(each for name, each in made.items() if name.startswith("ConfigMap/"))
    executor = yaml.safe_load(next(text for name, text in config["data"].items() if name.endswith(".yaml")))
    for spec in (driver["spec"], executor["spec"]):
        assert spec["volumes"][-1] == pod["volumes"][0]
        assert spec["containers"][0]["volumeMounts"][-1] == pod["volumeMounts"][0]
        # Of the kind that ends with the driver: else no run would ever be done.
        assert spec["initContainers"] == [{**pod["sidecars"][0], "restartPolicy": "Always"}, pod["initContainers"][0]]
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & spec["securityContext"].keys()

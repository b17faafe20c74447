"""The pods of a job's driver and executors."""

import json

import pytest
import yaml

from headrace_spark.job import read

from .test_job import FORMS, by_kind


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
        # Native sidecars, which end with the driver: otherwise no run would ever complete.
        assert spec["initContainers"] == [{**pod["sidecars"][0], "restartPolicy": "Always"}, pod["initContainers"][0]]
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & spec["securityContext"].keys()

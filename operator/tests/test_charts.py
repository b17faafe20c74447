"""The charts as helm renders them (HEADRACE_HELM or `helm` on the path; without one these are skipped)."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace import __version__
from headrace_operator.builders.cluster import ClusterObjects
from headrace_operator.builders.job import JobObjects
from headrace_operator.builders.job_definition import Placed
from headrace_operator.specs import Application, ClusterRef, ClusterSpec, JobSpec

ROOT = Path(__file__).resolve().parents[2]
HELM = os.environ.get("HEADRACE_HELM") or shutil.which("helm")
CHARTS = ROOT / "charts"

pytestmark = pytest.mark.skipif(HELM is None, reason="needs helm")


def helm(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([str(HELM), *arguments], capture_output=True, text=True, timeout=60, check=False)


def rendered(*values: str) -> list[dict[str, Any]]:
    sets = [part for value in values for part in ("--set-json", value)]
    done = helm("template", "x", str(CHARTS / "headrace"), "-n", "ops", "--kube-version", "1.31.0", *sets)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def named(objects: list[dict[str, Any]], kind: str, name: str = "") -> dict[str, Any]:
    (found,) = [each for each in objects if each["kind"] == kind and name in each["metadata"]["name"]]
    return found


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    hook = "helm.sh/hook"
    return [each for each in objects if each["kind"] == kind and hook not in each["metadata"].get("annotations", {})]


def environment(deployment: dict[str, Any]) -> dict[str, str]:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each.get("value", "") for each in container["env"]}


@pytest.mark.parametrize("chart", ["headrace", "headrace-crds"])
def test_a_chart_passes_lint(chart: str) -> None:
    done = helm("lint", "--strict", str(CHARTS / chart))
    assert done.returncode == 0, done.stdout


def test_crds_are_rendered_as_they_are_and_kept() -> None:
    done = helm("template", "x", str(CHARTS / "headrace-crds"), "--kube-version", "1.31.0")
    crds = [each for each in yaml.safe_load_all(done.stdout) if each]
    assert len(crds) == 9
    assert all(each["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for each in crds)
    source = {
        crd["metadata"]["name"]: crd for crd in map(yaml.safe_load, (f.read_text() for f in (ROOT / "crds").iterdir()))
    }
    assert {crd["metadata"]["name"]: crd for crd in crds} == source


def test_the_operator_is_one_pod_without_rights_on_its_machine() -> None:
    deployment = named(rendered(), "Deployment")
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    pod = deployment["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["image"] == f"headrace/operator:{__version__}"
    assert environment(deployment)["HEADRACE_NODE_IMAGE"] == f"headrace/node:{__version__}"


def test_cluster_wide_by_default_and_namespaced_by_value() -> None:
    everywhere = rendered()
    assert not of_kind(everywhere, "Role")
    assert any("pods" in rule["resources"] for rule in named(everywhere, "ClusterRole")["rules"])
    some = rendered('namespaces=["a","b"]')
    assert {role["metadata"]["namespace"] for role in of_kind(some, "Role")} == {"a", "b"}
    assert {each["metadata"]["namespace"] for each in of_kind(some, "RoleBinding")} == {"a", "b"}
    seen = {resource for rule in named(some, "ClusterRole")["rules"] for resource in rule["resources"]}
    assert seen == {"nodes", "namespaces", "customresourcedefinitions"}
    assert environment(named(some, "Deployment"))["HEADRACE_NAMESPACES"] == "a,b"
    own = rendered('namespaces=["a"]', "clusterRights=false")
    assert not of_kind(own, "ClusterRole")
    assert not of_kind(own, "ClusterRoleBinding")
    assert environment(named(own, "Deployment"))["HEADRACE_CLUSTER_RIGHTS"] == "0"
    assert environment(named(some, "Deployment"))["HEADRACE_CLUSTER_RIGHTS"] == "1"


def test_rights_name_what_they_are_for() -> None:
    for rule in named(rendered(), "ClusterRole")["rules"]:
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
        assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"])
    (secrets,) = [rule for rule in named(rendered(), "ClusterRole")["rules"] if "secrets" in rule["resources"]]
    assert "list" not in secrets["verbs"]


def test_the_operator_holds_what_it_grants() -> None:
    held = {
        (group, resource, verb)
        for rule in named(rendered(), "ClusterRole")["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    body = {"kind": "X", "metadata": {"name": "c", "namespace": "n", "uid": "u"}}
    job = JobSpec(cluster_ref=ClusterRef(name="c"), application=Application(path="/a.py"), executors=1)
    placed = Placed("c", "n", job, "i")
    granted = ClusterObjects(body, ClusterSpec(), image="i").role()["rules"] + JobObjects(body, placed).role()["rules"]
    for rule in granted:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                assert {(group, resource, verb) for verb in rule["verbs"]} <= held, (group, resource)


def test_before_uninstall_the_operator_is_stopped_and_finalizers_go() -> None:
    objects = rendered()
    job = named(objects, "Job")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"
    assert job["spec"]["activeDeadlineSeconds"] <= 120
    pod = job["spec"]["template"]
    assert pod["spec"]["containers"][0]["command"] == ["python", "-m", "headrace_operator.uninstall"]
    deployment = named(objects, "Deployment")
    chosen = deployment["spec"]["selector"]["matchLabels"].items()
    assert not chosen <= pod["metadata"]["labels"].items()
    role = named(objects, "Role", "before-uninstall")
    assert role["rules"][0]["resourceNames"] == [deployment["metadata"]["name"]]
    env = {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}
    assert env["HEADRACE_DEPLOYMENT"] == deployment["metadata"]["name"]
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True


@pytest.mark.parametrize(
    "value",
    [
        'namespaces="all"',
        "sweepSeconds=0",
        'image={"repository":""}',
        "colour=1",
        'namespaces=["A_b"]',
        'nodeImage={"pullPolicy":"Always"}',  # a resource says that: the chart's would be read by nobody
    ],
)
def test_wrong_values_are_refused(value: str) -> None:
    done = helm("template", "x", str(CHARTS / "headrace"), "--kube-version", "1.31.0", "--set-json", value)
    assert done.returncode != 0
    assert "values don't meet the specifications" in done.stderr


def test_all_values_are_in_the_schema_and_used() -> None:
    values = yaml.safe_load((CHARTS / "headrace/values.yaml").read_text())
    schema = json.loads((CHARTS / "headrace/values.schema.json").read_text())
    assert set(values) <= set(schema["properties"])
    text = "".join(file.read_text() for file in (CHARTS / "headrace/templates").iterdir())
    assert [name for name in values if f".Values.{name}" not in text] == []


def test_what_is_passed_on_reaches_the_pod() -> None:
    deployment = named(
        rendered(
            'nodeSelector={"a":"b"}',
            'tolerations=[{"key":"k"}]',
            'imagePullSecrets=[{"name":"s"}]',
            'podAnnotations={"x":"y"}',
            'podLabels={"l":"m"}',
            'priorityClassName="high"',
            'affinity={"nodeAffinity":{}}',
        ),
        "Deployment",
    )
    template = deployment["spec"]["template"]
    assert template["metadata"]["annotations"] == {"x": "y"}
    assert template["metadata"]["labels"]["l"] == "m"
    pod = template["spec"]
    assert pod["nodeSelector"] == {"a": "b"}
    assert pod["tolerations"] == [{"key": "k"}]
    assert pod["imagePullSecrets"] == [{"name": "s"}]
    assert pod["priorityClassName"] == "high"
    assert pod["affinity"] == {"nodeAffinity": {}}

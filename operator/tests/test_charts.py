"""The charts as rendered by helm (HEADRACE_HELM or `helm` on the path; without helm these tests are skipped)."""

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from headrace import __version__
from headrace.metrics import declarations
from headrace_operator import metrics as operator_metrics
from headrace_spark.job import exposition as job_metrics

from .alerts.promtool import RULES
from .others_crds import check
from .rights import Right, rights_of

ROOT = Path(__file__).resolve().parents[2]
HELM = os.environ.get("HEADRACE_HELM") or shutil.which("helm")
CHARTS = ROOT / "charts"

pytestmark = pytest.mark.skipif(HELM is None, reason="needs helm")


def helm(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([str(HELM), *arguments], capture_output=True, text=True, timeout=60, check=False)


def set_by(values: Sequence[str]) -> list[str]:
    return [part for value in values for part in ("--set-json", value)]


def rendered(*values: str) -> list[dict[str, Any]]:
    done = helm("template", "x", str(CHARTS / "headrace"), "-n", "ops", "--kube-version", "1.31.0", *set_by(values))
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def named(objects: list[dict[str, Any]], kind: str, name: str = "") -> dict[str, Any]:
    (found,) = [each for each in objects if each["kind"] == kind and name in each["metadata"]["name"]]
    return found


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    hook = "helm.sh/hook"
    return [each for each in objects if each["kind"] == kind and hook not in each["metadata"].get("annotations", {})]


def environment_of(deployment: dict[str, Any]) -> dict[str, str]:
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
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert "runAsUser" not in pod["securityContext"], "the image has one, and OpenShift's namespaces have their own"
    assert container["image"] == f"headrace/operator:{__version__}"
    assert environment_of(deployment)["HEADRACE_NODE_IMAGE"] == f"headrace/node:{__version__}"


OURS = "streamclusters volumes streams topics streamusers replicationlinks streamjobs"
IN_A_NAMESPACE = {
    ("headrace.dev", OURS): "get list watch patch",
    ("headrace.dev", " ".join(f"{each}/status" for each in OURS.split())): "patch",
    ("headrace.dev", "storagenodes"): "get list watch create update patch delete",
    ("headrace.dev", "storagecontainers"): "get list watch create update delete",
    ("coordination.k8s.io", "leases"): "get list watch create update delete",
    ("", "configmaps"): "get list watch create update patch delete",
    ("", "services"): "get list watch create patch delete",
    ("", "serviceaccounts"): "get create patch",
    ("", "pods"): "get list watch create patch delete deletecollection",
    ("", "persistentvolumeclaims"): "get list create patch delete",
    ("", "secrets"): "get create patch delete",
    ("", "events"): "create list",
    ("apps", "statefulsets"): "get list watch create patch delete",
    ("batch", "jobs"): "get list watch create patch delete",
    ("batch", "cronjobs"): "get create patch delete",
    ("policy", "poddisruptionbudgets"): "get list watch create patch delete",
    ("networking.k8s.io", "networkpolicies"): "get create patch delete",
    ("rbac.authorization.k8s.io", "roles rolebindings"): "get create patch",
    ("sparkoperator.k8s.io", "sparkapplications"): "get create patch delete",
}
IN_THE_CLUSTER = {
    ("", "nodes"): "get",
    ("", "namespaces"): "list watch",
    ("apiextensions.k8s.io", "customresourcedefinitions"): "list watch",
}


def listed(*tables: Mapping[tuple[str, str], str]) -> set[Right]:
    return {
        Right(group, resource, verb)
        for table in tables
        for (group, resources), verbs in table.items()
        for resource in resources.split()
        for verb in verbs.split()
    }


def held(objects: list[dict[str, Any]]) -> dict[str, set[Right]]:
    """Return the rights by namespace, "" for all namespaces. Each role is bound, and only to the operator."""
    found: dict[str, set[Right]] = {}
    for binding in [*of_kind(objects, "RoleBinding"), *of_kind(objects, "ClusterRoleBinding")]:
        assert [(each["kind"], each["name"], each["namespace"]) for each in binding["subjects"]] == [
            ("ServiceAccount", "x-headrace", "ops")
        ]
        namespace = binding["metadata"].get("namespace", "")
        (role,) = [
            each
            for each in of_kind(objects, binding["roleRef"]["kind"])
            if (each["metadata"].get("namespace", ""), each["metadata"]["name"])
            == (namespace, binding["roleRef"]["name"])
        ]
        assert all(set(rule) == {"apiGroups", "resources", "verbs"} for rule in role["rules"])
        found[namespace] = found.get(namespace, set()) | rights_of(role["rules"])
    return found


def test_all_that_the_operator_may_do_is_listed_here() -> None:
    assert held(rendered()) == {"": listed(IN_THE_CLUSTER), "ops": listed(IN_A_NAMESPACE)}
    some = listed(IN_A_NAMESPACE)
    assert held(rendered('namespaces=["a","b"]')) == {"": listed(IN_THE_CLUSTER), "a": some, "b": some}
    assert held(rendered('namespaces=["a"]', "clusterRights=false")) == {"a": some}
    everywhere = {"": listed(IN_THE_CLUSTER, IN_A_NAMESPACE)}
    assert held(rendered('namespaces=["*"]')) == everywhere
    assert held(rendered('namespaces=["*"]', "clusterRights=false")) == everywhere


def test_rights_name_what_they_are_for() -> None:
    for right in listed(IN_THE_CLUSTER, IN_A_NAMESPACE):
        assert "*" not in right
        assert right.verb not in {"escalate", "bind", "impersonate"}
        assert right not in {("", "secrets", "list"), ("", "secrets", "watch")}


@pytest.mark.parametrize(
    ("values", "namespaces", "sees_the_cluster"),
    [
        ([], "ops", "1"),
        (["clusterRights=false"], "ops", "0"),
        (['namespaces=["a","b"]'], "a,b", "1"),
        (['namespaces=["*"]'], "", "1"),
        (['namespaces=["*"]', "clusterRights=false"], "", "1"),
    ],
)
def test_it_looks_after_what_it_has_rights_in(values: list[str], namespaces: str, sees_the_cluster: str) -> None:
    objects = rendered(*values)
    environment = environment_of(named(objects, "Deployment"))
    assert environment["HEADRACE_NAMESPACES"] == namespaces
    assert environment["HEADRACE_CLUSTER_RIGHTS"] == sees_the_cluster
    assert environment_of(named(objects, "Job"))["HEADRACE_NAMESPACES"] == namespaces


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([], ["manages ops, and nothing elsewhere.", "kubectl -n ops apply", "--set 'namespaces={*}'"]),
        (['namespaces=["a","b"]'], ["manages a, b, and nothing elsewhere.", "kubectl -n a apply"]),
        (['namespaces=["*"]'], ["manages all namespaces.", "kubectl -n default apply"]),
    ],
)
def test_the_notes_say_what_is_looked_after_and_where_to_look(
    values: list[str], told: list[str], tmp_path: Path
) -> None:
    """helm renders NOTES.txt only with a cluster: here a template includes it as a file of the chart."""
    chart = tmp_path / "headrace"
    shutil.copytree(CHARTS / "headrace", chart)
    shutil.move(chart / "templates" / "NOTES.txt", chart / "notes")
    (chart / "templates" / "notes.yaml").write_text('notes: {{ tpl (.Files.Get "notes") . | toJson }}\nkind: Notes\n')
    shown = [*("--show-only", "templates/notes.yaml"), *set_by(values)]
    done = helm("template", "x", str(chart), "-n", "ops", "--kube-version", "1.31.0", *shown)
    notes = yaml.safe_load(done.stdout)["notes"]
    for each in (*told, "rollout status deployment/x-headrace", f"headrace/node:{__version__}", "kind load"):
        assert each in notes


class ApiServer(BaseHTTPRequestHandler):
    """As much of an API server as helm uses for one Deployment."""

    deployment: ClassVar[dict[str, Any]] = {}

    def do_GET(self) -> None:
        group = {"groupVersion": "apps/v1", "version": "v1"}
        kind = {"name": "deployments", "kind": "Deployment", "namespaced": True, "verbs": ["get"]}
        answers: dict[str, dict[str, Any]] = {
            "/version": {"major": "1", "minor": "31", "gitVersion": "v1.31.0"},
            "/api": {"kind": "APIVersions", "versions": []},
            "/apis": {
                "kind": "APIGroupList",
                "groups": [{"name": "apps", "versions": [group], "preferredVersion": group}],
            },
            "/apis/apps/v1": {"kind": "APIResourceList", "groupVersion": "apps/v1", "resources": [kind]},
            "/apis/apps/v1/namespaces/ops/deployments/x-headrace": self.deployment,
        }
        answer = answers.get(self.path.partition("?")[0])
        body = json.dumps(answer or {"kind": "Status", "reason": "NotFound", "code": 404}).encode()
        self.send_response(200 if answer else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def api_server() -> Iterator[str]:
    """The address of the API server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), ApiServer) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("before", "values", "is_refused"),
    [
        (['namespaces=["*"]'], [], True),
        (['namespaces=["*"]'], ['namespaces=["ops"]'], False),
        (['namespaces=["*"]'], ['namespaces=["*"]'], False),
        (['namespaces=["a"]'], [], True),
        (['namespaces=["a"]'], ['namespaces=["b"]'], False),
        (['namespaces=["ops"]'], [], False),
        ([], [], False),
    ],
)
def test_an_upgrade_does_not_leave_namespaces_alone_without_a_word(
    before: list[str], values: list[str], is_refused: bool, api_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to 0.1.0 no value meant all namespaces, which the Deployment expresses as in this version."""
    monkeypatch.setattr(ApiServer, "deployment", named(rendered(*before), "Deployment"))
    upgrade = ("--is-upgrade", "--dry-run=server", "--kube-apiserver", api_server, "--kube-version", "1.31.0")
    done = helm("template", "x", str(CHARTS / "headrace"), "-n", "ops", *upgrade, *set_by(values))
    assert (done.returncode != 0) == is_refused, done.stderr
    assert ("name the namespaces" in done.stderr) == is_refused


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
        'nodeImage={"pullPolicy":"Always"}',  # resources set this: a value in the chart would have no effect
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


# --- metrics

PROMETHEUS = ("--api-versions", "monitoring.coreos.com/v1")
"""The API versions that helm gets for a cluster with the CRDs of Prometheus's operator."""


def monitored(*values: str) -> list[dict[str, Any]]:
    """Like `rendered`, with Prometheus's operator installed."""
    under = ("-n", "ops", "--kube-version", "1.31.0", *PROMETHEUS)
    done = helm("template", "x", str(CHARTS / "headrace"), *under, *set_by(values))
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def snapshot(name: str) -> list[dict[str, Any]]:
    file = ROOT / "operator" / "tests" / "snapshots" / f"{name}.yaml"
    return [each for each in yaml.safe_load_all(file.read_text()) if each]


def pod_of(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    template: dict[str, Any] = named(objects, kind)["spec"]["template"]
    return template


def ports_of(pod: dict[str, Any]) -> set[str]:
    return {port["name"] for container in pod["spec"]["containers"] for port in container.get("ports", [])}


def test_without_a_word_nothing_of_prometheus_or_grafana_is_made() -> None:
    kinds = {each["kind"] for each in monitored()}
    assert not kinds & {"PodMonitor", "PrometheusRule", "ConfigMap"}


def test_pod_monitors_find_the_pods_and_their_ports() -> None:
    objects = monitored('metrics={"podMonitor":{"enabled":true,"interval":"15s","labels":{"release":"p"}}}')
    pods = {
        "nodes": [pod_of(snapshot("quickstart"), "StatefulSet")],
        "jobs": [
            pod_of(snapshot("job-continuous"), "StatefulSet"),
            named(snapshot("job-kubeflow"), "SparkApplication")["spec"]["driver"]["template"],
        ],
        "operator": [pod_of(objects, "Deployment")],
    }
    assert len(of_kind(objects, "PodMonitor")) == len(pods)
    for name, found in pods.items():
        monitor = named(objects, "PodMonitor", name)
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert monitor["metadata"]["labels"]["release"] == "p"
        assert endpoint["interval"] == "15s"
        for pod in found:
            labels = pod["metadata"]["labels"]
            assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
            assert monitor["spec"]["jobLabel"] in labels
            assert endpoint["port"] in ports_of(pod)
        others = [pod for other, each in pods.items() if other != name for pod in each]
        selected = monitor["spec"]["selector"]["matchLabels"].items()
        assert not any(selected <= pod["metadata"]["labels"].items() for pod in others)


@pytest.mark.parametrize(
    ("values", "namespaces"),
    [
        ([], {"matchNames": ["ops"]}),
        (['namespaces=["a","b"]'], {"matchNames": ["a", "b"]}),
        (['namespaces=["*"]'], {"any": True}),
    ],
)
def test_pods_are_scraped_where_the_operator_looks_after_them(values: list[str], namespaces: dict[str, Any]) -> None:
    objects = monitored('metrics={"podMonitor":{"enabled":true}}', *values)
    for name in ("nodes", "jobs"):
        monitor = named(objects, "PodMonitor", name)
        assert monitor["spec"]["namespaceSelector"] == namespaces
        assert "interval" not in monitor["spec"]["podMetricsEndpoints"][0]


def test_a_label_of_the_nodes_own_stands_before_that_of_the_target() -> None:
    """`container` is a pod's container for Prometheus's operator, and one of Headrace's in metrics."""
    objects = monitored('metrics={"podMonitor":{"enabled":true}}')
    (endpoint,) = named(objects, "PodMonitor", "nodes")["spec"]["podMetricsEndpoints"]
    of_targets = {"namespace", "pod", "container", "endpoint", "job", "instance"}
    clash = {label for metric in declarations.ALL for label in (*metric.labels, "node")} & of_targets
    assert {label for each in endpoint["metricRelabelings"] if (label := each.get("targetLabel"))} == clash
    assert {each["regex"] for each in endpoint["metricRelabelings"] if each.get("action") == "labeldrop"} == {
        f"exported_{label}" for label in clash
    }
    operator = {label for labels, _ in operator_metrics.FIGURES.values() for label in labels}
    jobs = {label for labels, _ in job_metrics.METRICS.values() for label in labels}
    assert not (operator | jobs | set(operator_metrics.DURATION_LABELS) | {"streamjob"}) & of_targets


def test_what_is_made_for_prometheus_operator_fits_its_crds_where_they_are_at_hand() -> None:
    """HEADRACE_MONITORING_CRDS: the folder that `.ci/monitoring-crds` prints."""
    folder = os.environ.get("HEADRACE_MONITORING_CRDS")
    if not folder:
        pytest.skip("HEADRACE_MONITORING_CRDS names no folder")
    on = 'metrics={"podMonitor":{"enabled":true,"interval":"15s"},"prometheusRule":{"enabled":true}}'
    for kind in ("PodMonitor", "PrometheusRule"):
        found = of_kind(monitored(on, 'namespaces=["*"]'), kind)
        assert found
        for each in found:
            check(each, Path(folder) / f"monitoring.coreos.com_{kind.lower()}s.yaml")


def rules_of(*texts: str) -> list[dict[str, Any]]:
    return [group for text in texts for group in yaml.safe_load(text)["groups"]]


def test_the_rule_has_all_alerts_as_they_are_in_the_files() -> None:
    (rule,) = of_kind(monitored('metrics={"prometheusRule":{"enabled":true}}'), "PrometheusRule")
    assert rule["spec"]["groups"] == rules_of(*(file.read_text() for file in RULES))


def test_alerts_can_be_left_out_and_say_where_runbooks_are_read() -> None:
    chosen = '{"enabled":true,"runbooks":"https://wiki.example/headrace/","disabled":["HeadraceOperatorAbsent"]}'
    (rule,) = of_kind(monitored(f'metrics={{"prometheusRule":{chosen}}}'), "PrometheusRule")
    rules = [each for group in rule["spec"]["groups"] for each in group["rules"]]
    pages = {each["alert"]: each["annotations"]["runbook_url"] for each in rules}
    assert pages == {
        each["alert"]: f"https://wiki.example/headrace/{each['alert']}.md"
        for group in rules_of(*(file.read_text() for file in RULES))
        for each in group["rules"]
        if each["alert"] != "HeadraceOperatorAbsent"
    }


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ('{"podMonitor":{"enabled":true}}', "need the CRDs of Prometheus's operator"),
        ('{"prometheusRule":{"enabled":true}}', "need the CRDs of Prometheus's operator"),
    ],
)
def test_without_prometheus_operator_it_says_what_is_needed(value: str, told: str) -> None:
    done = helm("template", "x", str(CHARTS / "headrace"), "--kube-version", "1.31.0", *set_by([f"metrics={value}"]))
    assert done.returncode != 0
    assert told in done.stderr


def test_an_alert_that_is_not_there_cannot_be_left_out() -> None:
    value = 'metrics={"prometheusRule":{"enabled":true,"disabled":["HeadraceTypo"]}}'
    done = helm("template", "x", str(CHARTS / "headrace"), "--kube-version", "1.31.0", *PROMETHEUS, *set_by([value]))
    assert done.returncode != 0
    assert "names HeadraceTypo, and there is no such alert" in done.stderr


def test_dashboards_are_found_by_grafanas_sidecar() -> None:
    value = 'metrics={"dashboards":{"enabled":true,"annotations":{"grafana_folder":"Headrace"}}}'
    maps = of_kind(rendered(value), "ConfigMap")
    files = {file.name: file.read_text() for file in (CHARTS / "headrace" / "dashboards").glob("*.json")}
    assert len(files) == 6
    assert {name: text for each in maps for name, text in each["data"].items()} == {
        f"headrace-{name}": text for name, text in files.items()
    }
    for each in maps:
        assert each["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert each["metadata"]["annotations"] == {"grafana_folder": "Headrace"}

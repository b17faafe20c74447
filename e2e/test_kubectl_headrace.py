"""`kubectl headrace`, run by a user who has rights in one namespace only: those that docs/kubernetes.md names."""

import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import kube
import pytest

from kit.cluster_clients import Load

BEHAVIOUR = "14 kubectl headrace"
NODES = 4
"""One more than a volume has replicas, so that one node can be drained."""
ACCOUNT = "looks-after"
API_GROUP = "headrace.dev"
PLANTED = {name: f"planted-in-{name}-0b6f3a" for name in ("pod", "annotation", "secret", "config")}
"""Values that must not be in any support bundle, by where they are."""
RIGHTS = (
    {"apiGroups": [API_GROUP], "resources": ["*"], "verbs": ["get", "list"]},
    {"apiGroups": [API_GROUP], "resources": ["streamclusters"], "verbs": ["patch"]},
    {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["get", "create"]},
)
"""Rights in addition to those of Kubernetes' role `view`, which may not read Secrets."""


class User:
    """A user who runs kubectl in his own folder."""

    def __init__(self, kubeconfig: Path) -> None:
        self.folder = kubeconfig.parent
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "PATH": path}

    def run(self, *arguments: str, timeout_s: float = 600) -> "subprocess.CompletedProcess[str]":
        """Run `kubectl headrace …`."""
        return subprocess.run(
            ("kubectl", "headrace", *arguments),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            cwd=self.folder,
            env=self._environment,
        )

    def said(self, *arguments: str) -> str:
        """Return the output of a successful command."""
        done = self.run(*arguments)
        assert done.returncode == 0, f"{arguments} ended with {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def plant(namespace: str) -> Iterator[kube.Cluster]:
    """Four nodes that are ready."""
    environment = [{"name": "PLANT_PASSPHRASE", "value": PLANTED["pod"]}]
    cluster = kube.Cluster("plant", namespace, nodes=NODES, pod={"env": environment})
    cluster.apply()
    cluster.await_ready()
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def user(namespace: str, tmp_path_factory: pytest.TempPathFactory) -> User:
    """A user with rights in the namespace only; his context names it."""
    kube.kubectl("create", "serviceaccount", ACCOUNT, "-n", namespace)
    own = {"name": ACCOUNT, "namespace": namespace}
    subject = {"kind": "ServiceAccount", **own}
    rbac = "rbac.authorization.k8s.io"
    kube.apply(
        {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": own, "rules": list(RIGHTS)},
        *(
            {
                "apiVersion": f"{rbac}/v1",
                "kind": "RoleBinding",
                "metadata": {**own, "name": f"{ACCOUNT}-{role}"},
                "roleRef": {"apiGroup": rbac, "kind": kind, "name": role},
                "subjects": [subject],
            }
            for kind, role in (("Role", ACCOUNT), ("ClusterRole", "view"))
        ),
    )
    config = json.loads(kube.kubectl("config", "view", "--minify", "--flatten", "--raw", "-o", "json"))
    token = kube.kubectl("create", "token", ACCOUNT, "-n", namespace, "--duration=2h").strip()
    config["users"] = [{"name": ACCOUNT, "user": {"token": token}}]
    config["contexts"][0]["context"] |= {"user": ACCOUNT, "namespace": namespace}
    file = tmp_path_factory.mktemp("user") / "config"
    file.write_text(json.dumps(config))
    file.chmod(0o600)
    return User(file)


@pytest.fixture(scope="module")
def copies(plant: kube.Cluster) -> Iterator[kube.Cluster]:
    """A secure cluster of one node that copies a topic of the other."""
    cluster = kube.Cluster("copy", plant.namespace, nodes=1, security={"enabled": True})
    cluster.apply()
    kube.apply(kube.resource("StreamUser", "alice", plant.namespace, {"clusterRef": {"name": "copy"}}))
    cluster.await_ready()
    spec = {
        "clusterRef": {"name": "copy"},
        "source": {"clusterRef": {"name": "plant"}, "stream": "/default"},
        "target": {"stream": "/default"},
        "topics": ["*"],
        "mode": "OneWay",
        "reclaimPolicy": "Delete",
    }
    kube.apply(kube.resource("ReplicationLink", "copies", plant.namespace, spec))
    yield cluster
    kube.kubectl("delete", "replicationlink", "copies", "-n", plant.namespace, check=False)
    cluster.close()


def test_status_shows_clusters_with_their_nodes_and_pods(plant: kube.Cluster, user: User) -> None:
    with kube.reported(f"{BEHAVIOUR} status"):
        told = json.loads(user.said("status", "-o", "json"))
        (cluster,) = [each for each in told["clusters"] if each["cluster"] == "plant"]
        assert (cluster["ready"], cluster["nodes"]) == ("True", f"{NODES}/{NODES}")
        found = {each["node"]: each["pod"] for each in told["nodes"] if each["cluster"] == "plant"}
        assert found == {number: node.pod for number, node in plant.nodes.items()}
        assert {each["state"] for each in told["nodes"]} == {"ready"}
        shown = user.said("status", "plant")
        assert "plant-0" in shown
        assert "plant-bootstrap" in shown
        unknown = user.run("status", "none-such")
        assert unknown.returncode == 1
        assert "there is no StreamCluster none-such in namespace" in unknown.stderr
        everywhere = user.run("status", "-A")
        assert everywhere.returncode == 1
        assert len(everywhere.stderr.splitlines()) == 1
        assert "kubectl auth can-i" in everywhere.stderr


def test_drain_empties_a_node_and_its_leaders_go_first(plant: kube.Cluster, user: User) -> None:
    load = Load(plant)
    with kube.reported(f"{BEHAVIOUR} drain") as figures:
        node = plant.busiest(load.led_by).node_id
        assert load.led_by(node)
        began = time.monotonic()
        said = user.run("drain", str(node), "--no-wait")
        assert said.returncode == 0, said.stderr
        kube.until("it leads nothing", lambda: not load.led_by(node), timeout_s=60)
        figures["leads_nothing_s"] = round(time.monotonic() - began, 1)
        emptied = user.run("drain", str(node))
        assert emptied.returncode == 0, emptied.stderr
        assert f"node {node} is empty" in emptied.stderr
        figures["empty_s"] = round(time.monotonic() - began, 1)
        assert all(node not in each["replicas"] for each in plant.containers().values())
        told = json.loads(user.said("status", "plant", "-o", "json"))
        assert [each["marks"] for each in told["nodes"] if each["node"] == node] == ["draining"]
        assert user.run("drain", str(node), "--cancel").returncode == 0
        plant.await_ready()
        assert user.run("drain", "99").returncode == 1
    history = load.finish()  # fails on any client error
    figures["produced"] = len(history.times)


def test_restart_recreates_each_pod_and_clients_notice_nothing(plant: kube.Cluster, user: User) -> None:
    load = Load(plant)
    before = plant.lives()
    with kube.reported(f"{BEHAVIOUR} restart --wait") as figures:
        said = user.run("restart", "plant", "--wait")
        assert said.returncode == 0, said.stderr
        after = plant.lives()
        assert [pod for pod in before if after.get(pod) == before[pod]] == []
        assert all(kube.is_up(pod) for pod in plant.pods())
        plant.await_ready()
        history = load.finish()
        figures["produced"] = len(history.times)


def test_logs_show_what_nodes_log_about_a_link(copies: kube.Cluster, user: User) -> None:
    with kube.reported(f"{BEHAVIOUR} logs") as figures:
        ready = ("wait", "replicationlink/copies", "-n", copies.namespace, "--for=condition=Ready", "--timeout=120s")
        kube.kubectl(*ready, timeout_s=150)
        lines = user.said("logs", "copies").splitlines()
        assert lines
        assert all(line.startswith("[pod/copy-0/node]") for line in lines)
        assert all("copies" in line or "/default" in line for line in lines)
        figures["lines"] = len(lines)
        unknown = user.run("logs", "none-such")
        assert (unknown.returncode, len(unknown.stderr.splitlines())) == (1, 1)


def test_a_support_bundle_has_what_helps_and_no_secret(plant: kube.Cluster, copies: kube.Cluster, user: User) -> None:
    own = {"namespace": plant.namespace, "labels": {"headrace.dev/cluster": "plant"}}
    kube.apply(
        {**_object("Secret", "planted", own), "stringData": {"password": PLANTED["secret"]}},
        {**_object("ConfigMap", "planted", own), "data": {"password": PLANTED["config"]}},
    )
    token = f"example.com/api-token={PLANTED['annotation']}"
    kube.kubectl("annotate", "streamcluster", "plant", "-n", plant.namespace, token)
    with kube.reported(f"{BEHAVIOUR} support-bundle") as figures:
        file = user.folder / user.said("support-bundle").strip()
        assert file.stat().st_mode & 0o777 == 0o600
        texts = contents(file)
        names = {name.partition("/")[2] for name in texts}
        namespace = plant.namespace
        expected = [
            *(f"resources/StreamCluster/{namespace}/{name}.json" for name in ("plant", "copy")),
            f"resources/ReplicationLink/{namespace}/copies.json",
            f"resources/StreamUser/{namespace}/alice.json",
            f"resources/Pod/{namespace}/plant-0.json",
            *(f"logs/{namespace}/{pod}/node.log" for pod in ("plant-0", "plant-3", "copy-0")),
            *(f"clusters/{name}/{each}.json" for name in ("plant", "copy") for each in ("status", "containers")),
            *("clusters/copy/links.json", "events.jsonl", "problems.txt"),
        ]
        assert [each for each in expected if each not in names] == []
        (problems,) = [text.splitlines() for name, text in texts.items() if name.endswith("/problems.txt")]
        assert {each.partition(":")[0] for each in problems} == {"Pod", "Node"}, "what he may not look at"
        secrets = kube.secret_texts(namespace) | set(PLANTED.values())
        assert len(secrets) >= 10, "three keys of authorities and certificates, passwords, the clusters' own secrets"
        found = [(secret[:6], name) for secret in secrets for name, text in texts.items() if secret in text]
        assert found == [], "the beginning of each secret, and where it stands"
        figures["files"] = len(texts)
        figures["kib"] = file.stat().st_size // 1024
        figures["secrets"] = len(secrets)


def contents(file: Path) -> dict[str, str]:
    """Return the files in a bundle, by name."""
    with tarfile.open(file) as archive:
        return {each.name: archive.extractfile(each).read().decode() for each in archive}  # type: ignore[union-attr]


def _object(kind: str, name: str, meta: kube.Body) -> kube.Body:
    return {"apiVersion": "v1", "kind": kind, "metadata": {**meta, "name": name}}


def test_where_no_cluster_answers_there_is_one_line_that_says_so(user: User, tmp_path: Path) -> None:
    nowhere = {"clusters": [{"name": "n", "cluster": {"server": "https://127.0.0.1:1"}}], "current-context": "n"}
    context = {
        "contexts": [{"name": "n", "context": {"cluster": "n", "user": "n"}}],
        "users": [{"name": "n", "user": {"token": "t"}}],
    }
    file = tmp_path / "config"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **nowhere, **context}))
    for command in (("status",), ("restart",), ("logs", "x"), ("support-bundle",)):
        done = user.run(*command, "--kubeconfig", str(file))
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()
        assert line.startswith("kubectl headrace: no Kubernetes cluster can be reached: "), line

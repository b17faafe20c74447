"""kubectl, helm and docker for the tests on kind; and a StreamCluster as the load of the cluster tests sees one."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
KIT = Path(__file__).with_name("kind-kit") / "kind-kit"
NAME = os.environ.get("HEADRACE_E2E_CLUSTER", "headrace-e2e")
WORKERS = 3
IMAGES = {"node": "headrace/node:e2e", "operator": "headrace/operator:e2e", "spark": "headrace/spark:e2e"}
DOCKERFILES = {"node": "nodeimage/Dockerfile", "operator": "operator/Dockerfile", "spark": "spark/Dockerfile"}
KIT_BASE = "headrace-kit/python:3.11"

Body = dict[str, Any]


def uses_kit() -> bool:
    """Whether kind comes from the kit, for machines without an image registry (HEADRACE_E2E_KIT=1)."""
    return os.environ.get("HEADRACE_E2E_KIT") == "1"


def run(*command: str, stdin: str | None = None, timeout_s: float = 300, check: bool = True) -> str:
    """A command's output. Raises with what it said on stderr."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_s, cwd=ROOT)
    if check and done.returncode:
        raise AssertionError(f"{' '.join(command)[:300]} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def kubectl(*arguments: str, stdin: str | None = None, timeout_s: float = 120, check: bool = True) -> str:
    """kubectl's output."""
    return run("kubectl", *arguments, stdin=stdin, timeout_s=timeout_s, check=check)


def get(kind: str, name: str, namespace: str) -> Body | None:
    """An object; None: there is none."""
    found = kubectl("get", kind, name, "-n", namespace, "-o", "json", "--ignore-not-found")
    return json.loads(found) if found.strip() else None


def listed(kind: str, namespace: str, *, labels: str = "") -> list[Body]:
    """Objects."""
    chosen = ["-l", labels] if labels else []
    return list(json.loads(kubectl("get", kind, "-n", namespace, *chosen, "-o", "json"))["items"])


def apply(*manifests: Body) -> None:
    """Have objects be so."""
    kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)}))


def until(what: str, condition: Callable[[], Any], *, timeout_s: float = 120, every_s: float = 0.5) -> Any:
    """What the condition gives, once it gives something."""
    deadline = time.monotonic() + timeout_s
    last: object = None
    while True:
        try:
            found = condition()
            if found:
                return found
            last = found
        except AssertionError as error:
            last = error
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:.0f} s: {what}; last: {str(last)[:500]}")
        time.sleep(every_s)


def condition(body: Body | None, type: str) -> tuple[str, str, str]:
    """(status, reason, message) of a condition; ("", "", "") where there is none."""
    for each in ((body or {}).get("status") or {}).get("conditions", []):
        if each["type"] == type:
            return each["status"], each["reason"], each["message"]
    return "", "", ""


def is_ready(kind: str, name: str, namespace: str) -> bool:
    """Whether its condition Ready is true, of its present generation."""
    body = get(kind, name, namespace)
    if body is None or (body.get("status") or {}).get("observedGeneration") != body["metadata"]["generation"]:
        return False
    return condition(body, "Ready")[0] == "True"


def resource(kind: str, name: str, namespace: str, spec: Body, **metadata: Any) -> Body:
    """One of ours."""
    return {
        "apiVersion": "headrace.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "spec": spec,
    }


def build(images: Sequence[str]) -> None:
    """Build images from the checkout, and load them into every worker."""
    for image in images:
        arguments = ["--build-arg", f"BASE_IMAGE={KIT_BASE}", "--network", "host"] if uses_kit() else []
        run(
            *("docker", "build", "-q", "-f", DOCKERFILES[image], "-t", IMAGES[image], *arguments, "."),
            timeout_s=1800,
        )
    names = [IMAGES[image] for image in images]
    if uses_kit():
        run(str(KIT), "load", NAME, *names, timeout_s=900)
    else:
        run("kind", "load", "docker-image", "--name", NAME, *names, timeout_s=900)


def set_up() -> None:
    """A kind cluster, and how to reach it."""
    if uses_kit():
        config = run(str(KIT), "up", NAME, str(WORKERS), timeout_s=3600).strip().splitlines()[-1]
        bin_folder = Path(os.environ.get("KIND_KIT_CACHE", "/var/cache/kind-kit")) / "bin"
        os.environ["PATH"] = f"{bin_folder}:{os.environ['PATH']}"
        os.environ["KUBECONFIG"] = config
    elif NAME not in run("kind", "get", "clusters").split():
        workers = "".join("- role: worker\n" for _ in range(WORKERS))
        shape = f"kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\nnodes:\n- role: control-plane\n{workers}"
        run("kind", "create", "cluster", "--name", NAME, "--config", "-", "--wait", "180s", stdin=shape, timeout_s=900)
    os.environ["DOCKER_BUILDKIT"] = "0"


def install(namespace: str = "headrace-system", **values: str) -> None:
    """Both charts, as README says, with the images of this checkout."""
    run("helm", "upgrade", "--install", "headrace-crds", "charts/headrace-crds", "-n", namespace, "--create-namespace")
    given = {"image": "operator", "nodeImage": "node", "sparkImage": "spark"}
    sets = [f"{value}.repository={IMAGES[image].partition(':')[0]}" for value, image in given.items()]
    sets += [f"{value}.tag=e2e" for value in given]
    sets += [f"{name}={value}" for name, value in values.items()]
    run(
        *("helm", "upgrade", "--install", "headrace", "charts/headrace", "-n", namespace),
        *("--wait", "--timeout", "180s"),
        *(part for each in sets for part in ("--set", each)),
    )


class Cluster:
    """A StreamCluster, for those who load it from outside (nodeimage/tests/cluster/cluster_clients.Load)."""

    def __init__(self, name: str, namespace: str, **spec: Any) -> None:
        self.name = name
        self.namespace = namespace
        self.spec: Body = {
            "nodes": 3,
            "storage": {"size": "1Gi"},
            "listeners": {"external": {"type": "NodePort"}},
            "settings": {"chunk-bytes": str(16 << 20), "disk-reserve": str(16 << 20)},
            **spec,
        }
        self.on_close: list[Callable[[], None]] = []

    def apply(self, **changes: Any) -> None:
        """Have it be so."""
        self.spec |= changes
        apply(resource("StreamCluster", self.name, self.namespace, self.spec))

    def await_ready(self, timeout_s: float = 240) -> None:
        """Until its condition Ready is true."""

        def ready() -> bool:
            if is_ready("streamcluster", self.name, self.namespace):
                return True
            body = get("streamcluster", self.name, self.namespace)
            raise AssertionError(json.dumps(((body or {}).get("status") or {}).get("conditions", "none"))[:1500])

        until(f"StreamCluster {self.name} is ready", ready, timeout_s=timeout_s)

    @property
    def body(self) -> Body:
        """As it is."""
        found = get("streamcluster", self.name, self.namespace)
        assert found is not None
        return found

    @property
    def bootstrap(self) -> str:
        """Where clients outside begin."""
        return str(
            until("the cluster has addresses outside", lambda: (self.body.get("status") or {}).get("externalBootstrap"))
        )

    def pods(self) -> list[Body]:
        """Its nodes' pods."""
        return listed(
            "pods", self.namespace, labels=f"headrace.dev/cluster={self.name},app.kubernetes.io/component=storage"
        )

    def nodes(self) -> list[Body]:
        """Its StorageNodes."""
        return listed("storagenodes", self.namespace, labels=f"headrace.dev/cluster={self.name}")

    def events(self) -> str:
        """What happened, for a failed test."""
        return kubectl("get", "events", "-n", self.namespace, "--sort-by=.lastTimestamp", check=False)[-6000:]

    def close(self) -> None:
        """End the load."""
        for end in self.on_close:
            end()

"""kubectl, helm and docker for the tests on kind; and a StreamCluster with the interface that the tests' load expects.

Tests change a cluster as users do, by kubectl and helm. They read it by Kubernetes' own client for Python, which costs
no process for each look.

Measurements are written to a report, one JSON line per behaviour: HEADRACE_E2E_REPORT names its file.
HEADRACE_E2E_TAG names a tag of images that the workers have already; otherwise images are built.
"""

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from itertools import chain
from pathlib import Path
from typing import Any

from kubernetes import config
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.resource import Resource, ResourceList
from urllib3.exceptions import HTTPError

from headrace.base.errors import KafkaError
from headrace.kafka_client.blocking_client import BrokerConnection
from kit.patience import PATIENCE

ROOT = Path(__file__).resolve().parent.parent
KIT = Path(__file__).with_name("kind-kit") / "kind-kit"
NAME = os.environ.get("HEADRACE_E2E_CLUSTER", "headrace-e2e")
WORKERS = 3
BUILDS = "HEADRACE_E2E_TAG" not in os.environ
TAG = os.environ.get("HEADRACE_E2E_TAG", "e2e")
IMAGES = {name: f"headrace/{name}:{TAG}" for name in ("node", "operator", "spark")}
DOCKERFILES = {"node": "nodeimage/Dockerfile", "operator": "operator/Dockerfile", "spark": "spark/Dockerfile"}
KIT_BASE = "headrace-kit/python:3.11"
SYSTEM = "headrace-system"
"""The operator's namespace."""
REPORT = Path(os.environ.get("HEADRACE_E2E_REPORT", Path(__file__).with_name("report.jsonl")))
SHARED = Path(__file__).with_name(".shared")
"""The folder that all workers mount as /shared; the kit has its own."""

Body = dict[str, Any]


def uses_kit() -> bool:
    """Return whether kind comes from the kit, for machines without an image registry (HEADRACE_E2E_KIT=1)."""
    return os.environ.get("HEADRACE_E2E_KIT") == "1"


def run(*command: str, stdin: str | None = None, timeout_s: float = 300, check: bool = True) -> str:
    """Return a command's output. Raises AssertionError with its stderr."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_s, cwd=ROOT)
    if check and done.returncode:
        raise AssertionError(f"{' '.join(command)[:300]} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def kubectl(*arguments: str, stdin: str | None = None, timeout_s: float = 120, check: bool = True) -> str:
    """Return kubectl's output."""
    return run("kubectl", *arguments, stdin=stdin, timeout_s=timeout_s, check=check)


def report(behaviour: str, seconds: float, **figures: float | str) -> None:
    """Write what a test measured, for docs/e2e.md; behaviours are numbered as there."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").removesuffix(" (call)")
    told = {name: round(each, 2) if isinstance(each, float) else each for name, each in figures.items()}
    line = json.dumps({"behaviour": behaviour, "test": test, "seconds": round(seconds, 1), "figures": told})
    print(line)
    with REPORT.open("a") as file:
        file.write(f"{line}\n")


def below(value: float, limit: float) -> str:
    """Check that a value is below a limit, and return it in the report's form."""
    limit *= PATIENCE
    assert value < limit, f"{value:.2f} is not below {limit:g}"
    return f"{value:.{0 if value >= 100 else 1 if value >= 1 else 2}f} (below {round(limit, 1):g})"


@cache
def _api() -> DynamicClient:
    """Return a client of the cluster that the kubeconfig names."""
    known_kinds = Path(tempfile.mkdtemp(prefix="headrace-e2e-")) / "discovery.json"
    return DynamicClient(
        # The library reads KUBECONFIG when it is imported, before `set_up` sets it.
        config.new_client_from_config(config_file=os.environ.get("KUBECONFIG")),
        cache_file=str(known_kinds),
    )


def _resource(kind: str) -> Any:
    """Return the API of a kind, given by any name that kubectl takes for it. Raises AssertionError if there is none."""
    for _ in range(2):
        found = [
            each
            for each in chain.from_iterable(_api().resources)
            if isinstance(each, Resource)
            and not isinstance(each, ResourceList)
            and kind in (each.name, each.singular_name, *(each.short_names or ()))
        ]
        if found:
            return min(found, key=lambda each: each.group or "")
        _api().resources.invalidate_cache()  # its CRD may have been added since
    raise AssertionError(f"the API server knows no {kind}")


def _read(kind: str, **which: str) -> Body:
    """Raises ApiException for an object that does not exist, AssertionError for any other failure."""
    try:
        return dict(_resource(kind).get(**which, _request_timeout=(5, 60)).to_dict())
    except ApiException as error:
        if error.status == HTTPStatus.NOT_FOUND:
            raise
        raise AssertionError(f"{kind} {which}: {error.status} {error.reason}: {str(error.body)[:500]}") from error
    except HTTPError as error:
        raise AssertionError(f"{kind} {which}: {error!r:.500}") from error


def get(kind: str, name: str, namespace: str = "") -> Body | None:
    """Return an object, or None if it does not exist. Raises AssertionError if it cannot be read."""
    try:
        return _read(kind, name=name, **({"namespace": namespace} if namespace else {}))
    except ApiException:
        return None


def listed(kind: str, namespace: str = "", *, labels: str = "") -> list[Body]:
    """Return objects, of all namespaces if none is given. Raises AssertionError if they cannot be read."""
    within = {"namespace": namespace} if namespace else {}
    return list(_read(kind, **within, **({"label_selector": labels} if labels else {}))["items"])


def apply(*manifests: Body) -> None:
    """Apply objects."""
    kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)}))


def until(what: str, condition: Callable[[], Any], *, timeout_s: float = 120, every_s: float = 0.5) -> Any:
    """Wait until the condition returns something true, and return that."""
    timeout_s *= PATIENCE
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
    """Return (status, reason, message) of a condition; ("", "", "") if there is none."""
    for each in ((body or {}).get("status") or {}).get("conditions", []):
        if each["type"] == type:
            return each["status"], each["reason"], each["message"]
    return "", "", ""


def is_ready(kind: str, name: str, namespace: str) -> bool:
    """Return whether the condition Ready is true for the present generation."""
    body = get(kind, name, namespace)
    if body is None or (body.get("status") or {}).get("observedGeneration") != body["metadata"]["generation"]:
        return False
    return condition(body, "Ready")[0] == "True"


def resource(kind: str, name: str, namespace: str, spec: Body, **metadata: Any) -> Body:
    """Return one of Headrace's resources."""
    return {
        "apiVersion": "headrace.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "spec": spec,
    }


def client_of(secret: str, namespace: str, **more: Any) -> dict[str, Any]:
    """Return librdkafka's properties for a client outside, from a StreamUser's Secret."""
    entries = held(secret, namespace)
    told = dict(line.split("=", 1) for line in entries["client.properties"].splitlines())
    files = [name for name in told if name.endswith(".location")]
    inside = {name.replace(".location", ".pem"): entries[told.pop(name).rpartition("/")[2]] for name in files}
    return {**told, **inside, "log_level": 0, **more}


def held(secret: str, namespace: str) -> dict[str, str]:
    """Return the decoded content of a Secret."""
    found = until(f"there is a Secret {secret}", lambda: get("secret", secret, namespace))
    return {name: base64.b64decode(value).decode() for name, value in found["data"].items()}


def secret_texts(namespace: str) -> set[str]:
    """Return texts that must be only in a namespace's Secrets: passwords, a line of each key, the clusters' secrets."""
    found = set()
    for body in listed("secrets", namespace):
        for name, encoded in body.get("data", {}).items():
            text = base64.b64decode(encoded).decode(errors="replace")
            if name.endswith("password"):
                found.add(text.strip())
            elif name.endswith(".key"):
                found.add(text.splitlines()[1])
            elif '"secret"' in text:
                found.add(json.loads(text)["secret"])
    return found


def tagged(image: str, tag: str) -> str:
    """Return the name of an image with another tag."""
    return f"{IMAGES[image].partition(':')[0]}:{tag}"


def build(images: Sequence[str], *, on: Sequence[str] = (), source: Path = ROOT, tag: str = TAG) -> None:
    """Build images from a checkout, by default this one, and load them (see `load`)."""
    for image in images:
        arguments = ["--build-arg", f"BASE_IMAGE={KIT_BASE}", "--network", "host"] if uses_kit() else []
        dockerfile = str(source / DOCKERFILES[image])
        run(
            *("docker", "build", "-q", "-f", dockerfile, "-t", tagged(image, tag), *arguments, str(source)),
            timeout_s=1800,
        )
    load(images, on=on, tag=tag)


def load(images: Sequence[str], *, on: Sequence[str] = (), tag: str = TAG) -> None:
    """Load built images to these workers, or to all."""
    names = [tagged(image, tag) for image in images]
    run("kind", "load", "docker-image", "--name", NAME, "--nodes", ",".join(on or workers()), *names, timeout_s=900)


def set_up() -> None:
    """Create a kind cluster, and set how to reach it."""
    if uses_kit():
        config = run(str(KIT), "up", NAME, str(WORKERS), timeout_s=3600).strip().splitlines()[-1]
        bin_folder = Path(os.environ.get("KIND_KIT_CACHE", "/var/cache/kind-kit")) / "bin"
        os.environ["PATH"] = f"{bin_folder}:{os.environ['PATH']}"
        os.environ["KUBECONFIG"] = config
    elif missing := [tool for tool in ("docker", "kind", "kubectl", "helm") if shutil.which(tool) is None]:
        raise AssertionError(
            f"there is no {', '.join(missing)} here; HEADRACE_E2E_KIT=1 makes kind from sources (root)"
        )
    elif NAME not in run("kind", "get", "clusters").split():
        SHARED.mkdir(exist_ok=True)
        SHARED.chmod(0o777)
        mount = f"  extraMounts: [{{hostPath: {SHARED}, containerPath: /shared}}]\n"
        nodes = "".join(f"- role: {role}\n{mount}" for role in ("control-plane", *["worker"] * WORKERS))
        shape = f"kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\nnodes:\n{nodes}"
        run("kind", "create", "cluster", "--name", NAME, "--config", "-", "--wait", "180s", stdin=shape, timeout_s=900)
    os.environ["DOCKER_BUILDKIT"] = "0"


def tag_on_workers(image: str, tag: str) -> str:
    """Add a tag to an image on all workers; return its name."""
    for worker in workers():
        tags = f"docker.io/{IMAGES[image]}", f"docker.io/{tagged(image, tag)}"
        run("docker", "exec", worker, "ctr", "-n", "k8s.io", "images", "tag", "--force", *tags)
    return tagged(image, tag)


def workers() -> list[str]:
    """Return the workers' names, which are also those of their containers."""
    return [each["metadata"]["name"] for each in listed("nodes", labels="!node-role.kubernetes.io/control-plane")]


@contextlib.contextmanager
def stopped(worker: str) -> Iterator[None]:
    """Stop a worker while the context is active."""
    try:
        run("docker", "stop", worker)
        yield
    finally:
        run("docker", "start", worker)


def delete_namespace(name: str, *, within_s: float) -> float:
    """Delete a namespace with its content; return the seconds that it took."""
    began = time.monotonic()
    kubectl("delete", "namespace", name, "--wait=false")

    def gone() -> bool:
        found = get("namespace", name)
        assert found is None, [each["message"] for each in found["status"].get("conditions", [])]
        return True

    until(f"namespace {name} is gone", gone, timeout_s=within_s)
    return time.monotonic() - began


def operator_pod() -> str:
    """Return the operator's pod, once it is ready."""

    def found() -> str:
        for pod in listed("pods", SYSTEM, labels="app.kubernetes.io/name=headrace-operator"):
            if is_up(pod):
                return str(pod["metadata"]["name"])
        return ""

    return str(until("the operator runs", found))


def operator_figures() -> dict[str, float]:
    """Return the operator's metrics, by name and labels."""
    path = f"/api/v1/namespaces/{SYSTEM}/pods/{operator_pod()}:8080/proxy/metrics"
    lines = [each.rpartition(" ") for each in kubectl("get", "--raw", path).splitlines() if not each.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def operator_process() -> tuple[float, float]:
    """Return the memory of the operator's process, in MiB, and its CPU time, in seconds."""
    command = ("exec", operator_pod(), "-n", SYSTEM, "--", "cat", "/proc/1/status", "/proc/1/stat")
    lines = kubectl(*command).splitlines()
    resident = next(int(each.split()[1]) for each in lines if each.startswith("VmRSS"))
    user, system = lines[-1].rpartition(")")[2].split()[11:13]
    return resident / 1024, (int(user) + int(system)) / 100


def is_up(pod: Body) -> bool:
    """Return whether a pod is ready and is not being deleted."""
    if pod["metadata"].get("deletionTimestamp"):
        return False
    conditions = (pod.get("status") or {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def diagnosis(cluster: "Cluster") -> str:
    """Return, for a failed test, the cluster's state, the latest events and operator logs, and the pods that are not
    ready.
    """

    def unwell() -> str:
        pods = [each for each in listed("pods") if not is_up(each)]
        named = [f"{each['metadata']['namespace']}/{each['metadata']['name']} {waits_for(each)}" for each in pods]
        return f"not ready: {', '.join(named)}"

    def events() -> str:
        found = kubectl("get", "events", "-n", cluster.namespace, "--sort-by=.lastTimestamp")
        return "\n".join(found.splitlines()[-25:])

    def said() -> str:
        found = kubectl("logs", "-n", SYSTEM, "deployment/headrace", "--tail=200").splitlines()
        return "\n".join([each for each in found if "an event was not posted" not in each][-25:])

    told = []
    for part in (cluster.standing, unwell, events, said):
        try:
            told.append(part())
        except Exception as error:
            told.append(f"{part.__name__}: {error!r}")
    return "\n".join(line[:300] for each in told for line in each.splitlines())


def waits_for(pod: Body) -> str:
    """Return what a pod waits for, in a word or two."""
    if is_up(pod):
        return "is ready"
    status = pod.get("status") or {}
    reasons = [
        state["reason"]
        for each in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
        for state in (each.get("state") or {}).values()
        if "reason" in state
    ]
    return " ".join([status.get("phase", "has no phase"), *reasons])


def uninstall() -> None:
    """Uninstall both charts."""
    run("helm", "uninstall", "headrace", "-n", SYSTEM, "--wait", "--timeout", "180s", timeout_s=240)
    run("helm", "uninstall", "headrace-crds", "-n", SYSTEM)


def forgive_commits(load: Any) -> None:
    """Let failed offset commits pass: for a while there is no coordinator; the checker still detects lost records."""
    for member in load.members:
        member.forgives = lambda error: True


def install(namespace: str = SYSTEM, *, source: Path = ROOT, tag: str = TAG, **values: str) -> None:
    """Install both charts of a checkout, as in README, with images of a tag, by default this checkout's.

    The operator watches all namespaces unless `values` say otherwise: each test module has its own.
    """
    charts = source / "charts"
    run(
        "helm",
        "upgrade",
        "--install",
        "headrace-crds",
        f"{charts}/headrace-crds",
        "-n",
        namespace,
        "--create-namespace",
    )
    given = {"image": "operator", "nodeImage": "node", "sparkImage": "spark"}
    sets = [f"{value}.repository={IMAGES[image].partition(':')[0]}" for value, image in given.items()]
    sets += [f"{value}.tag={tag}" for value in given]
    if source == ROOT:  # an older chart watches all namespaces by default, and does not know `*`
        values = {"namespaces": "{*}", **values}
    sets += [f"{name}={value}" for name, value in values.items()]
    run(
        *("helm", "upgrade", "--install", "headrace", f"{charts}/headrace", "-n", namespace),
        *("--wait", "--timeout", "180s"),
        *(part for each in sets for part in ("--set", each)),
    )


def in_sync(container: Body) -> set[int]:
    """Return the nodes in a container's in-sync set."""
    return {each["node"] for each in container["inSync"]}


@dataclass(frozen=True, slots=True)
class Node:
    """A storage node as a client outside sees it."""

    node_id: int
    pod: str
    host: str
    port: int
    is_up: bool
    stopped: bool = False


class Cluster:
    """A StreamCluster, for load from outside (kit.cluster_clients.Load)."""

    last: "Cluster | None" = None
    """The cluster that was created last."""

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
        Cluster.last = self

    def apply(self, **changes: Any) -> None:
        """Apply the StreamCluster with changes."""
        self.spec |= changes
        apply(resource("StreamCluster", self.name, self.namespace, self.spec))

    def await_ready(self, timeout_s: float = 240) -> None:
        """Wait until the cluster has its pods, each container all replicas that it can have, and Ready is true."""

        def ready() -> bool:
            up = [pod for pod in self.pods() if is_up(pod)]
            assert len(up) == self.spec["nodes"], f"{len(up)} pods are ready"
            lacking = [
                number
                for number, each in self.containers().items()
                if len(in_sync(each)) < min(each["wanted"], len(up))
            ]
            assert not lacking, f"container {lacking} lacks replicas in sync"
            if is_ready("streamcluster", self.name, self.namespace):
                return True
            raise AssertionError(json.dumps((self.body.get("status") or {}).get("conditions", "none"))[:1500])

        until(f"StreamCluster {self.name} is ready", ready, timeout_s=timeout_s, every_s=1)

    @property
    def body(self) -> Body:
        """The StreamCluster as it is now."""
        found = get("streamcluster", self.name, self.namespace)
        assert found is not None
        return found

    @property
    def bootstrap(self) -> str:
        """The bootstrap addresses for clients outside."""
        return str(
            until("the cluster has addresses outside", lambda: (self.body.get("status") or {}).get("externalBootstrap"))
        )

    @property
    def nodes(self) -> Mapping[int, Node]:
        """The storage nodes that have an address outside, by id."""
        up = {pod["metadata"]["name"] for pod in self.pods() if is_up(pod)}
        found = {}
        for each in self.storage_nodes():
            address = (each.get("spec", {}).get("advertised") or {}).get("external")
            if address:
                host, _, port = address.rpartition(":")
                number, pod = each["status"]["nodeId"], each["status"]["slot"].partition("/")[0]
                found[number] = Node(number, pod, host, int(port), is_up=pod in up)
        return found

    def pods(self) -> list[Body]:
        """Return the nodes' pods."""
        return listed("pods", self.namespace, labels=self._labels(component=True))

    def standing(self) -> str:
        """Return the state of the pods: what each waits for, the registered nodes, and the condition Sized."""
        pods = [f"{each['metadata']['name']} {waits_for(each)}" for each in self.pods()]
        claims = listed("persistentvolumeclaims", self.namespace, labels=self._labels(component=True))
        unbound = [each["metadata"]["name"] for each in claims if (each.get("status") or {}).get("phase") != "Bound"]
        return f"nodes {sorted(self.ids())}; {', '.join(pods)}; unbound {unbound}; {self.condition('Sized')}"

    def claims(self) -> dict[str, str]:
        """Return the uids of the pods' claims, by name."""
        found = listed("persistentvolumeclaims", self.namespace, labels=self._labels(component=True))
        return {each["metadata"]["name"]: each["metadata"]["uid"] for each in found}

    def storage_nodes(self) -> list[Body]:
        """Return the StorageNodes that have registered."""
        found = listed("storagenodes", self.namespace, labels=self._labels())
        return [each for each in found if (each.get("status") or {}).get("nodeId")]

    def ids(self) -> set[int]:
        """Return the ids of the storage nodes."""
        return {each["status"]["nodeId"] for each in self.storage_nodes()}

    def containers(self) -> dict[int, Body]:
        """Return the status of the StorageContainers, by id."""
        found = [each["status"] for each in listed("storagecontainers", self.namespace, labels=self._labels())]
        return {each["containerId"]: each for each in found if each["state"] != "deleted"}

    def lives(self) -> dict[str, tuple[str, int]]:
        """Return, by pod, an identity that changes with a new pod, or a new process in it."""
        return {
            pod["metadata"]["name"]: (
                pod["metadata"]["uid"],
                sum(each["restartCount"] for each in (pod.get("status") or {}).get("containerStatuses", [])),
            )
            for pod in self.pods()
        }

    def _labels(self, *, component: bool = False) -> str:
        return f"headrace.dev/cluster={self.name}{',app.kubernetes.io/component=storage' if component else ''}"

    def condition(self, type: str) -> tuple[str, str, str]:
        """Return (status, reason, message)."""
        return condition(self.body, type)

    def scale(self, nodes: int) -> None:
        """Scale the cluster as a user does."""
        self.spec["nodes"] = nodes
        kubectl("scale", "streamcluster", self.name, "-n", self.namespace, f"--replicas={nodes}")

    def kill(self, pod: str) -> None:
        """Send SIGKILL to the process of a pod."""
        self.signal(pod, "KILL")

    def signal(self, pod: str, name: str) -> None:
        """Send a signal to the process of a pod, from its worker: the first process of a pod cannot be killed from
        inside.
        """
        found = get("pod", pod, self.namespace)
        assert found is not None
        known = f"--kubernetes {self.namespace}/{self.name} .*--slot {pod}/0"
        worker = found["spec"]["nodeName"]
        process = run("docker", "exec", worker, "pgrep", "-f", "--", known).split()
        run("docker", "exec", worker, "kill", f"-{name}", *process)

    def headrace(self, *command: str, check: bool = True) -> Any:
        """Return the JSON output of `headrace` in a pod."""
        pod = f"{self.name}-0"
        said = kubectl(
            *("exec", pod, "-n", self.namespace, "--", "headrace", *command, "--output", "json"),
            check=check,
            timeout_s=300,
        )
        return json.loads(said) if said.strip() else None

    def admin(self, method: str, params: Body | None = None) -> Any:
        """Return the result of one of Headrace's own admin calls."""
        node = next(each for each in self.nodes.values() if each.is_up)
        with BrokerConnection(node.host, node.port, "e2e", 30.0) as connection:
            try:
                return connection.admin(method, params)
            except KafkaError as error:
                raise AssertionError(f"{method}: {error}") from error

    def busiest(self, led_by: Callable[[int], Sequence[Any]]) -> Node:
        """Return the node that leads most, according to `led_by` of its id."""
        return max(self.nodes.values(), key=lambda node: len(led_by(node.node_id)))

    def await_other_life(self, pod: str, before: Mapping[str, tuple[str, int]]) -> None:
        """Wait until a pod has been recreated, or has another process."""
        until(f"pod {pod} is another one", lambda: self.lives().get(pod, before[pod]) != before[pod])

    def reasons(self) -> set[str]:
        """Return the reasons of the StreamCluster's events."""
        fields = f"involvedObject.kind=StreamCluster,involvedObject.name={self.name}"
        shown = 'jsonpath={range .items[*]}{.reason}{"\\n"}{end}'
        return set(kubectl("get", "events", "-n", self.namespace, "--field-selector", fields, "-o", shown).split())

    def await_told(self, *reasons: str) -> None:
        """Wait until there has been an event for each of these reasons."""

        def told() -> bool:
            missing = set(reasons) - self.reasons()
            assert not missing, f"no event {missing}"
            return True

        until("events report it", told)

    def close(self) -> None:
        """End the load."""
        for end in self.on_close:
            end()


@contextlib.contextmanager
def reported(behaviour: str) -> Iterator[dict[str, float | str]]:
    """Report what is done in the context, if it passes, with the values put into the mapping."""
    figures: dict[str, float | str] = {}
    began = time.monotonic()
    yield figures
    report(behaviour, time.monotonic() - began, **figures)

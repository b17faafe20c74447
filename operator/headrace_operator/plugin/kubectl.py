"""kubectl as this plugin uses it: reads by `get --raw`, which needs no discovery; patches, logs and commands in pods.

Every failure is one line that says what to do. No call of this module can read Secrets.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final
from urllib.parse import quote, urlencode

from headrace.base.errors import HeadraceError
from headrace_operator.specs import API

Manifest = dict[str, Any]

PAGE: Final = 500
TIMEOUT_S: Final = 30
MAX_SAID: Final = 400
"""The maximum number of characters of an error of kubectl that are shown: it may quote whole objects."""
PLURALS: Final[Mapping[tuple[str, str], str]] = {
    (API, "StreamCluster"): "streamclusters",
    (API, "StorageNode"): "storagenodes",
    (API, "StorageContainer"): "storagecontainers",
    (API, "Stream"): "streams",
    (API, "Topic"): "topics",
    (API, "Volume"): "volumes",
    (API, "StreamUser"): "streamusers",
    (API, "ReplicationLink"): "replicationlinks",
    (API, "StreamJob"): "streamjobs",
    ("v1", "Pod"): "pods",
    ("v1", "Service"): "services",
    ("v1", "PersistentVolumeClaim"): "persistentvolumeclaims",
    ("v1", "Event"): "events",
    ("v1", "Node"): "nodes",
    ("apps/v1", "StatefulSet"): "statefulsets",
    ("apps/v1", "Deployment"): "deployments",
    ("batch/v1", "Job"): "jobs",
    ("batch/v1", "CronJob"): "cronjobs",
    ("policy/v1", "PodDisruptionBudget"): "poddisruptionbudgets",
    ("networking.k8s.io/v1", "NetworkPolicy"): "networkpolicies",
}
"""The resources that can be read, by version and kind."""
_UNREACHABLE: Final = (
    *("connection to the server", "unable to connect", "connection refused", "no such host", "i/o timeout"),
    *("no configuration has been provided", "tls handshake timeout", "network is unreachable"),
)


class KubectlFailed(HeadraceError):
    """kubectl's error, in one line."""


class Absent(KubectlFailed):
    """The object or its kind does not exist."""


class Forbidden(KubectlFailed):
    """The user lacks the right."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl, for one context."""

    context: str | None = None
    kubeconfig: str | None = None
    program: str = "kubectl"

    def namespace(self) -> str:
        """Return the context's namespace. Raises KubectlFailed."""
        path = "jsonpath={.contexts[0].context.namespace}"
        try:
            return self._run(["config", "view", "--minify", "-o", path]).strip() or "default"
        except KubectlFailed as error:
            if "current-context must exist" in str(error):  # in a pod kubectl works without a context
                return "default"
            raise

    def get(self, api_version: str, kind: str, namespace: str, name: str) -> Manifest:
        """Return an object. Raises Absent, Forbidden, KubectlFailed."""
        found = self._json(f"{_collection(api_version, kind, namespace)}/{quote(name, safe='')}")
        return {"apiVersion": api_version, "kind": kind, **found}

    def all(
        self, api_version: str, kind: str, namespace: str | None, *, labels: Mapping[str, str] | None = None
    ) -> list[Manifest]:
        """Return all objects of a kind; namespace None: of all namespaces. Raises like `get`."""
        params = {"limit": str(PAGE)}
        if labels:
            params["labelSelector"] = ",".join(f"{name}={value}" for name, value in labels.items())
        found: list[Manifest] = []
        while True:
            page = self._json(f"{_collection(api_version, kind, namespace)}?{urlencode(params)}")
            found += [{"apiVersion": api_version, "kind": kind, **each} for each in page["items"]]
            following = (page.get("metadata") or {}).get("continue")
            if not following:
                return found
            params["continue"] = following

    def annotate(self, kind: str, namespace: str, name: str, annotations: Mapping[str, str]) -> None:
        """Set annotations of one of Headrace's resources. Raises like `get`."""
        patch = json.dumps({"metadata": {"annotations": dict(annotations)}})
        resource = f"{PLURALS[API, kind]}.{API.partition('/')[0]}"
        self._run(["patch", resource, name, "--namespace", namespace, "--type", "merge", "--patch", patch])

    def log(self, namespace: str, pod: str, container: str, *, lines: int, previous: bool = False) -> str:
        """Return the newest lines of a container's log. Raises like `get`."""
        params = {"container": container, "tailLines": str(lines), "timestamps": "true"}
        if previous:
            params["previous"] = "true"
        path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(pod, safe='')}/log"
        return self._run(["get", "--raw", f"{path}?{urlencode(params)}"])

    def logs(
        self, namespace: str, labels: Mapping[str, str], container: str, *, lines: int, follow: bool
    ) -> Iterator[str]:
        """Yield lines of the logs of all pods with these labels, each prefixed by its pod's name. Raises like `get`."""
        selector = ",".join(f"{name}={value}" for name, value in labels.items())
        command = ["logs", "--namespace", namespace, "--selector", selector, "--container", container, "--prefix"]
        command += ["--tail", str(lines), "--max-log-requests", "500", "--ignore-errors=true"]
        with tempfile.TemporaryFile() as said:  # stderr of any length, while stdout is read
            with self._begin([*command, *(["--follow"] if follow else [])], said) as process:
                assert process.stdout is not None
                try:
                    for line in process.stdout:
                        yield line.decode("utf-8", "backslashreplace").rstrip("\n")
                except BaseException:
                    process.terminate()
                    raise
            if process.returncode:
                said.seek(0)
                raise failure(said.read().decode("utf-8", "backslashreplace"))

    def run_in(self, namespace: str, pod: str, container: str, command: Sequence[str]) -> int:
        """Run a command in a container, attached to this terminal; return its exit code."""
        arguments = ["exec", "--namespace", namespace, pod, "--container", container, "--", *command]
        try:
            return subprocess.run(self._command(arguments), check=False).returncode
        except OSError as error:
            raise self._missing(error) from error

    def answer_of(self, namespace: str, pod: str, container: str, command: Sequence[str]) -> str:
        """Return what a command in a container prints. Raises KubectlFailed, also if the command fails."""
        return self._run(["exec", "--namespace", namespace, pod, "--container", container, "--", *command])

    # --- kubectl itself

    def _json(self, path: str) -> Manifest:
        told = self._run(["get", "--raw", path])
        try:
            found = json.loads(told)
        except ValueError as error:
            raise KubectlFailed(f"the API server did not answer with JSON for {path.partition('?')[0]}") from error
        if not isinstance(found, dict):
            raise KubectlFailed(f"the API server did not answer with an object for {path.partition('?')[0]}")
        return found

    def _run(self, arguments: Sequence[str]) -> str:
        try:
            done = subprocess.run(
                self._command(
                    [*arguments, "--request-timeout", f"{TIMEOUT_S}s"] if arguments[0] != "exec" else arguments
                ),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=10 * TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise KubectlFailed(f"kubectl {arguments[0]} did not end within {10 * TIMEOUT_S} s") from error
        except OSError as error:
            raise self._missing(error) from error
        if done.returncode:
            raise failure(done.stderr.decode("utf-8", "backslashreplace"))
        return done.stdout.decode("utf-8", "backslashreplace")

    def _begin(self, arguments: Sequence[str], said: IO[bytes]) -> "subprocess.Popen[bytes]":
        try:
            return subprocess.Popen(
                self._command(arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said
            )
        except OSError as error:
            raise self._missing(error) from error

    def _command(self, arguments: Sequence[str]) -> list[str]:
        given = []
        if self.context is not None:
            given += ["--context", self.context]
        if self.kubeconfig is not None:
            given += ["--kubeconfig", self.kubeconfig]
        # Options follow the verb, and precede a command for a pod.
        return [self.program, arguments[0], *given, *arguments[1:]]

    def _missing(self, error: OSError) -> KubectlFailed:
        return KubectlFailed(
            f"{self.program} cannot be run: {error.strerror or error}; it has to be in PATH ({_path()})"
        )


def failure(said: str) -> KubectlFailed:
    """Return the error for kubectl's stderr, in one line. Pure."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    last = next((line for line in reversed(lines) if not line.startswith("command terminated")), "it printed no error")
    told = last[:MAX_SAID].removeprefix("error: ").removeprefix("Error from server ")
    lowered = said.lower()
    if "could not find the requested resource" in lowered or "doesn't have a resource type" in lowered:
        return Absent(
            "this Kubernetes cluster does not know Headrace's kinds: "
            "install the chart headrace-crds (docs/kubernetes.md)"
        )
    if "(notfound)" in lowered:
        return Absent(told.removeprefix("(NotFound): "))
    if "(forbidden)" in lowered:
        return Forbidden(f"{told.removeprefix('(Forbidden): ')}: `kubectl auth can-i --list` shows your rights")
    if any(each in lowered for each in _UNREACHABLE):
        return KubectlFailed(f"no Kubernetes cluster can be reached: {told} (`kubectl config get-contexts`, --context)")
    if told == "EOF":  # kubectl wanted to prompt for a user name
        return KubectlFailed("kubectl asks for a user name: the context has none (`kubectl config view --minify`)")
    return KubectlFailed(f"kubectl: {told}")


def _collection(api_version: str, kind: str, namespace: str | None) -> str:
    root = "/api" if "/" not in api_version else "/apis"
    within = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    return f"{root}/{api_version}{within}/{PLURALS[api_version, kind]}"


def _path() -> str:
    return os.environ.get("PATH", "")

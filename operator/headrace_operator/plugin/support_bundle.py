"""A support bundle: resources, events, logs and the cluster's own reports, without secrets.

Secrets and ConfigMaps are never read. Everything else goes through `redaction`. What cannot be read, for lack of rights
or because it is gone, is listed in `problems.txt`, and the rest is still collected. Logs are limited in lines and size,
to limit the file.
"""

import io
import json
import lzma
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from headrace.base.errors import HeadraceError
from headrace_operator.builders.names import CLUSTER_LABEL, JOB_LABEL
from headrace_operator.plugin.kubectl import Kubectl, KubectlFailed, Manifest
from headrace_operator.plugin.redaction import redacted, redacted_text
from headrace_operator.plugin.views import is_ready, storage_pods
from headrace_operator.specs import API

OF_HEADRACE: Final = (
    *("StreamCluster", "StorageNode", "StorageContainer", "Volume", "Stream", "Topic", "StreamUser"),
    *("ReplicationLink", "StreamJob"),
)
BESIDE: Final = (
    *(("apps/v1", "StatefulSet"), ("v1", "Pod"), ("v1", "Service"), ("v1", "PersistentVolumeClaim")),
    *(("policy/v1", "PodDisruptionBudget"), ("networking.k8s.io/v1", "NetworkPolicy")),
    *(("batch/v1", "Job"), ("batch/v1", "CronJob")),
)
"""Kinds of objects that belong to clusters and jobs, by version."""
OPERATOR: Final[Mapping[str, str]] = {"app.kubernetes.io/name": "headrace-operator"}
LINES: Final = 5_000
MAX_LOG: Final = 4 << 20
"""The maximum number of characters of one log, the newest."""
MAX_OBJECTS: Final = 5_000
"""The maximum number of objects of one kind."""
ASKED: Final[Mapping[str, tuple[str, ...]]] = {
    "status.json": ("headrace", "status", "--events", "200", "--output", "json"),
    "containers.json": ("headrace", "containers", "--output", "json"),
    "links.json": ("headrace", "link", "list", "--output", "json"),
    "groups.json": ("headrace", "groups", "list", "--output", "json"),
    "balance.json": ("headrace", "balance", "--explain", "--output", "json"),
}
"""Commands that are run in one of the cluster's pods, by the file with their output."""

Files = Iterator[tuple[str, str]]


class Bundle:
    """Collects the content of the file."""

    def __init__(
        self, kubectl: Kubectl, *, namespace: str, lines: int = LINES, progress: Callable[[str], None]
    ) -> None:
        self._kubectl = kubectl
        self._namespace = namespace
        self._lines = lines
        self._progress = progress
        self._problems: list[str] = []

    def files(self) -> Files:
        """Yield name and content of each file. Raises KubectlFailed if not even StreamClusters can be read."""
        clusters = self._kubectl.all(API, "StreamCluster", self._namespace)
        yield from self._written("StreamCluster", clusters)
        for kind in OF_HEADRACE[1:]:
            yield from self._written(kind, self._listed(API, kind, self._namespace))
        pods: list[Manifest] = []
        for api_version, kind in BESIDE:
            found = [each for each in self._listed(api_version, kind, self._namespace) if _is_ours(each)]
            if kind == "Pod":
                pods = found
            yield from self._written(kind, found)
        operators = self._listed("v1", "Pod", None, labels=OPERATOR)
        yield from self._written("Pod", operators, folder="operator")
        yield from self._written("Node", self._listed("v1", "Node", None))
        yield from self._events()
        for pod in [*pods, *operators]:
            yield from self._logs(pod)
        for cluster in clusters:
            yield from self._reports(cluster, pods)
        if self._problems:
            yield "problems.txt", "".join(f"{redacted_text(each)}\n" for each in self._problems)

    def _listed(
        self, api_version: str, kind: str, namespace: str | None, labels: Mapping[str, str] | None = None
    ) -> list[Manifest]:
        self._progress(f"{kind}s")
        try:
            found = self._kubectl.all(api_version, kind, namespace, labels=labels)
        except KubectlFailed as error:
            self._problems.append(f"{kind}: {error}")
            return []
        if len(found) > MAX_OBJECTS:
            self._problems.append(f"{kind}: {MAX_OBJECTS} of {len(found)} are here")
        return found[:MAX_OBJECTS]

    def _written(self, kind: str, objects: Sequence[Manifest], *, folder: str = "resources") -> Files:
        for each in objects:
            meta = each["metadata"]
            where = f"{folder}/{kind}/{meta.get('namespace') or '-'}/{meta['name']}.json"
            yield where, json.dumps(redacted(each), indent=2, ensure_ascii=False, sort_keys=True) + "\n"

    def _events(self) -> Files:
        found = self._listed("v1", "Event", self._namespace)
        if found:
            lines = [json.dumps(redacted(each), ensure_ascii=False, sort_keys=True) for each in found]
            yield "events.jsonl", "\n".join(lines) + "\n"

    def _logs(self, pod: Manifest) -> Files:
        meta = pod["metadata"]
        namespace, name = meta["namespace"], meta["name"]
        self._progress(f"logs of {name}")
        statuses = [
            *(pod.get("status") or {}).get("initContainerStatuses", []),
            *(pod.get("status") or {}).get("containerStatuses", []),
        ]
        for status in statuses:
            container = status["name"]
            for previous in (False, True) if status.get("restartCount") else (False,):
                suffix = ".previous" if previous else ""
                try:
                    text = self._kubectl.log(namespace, name, container, lines=self._lines, previous=previous)
                except KubectlFailed as error:
                    self._problems.append(f"log of {name}/{container}{suffix}: {error}")
                    continue
                yield f"logs/{namespace}/{name}/{container}{suffix}.log", redacted_text(text[-MAX_LOG:])

    def _reports(self, cluster: Manifest, pods: Sequence[Manifest]) -> Files:
        """Yield a cluster's own reports, from its first ready pod."""
        name = cluster["metadata"]["name"]
        pod = next((each for each in storage_pods(pods, name) if is_ready(each)), None)
        if pod is None:
            self._problems.append(f"cluster {name}: no pod of it is ready, so its status is missing")
            return
        for file, command in ASKED.items():
            self._progress(f"{name}: {' '.join(command[1:3])}")
            try:
                text = self._kubectl.answer_of(self._namespace, pod["metadata"]["name"], "node", command)
                told = json.dumps(redacted(json.loads(text)), indent=2, ensure_ascii=False)
            except (HeadraceError, ValueError) as error:
                self._problems.append(f"cluster {name}: {' '.join(command)}: {error}")
                continue
            yield f"clusters/{name}/{file}", told + "\n"


def write(path: Path, files: Files, *, root: str) -> int:
    """Write a new tar.xz that only its owner may read; return how many files it has. Raises OSError, after deleting an
    incomplete file; FileExistsError if the file exists.
    """
    count = 0
    now = int(time.time())
    try:
        with path.open("xb") as raw:
            path.chmod(0o600)
            with lzma.open(raw, "wb", preset=6) as packed, tarfile.open(fileobj=packed, mode="w|") as archive:
                for name, text in files:
                    content = text.encode("utf-8", "backslashreplace")
                    told = tarfile.TarInfo(f"{root}/{_inside(name)}")
                    told.size, told.mtime, told.mode = len(content), now, 0o600
                    archive.addfile(told, io.BytesIO(content))
                    count += 1
    except FileExistsError:
        raise
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return count


def _is_ours(found: Manifest) -> bool:
    """Return whether an object belongs to a cluster or a job of Headrace."""
    labels = found["metadata"].get("labels") or {}
    return CLUSTER_LABEL in labels or JOB_LABEL in labels or labels.get("app.kubernetes.io/name") == "headrace"


def _inside(name: str) -> str:
    """Return a name that stays in its folder, whatever a resource is called."""
    return "/".join(
        part.replace("\x00", "").replace("\\", "_") for part in name.split("/") if part not in ("", ".", "..")
    )

"""Prometheus as it runs with Headrace: it scrapes what the chart's PodMonitors select, with the chart's rules.

Prometheus runs on this machine and reaches pods through the API server (`kubectl proxy`), so neither an image of it nor
a route to pods is needed. This module does what Prometheus's operator does with a PodMonitor: it selects targets by
namespaces, labels and ports, and gives them the operator's labels. Debian's Prometheus has no Kubernetes service
discovery, so targets are rewritten to a file every second.

Rules are those of the PrometheusRule in the API server. Their times are divided, so that alerts fire within a test's
patience: `for`, the windows of their expressions, and limits of 300 s. All are divided by the same factor, so that they
stay in proportion.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import kube

from kit.own_ports import own_port
from kit.patience import PATIENCE

KINDS = ("podmonitors", "prometheusrules")
SCRAPE_S = 2
LOOK_S = 1.0
HURRY = 6.0 / min(PATIENCE, 1.5)
"""The factor by which the rules' times are divided."""
HURRIES = {"headrace-security": 60.0}
"""The factors for groups whose alerts wait for an hour, and are unrelated to restarts."""
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

Labels = Mapping[str, str]


class Sample(NamedTuple):
    """A sample of an instant query."""

    labels: Labels
    value: float


def install_crds() -> None:
    """Install the CRDs of Prometheus's operator, as it publishes them."""
    folder = kube.run(str(kube.ROOT / ".ci" / "monitoring-crds"), timeout_s=600).strip()
    for kind in KINDS:
        kube.kubectl("apply", "--server-side", "-f", f"{folder}/monitoring.coreos.com_{kind}.yaml")
        kube.kubectl("wait", "--for", "condition=Established", f"crd/{kind}.monitoring.coreos.com", "--timeout=60s")


def delete_crds() -> None:
    """Delete the CRDs with all their objects."""
    for kind in KINDS:
        kube.kubectl("delete", "crd", f"{kind}.monitoring.coreos.com", "--ignore-not-found")


def program() -> str:
    """Return HEADRACE_PROMETHEUS, the prometheus beside this Python, or the one on the path: .ci/tools downloads it."""
    beside = Path(sys.executable).parent / "prometheus"
    found = os.environ.get("HEADRACE_PROMETHEUS") or (str(beside) if beside.exists() else shutil.which("prometheus"))
    assert found, "there is no prometheus here: .ci/tools installs it"
    return found


def hurried(groups: Sequence[kube.Body]) -> list[kube.Body]:
    """Return groups of rules with their times divided. Pure."""
    return [
        {**group, "rules": [_hurried_rule(rule, HURRIES.get(group["name"], HURRY)) for rule in group["rules"]]}
        for group in groups
    ]


def _hurried_rule(rule: kube.Body, by: float) -> kube.Body:
    def shorter(found: re.Match[str]) -> str:
        return f"{found[1]}{max(1, round(int(found[2]) * UNITS[found[3]] / by))}s"

    expression = re.sub(r"(\[|:|offset )(\d+)([smhd])\b", shorter, rule["expr"])
    expression = re.sub(r"(?<=[<>] )300\b", f"{300 / by:g}", expression)
    waits = {"for": re.sub(r"()(\d+)([smhd])", shorter, rule["for"])} if "for" in rule else {}
    return {**rule, "expr": expression, **waits}


class Prometheus:
    """A running Prometheus, created by `running`."""

    def __init__(self, url: str) -> None:
        self._url = url

    def query(self, expression: str) -> list[Sample]:
        """Return the result of an instant query."""
        found = self._get("query", query=expression)["result"]
        return [Sample(each["metric"], float(each["value"][1])) for each in found]

    def alerts(self, *states: str) -> list[Labels]:
        """Return the labels of alerts in one of these states, by default `firing`."""
        return [each["labels"] for each in self._get("alerts")["alerts"] if each["state"] in (states or ("firing",))]

    def firing(self, name: str, **labels: str) -> list[Labels]:
        """Return firing alerts of this name that have these labels."""
        return [each for each in self.alerts() if each["alertname"] == name and labels.items() <= each.items()]

    def await_firing(self, *names: str, timeout_s: float = 120, **labels: str) -> float:
        """Wait until each of these alerts fires, with these labels; return the seconds that it took."""
        began = time.monotonic()

        def fires() -> bool:
            missing = [name for name in names if not self.firing(name, **labels)]
            assert not missing, f"{missing} do not fire; these do or will: {self.alerts('pending', 'firing')}"
            return True

        kube.until(f"{', '.join(names)} fire", fires, timeout_s=timeout_s)
        return round(time.monotonic() - began, 1)

    def await_calm(self, timeout_s: float = 240) -> float:
        """Wait until no alert fires or is pending; return the seconds that it took."""
        began = time.monotonic()

        def calm() -> bool:
            left = self.alerts("pending", "firing")
            assert not left, left
            return True

        kube.until("no alert is left", calm, timeout_s=timeout_s)
        return round(time.monotonic() - began, 1)

    def fired_since(self, moment: float) -> list[Labels]:
        """Return the alerts that fired at any time since `moment` (time.monotonic)."""
        window = round(time.monotonic() - moment) + 1
        return [each.labels for each in self.query(f'count_over_time(ALERTS{{alertstate="firing"}}[{window}s])')]

    def _get(self, path: str, **asked: str) -> Any:
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(asked)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as got:
                return json.load(got)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"Prometheus refuses {asked}: {error.read().decode()}") from error


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Prometheus]:
    """Run Prometheus with the present PodMonitors and PrometheusRule; it stores what it scrapes in the folder."""
    monitors, rules = (kube.listed(kind) for kind in ("podmonitors", "prometheusrules"))
    groups = [group for rule in rules for group in hurried(rule["spec"]["groups"])]
    (folder / "rules.json").write_text(json.dumps({"groups": groups}))  # YAML too
    config = {
        "global": {"evaluation_interval": "1s", "scrape_interval": f"{SCRAPE_S}s", "scrape_timeout": f"{SCRAPE_S}s"},
        "rule_files": ["rules.json"],
        "scrape_configs": [_scrape_config(monitor) for monitor in monitors],
    }
    (folder / "prometheus.json").write_text(json.dumps(config))
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(_process(["kubectl", "proxy", "--port=0"], stdout=subprocess.PIPE))
        assert proxy.stdout is not None
        said = proxy.stdout.readline()
        found = re.search(rb"127\.0\.0\.1:\d+", said)
        assert found, f"kubectl proxy says {said!r}"
        stack.enter_context(_looking(monitors, found[0].decode(), folder))
        url = f"127.0.0.1:{own_port()}"
        command = [program(), "--config.file=prometheus.json", "--storage.tsdb.path=data", "--log.level=warn"]
        log = stack.enter_context((folder / "log").open("wb"))
        process = stack.enter_context(_process([*command, f"--web.listen-address={url}"], stderr=log, cwd=folder))

        def ready() -> bool:
            assert process.poll() is None, (folder / "log").read_text()[-2000:]
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{url}/-/ready", timeout=5):
                return True
            return False

        kube.until("Prometheus is ready", ready)
        yield Prometheus(f"http://{url}")


@contextlib.contextmanager
def _process(command: Sequence[str], **settings: Any) -> "Iterator[subprocess.Popen[bytes]]":
    """Run a process that ends with the context."""
    with subprocess.Popen(command, **settings) as process:
        try:
            yield process
        finally:
            process.terminate()


@contextlib.contextmanager
def _looking(monitors: Sequence[kube.Body], proxy: str, folder: Path) -> Iterator[None]:
    """Keep the target files up to date with the pods while the context is active."""
    stopping = threading.Event()

    def look() -> None:
        asked = urllib.parse.urlencode({"labelSelector": "app.kubernetes.io/name in (headrace,headrace-operator)"})
        while True:
            with contextlib.suppress(OSError):  # the API server is unavailable: keep the known targets
                with urllib.request.urlopen(f"http://{proxy}/api/v1/pods?{asked}", timeout=10) as got:
                    pods = json.load(got)["items"]
                for monitor in monitors:
                    file = folder / _file(monitor)
                    beside = file.with_suffix(".new")
                    beside.write_text(json.dumps(targets(monitor, pods, proxy)))
                    beside.replace(file)
            if stopping.wait(LOOK_S):
                return

    thread = threading.Thread(target=look, name="targets", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def targets(monitor: kube.Body, pods: Sequence[kube.Body], proxy: str) -> list[kube.Body]:
    """Return the targets of a PodMonitor, reached through the API server, with the labels of Prometheus's operator.
    Pure.
    """
    spec, own = monitor["spec"], monitor["metadata"]
    (endpoint,) = spec["podMetricsEndpoints"]
    namespaces = spec.get("namespaceSelector") or {"matchNames": [own["namespace"]]}
    found = []
    for pod in pods:
        meta, status = pod["metadata"], pod.get("status") or {}
        labels = meta.get("labels") or {}
        chosen = namespaces.get("any") or meta["namespace"] in namespaces["matchNames"]
        if not chosen or not spec["selector"]["matchLabels"].items() <= labels.items():
            continue
        if status.get("phase") != "Running" or not status.get("podIP"):
            continue
        for container in pod["spec"]["containers"]:
            for port in container.get("ports", []):
                if port.get("name") != endpoint["port"]:
                    continue
                number = port["containerPort"]
                way = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}:{number}/proxy"
                told = {
                    "__metrics_path__": way + endpoint.get("path", "/metrics"),
                    "instance": f"{status['podIP']}:{number}",
                    "job": labels.get(spec["jobLabel"]) or f"{own['namespace']}/{own['name']}",
                    "namespace": meta["namespace"],
                    "pod": meta["name"],
                    "container": container["name"],
                    "endpoint": endpoint["port"],
                }
                found.append({"targets": [proxy], "labels": told})
    return found


def _scrape_config(monitor: kube.Body) -> kube.Body:
    own = monitor["metadata"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    return {
        "job_name": f"podMonitor/{own['namespace']}/{own['name']}/0",
        "honor_labels": endpoint.get("honorLabels", False),
        "file_sd_configs": [{"files": [_file(monitor)], "refresh_interval": "5s"}],
        "metric_relabel_configs": [
            {re.sub("[A-Z]", lambda each: f"_{each[0].lower()}", name): value for name, value in each.items()}
            for each in endpoint.get("metricRelabelings", [])
        ],
    }


def _file(monitor: kube.Body) -> str:
    return f"targets-{monitor['metadata']['name']}.json"

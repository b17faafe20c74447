"""A Prometheus that scrapes real processes every second, with accelerated alerts.

Its rules are the chart's with all durations divided: 3 minutes become 9 seconds if it is 20 times faster. Thresholds of
lags, which are durations too, are also divided. All other thresholds stay.
"""

import copy
import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from kit.cluster_nodes import Cluster, Node
from kit.own_ports import HOST, own_port
from kit.patience import PATIENCE

from .promtool import RULES, promtool

UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
DURATION: Final = re.compile(r"(?<=[\[:])\d+[smhd]\b|(?<=offset )\d+[smhd]\b")
SECONDS: Final = re.compile(
    r"(?<=_lag_seconds\) > )\d+|(?<=start_time_seconds\) < )\d+|(?<=start_time_seconds < )\d+|(?<=:5m\], )\d+"
)
"""Numbers in rules that are durations: lag limits, times since a start, prediction periods."""
POLL_S: Final = 0.3


def shorter(duration: str, faster: int) -> str:
    """Return a divided duration in Prometheus's form."""
    return f"{max(int(duration[:-1]) * UNIT_MS[duration[-1]] // faster, 1)}ms"


def in_a_hurry(expression: str, faster: int) -> str:
    """Return a rule's expression with its durations divided."""
    expression = SECONDS.sub(lambda found: f"{int(found[0]) / faster:g}", expression)
    return DURATION.sub(lambda found: shorter(found[0], faster), expression)


def rules_in_a_hurry(rules: dict[str, Any], faster: int) -> dict[str, Any]:
    """Return a rule file's content with its durations divided."""
    made = copy.deepcopy(rules)
    for group in made["groups"]:
        group["interval"] = "1s"
        for rule in group["rules"]:
            rule["for"] = shorter(rule.get("for", "0s"), faster)
            rule["expr"] = in_a_hurry(rule["expr"], faster)
    return made


class Prometheus:
    """A Prometheus process with its own folder, and its targets."""

    def __init__(self, folder: Path, *, faster: int) -> None:
        folder.mkdir()
        self._folder = folder
        self._targets: dict[str, Sequence[int]] = {}
        self._clusters: dict[str, Sequence[Cluster]] = {}
        self._ports: dict[Node, int] = {}
        self._port = own_port()
        files = []
        for file in RULES:
            files.append(file.name)
            hurried = rules_in_a_hurry(yaml.safe_load(file.read_text()), faster)
            (folder / file.name).write_text(yaml.safe_dump(hurried, width=10_000))
        discovery = [{"files": ["targets.json"], "refresh_interval": "1s"}]
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": files,
            "scrape_configs": [{"job_name": "all", "file_sd_configs": discovery}],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        program = str(Path(str(promtool())).with_name("prometheus"))
        where = (
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=tsdb",
            f"--web.listen-address={HOST}:{self._port}",
        )
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen([program, *where], cwd=folder, stdout=log, stderr=subprocess.STDOUT)

    # --- targets

    def scrape(self, job: str, *ports: int) -> None:
        """Set the ports that one job scrapes, within a second; without ports the job is removed."""
        self._targets[job] = ports
        found = [
            {"targets": [f"{HOST}:{port}" for port in each], "labels": {"job": name}}
            for name, each in self._targets.items()
            if each
        ]
        new = self._folder / "targets.new"
        new.write_text(json.dumps(found))
        new.rename(self._folder / "targets.json")

    def watch(self, job: str, *clusters: Cluster) -> None:
        """Scrape the nodes of clusters as one job from now on; they serve metrics with `--metrics-port=0`."""
        self._clusters[job] = clusters
        self.look()
        count = sum(len(each.nodes) for each in clusters)
        self.until(f"all of {job} are scraped", lambda: len(self.query(f'up{{job="{job}"}} == 1')) == count)

    def look(self, *, away: Collection[int] = ()) -> None:
        """Find restarted nodes at their new ports; nodes that are down keep their target, except for the numbers in
        `away`, which are not targets.
        """
        for job, clusters in self._clusters.items():
            nodes = [node for cluster in clusters for number, node in cluster.nodes.items() if number not in away]
            for node in nodes:
                if node.ready_file.exists():
                    self._ports[node] = int(json.loads(node.ready_file.read_text())["metrics_port"])
            self.scrape(job, *(self._ports[node] for node in nodes))

    # --- queries

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an instant query; none while Prometheus starts."""
        try:
            return self._ask("query", query=expression)
        except OSError:
            assert self._process.poll() is None, (self._folder / "log").read_text()[-2000:]
            return []

    def query_range(self, expression: str, *, begin_s: float, end_s: float, step_s: float) -> list[dict[str, Any]]:
        """Return a query's series over a period, in seconds since 1970. Raises OSError."""
        return self._ask("query_range", query=expression, start=f"{begin_s}", end=f"{end_s}", step=f"{step_s}")

    def _ask(self, what: str, **asked: str) -> list[dict[str, Any]]:
        url = f"http://{HOST}:{self._port}/api/v1/{what}?{urllib.parse.urlencode(asked)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
            return found

    def firing(self) -> set[str]:
        """Return the alerts that fire now."""
        return {each["metric"]["alertname"] for each in self.query('ALERTS{alertstate="firing"}')}

    def fired(self, *, within_s: float) -> set[str]:
        """Return the alerts that have fired at any time in the last seconds."""
        found = self.query(f'max_over_time(ALERTS{{alertstate="firing"}}[{within_s:.0f}s])')
        return {each["metric"]["alertname"] for each in found}

    def until(
        self, what: str, holds: Callable[[], Any], *, within_s: float = 120.0, step: Callable[[], object] | None = None
    ) -> None:
        """Wait for a condition; `step` is called repeatedly meanwhile."""
        deadline = time.monotonic() + within_s * PATIENCE
        while not holds():
            told = self.query("ALERTS")
            assert time.monotonic() < deadline, f"not within {within_s * PATIENCE:.0f} s: {what}; alerts: {told}"
            if step is None:
                time.sleep(POLL_S)
            else:
                step()

    def await_firing(self, *alerts: str, within_s: float = 120.0, step: Callable[[], object] | None = None) -> None:
        """Wait until all of these fire at the same time."""
        wanted = set(alerts)
        self.until(f"{sorted(wanted)} fire", lambda: self.firing() >= wanted, within_s=within_s, step=step)

    def await_cleared(self, *alerts: str, within_s: float = 240.0, step: Callable[[], object] | None = None) -> None:
        """Wait until none of these fires."""
        unwanted = set(alerts)
        self.until(f"{sorted(unwanted)} clear", lambda: not self.firing() & unwanted, within_s=within_s, step=step)

    def close(self) -> None:
        """Stop Prometheus."""
        self._process.terminate()
        self._process.wait(30)

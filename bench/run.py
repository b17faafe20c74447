"""`python -m bench.run`: Headrace beside Apache Kafka on this machine, with the same client programs.

For each scenario the servers take turns, each run on fresh data, after the machine has become idle; the first one
alternates too. One server runs at a time. A failed run is recorded as such, and the benchmark continues. Results are
written after every scenario, so an interrupted benchmark keeps its results so far.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench import jars, pairs, report
from bench.machine import this_machine, wait_until_idle
from bench.report import SUITE
from bench.scenarios import QUICK, Scenario, Sizes
from bench.servers import Server, build_of, cpu_seconds, make

SERVERS = ("kafka", "headrace")
RESULTS = jars.BENCH / "results"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _profiler() -> str:
    """Return py-spy, from this environment or the path. Exits if there is none."""
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    if found is None:
        sys.exit(f"--profile needs py-spy: `{sys.executable} -m pip install py-spy`, then run again")
    return found


@contextmanager
def profiled(server: Server | pairs.Pair, path: Path | None) -> Iterator[None]:
    """Sample a started node with py-spy while the context is active; the flame graph is written to `path`."""
    if path is None or server.name != "headrace":
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [_profiler(), "record", "--rate", "200", "--threads", "--output", str(path), "--pid", str(server.pids[0])]
    sampling = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        sampling.send_signal(signal.SIGINT)
        sampling.wait(60)


def sample(
    scenario: Scenario, *, server_name: str, run: int, sizes: Sizes, idle: bool, profile: Path | None, python: str
) -> dict[str, Any]:
    """Run a scenario once on one server with fresh data."""
    folder = jars.WORK / "data" / f"{server_name}-{scenario.name}"
    shutil.rmtree(folder, ignore_errors=True)
    os.sync()
    busy = wait_until_idle(at_most_s=120.0 if idle else 0.0)
    taken: dict[str, Any] = {"server": server_name, "run": run, "busy_percent": busy}
    server: Server | pairs.Pair
    if scenario.paired:
        server = pairs.make(server_name, folder, brokers=scenario.brokers, python=python)
    else:
        shards = scenario.shards if server_name == "headrace" else None
        server = make(
            server_name,
            folder,
            nodes=scenario.nodes,
            shards=shards,
            tls=scenario.tls,
            rights=scenario.rights,
            python=python,
        )
    try:
        if scenario.starts:
            server.start()
            before = cpu_seconds(server.pids)
            with profiled(server, profile):
                taken["figures"] = scenario.measure(server, sizes)
                # If the scenario restarts its server, this covers only the last process.
                taken["server_cpu_s"] = max(0.0, cpu_seconds(server.pids) - before)
        else:
            taken["figures"] = scenario.measure(server, sizes)
    except Exception as error:  # whatever fails, the result must say why a value is missing
        taken["error"] = f"{type(error).__name__}: {error}"
        kept = jars.WORK / "failed" / f"{server_name}-{scenario.name}-{run}"
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True)
        for log in (*folder.glob("*.log"), *folder.glob("*/*.log")):
            shutil.copy(log, kept / "-".join(log.relative_to(folder).parts))
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)
    return taken


def measure(scenario: Scenario, *, options: argparse.Namespace, sizes: Sizes) -> dict[str, Any]:
    """Run a scenario as often as requested on each server."""
    result: dict[str, Any] = {
        "scenario": scenario.name,
        "machine": this_machine().as_json(),
        "taken": time.strftime("%Y-%m-%d"),
        "build": build_of(options.python),
        "quick": options.quick,
        "sizes": asdict(sizes),
        "samples": [],
    }
    runs = min(options.runs, scenario.runs_at_most or options.runs)
    for run in range(runs):
        order = [name for name in SERVERS if name in options.servers and name in scenario.only]
        for name in order if run % 2 == 0 else order[::-1]:
            began = time.monotonic()
            profile = jars.WORK / "profiles" / f"{scenario.name}-{run}.svg" if options.profile else None
            taken = sample(
                scenario,
                server_name=name,
                run=run,
                sizes=sizes,
                idle=not options.no_idle,
                profile=profile,
                python=options.python,
            )
            result["samples"].append(taken)
            found = [
                f"{row.key} {report.figure(taken['figures'].get(row.key, {}).get(row.figure), row.unit)}"
                for row in scenario.rows
                if "figures" in taken
            ]
            what = ", ".join(found) or taken["error"].splitlines()[0][:300]
            say(f"{scenario.name} run {run + 1} of {runs}, {name}: {what} ({time.monotonic() - began:.0f} s)")
    if scenario.client_limit is not None:
        result["client_limit"] = dict(scenario.client_limit(sizes))
    return result


def _options() -> argparse.Namespace:
    names = [scenario.name for scenario in SUITE]
    parse = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    parse.add_argument("--runs", type=int, default=5, help="how often each scenario is run on each server")
    parse.add_argument("--only", nargs="+", choices=names, metavar="SCENARIO", default=names, help=", ".join(names))
    parse.add_argument("--servers", nargs="+", choices=SERVERS, default=list(SERVERS))
    parse.add_argument(
        "--python", default=sys.executable, help="the Python that runs Headrace's nodes, such as another environment's"
    )
    parse.add_argument("--quick", action="store_true", help="small sizes and one run, to see that it works")
    parse.add_argument("--no-idle", action="store_true", help="do not wait until the machine is at rest")
    parse.add_argument("--profile", action="store_true", help="py-spy flame graphs of the node in bench/.work/profiles")
    parse.add_argument("--results", type=Path, help="where to write; bench/results, or bench/.work/quick with --quick")
    options = parse.parse_args()
    if options.quick:
        options.runs, options.no_idle = min(options.runs, 1), True
    options.results = options.results or (jars.WORK / "quick" if options.quick else RESULTS)
    return options


def main() -> int:
    options = _options()
    if options.profile:
        _profiler()
    jars.kafka_classpath()
    if options.quick:
        shutil.rmtree(jars.WORK / "quick", ignore_errors=True)
    options.results.mkdir(parents=True, exist_ok=True)
    failed = 0
    for scenario in SUITE:
        if scenario.name not in options.only:
            continue
        result = measure(scenario, options=options, sizes=QUICK if options.quick else Sizes())
        failed += sum("error" in taken for taken in result["samples"])
        (options.results / f"{scenario.name}.json").write_text(json.dumps(result, indent=1) + "\n")
        report.write(options.results)
    print((options.results / "README.md").read_text())
    say(f"results in {options.results}; {failed} runs failed")
    return 1 if failed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())

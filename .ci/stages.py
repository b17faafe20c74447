"""The stages of `make test`: what each runs, which run in parallel, and a report of their durations.

    .venv/bin/python .ci/stages.py [--without NAME,NAME] [--only NAME,NAME]

The stages keep two cores busy: tests wait for processes and disks more than they compute, so each stage of tests runs
more workers than there are cores, and the simulator, which only computes, runs in parallel at idle priority
(SCHED_IDLE), using what they leave. Timing tests run last, one by one, with nothing in parallel.

A stage's output goes to a file and is printed as it appears, or at the stage's end if it runs in a parallel lane. The
report has each stage's duration, its processor time (of processes that were waited for), the failures, and what was
left out.

Environment: HEADRACE_PATIENCE multiplies the time limits of tests.
"""

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
CORES = len(os.sched_getaffinity(0))
PATIENCE = "4"
"""The factor by which tests wait longer for events than on a quiet machine."""
TIMEOUT_S = 120
"""Seconds that a test without its own time-out may take on a quiet machine."""
POLL_S = 0.2
SHOWN_FAILURES = 20
NOTHING: Mapping[str, str] = MappingProxyType({})
FAILURE = re.compile(r"^(FAILED|ERROR|failed:) ")


@dataclass(frozen=True, slots=True)
class Stage:
    """A command with a name."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    is_idle: bool = False
    """Whether the stage uses only processor time that nobody else wants."""


def pytest(
    name: str,
    marks: str,
    *folders: str,
    workers: int,
    spread: str = "worksteal",
    is_idle: bool = False,
    environment: Mapping[str, str] = NOTHING,
    is_compiled: bool = False,
) -> Stage:
    """Return a stage with tests by their marks, with the ten slowest listed. `spread`: pytest-xdist's --dist.
    `is_compiled`: on the compiled Headrace (compiled.py).
    """
    parallel = ("-n", str(workers), "--dist", spread) if workers > 1 else ()
    limit = ("-o", f"timeout={TIMEOUT_S * float(os.environ.get('HEADRACE_PATIENCE', PATIENCE)):.0f}")
    program = (sys.executable, ".ci/compiled.py", "--run", "-m", "pytest") if is_compiled else (str(BIN / "pytest"),)
    command = (*program, "-q", "--durations=10", *limit, *parallel, "-m", marks, *folders)
    return Stage(name, command, environment, is_idle=is_idle)


def simulator(name: str, *options: str) -> Stage:
    """Return a stage with seeds of the simulator, one process for each core."""
    command = (sys.executable, "-m", "simulation", *options, "--jobs", str(CORES))
    return Stage(name, command, {"PYTHONPATH": str(ROOT / "nodeimage" / "tests")}, is_idle=True)


def tool(name: str, *command: str) -> Stage:
    """Return a stage with a command of the virtual environment."""
    return Stage(name, (str(BIN / command[0]), *command[1:]))


LINT = (
    tool("ruff", "ruff", "check", "."),
    tool("format", "ruff", "format", "--check", "."),
    tool("imports", "lint-imports"),
)
MYPY = tool("mypy", "mypy")
WHEEL = tool("wheel", "python", ".ci/wheel.py")
COMPILED = tool("compiled", "python", ".ci/compiled.py")
COLLECTION = tool("collection", "pytest", "--collect-only", "-qqq")
"""Imports all tests: import errors are reported at once, and each module is byte-compiled once rather than by each
worker of the next stage.
"""
QUICK = "not (slow or alone or spark or java or simulator)"
FAST = pytest("fast tests", QUICK, workers=2 * CORES)
SIMULATOR = simulator("simulator", "--gate")
LINKS = simulator("linked clusters", "--gate", "--links")
SIMULATED = pytest("simulator's tests", "simulator", "nodeimage/tests/simulation", workers=CORES, is_idle=True)
CHARTS = Stage("charts", (str(ROOT / ".ci" / "charts"), str(BIN)))
CRASH = pytest(
    "crash and client tests",
    "(slow or java) and not (spark or alone)",
    "nodeimage/tests",
    workers=3 * CORES // 2,
    spread="loadgroup",  # tests with one broker of Apache Kafka, or one JVM, stay together
    is_compiled=True,  # as most users run it; the fast tests cover the interpreted code
)
SPARK = pytest("spark tests", "spark and not alone", "spark/tests", workers=CORES)
TIMING = pytest("timing tests", "alone", workers=1)

PLAN = (
    ((*LINT, WHEEL, COLLECTION), (MYPY,)),
    ((FAST, COMPILED, CHARTS, CRASH, SPARK), (SIMULATOR, LINKS, SIMULATED)),
    ((TIMING,),),
)
"""Steps, one after the other. A step's lanes run in parallel, the stages of a lane one after the other."""


class Running:
    """A running stage."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        self.stage = stage
        self.began = time.monotonic()
        self._output = folder / re.sub(r"\W+", "-", stage.name)
        self._printed = 0
        environment = {"HEADRACE_PATIENCE": PATIENCE, **os.environ, **stage.environment}
        with self._output.open("wb") as output:  # not a pipe: a process that a test leaves running would keep it open
            self._process = subprocess.Popen(
                stage.command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=_yield_processors if stage.is_idle else None,
                start_new_session=True,
            )
        self.seconds = 0.0
        self.processor_seconds = 0.0
        self.code: int | None = None

    def poll(self) -> bool:
        """Return whether the stage has ended."""
        if self.code is None:
            pid, status, used = os.wait4(self._process.pid, os.WNOHANG)
            if pid:
                self.code = self._process.returncode = os.waitstatus_to_exitcode(status)
                self.seconds = time.monotonic() - self.began
                self.processor_seconds = used.ru_utime + used.ru_stime
        return self.code is not None

    def show(self) -> None:
        """Print the output since the last call."""
        with self._output.open("rb") as output:
            output.seek(self._printed)
            new = output.read()
        self._printed += len(new)
        sys.stdout.buffer.write(new)
        sys.stdout.buffer.flush()

    def end(self) -> None:
        """Stop the stage if it runs, as Ctrl-C would."""
        if not self.poll():
            os.killpg(self._process.pid, signal.SIGINT)

    def report(self) -> list[str]:
        """Return a line with the stage's durations, and one for each failure in its output."""
        result = "ok" if self.code == 0 else "FAILED"
        lines = [f"{self.stage.name:<28} {minutes(self.seconds)}   {minutes(self.processor_seconds)}   {result}"]
        if self.code != 0:
            said = self._output.read_text(errors="replace").splitlines()
            failures = [f"    {line[:300]}" for line in said if FAILURE.match(line)]
            lines += failures[:SHOWN_FAILURES] or [f"    exit code {self.code}; it ends: {' | '.join(said[-3:])[:300]}"]
        return lines


def _yield_processors() -> None:
    """Run this process and its children only on idle processors.

    Linux shares the processors among sessions first (sched(7), autogroup), and idle priority counts only within a
    session.
    """
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as autogroup:
        autogroup.write("19")


def minutes(seconds: float) -> str:
    """Return minutes and seconds, as wide as the report's columns."""
    return f"{int(seconds) // 60:3d} min {int(seconds) % 60:02d} s"


def run_lanes(lanes: Sequence[Sequence[Stage]], folder: Path, report: list[str]) -> bool:
    """Run the stages of each lane one after the other, and the lanes in parallel; return whether all were ok.

    The first lane's output is printed as it appears, that of the others at each stage's end.
    """
    waiting = [list(lane) for lane in lanes]
    running: list[Running | None] = [None] * len(lanes)
    is_ok = True
    try:
        while any(waiting) or any(running):
            for number, lane in enumerate(waiting):
                now = running[number]
                if now is None and lane:
                    now = running[number] = Running(lane.pop(0), folder)
                    print(f"== {now.stage.name}{', beside the others' if number else ''}", flush=True)
                if now is None:
                    continue
                ended = now.poll()
                if number == 0 or ended:
                    if number and ended:
                        print(f"== {now.stage.name} has ended:")
                    now.show()
                if ended:
                    report += now.report()
                    is_ok &= now.code == 0
                    running[number] = None
            time.sleep(POLL_S)
    finally:
        for left in running:
            if left is not None:
                left.end()
    return is_ok


def run_steps(steps: Sequence[Sequence[Sequence[Stage]]]) -> int:
    """Run the lanes of each step, step after step, and print a report; return exit code 0 if all were ok."""
    report: list[str] = []
    is_ok = True
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="headrace-stages-") as folder:
        for lanes in steps:
            is_ok &= run_lanes(lanes, Path(folder), report)
    print(f"\nminutes by stage {'':<13} passed  of processors")
    for line in [*report, f"{'all':<28} {minutes(time.monotonic() - began)}"]:
        print(f"  {line}")
    return 0 if is_ok else 1


def lacking() -> dict[str, str]:
    """Return what this machine lacks, by the stage or the tests that are left out for it."""
    asked = {
        "charts": ("go", "Go 1.24 or newer builds helm and crdcheck: https://go.dev/dl, then make charts"),
        "tests with kcat": ("kcat", "Debian, Ubuntu: apt-get install kcat"),
        "tests with Kafka's Java clients": ("mvn", "Debian, Ubuntu: apt-get install maven openjdk-17-jdk-headless"),
        "tests of alerts": ("promtool", "Debian, Ubuntu: apt-get install prometheus"),
        "Spark and its tests": ("java", "Debian, Ubuntu: apt-get install openjdk-17-jdk-headless"),
    }
    lacks = {what: f"no `{name}` here. {how}" for what, (name, how) in asked.items() if shutil.which(name) is None}
    shallow = subprocess.run(["git", "rev-parse", "--is-shallow-repository"], cwd=ROOT, capture_output=True, text=True)
    if shallow.stdout.strip() != "false":
        lacks["tests of upgrades from older versions"] = "no commits of these here. git fetch --unshallow"
    return lacks


def main() -> int:
    """Return exit code 0 if each requested stage was ok."""
    parser = argparse.ArgumentParser(prog="stages", description=__doc__.partition("\n")[0])
    known = [stage.name for step in PLAN for lane in step for stage in lane]
    parser.add_argument("--only", default="", help=f"stages, with commas between: of {', '.join(known)}")
    parser.add_argument("--without", default="", help="stages to leave out")
    asked = parser.parse_args()
    # Either signal interrupts this program, which then ends its stages. A script's background jobs ignore SIGINT, and
    # the stages would inherit that: setting a handler also makes them receive SIGINT.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    only, without = (
        {name.strip() for name in names.split(",") if name.strip()} for names in (asked.only, asked.without)
    )
    if unknown := (only | without) - set(known):
        parser.error(f"there is no stage {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    os.environ["PATH"] = f"{BIN}{os.pathsep}{os.environ['PATH']}"  # for a Go installed in the virtual environment
    left_out = lacking()

    def chosen(stages: Sequence[Stage]) -> list[Stage]:
        return [
            stage
            for stage in stages
            if (not only or stage.name in only) and stage.name not in without and stage.name not in left_out
        ]

    code = run_steps([[chosen(lane) for lane in step] for step in PLAN])
    for what, how in left_out.items():
        print(f"  LEFT OUT: {what}: {how}")
    return code


if __name__ == "__main__":
    sys.exit(main())

"""python -m simulation --seed N | --seeds A:B | --gate [--links] [--jobs J]

Runs seeds, prints those that failed, and exits with code 1 if any did.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from simulation.cluster import Outcome, run
from simulation.gate import GATE, GATE_WITH_LINKS
from simulation.linked import run_linked


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run one seed, and print its trace")
    parser.add_argument("--seeds", default="0:200", help="run seeds A to B, B left out")
    parser.add_argument("--gate", action="store_true", help="run the seeds that the gate runs")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--links", action="store_true", help="runs of several clusters that links join")
    parser.add_argument("--lines", type=int, default=60, help="lines of the trace that are shown")
    asked = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # otherwise the order of sets of strings differs between processes
        os.execve(
            sys.executable, [sys.executable, "-m", "simulation", *sys.argv[1:]], os.environ | {"PYTHONHASHSEED": "0"}
        )
    if asked.seed is not None:
        outcome = _runs(asked.links)(asked.seed, kept_lines=asked.lines)
        show(outcome, whole=True)
        return 1 if outcome.problem else 0
    first, _, last = asked.seeds.partition(":")
    seeds = range(int(first), int(last))
    if asked.gate:
        seeds = GATE_WITH_LINKS if asked.links else GATE
    began = time.monotonic()
    failed = [outcome for outcome in _all(seeds, asked.jobs, links=asked.links) if outcome.problem]
    spent = time.monotonic() - began
    each_ms = 1000 * spent * asked.jobs / max(1, len(seeds))
    print(f"{len(seeds)} seeds, {len(failed)} failed, {spent:.1f} s, {each_ms:.0f} ms a seed and process")
    if failed:
        print("failed:", *(outcome.seed for outcome in failed))
    return 1 if failed else 0


def _runs(links: bool) -> Callable[..., Outcome]:
    return run_linked if links else run


def _all(seeds: range, jobs: int, *, links: bool) -> Iterable[Outcome]:
    if jobs == 1:
        for seed in seeds:
            outcome = _runs(links)(seed, kept_lines=60)
            if outcome.problem:
                show(outcome)
            yield outcome
        return
    with ProcessPoolExecutor(jobs) as pool:
        for outcome in pool.map(partial(run_short, links=links), seeds, chunksize=1 if links else 10):
            if outcome.problem:
                show(outcome)
            yield outcome


def run_short(seed: int, *, links: bool) -> Outcome:
    """Run a seed in a pool: a failed outcome keeps the end of its trace, any other is kept short."""
    outcome = _runs(links)(seed, kept_lines=60)
    if not outcome.problem:
        outcome.trace.clear()
    return outcome


def show(outcome: Outcome, *, whole: bool = False) -> None:
    """Print a run."""
    state = "FAILED" if outcome.problem else "ok"
    print(
        f"seed {outcome.seed}: {state}, {outcome.simulated_s:.1f} simulated s, {outcome.steps} steps, "
        f"{outcome.acknowledged} acknowledged, digest {outcome.digest:08x}"
    )
    if outcome.problem or whole:
        print(f"  {outcome.shape}")
        for fault in outcome.faults:
            print(f"  fault: {fault}")
        for line in outcome.trace:
            print(f"    {line[:400]}")
    if outcome.problem:
        print(f"  {outcome.problem}", flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""`make nightly`: tests that find more the longer they run; some three and a half hours on two cores.

20,000 seeds of the simulator and 1,000 of linked clusters that no earlier night has run (their numbers depend on the
date), then 300 kills of one node and 60 of a Spark query, alerts under a Prometheus that scrapes a cluster, and the
timing tests, with an hour of mixed faults and ten failures of each kind. HEADRACE_NIGHT=N runs the seeds of another
night, days since 1970-01-01.
"""

import os
import sys
import time

import stages

SEEDS, LINK_SEEDS = 20_000, 1_000
DAY_S = 86_400
LONG = {"HEADRACE_FAULT_SECONDS": "3600", "HEADRACE_GAPS": "10", "HEADRACE_KILLS": "300", "HEADRACE_QUERY_KILLS": "60"}
KILLS = ("nodeimage/tests/crash", "spark/tests/test_exactly_once.py")


def main() -> int:
    """Return exit code 0 if nothing was found."""
    night = int(os.environ.get("HEADRACE_NIGHT", time.time() // DAY_S))
    seeds, link_seeds = (f"{night * count}:{(night + 1) * count}" for count in (SEEDS, LINK_SEEDS))
    print(f"night {night}: seeds {seeds}, of linked clusters {link_seeds}", flush=True)
    return stages.run_steps(
        [
            [[stages.simulator("simulator", "--seeds", seeds)]],
            [[stages.simulator("linked clusters", "--links", "--seeds", link_seeds)]],
            [[stages.pytest("kills", "slow", *KILLS, workers=1, environment=LONG)]],
            [[stages.pytest("alerts", "slow", "operator/tests/alerts", workers=1)]],
            [[stages.pytest("timing tests", "alone", workers=1, environment=LONG)]],
        ]
    )


if __name__ == "__main__":
    sys.exit(main())

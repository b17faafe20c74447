"""Executors are requested and returned, with Spark's own standalone workers in place of Kubernetes' pods."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]

PROGRAM = """
import json, sys, time
from headrace_spark.job.autoscale import Autoscale
from headrace_spark.job.executors import Executors
from headrace_spark.job.progress import Progress
from headrace_spark.session import build_session

def live(wanted):
    until = time.monotonic() + 120
    while len(executors.live()) != wanted and time.monotonic() < until:
        time.sleep(0.2)
    return len(executors.live())

conf = {"spark.executor.memory": "512m", "spark.local.dir": sys.argv[1], "spark.ui.showConsoleProgress": "false"}
spark = build_session("executors", master="local-cluster[2,1,512]", conf=conf)
progress = Progress()
executors = Executors(spark, progress, Autoscale(min=1, max=2), every_s=0.5)
seen = [live(2)]
executors._scale(1, executors.live())
seen.append(live(1))
executors._scale(2, executors.live())
seen.append(live(2))
executors.start()
until = time.monotonic() + 60
while progress.executors != 2 and time.monotonic() < until:
    time.sleep(0.2)
seen.append(progress.executors)
executors.stop()
spark.stop()
print(json.dumps(seen))
"""


def test_executors_come_and_go_as_decided(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=380, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [2, 1, 2, 2]

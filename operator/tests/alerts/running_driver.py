"""A StreamJob's driver, run in a process as its container runs it; the job converts text to capitals."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kit.own_ports import own_port


class RunningDriver:
    """A driver, at one port over all its restarts."""

    def __init__(
        self,
        folder: Path,
        bootstrap: str,
        *,
        inputs: Mapping[str, Any],
        output: Mapping[str, str],
        environment: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        """`more`: additional fields of the job's definition."""
        self._folder = folder
        self._environment = environment or {}
        self._definition = {
            "name": "factory.capitals",
            "bootstrap": bootstrap,
            "checkpoint": str(folder / "checkpoint"),
            "master": "local[1]",
            "conf": {
                "spark.ui.enabled": "false",
                "spark.local.dir": str(folder / "scratch"),
                "spark.log.level": "ERROR",
                "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss4m",
            },
            "inputs": [inputs],
            "output": output,
            "application": {"sql": "SELECT key, upper(CAST(value AS STRING)) AS value FROM input"},
            **more,
        }
        self.port = own_port()

    @contextlib.contextmanager
    def running(self) -> Iterator["subprocess.Popen[bytes]"]:
        """Run the driver's process, which is killed at the end with its child processes."""
        self._folder.mkdir(exist_ok=True)
        (self._folder / "job.json").write_text(json.dumps(self._definition))
        environment = {
            "HEADRACE_JOB": str(self._folder / "job.json"),
            "HEADRACE_JOB_PORT": str(self.port),
            "HEADRACE_TERMINATION": str(self._folder / "last"),
            **self._environment,
        }
        with (self._folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "headrace_spark.job"],
                env={**os.environ, **environment},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

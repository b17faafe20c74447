"""Scrub: read everything back and check every checksum, in a helper process of low priority.

One scrub at a time, container after container; what it finds is kept for `status` and goes to the log.
"""

import asyncio
import json
import sys
import time
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

log = structlog.get_logger()

MOST_FINDINGS = 100
"""Findings kept; all of them go to the log."""


class Scrub:
    """The scrub of one node: under way, or how the last one ended."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._state = "never"
        self._began = 0.0
        self._took = 0.0
        self._done = 0
        self._frames = 0
        self._bytes = 0
        self._findings: list[str] = []

    def start(self) -> None:
        """Begin, unless one is under way."""
        if self._task is None or self._task.done():
            self._state, self._began, self._took = "running", time.time(), 0.0
            self._done = self._frames = self._bytes = 0
            self._findings = []
            self._task = self._broker.spawn(self._run())

    def status(self) -> dict[str, object]:
        """How it stands; `findings` are one line each."""
        running = self._state == "running"
        return {
            "state": self._state,
            "containers": len(self._broker.containers),
            "containers_done": self._done,
            "frames": self._frames,
            "bytes": self._bytes,
            "findings": list(self._findings),
            "seconds": round(time.time() - self._began if running else self._took, 3),
        }

    async def close(self) -> None:
        """End a scrub that is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            for container in list(self._broker.containers.values()):
                await self._one(container.id, str(container.log.folder))
                self._done += 1
        finally:
            self._took = time.time() - self._began
            self._state = "ended" if self._done == len(self._broker.containers) else "broken off"
        log.info("scrub ended", findings=len(self._findings), bytes=self._bytes, seconds=round(self._took, 1))

    async def _one(self, container: int, folder: str) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "headrace.log.scrub",
            folder,
            "--json",
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            async for line in process.stdout:
                self._take(container, json.loads(line))
            status = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if status not in (0, 1):  # 1: it has findings
            self._found(container, f"the scrub itself failed with status {status}")

    def _take(self, container: int, record: dict[str, object]) -> None:
        if "finding" in record:
            self._found(container, str(record["finding"]))
        else:
            self._frames += int(str(record.get("frames", 0)))
            self._bytes += int(str(record.get("bytes", 0)))

    def _found(self, container: int, finding: str) -> None:
        log.error("scrub", container=container, finding=finding)
        if len(self._findings) < MOST_FINDINGS:
            self._findings.append(f"container {container}: {finding}")

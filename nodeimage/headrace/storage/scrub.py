"""Scrub: read everything back and check every checksum, in a helper process of low priority.

One scrub runs at a time, over all replicas of this node, one after the other; findings are logged and kept for
`status`. A replica whose log is truncated or recreated meanwhile is read again, as findings may be of files that are
gone. A damaged replica is rebuilt if others have what it holds (invariant 14). A replica that could not be read (by
clients, to feed a follower or to free space) is scrubbed at once, and again later if no damage was found and it still
cannot be read.
"""

import asyncio
import json
import math
import os
import signal
import sys
import time

import structlog

from headrace.base.child_processes import ChildProcess
from headrace.base.errors import CorruptLog, OutOfDescriptors
from headrace.base.ids import ContainerId, Position
from headrace.base.runtime import Runtime
from headrace.container.listeners import ReplicaListener
from headrace.container.local_replica import LocalReplica
from headrace.container.replicas import Replicas
from headrace.log.scrub import EXIT_NEWER

log = structlog.get_logger()

MAX_FINDINGS = 100
"""Findings that are kept; all findings are logged."""
SUSPECT_AGAIN_S = 60.0
"""Seconds after its scrub for which a replica that could not be read is not scrubbed again for that reason."""
OUTPUT_BYTES = 16 << 20
"""Bytes of output that are kept from the scrub of one replica, some hundred thousand findings. The exit status reports
damage in any case."""
TRIES = 3
"""Attempts at a replica whose files change during the scrub."""


class Scrub(ReplicaListener):
    """The scrub of one node: the one under way, or the result of the last."""

    def __init__(self, *, runtime: Runtime, replicas: Replicas) -> None:
        self._runtime = runtime
        self._replicas = replicas
        self._task: asyncio.Task[None] | None = None
        self._state = "never"
        self._began = 0.0
        self._took = 0.0
        self._done = 0
        self._frames = 0
        self._bytes = 0
        self._findings: list[str] = []
        self.found = 0
        """Findings since the start."""
        self._containers = 0
        self._suspects: dict[ContainerId, float] = {}
        """Replicas that were scrubbed because they could not be read, and until when they are not scrubbed again for
        that."""
        replicas.add_replica_listener(self)

    def start(self) -> None:
        """Start a scrub, unless one is under way."""
        if self._task is None or self._task.done():
            self._state, self._began, self._took = "running", time.monotonic(), 0.0
            self._done = self._frames = self._bytes = 0
            self._findings = []
            self._task = self._runtime.spawn(self._run())

    def suspect(self, container_id: ContainerId) -> None:
        """Scrub a replica that could not be read, unless its damage is known or a scrub is under way or recent."""
        now = self._runtime.loop.time()
        replica = self._replicas.replica(container_id)
        if replica is None or self._replicas.is_damaged(container_id) or now < self._suspects.get(container_id, now):
            return
        self._suspects[container_id] = math.inf
        self._runtime.spawn(self._scrub_suspect(replica))

    def read_failed(self, error: Exception, container: ContainerId) -> None:
        """Log a failed read from disk, and scrub the replica if its log is corrupt."""
        log.error("read failed", container=container, error=repr(error))
        if isinstance(error, CorruptLog):
            self.suspect(container)

    def replica_unreadable(self, container_id: ContainerId) -> None:
        """See ReplicaListener."""
        self.suspect(container_id)

    @property
    def running(self) -> bool:
        """Whether a scrub of all replicas is under way."""
        return self._state == "running"

    def status(self) -> dict[str, object]:
        """The progress and the findings (one line each) of the scrub, or of the last one."""
        return {
            "state": self._state,
            "containers": self._containers or len(self._replicas.all()),
            "containers_done": self._done,
            "frames": self._frames,
            "bytes": self._bytes,
            "findings": list(self._findings),
            "seconds": round(time.monotonic() - self._began if self.running else self._took, 3),
        }

    async def close(self) -> None:
        """End a scrub that is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        replicas = list(self._replicas.all())
        self._containers = len(replicas)
        try:
            for replica in replicas:
                await self._scrub_one(replica)
                self._done += 1
        finally:
            self._took = time.monotonic() - self._began
            self._state = "ended" if self._done == len(replicas) else "broken off"
        log.info("scrub ended", findings=len(self._findings), bytes=self._bytes, seconds=round(self._took, 1))

    async def _scrub_suspect(self, replica: LocalReplica) -> None:
        try:
            await self._scrub_one(replica)
        finally:
            self._suspects[replica.id] = self._runtime.loop.time() + SUSPECT_AGAIN_S

    async def _scrub_one(self, replica: LocalReplica) -> None:
        for _ in range(TRIES):
            container_log = replica.log
            lines, status = await self._read(str(container_log.folder), container_log.synced)
            stayed = replica.log is container_log and self._replicas.replica(replica.id) is replica
            if stayed and not replica.cycle.is_closed:  # else its files are being changed
                break
        else:
            return
        for line in lines:
            self._process_record(replica.id, json.loads(line))
        if status == -signal.SIGBUS:
            self._found(replica.id, "the disk cannot read all of it")
        if status in (1, -signal.SIGBUS):  # 1: it has findings
            self._replicas.damaged(replica.id)
        elif status == EXIT_NEWER:
            self._found(replica.id, "it was written by a newer version: start that version")
        elif status != 0:
            self._found(replica.id, f"the scrub itself failed with status {status}")

    async def _read(self, folder: str, synced: Position) -> tuple[list[bytes], int]:
        """The helper process's output for a folder, one record per line, and its exit status."""
        program = [sys.executable, "-m", "headrace.log.scrub"]
        arguments = [folder, "--json", f"--synced={synced}", f"--parent={os.getpid()}"]
        try:
            ended = await ChildProcess([*program, *arguments], output_limit=OUTPUT_BYTES).run()
        except OutOfDescriptors as error:
            log.warning("a scrub is broken off", folder=folder, reason=str(error))
            raise
        lines = ended.output.splitlines()
        if ended.is_cut:
            log.warning("a scrub has more findings than are kept", folder=folder, lines=len(lines) - 1)
            del lines[-1]
        return lines, ended.status

    def _process_record(self, container: int, record: dict[str, object]) -> None:
        if "finding" in record:
            self._found(container, str(record["finding"]))
        else:
            self._frames += int(str(record.get("frames", 0)))
            self._bytes += int(str(record.get("bytes", 0)))

    def _found(self, container: int, finding: str) -> None:
        log.error("scrub", container=container, finding=finding)
        self.found += 1
        if len(self._findings) < MAX_FINDINGS:
            self._findings.append(f"container {container}: {finding}")

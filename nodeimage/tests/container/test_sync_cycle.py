"""One write at a time, and a disk that hangs is told of while it does."""

import asyncio
import threading
from pathlib import Path

import pytest

from headrace.base.errors import KafkaError
from headrace.container import replica_folder, sync_cycle
from kit.log_writes import LogWrites
from kit.several_replicas import Several, handed_to, until


async def test_a_leader_whose_disk_hangs_says_so_and_another_leads_while_it_does(
    log_writes: LogWrites, three: Several, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits is told at once, and what the node does besides its disk goes on; once it writes, it follows."""
    monkeypatch.setattr(sync_cycle, "HANGS_S", 0.3)
    first, threads = three.nodes[0], 3
    containers = [await three.create(replicas=3, min_in_sync=2) for _ in range(threads + 1)]
    led = [await three.led(container_id) for container_id in containers]
    for container in led:
        await container.append_command(b"before")
        await until(lambda container=container: len(container.state.in_sync) == 3 or None)  # type: ignore[misc]
    goes_on = threading.Event()

    def hang_if_first(path: Path) -> None:
        if path.is_relative_to(first.folder):
            assert goes_on.wait(30)

    write = replica_folder.write

    def writes(folder: Path, state: replica_folder.ReplicaFile) -> None:
        hang_if_first(folder)
        write(folder, state)

    log_writes.after(hang_if_first)
    monkeypatch.setattr(replica_folder, "write", writes)
    try:
        waiting = led[0].append_command(b"under way")
        stuck = await until(lambda: [each.container for each in first.replicas.states() if each.stuck] or None)
        assert stuck == containers[:1]
        for container_id in containers:
            await three.change(container_id, handed_to(1, three))  # type: ignore[arg-type]
        with pytest.raises(KafkaError):
            await asyncio.wait_for(waiting, 100)
        for container_id in containers:
            second = await three.led(container_id, by=three.nodes[1])
            await asyncio.wait_for(second.append_command(b"after"), 100)
        assert not first.replicas.led
        async with asyncio.timeout(5):
            assert await asyncio.get_running_loop().run_in_executor(first.executor, lambda: "a thread")
    finally:
        goes_on.set()
    for container_id in containers:
        second = await three.led(container_id, by=three.nodes[1])
        await until(lambda second=second: len(second.state.in_sync) == 3 or None)  # type: ignore[misc]
        await three.same(container_id, [0, 1, 2], end=second.end)
        assert three.payloads(0, container_id)[-1] == b"after"
    assert not any(each.stuck for each in first.replicas.states())

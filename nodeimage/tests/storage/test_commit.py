"""Nothing is answered or shown before it is on disk, and a failing disk ends the process (invariants 1, 2, 11, 13)."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.log.container_log import ContainerLog
from kit.storage import Client, Gate, Running, until, wait_until

NewNode = Callable[..., Awaitable[Running]]
TOPIC = "/default:synced"


async def test_no_record_is_answered_or_shown_before_it_is_on_disk(
    new_node: NewNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await new_node(fsync=True)
    producer = await node.call("producer_id")
    await node.call("put", TOPIC, b"before", producer=(producer, 0, 0))
    (container,) = [each for each in node.parts.containers.values() if each.id != node.parts.maintenance.catalog_id]
    write = ContainerLog.write_job
    gate = Gate(write)
    folder = container.log.folder
    monkeypatch.setattr(ContainerLog, "write_job", lambda log, job: (gate if log.folder == folder else write)(log, job))
    clients = [await asyncio.to_thread(Client, node.port) for _ in range(4)]
    writes = [
        asyncio.create_task(asyncio.to_thread(clients[0].produce, TOPIC, [b"held"], producer=(producer, 0, 1))),
        asyncio.create_task(asyncio.to_thread(clients[1].produce, TOPIC, [b"other"])),
    ]
    await gate.entered()
    (topic,) = await node.parts.topics.resolve([TOPIC])
    partition = topic.partitions[0]
    await until(lambda: partition.next_offset == 3)
    again = asyncio.create_task(asyncio.to_thread(clients[2].produce, TOPIC, [b"held"], producer=(producer, 0, 1)))
    assert await node.call("read", TOPIC) == [(0, b"before")]
    assert await node.call("offsets", TOPIC) == (0, 1)
    started = time.monotonic()
    waiting = await asyncio.to_thread(clients[3].fetch, (TOPIC, 0, 1), wait_ms=300)
    assert not waiting[TOPIC, 0].records
    assert waiting[TOPIC, 0].high_watermark == 1
    assert time.monotonic() - started >= 0.25
    assert not any(task.done() for task in (*writes, again)), "not even the repeated batch is answered"
    gate.open()
    results = await asyncio.gather(*writes, again)
    assert [result.error for result in results] == [0, 0, 0]
    assert results[2].base_offset == results[0].base_offset, "the repeated batch is the original"
    assert sorted(value for _, value in await node.call("read", TOPIC)) == [b"before", b"held", b"other"]
    for client in clients:
        client.close()


async def test_one_sync_serves_all_that_came_while_the_last_one_ran(
    new_node: NewNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await new_node(fsync=True)
    topics = [f"{TOPIC}-{number}" for number in range(20)]
    for topic in topics:
        await node.call("put", topic, b"first")
    jobs: list[int] = []
    write = ContainerLog.write_job

    def slow(log: ContainerLog, job: Any) -> None:
        jobs.append(job.nbytes)
        time.sleep(0.05)  # a slow disk: what comes meanwhile is the next job
        write(log, job)

    monkeypatch.setattr(ContainerLog, "write_job", slow)
    clients = [await asyncio.to_thread(Client, node.port) for _ in topics]
    await asyncio.gather(
        *(asyncio.to_thread(client.put, topic, b"x") for client, topic in zip(clients, topics, strict=True))
    )
    assert len(jobs) < len(topics), "group commit"
    for client in clients:
        client.close()


FAILING = """
import os, sys
sync, write = os.fdatasync, os.pwritev
def check(fd):
    if os.path.exists(sys.argv[1]) and "/containers/" in os.readlink(f"/proc/self/fd/{fd}"):
        raise OSError(5, "Input/output error")
def failing_sync(fd):
    check(fd)
    sync(fd)
def failing_write(fd, buffers, offset, flags=0):
    if flags & os.RWF_DSYNC:
        check(fd)
    return write(fd, buffers, offset, flags)
os.fdatasync, os.pwritev = failing_sync, failing_write
from headrace.node.process import main
sys.exit(main(sys.argv[2:]))
"""


@contextmanager
def node_process(folder: Path, *command: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A node of its own process, and its port."""
    ready = folder / "ready.json"
    ready.unlink(missing_ok=True)
    options = ["--data", str(folder / "node-1"), "--store", str(folder / "cluster.sqlite"), "--ready-file", str(ready)]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen([sys.executable, *command, *options, "--disk-reserve=0"], stderr=log, stdout=log)
    try:
        wait_until(lambda: ready.exists() or process.poll() is not None)
        assert process.poll() is None, (folder / "log").read_text()
        import json

        yield process, json.loads(ready.read_text())["port"]
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def test_a_failed_sync_ends_the_process_without_an_answer(tmp_path: Path) -> None:
    fails = tmp_path / "fails"
    with node_process(tmp_path, "-c", FAILING, str(fails)) as (process, port):
        client = Client(port)
        for serial in range(10):
            client.put(TOPIC, b"good %d" % serial)
        fails.touch()
        with pytest.raises(ConnectionError):
            client.produce(TOPIC, [b"unknown"])
        assert process.wait(20) == 70
        assert "the disk failed" in (tmp_path / "log").read_text()
    fails.unlink()
    with node_process(tmp_path, "-m", "headrace.node") as (_process, port):
        client = Client(port)
        found = [value for _, value in client.read(TOPIC)]
        assert found[:10] == [b"good %d" % serial for serial in range(10)]
        assert found[10:] in ([], [b"unknown"])
        assert client.put(TOPIC, b"next") == len(found)
        client.close()
    assert os.path.exists(tmp_path / "node-1")

"""Nothing is answered or shown before it is on disk, and a failing disk ends the process (invariants 1, 2, 11, 13)."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kit.log_writes import NEEDS_NATIVE, LogWrites
from kit.storage import Client, Running, until, wait_until

NewNode = Callable[..., Awaitable[Running]]
TOPIC = "/default:synced"
TESTS = str(Path(__file__).parents[1])


async def test_no_record_is_answered_or_shown_before_it_is_on_disk(new_node: NewNode, log_writes: LogWrites) -> None:
    node = await new_node(fsync=True)
    producer = await node.call("producer_id")
    await node.call("put", TOPIC, b"before", producer=(producer, 0, 0))
    (container,) = [each for each in node.parts.containers.values() if each.id != node.parts.maintenance.catalog_id]
    entered, opened, folder = threading.Event(), threading.Event(), container.log.folder

    def stop(path: Path) -> None:
        if path.parent == folder:
            entered.set()
            assert opened.wait(60)

    log_writes.after(stop)
    clients = [await asyncio.to_thread(Client, node.port) for _ in range(4)]
    writes = [
        asyncio.create_task(asyncio.to_thread(clients[0].produce, TOPIC, [b"held"], producer=(producer, 0, 1))),
        asyncio.create_task(asyncio.to_thread(clients[1].produce, TOPIC, [b"other"])),
    ]
    assert await asyncio.to_thread(entered.wait, 60)
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
    opened.set()
    results = await asyncio.gather(*writes, again)
    assert [result.error for result in results] == [0, 0, 0]
    assert results[2].base_offset == results[0].base_offset, "the repeated batch is the original"
    assert sorted(value for _, value in await node.call("read", TOPIC)) == [b"before", b"held", b"other"]
    for client in clients:
        client.close()


async def test_one_sync_serves_all_that_came_while_the_last_one_ran(new_node: NewNode, log_writes: LogWrites) -> None:
    node = await new_node(fsync=True)
    topics = [f"{TOPIC}-{number}" for number in range(20)]
    for topic in topics:
        await node.call("put", topic, b"first")
    writes: list[Path] = []

    def slow(path: Path) -> None:
        writes.append(path)
        time.sleep(0.05)  # a slow disk: what arrives meanwhile forms the next job

    log_writes.after(slow)
    clients = [await asyncio.to_thread(Client, node.port) for _ in topics]
    await asyncio.gather(
        *(asyncio.to_thread(client.put, topic, b"x") for client, topic in zip(clients, topics, strict=True))
    )
    assert 0 < len(writes) < len(topics), "group commit"
    for client in clients:
        client.close()


FAILING = """
import os, sys
from headrace.container import writer_pool
from kit.log_writes import address
writer_pool.WRITE_CALL = address()
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
    """A node in a process of its own, and its port."""
    ready = folder / "ready.json"
    ready.unlink(missing_ok=True)
    options = ["--data", str(folder / "node-1"), "--store", str(folder / "cluster.sqlite"), "--ready-file", str(ready)]
    with (folder / "log").open("ab") as log:
        arguments = [sys.executable, *command, *options, "--disk-reserve=0"]
        paths = {**os.environ, "PYTHONPATH": os.pathsep.join((TESTS, os.environ.get("PYTHONPATH", "")))}
        process = subprocess.Popen(arguments, stderr=log, stdout=log, env=paths)
    try:
        wait_until(lambda: ready.exists() or process.poll() is not None)
        assert process.poll() is None, (folder / "log").read_text()
        import json

        yield process, json.loads(ready.read_text())["port"]
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


BOTH = pytest.mark.parametrize("pure", [pytest.param("0", marks=NEEDS_NATIVE), "1"])
"""The native threads, then Python's."""


@BOTH
def test_a_failed_sync_ends_the_process_without_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pure: str
) -> None:
    monkeypatch.setenv("HEADRACE_PURE", pure)
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


TORN = """
import os, random, signal, sys
from pathlib import Path
from headrace.container import writer_pool
from kit.log_writes import address
writer_pool.WRITE_CALL = address()
write = os.pwritev
def tearing_write(fd, buffers, offset, flags=0):
    tears = Path(sys.argv[1])
    if not tears.exists() or not os.readlink(f"/proc/self/fd/{fd}").endswith(".chunk"):
        return write(fd, buffers, offset, flags)
    whole = b"".join(buffers)
    chance = random.Random(tears.read_text())
    for at in range(0, len(whole), 512):
        if chance.random() < 0.5:
            write(fd, [whole[at:at + 512]], offset + at, flags)
    os.kill(os.getpid(), signal.SIGKILL)
os.pwritev = tearing_write
from headrace.node.process import main
sys.exit(main(sys.argv[2:]))
"""


@BOTH
@pytest.mark.parametrize("seed", range(4))
def test_a_write_that_a_power_cut_tears_costs_nothing_that_was_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pure: str, seed: int
) -> None:
    """Some sectors of the write, which has several batches, are on the disk."""
    monkeypatch.setenv("HEADRACE_PURE", pure)
    tears = tmp_path / "tears"
    good = [b"good %d " % serial + bytes(3000) for serial in range(10)]
    torn = [b"torn " + bytes(20_000), b"more " + bytes(20_000)]
    with node_process(tmp_path, "-c", TORN, str(tears)) as (process, port):
        client = Client(port)
        for value in good:
            client.put(TOPIC, value)
        tears.write_text(str(seed))
        with pytest.raises(ConnectionError):
            client.produce(TOPIC, torn)
        assert process.wait(20) == -signal.SIGKILL
    with node_process(tmp_path, "-m", "headrace.node") as (_process, port):
        client = Client(port)
        found = [value for _, value in client.read(TOPIC)]
        assert found in (good, [*good, *torn]), "it counts as a whole, or not at all"
        assert client.put(TOPIC, b"next") == len(found)
        client.close()

"""A power cut: of what was not synced, any part may be missing. Every acknowledged record survives (invariant 1).

`Disk` is placed between the node and the filesystem and records what was synced of each file of the log at which time,
and which names each folder had. `cut` creates a folder as a machine could find it after a loss of power: for each page
either the synced or the written state, for each name either the synced or the newest state, chosen at random.
"""

import asyncio
import os
import random
import shutil
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from headrace.base.ids import ContainerId
from headrace.container import replica_folder
from headrace.log.container_log import ContainerLog
from kit.log_writes import LogWrites
from kit.storage import Client, Running, until

NewNode = Callable[..., Awaitable[Running]]
PAGE = 4096
TOPICS = ("/default:cut-a", "/default:cut-b")


class Disk:
    """The durable state of the files below `folder`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._content: dict[int, bytes] = {}
        self._held: dict[int, int] = {}
        self._names: dict[Path, dict[str, int]] = {}
        for name in ("fsync", "fdatasync"):
            real = getattr(os, name)
            monkeypatch.setattr(os, name, lambda fd, real=real: self._sync(fd, real))
        write = os.pwritev

        def pwritev(fd: int, buffers: Sequence[bytes], offset: int, flags: int = 0) -> int:
            done = write(fd, buffers, offset, flags)
            if flags & os.RWF_DSYNC:
                self._sync(fd, lambda _fd: None)
            return done

        monkeypatch.setattr(os, "pwritev", pwritev)

    def _sync(self, fd: int, real: Callable[[int], None]) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if not path.is_relative_to(self.folder):
            real(fd)
            return
        with self._lock:
            real(fd)
            if path.is_dir():
                self._names[path] = _names(path)
            else:
                # The content is read after the sync, so it may include more than was synced, but a disk could hold that
                # too.
                inode = os.fstat(fd).st_ino
                if inode not in self._held:  # held open, so that no other file gets its inode
                    self._held[inode] = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
                self._content[inode] = os.pread(self._held[inode], os.fstat(fd).st_size, 0)

    def close(self) -> None:
        for fd in self._held.values():
            os.close(fd)

    def cut(self, into: Path, chance: random.Random, *, lose_all: bool) -> None:
        """Create in `into` what is left of the folder."""
        with self._lock:
            for folder, synced in self._names.items():
                if not folder.is_dir():
                    continue
                now = _names(folder)
                kept = dict(synced)
                for name in now.keys() | synced.keys():
                    if not lose_all and chance.random() < 0.5:  # this change of the folder had reached the disk
                        if name in now:
                            kept[name] = now[name]
                        else:
                            kept.pop(name, None)
                target = into / folder.relative_to(self.folder)
                target.mkdir(parents=True, exist_ok=True)
                by_inode = {inode: folder / name for name, inode in now.items()}
                for name, inode in kept.items():
                    content = self._pages(inode, by_inode.get(inode), chance, lose_all=lose_all)
                    if content is not None:
                        (target / name).write_bytes(content)

    def _pages(self, inode: int, path: Path | None, chance: random.Random, *, lose_all: bool) -> bytes | None:
        synced = self._content.get(inode)
        try:
            now = path.read_bytes() if path is not None else synced
        except FileNotFoundError:  # removed since the folder was listed
            now = synced
        if synced is None:
            return None if now is None else bytes(len(now))  # a name without synced bytes: zeros
        if lose_all or now is None:
            return synced
        pages = []
        for at in range(0, max(len(now), len(synced)), PAGE):
            source = now if chance.random() < 0.5 else synced
            pages.append(source[at : at + PAGE].ljust(min(PAGE, len(now) - at), b"\0") if at < len(now) else b"")
        return b"".join(pages)


def _names(folder: Path) -> dict[str, int]:
    return {entry.name: entry.inode() for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False)}


def add_the_rest(image: Path, home: Path, catalog: Path) -> None:
    """Copy SQLite's files and those of the node's folder, whose syncs `Disk` does not see."""
    shutil.copytree(catalog, image / "node-1" / "catalog", dirs_exist_ok=True)
    for path in home.glob("cluster.sqlite*"):
        shutil.copy(path, image / path.name)
    for name in ("node.json", "lock"):
        shutil.copy(home / "node-1" / name, image / "node-1" / name)


@pytest.mark.timeout(180)
async def test_acknowledged_records_survive_power_cuts_at_random_moments(
    new_node: NewNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_writes: LogWrites
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    home = tmp_path / "powered"
    # A helper process's syncs are not recorded: no regrouping before the power cut.
    monkeypatch.setattr(ContainerLog, "needs_regroup", lambda *_: False)
    disk = Disk(monkeypatch, home)
    node = await new_node(folder=home, fsync=True, chunk_bytes=400_000, partitionlet_bytes=300_000)
    await node.call("create", *TOPICS)
    catalog_then = tmp_path / "catalog-then"
    # SQLite syncs from C: the catalog's tables are taken from an early state, to be replayed.
    shutil.copytree(home / "node-1" / "catalog", catalog_then)
    acknowledged: dict[str, list[bytes]] = {topic: [] for topic in TOPICS}
    stopping = threading.Event()

    def write(topic: str, seed: int) -> None:
        client = Client(node.port)
        own = random.Random(seed)
        serial = 0
        while not stopping.is_set():
            value = b"%s-%06d-" % (topic.encode(), serial) + bytes(own.randint(0, 8000))
            offset = client.put(topic, value)
            assert offset == len(acknowledged[topic])
            acknowledged[topic].append(value)
            serial += 1
        client.close()

    writers = [asyncio.create_task(asyncio.to_thread(write, topic, chance.randrange(1 << 32))) for topic in TOPICS]
    images: list[tuple[Path, dict[str, int]]] = []
    for number in range(8):
        seen = len(acknowledged[TOPICS[0]]) + chance.randint(5, 60)
        await until(lambda seen=seen: len(acknowledged[TOPICS[0]]) >= seen)
        image = tmp_path / f"image-{number}"
        counts = {topic: len(values) for topic, values in acknowledged.items()}
        await asyncio.to_thread(disk.cut, image, chance, lose_all=number % 2 == 0)
        add_the_rest(image, home, catalog_then)
        images.append((image, counts))
    stopping.set()
    await asyncio.gather(*writers)
    await node.stop()
    monkeypatch.undo()
    disk.close()
    rolls = 0
    for image, counts in images:
        left = await new_node(folder=image, fsync=True, chunk_bytes=400_000, partitionlet_bytes=300_000)
        for topic in TOPICS:
            read = await left.call("read", topic)
            assert [offset for offset, _ in read] == list(range(len(read)))
            values = [value for _, value in read]
            assert len(values) >= counts[topic], f"{image.name} lost acknowledged records of {topic}"
            assert values == acknowledged[topic][: len(values)], "what was sent, in order, none twice"
            assert await left.call("put", topic, b"after") == len(read)
            rolls = max(rolls, len(await left.call("admin", "chain", topic=topic)))
        assert ContainerId(1) in left.parts.containers
        await left.stop()
    assert rolls > 1, "partitions rolled meanwhile"


async def test_a_volume_that_is_altered_to_be_synced_keeps_what_it_acknowledged_from_memory_too(
    new_node: NewNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_writes: LogWrites
) -> None:
    home = tmp_path / "powered"
    disk = Disk(monkeypatch, home)
    node = await new_node(folder=home, fsync=True, chunk_bytes=400_000)
    await node.call("create", TOPICS[0])
    catalog_then = tmp_path / "catalog-then"
    shutil.copytree(home / "node-1" / "catalog", catalog_then)
    (container,) = [each.id for each in node.parts.containers.values() if each.id != node.parts.maintenance.catalog_id]
    epoch = node.parts.containers[container].epoch
    values = [b"%06d" % serial + bytes(8000) for serial in range(100)]

    async def alter(durability: str) -> None:
        await node.call("admin", "volume.alter", name="default", durability=durability)

        def is_so() -> bool:
            state = replica_folder.read(node.containers / str(container))
            return state is not None and bool(state.boot) is (durability == "memory")

        await until(is_so)

    await alter("memory")
    for value in values:
        await node.call("put", TOPICS[0], value)
    await alter("fsync")
    disk.cut(tmp_path / "image", random.Random(0), lose_all=True)
    add_the_rest(tmp_path / "image", home, catalog_then)
    assert node.parts.containers[container].epoch == epoch, "it was led all the while"
    await node.stop()
    monkeypatch.undo()
    disk.close()
    left = await new_node(folder=tmp_path / "image", fsync=True, chunk_bytes=400_000)
    assert [value for _, value in await left.call("read", TOPICS[0])] == values

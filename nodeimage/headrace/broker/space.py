"""The node's disk: closing chunks, expiry, giving space back, regrouping, and which containers take new partitions.

One task looks after it, every few seconds and when something asks for it; nothing here has a timer per topic. Disk
work runs in threads, regrouping in a helper process of low priority. Order matters (invariant 12): the log start moves
by a committed command first, bytes go afterwards; what a later reader needs of a chunk that goes (the state of
idempotent producers) is appended anew before.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import msgspec
import structlog

from headrace.broker.partitions import read_tail
from headrace.broker.retention import Share, expired, gone
from headrace.broker.roll_frames import carried
from headrace.broker.topics import Topic
from headrace.catalog.commands import ExpireCursors, SetLogStart
from headrace.catalog.rows import OPEN, Owner, PartitionletRow, StreamRetention
from headrace.container.container import Container
from headrace.errors import HeadraceError, KafkaError, StorageFull
from headrace.ids import ContainerId, Millis, PartitionletId, StreamNumber, stream_of
from headrace.log.chunk import Body
from headrace.log.container_log import Chunk
from headrace.log.frames import FrameType

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

log = structlog.get_logger()

T = TypeVar("T")

EVERY_S = 5.0
MOST_CHUNKS = 60
"""A container closes with this many: finding an offset is a search over few footers."""
EARLY_EVERY_S = 20.0
"""How often the open chunk is looked at for dead bytes."""
WORTH_CLOSING = 1024 * 1024
"""Dead bytes in the open chunk for which it is closed early, so that they can be given back."""
COMMANDS_AT_ONCE = 10_000
ROLLS_AT_ONCE = 256
CURSORS_KEPT_S = 7 * 24 * 3600
CURSORS_EVERY_S = 3600.0


class Sizes(Protocol):
    """The settings that bound a node's disk, in bytes."""

    @property
    def disk_quota(self) -> int: ...

    @property
    def disk_reserve(self) -> int: ...


class DiskRoom:
    """Whether the node may preallocate more: its quota, and what has to stay free on the disk."""

    def __init__(self, folder: Path, sizes: Sizes) -> None:
        self._folder = folder
        self._sizes = sizes

    def check(self, length: int) -> None:
        """[blocking] Raise `StorageFull` if `length` more bytes are too many."""
        free = self.free()
        if free - length < self._sizes.disk_reserve:
            raise StorageFull(f"{free} bytes are free in {self._folder}; a new chunk would use up the reserve")
        if self._sizes.disk_quota:
            used = self.used()
            if used + length > self._sizes.disk_quota:
                raise StorageFull(f"{used} bytes of the node's quota of {self._sizes.disk_quota} are used")

    def free(self) -> int:
        """[blocking] Bytes that this process can still use on the disk."""
        found = os.statvfs(self._folder)
        return found.f_bavail * found.f_frsize

    def used(self) -> int:
        """[blocking] Bytes that the containers occupy on the disk (holes do not count)."""
        total = 0
        for folder, _, names in os.walk(self._folder / "containers"):
            for name in names:
                try:
                    total += os.stat(os.path.join(folder, name)).st_blocks * 512
                except FileNotFoundError:
                    continue
        return total


class Note(NamedTuple):
    """A closed chunk as it was last read: by stream, the smallest of its partitionlets' largest timestamps."""

    body: Body
    oldest: dict[StreamNumber, int]


def _may_expire(rules: Mapping[StreamNumber, StreamRetention], stream: StreamNumber, oldest: int, now: int) -> bool:
    """Whether anything of `stream` in a chunk may have outlived a rule."""
    rule = rules.get(stream)
    if rule is None:
        return False
    every = [rule.rule, *rule.overrides.values()]
    return any((each.ttl_ms > 0 and oldest + each.ttl_ms <= now) or each.bytes >= 0 for each in every)


ContainerStep = Callable[[Container], Awaitable[None]]


class Space:
    """Looks after the containers' disk space."""

    def __init__(self, broker: "Broker", *, regroup_enabled: bool = True) -> None:
        self._broker = broker
        self._regroup_enabled = regroup_enabled
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._helper: asyncio.subprocess.Process | None = None
        self._not_regrouped: set[tuple[ContainerId, int]] = set()
        self.catalog_id = ContainerId(0)
        self._notes: dict[tuple[ContainerId, int], Note] = {}
        self._dead_in: set[StreamNumber] = set()
        self._dead_anywhere = True
        self._own_moves = 0
        self._early_due = 0.0
        self._cursors_due = broker.loop.time() + CURSORS_EVERY_S
        self.regrouped = 0
        self.freed_bytes = 0

    def attach(
        self,
        new_container: Callable[[], Awaitable[Container]],
        close_container: ContainerStep,
        delete_container: ContainerStep,
        catalog_id: ContainerId,
    ) -> None:
        """How containers are made, closed and deleted."""
        self._new_container = new_container
        self._close_container = close_container
        self._delete_container = delete_container
        self.catalog_id = catalog_id

    def open_containers(self) -> list[Container]:
        """The containers that take new partitionlets."""
        return [container for container in self._data() if not container.closing]

    def bytes_died(self) -> None:
        """Some records have no owner any more, or lie below their partition's log start."""
        self._dead_anywhere = True
        self._wake.set()

    @property
    def moves_log_starts(self) -> bool:
        """The log starts that move now do so on behalf of expiry, which knows where bytes die."""
        return self._own_moves > 0

    def start(self) -> None:
        """Begin."""
        for container in self._broker.containers.values():
            container.on_chunk_full = self._chunk_full
        self._task = self._broker.spawn(self._run())

    async def close(self) -> None:
        """Stop; a helper process is ended (its work is redone later)."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        helper = self._helper
        if helper is not None and helper.returncode is None:
            helper.kill()
            await helper.wait()

    async def pass_now(self) -> None:
        """One round, at once: for an admin who just deleted something, and for tests."""
        await self._round()

    # --- the task

    def _chunk_full(self, _container: Container) -> None:
        self._wake.set()

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(EVERY_S):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            try:
                await self._round()
            except (HeadraceError, OSError) as error:
                log.warning("giving space back failed, it is tried again", error=str(error))

    async def _round(self) -> None:
        for container in list(self._broker.containers.values()):
            await self._close_chunks(container)
        await self._close_containers()
        for container in self._data():
            await self._expire(container)
        anywhere, self._dead_anywhere = self._dead_anywhere, False
        dead_in, self._dead_in = self._dead_in, set()
        try:
            for container in self._data():
                await self._give_back(container, None if anywhere else dead_in)
        except BaseException:
            self._dead_anywhere |= anywhere
            self._dead_in |= dead_in
            raise
        if anywhere or self._broker.loop.time() >= self._early_due:
            self._early_due = self._broker.loop.time() + EARLY_EVERY_S
            for container in self._data():
                await self._close_early(container)
        for container in self._data():
            await self._delete_if_empty(container)
        await self._expire_cursors()
        if self._regroup_enabled:
            for container in self._data():
                await self._regroup_one(container)

    def _data(self) -> list[Container]:
        return [container for container in list(self._broker.containers.values()) if container.id != self.catalog_id]

    async def _blocking(self, work: Callable[[], T]) -> T:
        return await self._broker.loop.run_in_executor(self._broker.executor, work)

    # --- closing

    async def _close_chunks(self, container: Container) -> None:
        for chunk in container.log.chunks_to_close():
            try:
                await self._blocking(lambda chunk=chunk: container.log.close_chunk(chunk))  # type: ignore[misc]
            except StorageFull as full:
                log.warning("a chunk stays open", container=container.id, reason=str(full))
                return

    async def _close_containers(self) -> None:
        """A container that is large or of many chunks takes no new partitionlets; there is always one that does."""
        most = self._broker.node.settings.container_bytes
        for container in self.open_containers():
            if container.log.end - container.log.start >= most or len(container.log.chunks()) >= MOST_CHUNKS:
                fresh = await self._new_container()
                fresh.on_chunk_full = self._chunk_full
                container.closing = True
                await self._close_container(container)
                log.info("container closed", container=container.id, next=fresh.id)

    async def _close_early(self, container: Container) -> None:
        """Close the open chunk if enough of it is dead, so that the next round can give that back."""
        chunks = container.log.chunks()
        if not chunks or chunks[-1].body.closed or chunks[-1] in container.log.chunks_to_close():
            return
        chunk = chunks[-1]
        if container.log.end - chunk.start < WORTH_CLOSING:
            return
        shares = await self._shares(container, chunk)
        owners = await self._owners(shares)
        streams = {stream_of(share.partitionlet) for share in shares}
        rules = await self._broker.catalog.query(lambda reader: reader.retention(streams))
        now = self._broker.now()
        dead = 0
        for share in shares:
            owner = owners.get(share.partitionlet)
            rule = rules.get(stream_of(share.partitionlet))
            if owner is None or rule is None:
                dead += share.bytes
                continue
            ttl = rule.overrides.get(owner.topic, rule.rule).ttl_ms
            if share.last < owner.log_start or (ttl > 0 and share.max_timestamp + ttl <= now):
                dead += share.bytes
        if dead >= WORTH_CLOSING and chunk is container.log.chunks()[-1]:
            container.log.close_open_chunk()
            container.kick()

    # --- expiry

    async def _expire(self, container: Container) -> None:
        """Move the log starts of what has expired in closed chunks. Chunks of which nothing can have are not read."""
        chunks = container.log.closed_chunks()
        notes = [(chunk, await self._note(container, chunk)) for chunk in chunks]
        streams = {stream for _, note in notes for stream in note.oldest}
        if not streams:
            return
        rules = await self._broker.catalog.query(lambda reader: reader.retention(streams))
        now = self._broker.now()
        due = {
            stream
            for _, note in notes
            for stream, oldest in note.oldest.items()
            if _may_expire(rules, stream, oldest, now)
        }
        if not due:
            return
        shares = [
            share
            for chunk, note in notes
            if not due.isdisjoint(note.oldest)
            for share in await self._shares(container, chunk, due)
        ]
        owners = await self._owners(shares)
        starts = await self._blocking(lambda: expired(shares, owners=owners, rules=rules, now=now))
        for index in range(0, len(starts), COMMANDS_AT_ONCE):
            self._own_moves += 1
            try:
                await self._broker.catalog.submit(SetLogStart(items=starts[index : index + COMMANDS_AT_ONCE]))
            finally:
                self._own_moves -= 1
        if starts:
            self._dead_in |= due

    async def _note(self, container: Container, chunk: Chunk) -> "Note":
        """What is remembered of a closed chunk, so that it need not be read in every round."""
        key = (container.id, chunk.start)
        note = self._notes.get(key)
        if note is None or note.body is not chunk.body:
            body = chunk.body
            oldest: dict[StreamNumber, int] = {}
            for share in await self._shares(container, chunk):
                stream = stream_of(share.partitionlet)
                if share.last >= 0:
                    oldest[stream] = min(oldest.get(stream, share.max_timestamp), share.max_timestamp)
                else:
                    oldest.setdefault(stream, 1 << 62)
            note = self._notes[key] = Note(body, oldest)
        return note

    async def _expire_cursors(self) -> None:
        """Cursors of groups that have been empty for `CURSORS_KEPT_S` go, as in Kafka (offsets.retention.minutes)."""
        now = self._broker.loop.time()
        if now < self._cursors_due:
            return
        self._cursors_due = now + CURSORS_EVERY_S
        await self._broker.catalog.submit(ExpireCursors(before=Millis(self._broker.now() - CURSORS_KEPT_S * 1000)))

    async def _give_back(self, container: Container, streams: set[StreamNumber] | None) -> None:
        """Drop the closed chunks in which nothing lives, and punch out of the others what is dead.

        `streams`: where records died; None: anywhere.
        """
        for chunk in container.log.closed_chunks():
            if streams is not None:
                note = await self._note(container, chunk)
                if streams.isdisjoint(note.oldest):
                    continue
            shares = await self._shares(container, chunk)
            owners = await self._owners(shares)
            dead, whole = gone(shares, owners=owners)
            if not whole and not (dead and await self._punchable(container, chunk, dead)):
                continue
            await self._carry_producers(container, chunk, [share.partitionlet for share in shares], owners)
            if whole:
                size = chunk.body.frames_end
                await self._blocking(lambda chunk=chunk: container.log.drop_chunk(chunk))  # type: ignore[misc]
                self._notes.pop((container.id, chunk.start), None)
                self.freed_bytes += size
                log.info("chunk dropped", container=container.id, chunk=chunk.start)
            else:
                freed = await self._blocking(lambda chunk=chunk, dead=dead: container.log.punch(chunk, dead))  # type: ignore[misc]
                self.freed_bytes += freed

    async def _punchable(self, container: Container, chunk: Chunk, dead: dict[int, int]) -> bool:
        """Whether a punch would give anything back that has not been given back already."""
        return await self._blocking(lambda: container.log.punchable(chunk, dead)) > 0

    async def _shares(
        self, container: Container, chunk: Chunk, streams: set[StreamNumber] | None = None
    ) -> list[Share]:
        return await self._blocking(
            lambda: [
                Share(PartitionletId(each.partitionlet), each.first, each.last, each.max_timestamp, each.length)
                for each in container.log.summaries(chunk)
                if each.partitionlet > 0
                and (streams is None or stream_of(PartitionletId(each.partitionlet)) in streams)
            ]
        )

    async def _owners(self, shares: list[Share]) -> dict[PartitionletId, Owner]:
        partitionlets = {share.partitionlet for share in shares}
        return await self._broker.catalog.query(lambda reader: reader.owners(partitionlets))

    async def _carry_producers(
        self,
        container: Container,
        chunk: Chunk,
        partitionlets: list[PartitionletId],
        owners: dict[PartitionletId, Owner],
    ) -> None:
        """Append anew what open partitionlets know of their producers from a chunk of which bytes will go."""

        def known() -> list[tuple[PartitionletId, bytes]]:
            frames = []
            for partitionlet in partitionlets:
                owner = owners.get(partitionlet)
                if owner is None or owner.end >= 0:
                    continue
                if not any(part.producers(partitionlet) or part.controls(partitionlet) for part in chunk.body.parts):
                    continue
                tail = read_tail(container, partitionlet, max(owner.first, owner.log_start))
                if len(tail.producers):
                    frames.append((partitionlet, msgspec.msgpack.encode(carried(tail.producers))))
            return frames

        appended = [
            container.append_control(FrameType.PRODUCERS, payload, partitionlet=partitionlet)
            for partitionlet, payload in await self._blocking(known)
        ]
        if appended:
            await asyncio.gather(*appended)

    # --- closed containers

    async def _delete_if_empty(self, container: Container) -> None:
        """A closing container rolls its idle partitions away, a few at a time, and vanishes when nobody needs it."""
        if not container.closing or len(container.log.chunks()) > 1:
            return
        rows = await self._broker.catalog.query(lambda reader: reader.open_in(container.id, limit=ROLLS_AT_ONCE))
        for row in rows:
            await self._roll_away(row)
        if len(rows) == ROLLS_AT_ONCE:
            self._wake.set()
            return
        chunks = container.log.chunks()
        if chunks and not chunks[-1].body.closed:
            container.log.close_open_chunk()
            container.kick()
            return
        for chunk in chunks:
            shares = await self._shares(container, chunk)
            owners = await self._owners(shares)
            if any(share.partitionlet in owners for share in shares):
                return
        log.info("container deleted", container=container.id)
        await self._delete_container(container)

    async def _roll_away(self, row: PartitionletRow) -> None:
        if row.state != OPEN:
            return
        owners = await self._broker.catalog.query(lambda reader: reader.owners([row.id]))
        owner = owners.get(row.id)
        if owner is None:
            return
        (topic,) = await self._broker.topics.resolve_ids([owner.topic_id])
        if isinstance(topic, Topic):
            try:
                partition = await self._broker.partitions.leader(topic, row.partition)
                await self._broker.rolls.settle(partition)
            except KafkaError as error:
                log.info("a partition was not rolled", topic=topic.name, reason=str(error))

    # --- regrouping

    async def _regroup_one(self, container: Container) -> None:
        """Regroup the oldest chunk of this container that needs it, in a helper process."""
        for chunk in container.log.closed_chunks():
            key = (container.id, chunk.start)
            if key in self._not_regrouped or chunk.body.regrouped or chunk.end is None:
                continue
            if chunk.end > container.committed:
                return
            self._not_regrouped.add(key)
            if not await self._blocking(lambda chunk=chunk: container.log.needs_regroup(chunk)):  # type: ignore[misc]
                continue
            began = time.monotonic()
            self._helper = await asyncio.create_subprocess_exec(*container.log.regroup_command(chunk))
            status = await self._helper.wait()
            self._helper = None
            if status:
                log.warning("regrouping failed", container=container.id, chunk=chunk.start, status=status)
                return
            await self._blocking(lambda chunk=chunk: container.log.reopen_chunk(chunk))  # type: ignore[misc]
            self.regrouped += 1
            log.info(
                "chunk regrouped", container=container.id, chunk=chunk.start, seconds=round(time.monotonic() - began, 2)
            )
            self._wake.set()
            return

"""The node's disk: closing chunks, expiry, giving space back, regrouping, and which containers take new partitions.

One task looks after it, every few seconds and when something asks for it; nothing here has a timer per topic. Disk
work runs in threads, regrouping in a helper process of low priority. Order matters (invariant 12): the log start moves
by a committed command first, bytes go afterwards; what a later reader needs of a chunk that goes (the state of
idempotent producers) is appended anew before. A step that fails, or a chunk that is damaged, keeps no other waiting.
"""

import asyncio
import os
import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec
import structlog

from headrace.broker.partitions import read_tail
from headrace.broker.regrouping import ChunkKey, Regrouping
from headrace.broker.retention import Share, expired, gone
from headrace.broker.roll_frames import carried
from headrace.broker.topics import Topic
from headrace.catalog.commands import ExpireCursors, SetLogStart
from headrace.catalog.reader import Reader
from headrace.catalog.rows import OPEN, Owner, PartitionletRow, StreamRetention
from headrace.container.container import Container
from headrace.errors import HeadraceError, StorageFull
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
WORTH_PUNCHING = 1024 * 1024
"""Dead bytes for which a closed chunk's share of a partition is given back in part."""
WORTH_CLOSING = 1024 * 1024
"""Dead bytes in the open chunk for which it is closed early, so that they can be given back."""
COMMANDS_AT_ONCE = 10_000
ROLLS_AT_ONCE = 256
CURSORS_KEPT_S = 7 * 24 * 3600
CURSORS_EVERY_S = 3600.0


REST_S = 10.0
"""How long a container has been closed before it is deleted: what was meant for it has arrived by then."""

FAILURES = (HeadraceError, OSError, sqlite3.Error)
"""What a step may end with; it is tried again in the next round."""


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
        self._round_lock = asyncio.Lock()
        self._regrouping = Regrouping(broker, done=self._chunk_regrouped)
        self.catalog_id = ContainerId(0)
        self._notes: dict[ChunkKey, Note] = {}
        self._dead_in: set[StreamNumber] = set()
        """Streams of which records died."""
        self._dead_anywhere = True
        self._unseen: set[ChunkKey] = set()
        """Closed chunks that nobody has looked at for dead bytes, or that could not be looked at."""
        self._unreadable: set[ChunkKey] = set()
        self._closed_at: dict[ContainerId, float] = {}
        self._own_command: SetLogStart | None = None
        self._early_due = 0.0
        self._cursors_due = broker.loop.time() + CURSORS_EVERY_S
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

    def is_own(self, command: SetLogStart) -> bool:
        """Whether these log starts move on behalf of expiry, which knows where bytes die."""
        return command is self._own_command

    @property
    def regrouped(self) -> int:
        """Chunks regrouped since the start."""
        return self._regrouping.regrouped

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
        await self._regrouping.close()

    async def pass_now(self) -> None:
        """One round, at once: for an admin who just deleted something, and for tests."""
        await self._round()

    # --- the task

    def _chunk_full(self, _container: Container) -> None:
        self._wake.set()

    def _chunk_regrouped(self, key: ChunkKey) -> None:
        """Its dead bytes lie together now: more of them can be given back."""
        self._unseen.add(key)
        self._wake.set()

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(EVERY_S):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            await self._round()

    async def _round(self) -> None:
        async with self._round_lock:
            for step in (
                self._close_chunks,
                self._close_containers,
                self._expire,
                self._give_back,
                self._close_early,
                self._delete_empty,
                self._expire_cursors,
                self._regroup,
            ):
                try:
                    await step()
                except FAILURES as error:
                    name = step.__name__.strip("_").replace("_", " ")
                    log.warning(
                        "a step of looking after the disk failed, it is tried again", step=name, error=str(error)
                    )
                except Exception:
                    # A fault of ours must not end the one task that gives disk space back.
                    log.exception("a step of looking after the disk went wrong", step=step.__name__)

    def _data(self) -> list[Container]:
        return [container for container in list(self._broker.containers.values()) if container.id != self.catalog_id]

    async def _blocking(self, work: Callable[[], T]) -> T:
        return await self._broker.loop.run_in_executor(self._broker.executor, work)

    # --- closing

    async def _close_chunks(self) -> None:
        for container in list(self._broker.containers.values()):
            for chunk in container.log.chunks_to_close():
                try:
                    await self._blocking(lambda chunk=chunk, log=container.log: log.close_chunk(chunk))  # type: ignore[misc]
                except StorageFull as full:
                    log.warning("a chunk stays open", container=container.id, reason=str(full))
                    break
                self._unseen.add((container.id, chunk.start))

    async def _close_containers(self) -> None:
        """A container that is large or of many chunks takes no new partitionlets; there is always one that does."""
        most = self._broker.node.settings.container_bytes
        for container in self.open_containers():
            if container.log.end - container.log.start >= most or len(container.log.chunks()) >= MOST_CHUNKS:
                fresh = await self._new_container()
                fresh.on_chunk_full = self._chunk_full
                container.closing = True
                self._closed_at[container.id] = self._broker.loop.time()
                await self._close_container(container)
                log.info("container closed", container=container.id, next=fresh.id)

    async def _close_early(self) -> None:
        if self._broker.loop.time() < self._early_due:
            return
        self._early_due = self._broker.loop.time() + EARLY_EVERY_S
        for container in self._data():
            await self._close_early_one(container)

    async def _close_early_one(self, container: Container) -> None:
        """Close the open chunk if enough of it is dead, so that the next round can give that back."""
        chunks = container.log.chunks()
        if not chunks or chunks[-1].body.closed or chunks[-1] in container.log.chunks_to_close():
            return
        chunk = chunks[-1]
        if container.log.end - chunk.start < (1 if container.closing else WORTH_CLOSING):
            return
        shares = await self._shares(container, chunk)
        if container.closing and any(share.bytes for share in shares):
            # Nothing is written behind these, and while they stand in an open chunk nothing younger can expire.
            self._close_open(container, chunk)
            return
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
        if dead >= WORTH_CLOSING:
            self._close_open(container, chunk)

    def _close_open(self, container: Container, chunk: Chunk) -> None:
        if chunk is container.log.chunks()[-1]:
            container.log.close_open_chunk()
            container.kick()

    # --- expiry

    async def _expire(self) -> None:
        """Move the log starts of what has expired in closed chunks. Chunks of which nothing can have are not read."""
        notes = [
            (container, chunk, note)
            for container in self._data()
            for chunk in container.log.closed_chunks()
            if (note := await self._note(container, chunk)) is not None
        ]
        streams = {stream for _, _, note in notes for stream in note.oldest}
        if not streams:
            return
        rules = await self._broker.catalog.query(lambda reader: reader.retention(streams))
        now = self._broker.now()
        touched: set[StreamNumber] = set()
        shares: list[Share] = []
        for container, chunk, note in notes:
            due = {stream for stream, oldest in note.oldest.items() if _may_expire(rules, stream, oldest, now)}
            if due:
                touched |= due
                shares += await self._shares(container, chunk, due)
        if not shares:
            return
        owners = await self._owners(shares)
        starts = await self._blocking(
            # A partition's records may lie in several containers: by offset they are in order.
            lambda: expired(sorted(shares, key=_first), owners=owners, rules=rules, now=now)
        )
        for index in range(0, len(starts), COMMANDS_AT_ONCE):
            self._own_command = SetLogStart(items=starts[index : index + COMMANDS_AT_ONCE])
            await self._broker.catalog.submit(self._own_command)
            self._dead_in |= touched

    async def _note(self, container: Container, chunk: Chunk) -> Note | None:
        """What is remembered of a closed chunk, so that it need not be read in every round; None: it is damaged."""
        key = (container.id, chunk.start)
        note = self._notes.get(key)
        if note is None or note.body is not chunk.body:
            body = chunk.body
            oldest: dict[StreamNumber, int] = {}
            try:
                shares = await self._shares(container, chunk)
            except HeadraceError as error:
                self._damaged(key, error)
                return None
            for share in shares:
                stream = stream_of(share.partitionlet)
                if share.last >= 0:
                    oldest[stream] = min(oldest.get(stream, share.max_timestamp), share.max_timestamp)
                else:
                    oldest.setdefault(stream, 1 << 62)
            note = self._notes[key] = Note(body, oldest)
        return note

    def _damaged(self, key: ChunkKey, error: Exception) -> None:
        if key not in self._unreadable:
            self._unreadable.add(key)
            log.error("nothing is given back of a chunk", container=key[0], chunk=key[1], error=str(error))

    async def _expire_cursors(self) -> None:
        """Cursors of groups that have been empty for `CURSORS_KEPT_S` go, as in Kafka (offsets.retention.minutes)."""
        now = self._broker.loop.time()
        if now < self._cursors_due:
            return
        self._cursors_due = now + CURSORS_EVERY_S
        await self._broker.catalog.submit(ExpireCursors(before=Millis(self._broker.now() - CURSORS_KEPT_S * 1000)))

    async def _give_back(self) -> None:
        """Drop the closed chunks in which nothing lives, and punch out of the others what is dead."""
        anywhere, self._dead_anywhere = self._dead_anywhere, False
        dead_in, self._dead_in = self._dead_in, set()
        unseen, self._unseen = self._unseen, set()
        if anywhere:
            self._early_due = 0.0
        try:
            for container in self._data():
                for chunk in container.log.closed_chunks():
                    key = (container.id, chunk.start)
                    if not anywhere and key not in unseen:
                        note = await self._note(container, chunk)
                        if note is None or dead_in.isdisjoint(note.oldest):
                            continue
                    try:
                        await self._give_back_of(container, chunk)
                    except FAILURES as error:
                        self._unseen.add(key)
                        self._damaged(key, error)
                    else:
                        self._unreadable.discard(key)
        except BaseException:
            self._dead_anywhere |= anywhere
            self._dead_in |= dead_in
            self._unseen |= unseen
            raise

    async def _give_back_of(self, container: Container, chunk: Chunk) -> None:
        shares = await self._shares(container, chunk)
        owners = await self._owners(shares)
        dead, whole = gone(shares, owners=owners)
        if whole:
            await self._carry_producers(container, chunk, [share.partitionlet for share in shares], owners)
            size = chunk.body.frames_end
            await self._blocking(lambda: container.log.drop_chunk(chunk))
            self._notes.pop((container.id, chunk.start), None)
            self.freed_bytes += size
            log.info("chunk dropped", container=container.id, chunk=chunk.start)
            return
        newly = dead
        # A share of which some live on is worth the record of it only where it gives back much.
        freed = await self._blocking(lambda: container.log.punchable(chunk, newly))
        live = {share.partitionlet for share in shares if share.first < newly.get(share.partitionlet, -1) <= share.last}
        if freed < WORTH_PUNCHING and live:
            newly = {partitionlet: kept for partitionlet, kept in newly.items() if partitionlet not in live}
            freed = await self._blocking(lambda: container.log.punchable(chunk, newly))
        if freed:
            touched = [share.partitionlet for share in shares if share.partitionlet in newly]
            await self._carry_producers(container, chunk, touched, owners)
        if freed or not chunk.punched:  # not punched: a crash may have come between the record of it and the bytes
            self.freed_bytes += await self._blocking(lambda: container.log.punch(chunk, newly if freed else {}))

    async def _shares(
        self, container: Container, chunk: Chunk, streams: set[StreamNumber] | None = None
    ) -> list[Share]:
        return await self._blocking(lambda: _shares_of(container, chunk, streams))

    async def _owners(self, shares: list[Share]) -> dict[PartitionletId, Owner]:
        partitionlets = {share.partitionlet for share in shares}
        return await self._broker.catalog.query(lambda reader: reader.owners(partitionlets))

    async def _carry_producers(
        self,
        container: Container,
        chunk: Chunk,
        partitionlets: Sequence[PartitionletId],
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
            container.append_control(FrameType.PRODUCERS, payload, partitionlet=partitionlet, from_reserve=True)
            for partitionlet, payload in await self._blocking(known)
        ]
        if appended:
            await asyncio.gather(*appended)

    # --- closed containers

    async def _delete_empty(self) -> None:
        for container in self._data():
            if container.closing and len(container.log.chunks()) <= 1:
                await self._delete_if_empty(container)

    async def _delete_if_empty(self, container: Container) -> None:
        """A closing container rolls its idle partitions away, a few at a time, and vanishes when nobody needs it."""
        rows = await self._broker.catalog.query(lambda reader: reader.open_in(container.id, limit=ROLLS_AT_ONCE))
        for row in rows:
            await self._roll_away(row)
        if len(rows) == ROLLS_AT_ONCE:
            self._wake.set()
            return
        if self._broker.loop.time() < self._closed_at.get(container.id, 0.0) + REST_S:
            return
        chunks = [chunk for chunk in container.log.chunks() if chunk.end is not None or container.log.end > chunk.start]
        if chunks and not chunks[-1].body.closed:
            container.log.close_open_chunk()
            container.kick()
            return
        held = {share.partitionlet for chunk in chunks for share in await self._shares(container, chunk)}
        # A command of no effect: what was placed here before the container closed is applied when it is.
        await self._broker.catalog.submit(SetLogStart(items=[]))
        if await self._broker.catalog.query(lambda reader: _is_needed(reader, container.id, held)):
            return
        log.info("container deleted", container=container.id)
        await self._delete_container(container)
        for key in [key for key in self._notes if key[0] == container.id]:
            del self._notes[key]
        self._regrouping.forget(container.id)
        self._closed_at.pop(container.id, None)

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
            except HeadraceError as error:
                log.info("a partition was not rolled", topic=topic.name, reason=str(error))

    async def _regroup(self) -> None:
        if self._regroup_enabled:
            await self._regrouping.step(self._data())


def _is_needed(reader: Reader, container: ContainerId, held: set[PartitionletId]) -> bool:
    """[blocking] Whether a partitionlet lives, opens or is about to open in a container; `held`: those with frames."""
    return bool(
        reader.open_in(container, limit=1)
        or reader.owners(held)
        or any(row.container == container for row in reader.intended())
    )


def _shares_of(container: Container, chunk: Chunk, streams: set[StreamNumber] | None) -> list[Share]:
    """[blocking] What a chunk holds of the partitionlets of `streams`, or of all."""
    # Records without a timestamp are as old as their chunk, as in Kafka.
    written = int(os.fstat(chunk.body.file.fd).st_mtime * 1000)
    return [
        Share(
            PartitionletId(each.partitionlet),
            each.first,
            each.last,
            each.max_timestamp if each.max_timestamp >= 0 else written,
            each.length,
        )
        for each in container.log.summaries(chunk)
        if each.partitionlet > 0 and (streams is None or stream_of(PartitionletId(each.partitionlet)) in streams)
    ]


def _first(share: Share) -> int:
    return share.first

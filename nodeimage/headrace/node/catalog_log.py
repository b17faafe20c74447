"""The catalog's container as the catalog sees it: this node's replica, whichever node leads
(tables.command_log.CommandLog).

The replica object stays the same while its role changes; it gets another log when it is cut back or recreated.
"""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Executor

import structlog

from headrace.base.errors import Code, CorruptLog, KafkaError, TrimmedLog
from headrace.base.ids import Position
from headrace.container.local_replica import LocalReplica
from headrace.log.container_log import ContainerLog
from headrace.log.frames import HEADER_BYTES, Frame, FrameType

log = structlog.get_logger()


class CatalogLog:
    """A CommandLog over one replica."""

    def __init__(
        self, replica: LocalReplica, executor: Executor, *, tables_lost: Callable[[], None] | None = None
    ) -> None:
        """`tables_lost`: called if another node leads and the log starts after the position that the tables have
        reached."""
        assert replica.commands is not None, "this is not the catalog's container"
        self._replica = replica
        self._tail = replica.commands
        self._executor = executor
        self._tables_lost = tables_lost
        self._loop = asyncio.get_running_loop()

    @property
    def leads(self) -> bool:
        """See CommandLog."""
        leader = self._replica.leader
        return leader is not None and not leader.lost

    @property
    def end(self) -> Position:
        """See CommandLog."""
        return self._replica.log.end

    @property
    def committed(self) -> Position:
        """See CommandLog."""
        return self._replica.committed

    def append_command(self, payload: bytes) -> asyncio.Future[Position]:
        """See CommandLog."""
        leader = self._replica.leader
        appended: asyncio.Future[Position] = self._loop.create_future()
        if leader is None or leader.lost:
            appended.set_exception(_not_leader())
            return appended

        def done(ended: asyncio.Future[Position]) -> None:
            if appended.done():
                return
            if ended.cancelled():
                appended.cancel()
            elif (error := ended.exception()) is None:
                appended.set_result(ended.result())
            elif isinstance(error, KafkaError) and error.code == Code.NOT_LEADER_OR_FOLLOWER:
                appended.set_exception(_not_leader())
            else:
                appended.set_exception(error)

        leader.append_command(payload).add_done_callback(done)
        return appended

    def recent(self, after: Position) -> list[tuple[Position, bytes]] | None:
        """See CommandLog."""
        return self._tail.read(after, self._replica.committed)

    def commands(self, after: Position, until: Position) -> Iterator[tuple[Position, bytes]]:
        """[blocking] See CommandLog. If the log cannot be read, its replica is reported as damaged, and is fetched
        again.

        The same happens if the log starts after the position that the tables have reached, because they were lost,
        while this node leads: another node then takes the lead, and sends a snapshot with the new, empty log.
        """
        read = self._replica.log
        try:
            yield from commands_in(read, after, until)
        except CorruptLog as error:
            self._loop.call_soon_threadsafe(self._unread, read, isinstance(error, TrimmedLog))
            raise

    def _unread(self, read: ContainerLog, is_trimmed: bool) -> None:
        if self._replica.log is not read or self._replica.cycle.is_closed:
            return  # the replica is about to get another log
        if is_trimmed and self._tables_lost is not None and self._replica.leader is None:
            self._tables_lost()
        else:
            self._replica.report_damage()

    def on_committed(self, callback: Callable[[], None]) -> None:
        """See CommandLog."""
        self._replica.on_committed(callback)

    def trim(self, until: Position) -> None:
        """See CommandLog. Runs in a thread; after a failure the next snapshot trims again."""
        trimmed = self._loop.run_in_executor(self._executor, self._replica.log.trim, until)
        trimmed.add_done_callback(_trimmed)


def commands_in(container_log: ContainerLog, after: Position, until: Position) -> Iterator[tuple[Position, bytes]]:
    """[blocking] The catalog commands after `after` that end at or below `until`: (position after the frame, payload).

    Raises `CorruptLog`, and `TrimmedLog` if commands after `after` have been trimmed: continuing would skip them.
    """
    # This copies the list of chunks. It comes before the check of the start: otherwise a log that is closed or trimmed
    # in between would seem to have no further commands.
    frames: Iterator[Frame] = container_log.control_frames(after, until)
    if after < container_log.start:
        raise TrimmedLog(
            f"{container_log.folder} starts at {container_log.start}; what was at {after} has been trimmed"
        )
    for frame in frames:
        if frame.type == FrameType.COMMAND:
            yield Position(frame.position + HEADER_BYTES + len(frame.payload)), bytes(frame.payload)


def _not_leader() -> KafkaError:
    return KafkaError(Code.NOT_CONTROLLER, "this node does not lead the catalog")


def _trimmed(ended: "asyncio.Future[None]") -> None:
    if not ended.cancelled() and (error := ended.exception()) is not None:
        log.warning("trimming the catalog's log failed, it is tried again at the next snapshot", error=str(error))

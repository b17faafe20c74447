"""The catalog's commands in its replica's log: none is left out, and an unreadable log is reported."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.errors import Code, CorruptLog, KafkaError, TrimmedLog
from headrace.base.ids import Position
from headrace.log.container_log import ContainerLog, LogOptions
from headrace.log.frames import FrameType
from headrace.node.catalog_log import CatalogLog, commands_in


def written(folder: Path, count: int) -> tuple[ContainerLog, list[Position]]:
    """A log of commands with other control frames between them, and the positions after the commands."""
    log = ContainerLog.open(folder, LogOptions(chunk_bytes=64 << 10))
    ends = []
    for number in range(count):
        if not log.room(200):
            log.make_spare()
        log.append_control(type=FrameType.COMMAND, epoch=1, partitionlet=0, payload=b"command %d" % number)
        ends.append(Position(log.end))
        log.append_control(type=FrameType.OPEN, epoch=1, partitionlet=5, payload=b"no command")
    while (job := log.take_job()) is not None:
        log.write_job(job)
        log.job_done(job)
    return log, ends


def test_commands_come_with_the_position_after_them_between_two_positions(tmp_path: Path) -> None:
    log, ends = written(tmp_path / "log", 4)
    assert list(commands_in(log, Position(0), log.end)) == [(end, b"command %d" % row) for row, end in enumerate(ends)]
    assert [end for end, _ in commands_in(log, ends[0], ends[2])] == ends[1:3]
    assert list(commands_in(log, ends[3], log.end)) == []
    log.close()


def test_commands_that_were_trimmed_are_not_passed_over(tmp_path: Path) -> None:
    trimmed: Any = SimpleNamespace(start=500, folder="f", control_frames=lambda after, until: iter(()))
    with pytest.raises(TrimmedLog, match="starts at 500; what was at 499"):
        list(commands_in(trimmed, Position(499), Position(900)))
    assert list(commands_in(trimmed, Position(500), Position(900))) == []


class Replica:
    """A replica that leads or does not, and records reports of damage."""

    def __init__(self) -> None:
        self.commands = object()
        self.leader: Any = None
        self.log: Any = None
        self.committed = Position(0)
        self.cycle = SimpleNamespace(is_closed=False)
        self.damaged = 0

    def report_damage(self) -> None:
        self.damaged += 1


def catalog_log(replica: Replica, lost: list[str]) -> CatalogLog:
    given: Any = replica
    executor: Any = None
    return CatalogLog(given, executor, tables_lost=lambda: lost.append("lost"))


class Leader:
    """A leader whose appends end as the test decides."""

    def __init__(self) -> None:
        self.lost = False
        self.appended: asyncio.Future[Position] = asyncio.get_running_loop().create_future()

    def append_command(self, payload: bytes) -> "asyncio.Future[Position]":
        return self.appended


async def test_who_does_not_lead_sends_commands_elsewhere() -> None:
    replica = Replica()
    log = catalog_log(replica, [])
    assert not log.leads
    with pytest.raises(KafkaError) as refused:
        await log.append_command(b"c")
    assert refused.value.code is Code.NOT_CONTROLLER
    replica.leader = SimpleNamespace(lost=True)
    assert not log.leads


async def test_a_command_is_done_once_it_is_committed_and_elsewhere_once_another_leads() -> None:
    replica, lost = Replica(), KafkaError(Code.NOT_LEADER_OR_FOLLOWER)
    log = catalog_log(replica, [])
    replica.leader = leader = Leader()
    appended = log.append_command(b"c")
    leader.appended.set_result(Position(7))
    assert await appended == 7
    replica.leader = leader = Leader()
    appended = log.append_command(b"c")
    leader.appended.set_exception(lost)
    with pytest.raises(KafkaError) as refused:
        await appended
    assert refused.value.code is Code.NOT_CONTROLLER, "it is to be sent to who leads now"
    replica.leader = leader = Leader()
    appended = log.append_command(b"c")
    leader.appended.set_exception(KafkaError(Code.KAFKA_STORAGE_ERROR))
    with pytest.raises(KafkaError) as full:
        await appended
    assert full.value.code is Code.KAFKA_STORAGE_ERROR


def fails(error: Exception) -> Any:
    def control_frames(after: int, until: int) -> Any:
        raise error

    return SimpleNamespace(start=0, folder="f", control_frames=control_frames)


@pytest.mark.parametrize(
    ("error", "leads", "damaged", "lost"),
    [
        (CorruptLog("bad"), False, 1, []),
        (TrimmedLog("trimmed"), False, 0, ["lost"]),
        (TrimmedLog("trimmed"), True, 1, []),
    ],
)
async def test_a_log_that_cannot_be_read_is_fetched_anew_and_one_that_was_trimmed_loses_the_tables(
    error: CorruptLog, leads: bool, damaged: int, lost: list[str]
) -> None:
    replica, told = Replica(), []
    replica.log = fails(error)
    replica.leader = Leader() if leads else None
    log = catalog_log(replica, told)
    with pytest.raises(CorruptLog):
        list(log.commands(Position(0), Position(9)))
    await asyncio.sleep(0)
    assert (replica.damaged, told) == (damaged, lost)


async def test_damage_of_a_log_that_has_been_replaced_meanwhile_is_no_news() -> None:
    replica = Replica()
    replica.log = fails(CorruptLog("bad"))
    log = catalog_log(replica, [])
    with pytest.raises(CorruptLog):
        list(log.commands(Position(0), Position(9)))
    replica.log = object()
    await asyncio.sleep(0)
    assert replica.damaged == 0

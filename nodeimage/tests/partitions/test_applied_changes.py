"""The effect of applied commands on topics and partitions in memory, and on disk maintenance."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.errors import Code
from headrace.base.ids import ContainerId, Home, Millis, Position
from headrace.catalog.chains import LogStart, SetLogStart
from headrace.catalog.deletions import ForgetDeleted
from headrace.catalog.homes import HomeChange, SetHome
from headrace.catalog.streams import DeleteStream
from headrace.catalog.topics import CreateTopics, DeleteTopics
from headrace.log.frames import FrameType
from headrace.partitions.applied_changes import AppliedChanges
from headrace.partitions.rolls.frames import read_open

T = b"t" * 16


class Told:
    """Topics, partitions and disk maintenance in one: notes the calls, and has one topic in memory."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.topic: Any = None

    def cached_id(self, topic_id: bytes) -> Any:
        return self.topic if topic_id == T else None

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> None:
            self.told.append((name, *arguments))

        return call

    def names(self) -> list[str]:
        return [name for name, *_ in self.told if name != "command_applied"]


class Container:
    """A container that is led here."""

    def __init__(self) -> None:
        self.opened: list[int] = []

    def append_control(self, type: FrameType, payload: bytes) -> "asyncio.Future[Position]":
        assert type is FrameType.OPEN
        self.opened += [each.partitionlet for each in read_open(payload)]
        return asyncio.get_running_loop().create_future()


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def led() -> dict[ContainerId, Any]:
    return {ContainerId(7): Container()}


@pytest.fixture
def changes(told: Told, led: dict[ContainerId, Any]) -> AppliedChanges:
    given: Any = told
    cluster: Any = SimpleNamespace(replicas=SimpleNamespace(led=led))
    return AppliedChanges(runtime=given, cluster=cluster, topics=given, partitions=given, maintenance=given)


def row(number: int, *, container: int = 7) -> Any:
    return SimpleNamespace(
        id=number, container=ContainerId(container), partition=number, first=0, leader_epoch=0, container_epoch=1
    )


def outcome(*rows: Any, code: Code = Code.NONE) -> Any:
    topic = SimpleNamespace(stream="/s", name="t", topic_id=T)
    return SimpleNamespace(code=code, topic=topic if code is Code.NONE else None, partitionlets=rows)


async def test_partitionlets_of_new_topics_are_opened_where_this_node_leads_their_containers(
    changes: AppliedChanges, led: dict[ContainerId, Any]
) -> None:
    made: Any = [outcome(row(1), row(2, container=8)), outcome(row(3)), outcome(code=Code.INVALID_REQUEST)]
    changes.applied([(CreateTopics(items=[], now=Millis(0)), made)])
    assert led[ContainerId(7)].opened == [1, 3]


def test_records_of_what_is_deleted_have_died(changes: AppliedChanges, told: Told) -> None:
    changes.applied([(DeleteTopics(topic_ids=[T, b"u" * 16], now=Millis(0)), [])])
    assert told.names() == ["records_freed", "gone", "gone"]
    told.told.clear()
    changes.applied([(DeleteStream(path="/s", now=Millis(0), force=True), None)])
    assert told.names() == ["records_freed", "stream_gone"]
    told.told.clear()
    for ended in (False, True):
        changes.applied([(ForgetDeleted(), SimpleNamespace(ended=ended))])
    assert told.names() == ["records_freed"], "rows of one that is half forgotten keep its records"


def test_a_home_moves_for_those_topics_alone_for_which_it_did(changes: AppliedChanges, told: Told) -> None:
    items = [HomeChange(T, 5, "north"), HomeChange(b"u" * 16, 6, "east")]
    changes.applied([(SetHome(items=items), [Code.NONE, Code.FENCED_LEADER_EPOCH])])
    assert [call for call in told.told if call[0] == "home_moved"] == [("home_moved", T, Home(5, "north"))]


def partition(*, log_start: int = 10, rows: tuple[int, ...] = (1, 2, 3)) -> Any:
    made = SimpleNamespace(log_start=log_start, chain=tuple(SimpleNamespace(id=number) for number in rows), woken=0)

    def wake_all() -> None:
        made.woken += 1

    made.wake_all = wake_all
    return made


def moved(changes: AppliedChanges, told: Told, held: Any, result: Any) -> None:
    told.topic = SimpleNamespace(partitions={0: held})
    changes.applied([(SetLogStart(items=[LogStart(T, 0, 50)]), [result])])


def test_a_log_start_that_moved_wakes_who_waits_and_takes_dropped_partitionlets_along(
    changes: AppliedChanges, told: Told
) -> None:
    held = partition()
    moved(changes, told, held, SimpleNamespace(code=Code.NONE, offset=50, dropped=[1]))
    assert (held.log_start, [each.id for each in held.chain], held.woken) == (50, [2, 3], 1)
    assert "records_freed" in told.names()


def test_a_log_start_never_goes_back_and_the_last_partitionlet_stays(changes: AppliedChanges, told: Told) -> None:
    held = partition(log_start=90)
    moved(changes, told, held, SimpleNamespace(code=Code.NONE, offset=50, dropped=[1, 2, 3]))
    assert (held.log_start, [each.id for each in held.chain]) == (90, [3])


def test_a_log_start_that_was_refused_changes_nothing_in_memory(changes: AppliedChanges, told: Told) -> None:
    held = partition()
    moved(changes, told, held, SimpleNamespace(code=Code.OFFSET_OUT_OF_RANGE, offset=50, dropped=[]))
    assert (held.log_start, held.woken) == (10, 0)

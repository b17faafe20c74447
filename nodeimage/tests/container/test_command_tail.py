"""The newest commands in memory: without a gap, or not at all."""

import pytest

from headrace.base.ids import Position
from headrace.container import command_tail
from headrace.container.command_tail import CommandTail


def tail(*positions: int, floor: int = 0) -> CommandTail:
    made = CommandTail(Position(floor))
    for position in positions:
        made.add(Position(position), b"%d" % position)
    return made


def read(held: CommandTail, after: int, until: int) -> list[int] | None:
    found = held.read(Position(after), Position(until))
    return None if found is None else [position for position, _ in found]


def test_commands_behind_a_position_come_in_order_up_to_another() -> None:
    held = tail(10, 20, 30, 40)
    assert read(held, 10, 30) == [20, 30]
    assert read(held, 0, 100) == [10, 20, 30, 40]
    assert read(held, 40, 100) == []
    assert held.read(Position(10), Position(20)) == [(20, b"20")]


def test_what_lies_below_the_first_command_is_not_in_memory() -> None:
    held = tail(110, floor=100)
    assert read(held, 100, 200) == [110]
    assert read(held, 99, 200) is None


def test_the_oldest_commands_leave_when_there_are_too_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_tail, "MAX_BYTES", 4)
    held = tail(10, 20, 30)
    assert read(held, 10, 100) == [20, 30]
    assert read(held, 0, 100) is None, "one of these has left"
    held.add(Position(99), b"longer than all that is allowed")
    assert read(held, 30, 100) == [99], "the newest stays whatever its size"


def test_a_log_that_begins_anew_forgets_its_commands() -> None:
    held = tail(10, 20)
    held.restart(Position(15))
    assert read(held, 10, 100) is None
    assert read(held, 15, 100) == []
    held.add(Position(25), b"25")
    assert read(held, 15, 100) == [25]

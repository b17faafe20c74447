from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base.ids import Epoch, Position
from headrace.container.history import History
from headrace.local.log_divergence import diverges
from headrace.log.container_log import ContainerLog, LogOptions
from headrace.log.frames import FrameType


class Replica:
    """A log of commands, and its history."""

    def __init__(self, folder: Path) -> None:
        self.log = ContainerLog.open(folder, LogOptions(chunk_bytes=1 << 20))
        self.history: History = ()

    def write(self, epoch: int, *payloads: bytes) -> None:
        if not self.history or self.history[-1][0] != epoch:
            self.history = (*self.history, (Epoch(epoch), self.log.end))
        for payload in payloads:
            if not self.log.room(len(payload)):
                self.log.make_spare()
            self.log.append_control(type=FrameType.COMMAND, epoch=epoch, partitionlet=0, payload=payload)
        while (job := self.log.take_job()) is not None:
            self.log.write_job(job)
            self.log.job_done(job)

    def parts_from(self, ahead: "Replica") -> bool:
        return diverges(self.log, self.history, ahead.log, ahead.history)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Replica, Replica]]:
    """Two logs that are equal in epoch 1."""
    both = Replica(tmp_path / "1"), Replica(tmp_path / "2")
    for each in both:
        each.write(1, b"one", b"two")
    yield both
    for each in both:
        each.log.close()


def test_one_that_is_behind_does_not_part(pair: tuple[Replica, Replica]) -> None:
    behind, ahead = pair
    assert not behind.parts_from(ahead)
    behind.write(2, b"three")
    ahead.write(2, b"three", b"four")
    ahead.write(3, b"five")
    assert not behind.parts_from(ahead)


def test_one_that_has_more_of_an_epoch_than_went_on_does_not_part(pair: tuple[Replica, Replica]) -> None:
    """The histories show that the excess is cut off."""
    behind, ahead = pair
    behind.write(2, b"three", b"to be cut")
    ahead.write(2, b"three")
    ahead.write(3, b"five")
    assert not behind.parts_from(ahead)


@pytest.mark.parametrize("other", [b"THREE", b"longer than what the other has", b"x"])
def test_one_that_wrote_something_else_in_the_same_epoch_diverges(pair: tuple[Replica, Replica], other: bytes) -> None:
    behind, ahead = pair
    behind.write(2, other)
    ahead.write(2, b"three", b"four")
    ahead.write(3, b"five" * 20)
    assert behind.parts_from(ahead)


def test_epochs_that_differ_tell_the_logs_apart_by_themselves(pair: tuple[Replica, Replica]) -> None:
    behind, ahead = pair
    behind.write(2, b"other")
    ahead.write(3, b"three")
    assert not behind.parts_from(ahead)


def test_an_empty_log_parts_from_none(pair: tuple[Replica, Replica], tmp_path: Path) -> None:
    empty = Replica(tmp_path / "3")
    assert empty.log.end == Position(0)
    assert not empty.parts_from(pair[1])
    empty.log.close()

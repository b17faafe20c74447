"""A Produce request is answered once, when all of its partitions are complete."""

from typing import Any

import pytest

from headrace.base.errors import Code
from headrace.kafka.pending_produce import Produce
from headrace.wire.produce import ProduceResult, encode_response

VERSION = 9


class Slot:
    """Records what happens to the answer."""

    timed = None

    peer = "127.0.0.1:50000"
    throttle_ms = 0

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.codes: list[int] = []

    def answer(self, parts: list[Any]) -> None:
        self.done.append(b"".join(bytes(each) for each in parts))

    def failed(self, code: int) -> None:
        self.codes.append(code)

    def complete_without_answer(self) -> None:
        self.done.append("no answer")

    def lose(self) -> None:
        self.done.append("lost")


def request(partitions: int, *, acks: int = -1) -> tuple[Produce, Slot]:
    slot: Any = Slot()
    return Produce(slot=slot, version=VERSION, acks=acks, partitions=partitions, timeout_ms=1000), slot


def stored(partition: int, offset: int = 7) -> ProduceResult:
    return ProduceResult("t", partition, 0, base_offset=offset)


def refused(partition: int) -> ProduceResult:
    return ProduceResult("t", partition, Code.NOT_LEADER_OR_FOLLOWER, message="another node leads it")


def answer(*results: ProduceResult) -> bytes:
    return encode_response(VERSION, list(results))


def test_it_is_answered_when_the_last_partition_is_complete() -> None:
    produce, slot = request(3)
    produce.add(stored(0), complete=False)
    produce.add(refused(1), complete=True)
    produce.add(stored(2), complete=False)
    produce.committed()
    assert slot.done == []
    produce.committed()
    assert slot.done == [answer(stored(0), refused(1), stored(2))]
    assert slot.codes == [Code.NOT_LEADER_OR_FOLLOWER]


def test_an_outcome_that_comes_later_stands_in_its_place() -> None:
    produce, slot = request(2)
    number = produce.later()
    produce.add(stored(1), complete=True)
    assert slot.done == []
    produce.complete(number, stored(0, offset=99))
    assert slot.done == [answer(stored(0, offset=99), stored(1))]


@pytest.mark.parametrize(("result", "done"), [(stored(0), "no answer"), (refused(0), "lost")])
def test_who_wants_no_answer_learns_of_a_refusal_by_the_end_of_its_connection(result: ProduceResult, done: str) -> None:
    produce, slot = request(1, acks=0)
    produce.add(result, complete=True)
    assert slot.done == [done]


def test_what_nobody_knows_of_is_not_answered() -> None:
    produce, slot = request(2)
    produce.add(stored(0), complete=True)
    produce.lost()
    assert slot.done == ["lost"]

"""Records sent through a stock producer: acknowledgements are counted, and the first failure ends the sending."""

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace.base.errors import HeadraceError
from headrace.cli import sending
from headrace.cli.sending import Sender
from headrace.cli.target import plain

TARGET = plain("h:1")


class Message:
    """The message of an acknowledgement."""

    def topic(self) -> str:
        return "/s:t"


class Producer:
    """Like confluent-kafka's; acknowledges when it is polled. `refuses`: numbers of records that fail."""

    def __init__(self, *, refuses: tuple[int, ...] = (), room: int = 1000, stuck: bool = False) -> None:
        self.refuses = refuses
        self.room = room
        self.stuck = stuck
        self.values: list[bytes] = []
        self.timestamps: list[int] = []
        self._waiting: deque[Callable[[], None]] = deque()
        self.raises: BaseException | None = None

    def produce(self, topic: str, value: bytes, key: Any, partition: int, *, on_delivery: Any, timestamp: int) -> None:
        if self.raises is not None:
            raise self.raises
        if len(self._waiting) >= self.room:
            raise BufferError
        self.values.append(value)
        self.timestamps.append(timestamp)
        failed = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE) if len(self.values) in self.refuses else None
        self._waiting.append(lambda: on_delivery(failed, Message()))

    def poll(self, timeout_s: float) -> None:
        while self._waiting and not self.stuck:
            self._waiting.popleft()()

    def flush(self, timeout_s: float) -> int:
        self.poll(timeout_s)
        return len(self._waiting)


def test_all_are_acknowledged_when_it_has_finished() -> None:
    producer = Producer()
    sender = Sender(producer, TARGET)
    for number in range(300):
        sender.send("/s:t", b"%d" % number)
    sender.finish()
    assert (sender.sent, sender.acknowledged, sender.failed) == (300, 300, None)
    assert producer.timestamps[0] == 0, "which is now to librdkafka"


def test_a_full_queue_is_waited_for() -> None:
    producer = Producer(room=1)
    sender = Sender(producer, TARGET)
    for number in range(5):
        sender.send("/s:t", b"%d" % number)
    sender.finish()
    assert producer.values == [b"0", b"1", b"2", b"3", b"4"]


def test_the_first_record_that_fails_is_named_and_nothing_is_sent_behind_it() -> None:
    sender = Sender(Producer(refuses=(2, 3)), TARGET)
    for _ in range(4):
        sender.send("/s:t", b"v")
    with pytest.raises(HeadraceError) as failed:
        sender.poll()
    assert sender.failed == 2
    with pytest.raises(HeadraceError) as again:
        sender.finish()
    assert again.value is failed.value
    told = sender.final_error(failed.value)
    assert str(told) == f"{failed.value}; 2 of 4 records are stored"


def test_a_record_that_is_refused_at_once_is_told_as_well() -> None:
    producer = Producer()
    sender = Sender(producer, TARGET)
    sender.send("/s:t", b"v")
    producer.raises = KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
    with pytest.raises(HeadraceError):
        sender.send("/s:t", b"w")
    assert sender.failed == 2


def test_what_ends_the_sending_says_how_much_is_stored() -> None:
    why = HeadraceError("line 7 is no record")
    nothing = Sender(Producer(), TARGET)
    assert str(nothing.final_error(why)) == "line 7 is no record; nothing is stored"
    one = Sender(Producer(), TARGET)
    one.send("/s:t", b"v")
    assert str(one.final_error(why)) == "line 7 is no record; 1 record is stored"
    better = HeadraceError("the file ends in the middle of a record")
    assert str(one.final_error(why, told=better)).startswith("the file ends")


def test_records_that_are_never_acknowledged_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    sender = Sender(Producer(stuck=True), TARGET)
    sender.send("/s:t", b"v")
    with pytest.raises(HeadraceError, match="1 records are still not acknowledged"):
        sender.finish(timeout_s=-1)


class ZeroTimestamp:
    """Stores records with timestamp 0, which librdkafka would replace by the present time."""

    is_full = False

    def __init__(self, producer: Producer, **_: object) -> None:
        self.held: list[Any] = []
        self.stored = 0
        self.behind = 0
        self._producer = producer

    @property
    def is_idle(self) -> bool:
        return not self.held

    def hold(self, record: Any) -> None:
        self.held.append(record)

    def flush(self) -> None:
        self.behind = len(self._producer.values)
        self.stored += len(self.held)
        self.held.clear()

    def close(self) -> None:
        pass


def test_records_of_the_time_0_are_stored_behind_those_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "ZeroTimestampProducer", ZeroTimestamp)
    producer = Producer()
    sender = Sender(producer, TARGET)
    sender.send("/s:t", b"before", timestamp=1)
    sender.send("/s:t", b"zero", timestamp=0)
    assert producer.values == [b"before"]
    sender.send("/s:t", b"after", timestamp=2)
    assert (producer.values, producer.timestamps) == ([b"before", b"after"], [1, 2])
    held: Any = sender._zero_timestamp
    assert held.behind == 1
    sender.finish()
    assert (sender.sent, sender.acknowledged) == (3, 3)

"""A bench's latencies, and that it leaves nothing behind."""

import signal
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.cimpl import NewTopic
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import HeadraceError
from headrace.cli import bench
from headrace.cli.bench import SILENCE_S, WARM_UP, own_topics, percentile
from headrace.cli.signals import Interrupts
from headrace.cli.target import plain
from kit.commands_on_node import Headrace
from kit.signals import come


class Admin:
    """Like confluent-kafka's; an interrupt arrives while it creates topics."""

    def __init__(self) -> None:
        self.topics: set[str] = set()

    def create_topics(self, topics: list[NewTopic], **_: object) -> dict[str, Future[None]]:
        answers = {topic.topic: Future[None]() for topic in topics}
        come(signal.SIGINT)
        for name, answer in answers.items():
            self.topics.add(name)
            answer.set_result(None)
        return answers

    def delete_topics(self, names: list[str], **_: object) -> dict[str, Future[None]]:
        answers = {name: Future[None]() for name in names}
        for name, answer in answers.items():
            self.topics.remove(name)
            answer.set_result(None)
        return answers


def test_what_bench_makes_is_deleted_though_an_interrupt_comes_meanwhile() -> None:
    admin, interrupts = Admin(), Interrupts()
    with interrupts.caught(), pytest.raises(KeyboardInterrupt), own_topics(admin, ["a", "b"], 1, interrupts):
        pytest.fail("it was interrupted before")
    assert admin.topics == set()


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.01, 1))
def test_at_most_the_share_lies_below_a_percentile(values: list[float], share: float) -> None:
    ordered = sorted(values)
    found = percentile(ordered, share)
    assert sum(value <= found for value in ordered) >= share * len(ordered)
    assert sum(value < found for value in ordered) < share * len(ordered)


def test_a_bench_measures_and_leaves_nothing_behind(hr: Headrace, cluster: Any) -> None:
    before = cluster.admin("status")["topics"]
    done = hr("bench", "-n", "2000", "--topics", "3", "--seconds", "0.2", "--rate", "200", "-o", "json").json
    assert [stage["records"] for stage in done["throughput"]] == [2000, 2000]
    assert all(stage["records_per_s"] > 0 for stage in done["throughput"])
    assert [(stage["records"], 0 < stage["p50_ms"] <= stage["p99_ms"]) for stage in done["latency"]] == [(40, True)] * 2
    assert cluster.admin("status")["topics"] == before


class SlowKafka:
    """Gives records to a consumer one by one, `every_s` seconds apart, up to `most`, and acknowledges each then.

    It is producer, consumer and clock: time passes only while the consumer waits.
    """

    def __init__(self, *, every_s: float, most: int, acknowledges: bool = True) -> None:
        self.now = 0.0
        self._every_s = every_s
        self._left = most
        self._acknowledges = acknowledges
        self._due = every_s
        self._sent: list[tuple[bytes, Callable[[Any, Any], None]]] = []
        self._stored: list[Callable[[Any, Any], None]] = []

    def monotonic(self) -> float:
        return self.now

    def monotonic_ns(self) -> int:
        return round(self.now * 1e9)

    def produce(self, _topic: str, value: bytes, *, on_delivery: Callable[[Any, Any], None]) -> None:
        self._sent.append((value, on_delivery))

    def flush(self, _timeout_s: float) -> int:
        return len(self._sent)

    def poll(self, timeout_s: float) -> Any:
        return self._received(timeout_s) if timeout_s else self._acknowledged()

    def _acknowledged(self) -> None:
        while self._stored and self._acknowledges:
            self._stored.pop(0)(None, None)

    def _received(self, timeout_s: float) -> Any:
        self.now += timeout_s
        if not self._sent or not self._left or self.now < self._due:
            return None
        self._left -= 1
        self._due = self.now + self._every_s
        value, on_delivery = self._sent.pop(0)
        self._stored.append(on_delivery)
        return SimpleNamespace(error=lambda: None, value=lambda: value)

    def close(self) -> None:
        pass


@pytest.fixture
def paced(monkeypatch: pytest.MonkeyPatch) -> Callable[[SlowKafka], Any]:
    """The paced stage, with 10 records after the warm-up."""

    def run(kafka: SlowKafka) -> Any:
        monkeypatch.setattr(bench, "time", kafka)
        monkeypatch.setattr(bench, "_assigned_consumer", lambda *_, **__: kafka)
        monkeypatch.setattr(confluent_kafka, "Producer", lambda _: kafka)
        return bench._paced(plain("h:1"), "t", Interrupts(), rate=100, seconds=0.1, size=8)

    return run


def test_paced_records_are_waited_for_while_some_arrive(paced: Callable[[SlowKafka], Any]) -> None:
    """The limit applied to all of them together, once."""
    kafka = SlowKafka(every_s=0.9 * SILENCE_S, most=WARM_UP + 10)
    assert [each.records for each in paced(kafka)] == [10, 10]
    assert kafka.now > 20 * SILENCE_S


def test_paced_records_are_lost_after_a_silence(paced: Callable[[SlowKafka], Any]) -> None:
    kafka = SlowKafka(every_s=1.0, most=WARM_UP + 7)
    with pytest.raises(HeadraceError, match="3 of 30 paced records did not arrive within 30 s"):
        paced(kafka)
    assert kafka.now < 2 * SILENCE_S


def test_paced_records_that_arrive_without_an_acknowledgement_are_told(paced: Callable[[SlowKafka], Any]) -> None:
    kafka = SlowKafka(every_s=0.0, most=WARM_UP + 10, acknowledges=False)
    with pytest.raises(HeadraceError, match="30 of 30 paced records were not acknowledged within 30 s"):
        paced(kafka)

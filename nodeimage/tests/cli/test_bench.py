"""A bench's latencies, and that it leaves nothing behind."""

import signal
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka.cimpl import NewTopic
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.bench import own_topics, percentile
from headrace.cli.signals import Interrupts
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

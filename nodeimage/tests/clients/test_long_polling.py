"""How soon after its commit a record reaches a consumer that waits for it."""

import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

ROUNDS = 200


@pytest.mark.alone
def test_a_waiting_fetch_is_answered_within_2_ms_of_the_commit(
    cluster: Any, raw: Any, asked: Callable[..., Any], batch_of: Callable[..., bytearray]
) -> None:
    """Measures how much later than the producer a consumer hears of a commit: 2 ms at most."""
    consumer, producer, topic = raw(cluster), raw(cluster), cluster.topic()
    consumer.create(topic)
    seen: list[float] = []
    acknowledged: list[float] = []
    ready = threading.Semaphore(0)

    def consume() -> None:
        for offset in range(ROUNDS):
            ready.release()
            response = consumer.fetch((topic, asked(offset)), max_wait_ms=20_000)
            seen.append(time.perf_counter())
            assert response.topics[0].partitions[0].high_watermark == offset + 1

    reader = threading.Thread(target=consume)
    reader.start()
    for _ in range(ROUNDS):
        assert ready.acquire(timeout=10)
        _until_it_waits(cluster)
        assert producer.produce(topic, batch_of(b"x")).error == 0
        acknowledged.append(time.perf_counter())
    reader.join(10)
    assert len(seen) == ROUNDS
    late = [heard - answered for heard, answered in zip(seen, acknowledged, strict=True)]
    print(f"after the producer's answer: median {statistics.median(late) * 1e3:.2f} ms, worst {max(late) * 1e3:.2f} ms")
    assert statistics.median(late) < 0.002
    assert sorted(late)[ROUNDS * 95 // 100] < 0.002


def _until_it_waits(cluster: Any) -> None:
    """A request through the same loop, so that the fetch sent before it is there."""
    cluster.admin("node.settings")

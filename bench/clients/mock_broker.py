"""librdkafka's built-in mock broker: it answers at once and stores nothing, so it shows a client's own limit."""

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Producer


@contextmanager
def mock_broker(bootstrap: str | None) -> Iterator[str]:
    """Yield `bootstrap` unchanged, or for None the address of a mock broker that lives as long as the context."""
    if bootstrap is not None:
        yield bootstrap
        return
    owner = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1})
    broker = next(iter(owner.list_topics(timeout=10).brokers.values()))
    yield f"{broker.host}:{broker.port}"
    owner.flush(1)

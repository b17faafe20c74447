"""One librdkafka producer (confluent-kafka), acks=all, records spread evenly over n topics of one partition each.

The topics are created first, unless they exist. Prints one JSON object: acknowledged records and bytes a second
(verified by the end offsets; a surplus there was sent twice), and the latency from produce() to acknowledgement of
every 100th record. With one topic it uses produce_batch, the client's fastest call, and measures no latencies.
"""

import argparse
import json
import time
from collections.abc import Iterator
from itertools import cycle, islice

from bench import wire
from bench.clients.tls_options import add_tls_options, measured_connection
from bench.figures import quantile
from confluent_kafka import Message, Producer

SLAB = 10_000
SAMPLE_EVERY = 100
COUNT_S = 60.0
"""Seconds for which counting is retried while leaders change."""


def topic_names(prefix: str, count: int) -> list[str]:
    """Return the topics of a run: `prefix` itself for one."""
    return [prefix] if count == 1 else [f"{prefix}-{index:06d}" for index in range(count)]


def produce_one_topic(producer: Producer, *, topic: str, records: int, size: int) -> None:
    """Produce `records` in slabs, waiting whenever the client's queue is full."""
    value = b"x" * size
    left = records
    while left:
        slab = [{"value": value} for _ in range(min(SLAB, left))]
        queued = producer.produce_batch(topic, slab)
        left -= queued
        producer.poll(0.01 if queued < len(slab) else 0)


def produce_spread(
    producer: Producer, *, topics: Iterator[str], records: int, size: int, deadline: float, latencies: list[float]
) -> None:
    """Produce record after record, each to the next topic; stop at the deadline (monotonic seconds)."""
    value = b"x" * size

    def sample(error: object, message: Message) -> None:
        if error is None:
            latencies.append(message.latency() or 0.0)

    for index, topic in enumerate(islice(topics, records)):
        callback = None if index % SAMPLE_EVERY else sample
        while True:
            try:
                if callback:
                    producer.produce(topic, value, on_delivery=callback)
                else:
                    producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(0.01)
                if time.monotonic() > deadline:
                    return
        if not index % 1000:
            producer.poll(0)
            if time.monotonic() > deadline:
                return


def counted(bootstrap: str, topics: list[str]) -> int:
    """Return how many records the topics hold; retry while leaders change."""
    deadline = time.monotonic() + COUNT_S
    while True:
        try:
            return wire.count_records(bootstrap, topics)
        except wire.Refused:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--bootstrap", required=True)
    add_tls_options(parse)
    parse.add_argument("--topic", required=True, help="the topic, or the prefix of the topics")
    parse.add_argument("--topics", type=int, default=1)
    parse.add_argument("--partitions", type=int, default=1, help="of each topic; 0: the topics exist already")
    parse.add_argument("--records", type=int, required=True)
    parse.add_argument("--size", type=int, required=True, help="bytes a record")
    parse.add_argument("--warmup", type=int, default=0, help="records before the clock starts")
    parse.add_argument("--limit-s", type=float, default=300.0, help="report what is acknowledged by then")
    options = parse.parse_args()

    topics = topic_names(options.topic, options.topics)
    with wire.Client(options.bootstrap, timeout_s=options.limit_s) as client:
        for at in range(0, len(topics) if options.partitions else 0, wire.AT_ONCE):
            client.create_topics(topics[at : at + wire.AT_ONCE], partitions=options.partitions)
    producer = Producer(
        {
            **measured_connection(options),
            "acks": "all",
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1_048_576,
        }
    )
    latencies: list[float] = []

    def send(records: int, deadline: float) -> int:
        if len(topics) == 1:
            produce_one_topic(producer, topic=topics[0], records=records, size=options.size)
        else:
            produce_spread(
                producer,
                topics=cycle(topics),
                records=records,
                size=options.size,
                deadline=deadline,
                latencies=latencies,
            )
        return int(producer.flush(max(0.0, deadline - time.monotonic())))

    warm_up = max(options.warmup, len(topics) if len(topics) > 1 else 0)
    if warm_up and (left := send(warm_up, time.monotonic() + options.limit_s)):
        raise SystemExit(f"{left} of {warm_up} records of the warm-up were not acknowledged in {options.limit_s} s")
    before = 0 if not warm_up else counted(options.bootstrap, topics)
    latencies.clear()

    began = time.monotonic()
    left = send(options.records, began + options.limit_s)
    seconds = time.monotonic() - began
    held = counted(options.bootstrap, topics) - before
    if held < options.records - left:
        raise SystemExit(f"{options.records - left} records were acknowledged, the server holds {held}")
    done = options.records - left
    latencies.sort()
    print(
        json.dumps(
            {
                "records": done,
                "seconds": seconds,
                "unacknowledged": left,
                "doubled": max(0, held - options.records),
                "per_s": done / seconds,
                "mb_per_s": done * options.size / seconds / 1e6,
                "p50_ms": quantile(latencies, 0.5) * 1e3 if latencies else None,
                "p99_ms": quantile(latencies, 0.99) * 1e3 if latencies else None,
            }
        ),
        flush=True,
    )
    if left:
        producer.purge()


if __name__ == "__main__":
    main()

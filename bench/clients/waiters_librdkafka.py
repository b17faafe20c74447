"""32 stock librdkafka producers in one process, a thread each, that wait for each acknowledgement: produce one record
of 100 bytes with no linger, poll until it is delivered, produce the next.

The threads share Python's interpreter lock, so this client's own limit is well below a server's; without `--bootstrap`
it measures that limit against librdkafka's mock broker. Prints one JSON object.
"""

import argparse
import json
import threading
import time

from bench import wire
from bench.clients.mock_broker import mock_broker
from bench.figures import quantile
from confluent_kafka import Message, Producer


def wait_for_each(bootstrap: str, *, topic: str, size: int, start: float, end: float, latencies: list[float]) -> None:
    """Run one producer's loop until `end`; add latencies (seconds) after `start` (both monotonic seconds)."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
    value = b"x" * size
    delivered: list[object] = []

    def on_delivery(error: object, message: Message) -> None:
        delivered.append(error)

    while (sent := time.monotonic()) < end:
        producer.produce(topic, value, partition=0, on_delivery=on_delivery)
        while not delivered:
            producer.poll(1.0)
        if error := delivered.pop():
            raise SystemExit(f"a record was refused: {error}")
        if sent >= start:
            latencies.append(time.monotonic() - sent)


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--bootstrap", help="left out: librdkafka's mock broker")
    parse.add_argument("--topic", default="waiters")
    parse.add_argument("--producers", type=int, default=32)
    parse.add_argument("--size", type=int, default=100)
    parse.add_argument("--warm-up-s", type=float, default=3.0)
    parse.add_argument("--seconds", type=float, default=15.0)
    options = parse.parse_args()
    latencies: list[float] = []
    with mock_broker(options.bootstrap) as bootstrap:
        wire.wait_for_ack(bootstrap, topic=options.topic, timeout_s=60.0)
        start = time.monotonic() + options.warm_up_s
        end = start + options.seconds
        threads = [
            threading.Thread(
                target=wait_for_each,
                kwargs={
                    "bootstrap": bootstrap,
                    "topic": options.topic,
                    "size": options.size,
                    "start": start,
                    "end": end,
                    "latencies": latencies,
                },
            )
            for _ in range(options.producers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if not latencies:
        raise SystemExit("no record was acknowledged")
    latencies.sort()
    print(
        json.dumps(
            {
                "records": len(latencies),
                "seconds": options.seconds,
                "per_s": len(latencies) / options.seconds,
                "p50_ms": quantile(latencies, 0.5) * 1e3,
                "p99_ms": quantile(latencies, 0.99) * 1e3,
                "p999_ms": quantile(latencies, 0.999) * 1e3,
            }
        )
    )


if __name__ == "__main__":
    main()

"""Writes to a topic at the source and reads its copy at the target: measures throughput, and each record's lag.

A record's first eight bytes are the time of its produce() call in nanoseconds, the next eight its number; the lag is
the time until the consumer at the target returns the record, so it includes the producer's batching (5 ms), the
acknowledgement, the copying, and the consumer's fetch. `after_ack` is the part after the producer had received the
acknowledgement. Both clients are confluent-kafka with its defaults (acks=all).

Without `--rate` the records are written as fast as the client can, and the reported rate is that of the copy: from the
first produce() to the last record read. Prints one JSON object.
"""

import argparse
import json
import struct
import threading
import time

from bench.figures import quantile
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

STAMP = struct.Struct(">qq")
MIN_SIZE = 100
FIRST_WAIT_S = 120.0
"""Seconds to wait for the copy, and for its first record."""
MAX_QUEUED = 100_000


class Reader(threading.Thread):
    """Reads the copy from its beginning, and keeps the lags of the records stamped after `since`."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__(daemon=True)
        self._servers = bootstrap
        self._topic = topic
        self._partitions = partitions
        self.since = 0
        self.lags: list[int] = []
        """The records' lags in nanoseconds."""
        self.numbers: list[int] = []
        """The numbers of the same records."""
        self.last = 0.0
        """When the last record was read, on the monotonic clock."""
        self.error: BaseException | None = None
        self._ended = threading.Event()

    def run(self) -> None:
        """Read until `end` is called."""
        try:
            self._read()
        except BaseException as error:  # raised by `wait_for`
            self.error = error

    def end(self) -> None:
        """Stop reading, and wait for the thread."""
        self._ended.set()
        self.join()

    def wait_for(self, count: int, timeout_s: float) -> None:
        """Wait until `count` records were kept. Raises SystemExit."""
        deadline = time.monotonic() + timeout_s
        while len(self.lags) < count:
            if self.error is not None:
                raise SystemExit(f"reading the copy: {self.error!r}")
            if time.monotonic() > deadline:
                raise SystemExit(f"the copy had {len(self.lags)} of {count} records after {timeout_s:.0f} s")
            time.sleep(0.005)

    def _read(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": "link-lag",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "allow.auto.create.topics": False,
                "log_level": 0,
            }
        )
        try:
            self._await_copy(consumer)
            consumer.assign([TopicPartition(self._topic, index, 0) for index in range(self._partitions)])
            while not self._ended.is_set():
                first = consumer.poll(0.1)  # returns at the first record; consume() waits for a full batch
                if first is None:
                    continue
                for message in (first, *consumer.consume(500, 0)):
                    if (error := message.error()) is not None:
                        if error.fatal() or error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                            raise KafkaException(error)
                        continue
                    if len(value := message.value() or b"") < MIN_SIZE:
                        continue  # a record that tested whether the topic accepts records
                    stamp, number = STAMP.unpack_from(value)
                    if stamp >= self.since > 0:
                        self.numbers.append(number)
                        self.lags.append(time.time_ns() - stamp)
                        self.last = time.monotonic()
                    elif not self.since:
                        self.lags.append(0)
        finally:
            consumer.close()

    def _await_copy(self, consumer: Consumer) -> None:
        deadline = time.monotonic() + FIRST_WAIT_S
        while not self._ended.is_set():
            found = consumer.list_topics(timeout=10.0).topics.get(self._topic)
            if found is not None and len(found.partitions) == self._partitions:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"no copy {self._topic} after {FIRST_WAIT_S:.0f} s")
            time.sleep(0.1)


def write(
    producer: Producer,
    *,
    topic: str,
    partitions: int,
    records: int,
    size: int,
    rate: float | None,
    acks: dict[int, float],
) -> int:
    """Write to the partitions in turn; return how many records were refused. `acks`: a record's seconds until its
    acknowledgement, by its number.
    """
    refused = 0
    filler = b"x" * (size - STAMP.size)

    def delivered(error: object, message: Message) -> None:
        nonlocal refused
        refused += error is not None
        acks[STAMP.unpack_from(message.value())[1]] = message.latency()

    began = time.monotonic()
    sent = 0
    while sent < records:
        due = records if rate is None else min(records, int((time.monotonic() - began) * rate) + 1)
        while sent < due:
            value = STAMP.pack(time.time_ns(), sent) + filler
            try:
                producer.produce(topic, value, partition=sent % partitions, on_delivery=delivered)
            except BufferError:
                break
            sent += 1
            if not sent % 200:
                producer.poll(0)
        producer.poll(0.001)
    producer.flush(300)
    return refused


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--source", required=True)
    parse.add_argument("--target", required=True)
    parse.add_argument("--topic", required=True, help="at the source, which has it")
    parse.add_argument("--copy", required=True, help="its name at the target")
    parse.add_argument("--partitions", type=int, required=True)
    parse.add_argument("--records", type=int, required=True)
    parse.add_argument("--size", type=int, required=True)
    parse.add_argument("--rate", type=float, help="records a second over all partitions")
    parse.add_argument("--warm-up", type=int, default=60, help="records before the clock starts")
    parse.add_argument("--limit-s", type=float, default=300.0)
    options = parse.parse_args()
    producer = Producer(
        {"bootstrap.servers": options.source, "acks": "all", "queue.buffering.max.messages": MAX_QUEUED}
    )
    reader = Reader(options.target, options.copy, options.partitions)
    reader.start()
    common = {"topic": options.topic, "partitions": options.partitions, "size": options.size}
    write(producer, records=options.warm_up, rate=None, acks={}, **common)
    reader.wait_for(options.warm_up, FIRST_WAIT_S)
    reader.lags = []
    reader.since = time.time_ns()
    began = time.monotonic()
    acks: dict[int, float] = {}
    refused = write(producer, records=options.records, rate=options.rate, acks=acks, **common)
    acknowledged = time.monotonic() - began
    if refused:
        raise SystemExit(f"{refused} of {options.records} records were refused")
    reader.wait_for(options.records, options.limit_s)
    copied = reader.last - began
    reader.end()
    after = sorted(lag / 1e6 - acks[number] * 1e3 for lag, number in zip(reader.lags, reader.numbers, strict=True))
    lags, latencies = sorted(reader.lags), sorted(acks.values())
    print(
        json.dumps(
            {
                "records": options.records,
                "doubled": max(0, len(lags) - options.records),
                "acknowledged_per_s": options.records / acknowledged,
                "per_s": options.records / copied,
                "mb_per_s": options.records * options.size / copied / 1e6,
                "p50_ms": quantile(lags, 0.5) / 1e6,
                "p99_ms": quantile(lags, 0.99) / 1e6,
                "worst_ms": lags[-1] / 1e6,
                "ack_p50_ms": quantile(latencies, 0.5) * 1e3,
                "ack_p99_ms": quantile(latencies, 0.99) * 1e3,
                "after_ack_p50_ms": quantile(after, 0.5),
                "after_ack_p99_ms": quantile(after, 0.99),
            }
        )
    )


if __name__ == "__main__":
    main()

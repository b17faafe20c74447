"""One librdkafka producer (confluent-kafka, acks=all, its defaults) at a steady rate over the partitions of a topic.

Runs until a line arrives on standard input. Prints one JSON object: how many records were acknowledged and refused, and
each period in which a partition had no acknowledgement for longer than `--least-s`: [partition, begin, end] in seconds
since the epoch.
"""

import argparse
import json
import select
import sys
import time
from collections.abc import Callable

from confluent_kafka import Message, Producer


class Gaps:
    """When each partition was last acknowledged, and the gaps between acknowledgements."""

    def __init__(self, partitions: int, least_s: float, clock: Callable[[], float] = time.time) -> None:
        self._least = least_s
        self._clock = clock
        self._last = [clock()] * partitions
        self.found: list[tuple[int, float, float]] = []
        self.acknowledged = self.refused = 0

    def delivered(self, error: object, message: Message) -> None:
        """librdkafka's delivery report."""
        if error is not None:
            self.refused += 1
            return
        self.acknowledged += 1
        self._note_gap(int(message.partition() or 0))

    def end(self) -> None:
        """Count the time since each partition's last acknowledgement as a gap too."""
        for partition in range(len(self._last)):
            self._note_gap(partition)

    def _note_gap(self, partition: int) -> None:
        now = self._clock()
        if now - self._last[partition] > self._least:
            self.found.append((partition, self._last[partition], now))
        self._last[partition] = now


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--bootstrap", required=True)
    parse.add_argument("--topic", required=True)
    parse.add_argument("--partitions", type=int, required=True)
    parse.add_argument("--rate", type=float, default=2_000.0, help="records a second over all partitions")
    parse.add_argument("--size", type=int, default=100)
    parse.add_argument("--least-s", type=float, default=0.2)
    options = parse.parse_args()
    producer = Producer({"bootstrap.servers": options.bootstrap, "acks": "all", "log_level": 0})
    producer.list_topics(options.topic, timeout=30)
    gaps = Gaps(options.partitions, options.least_s)
    value = b"x" * options.size
    sent = 0
    began = time.monotonic()
    while not select.select([sys.stdin], [], [], 0)[0]:
        while sent < (time.monotonic() - began) * options.rate:
            try:
                producer.produce(options.topic, value, partition=sent % options.partitions, on_delivery=gaps.delivered)
            except BufferError:
                break
            sent += 1
        producer.poll(0.002)
    producer.flush(60)
    gaps.end()
    found = {"records": sent, "acknowledged": gaps.acknowledged, "refused": gaps.refused, "gaps": gaps.found}
    print(json.dumps(found))


if __name__ == "__main__":
    main()

"""One librdkafka consumer (confluent-kafka) that reads partition 0 of a topic from its beginning, with defaults.

Prints one JSON object: records and bytes a second from assignment to the last record.
"""

import argparse
import json
import time

from bench.clients.tls_options import add_tls_options, measured_connection
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--bootstrap", required=True)
    add_tls_options(parse)
    parse.add_argument("--topic", required=True)
    parse.add_argument("--records", type=int, required=True)
    parse.add_argument("--limit-s", type=float, default=300.0)
    options = parse.parse_args()

    consumer = Consumer({**measured_connection(options), "group.id": "bench", "enable.auto.commit": False})
    consumer.list_topics(options.topic, timeout=30)
    began = time.monotonic()
    consumer.assign([TopicPartition(options.topic, 0, OFFSET_BEGINNING)])
    got = octets = 0
    while got < options.records:
        for message in consumer.consume(10_000, timeout=1.0):
            if message.error():
                raise SystemExit(f"consume failed: {message.error()}")
            got += 1
            octets += len(message)
        if time.monotonic() - began > options.limit_s:
            raise SystemExit(f"{got} of {options.records} records came within {options.limit_s} s")
    seconds = time.monotonic() - began
    consumer.close()
    print(json.dumps({"records": got, "seconds": seconds, "per_s": got / seconds, "mb_per_s": octets / seconds / 1e6}))


if __name__ == "__main__":
    main()

"""Creates many topics of one partition with the stock admin client (confluent-kafka), a thousand per request.

Prints one JSON object: seconds until every creation was answered, and until one Metadata answer showed all of them
with a leader, which is when producers can use them.
"""

import argparse
import json
import time

from bench import wire
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

MAX_LOOKED_AT = 100_000
"""Up to this many topics, the leaders of all are checked; beyond it, only those of the last request's topics."""


def led_topics(bootstrap: str, names: list[str] | None) -> int:
    """Return how many of these topics (None: of all) one Metadata response shows with a leader for each partition."""
    with wire.Client(bootstrap) as client:
        topics = client.metadata(names).topics
    return sum(1 for topic in topics if topic.partitions and all(each.leader_id >= 0 for each in topic.partitions))


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--bootstrap", required=True)
    parse.add_argument("--topics", type=int, required=True)
    parse.add_argument("--prefix", default="made")
    parse.add_argument("--at-once", type=int, default=1000, help="topics in one request")
    parse.add_argument("--limit-s", type=float, default=1_500.0)
    options = parse.parse_args()
    admin = AdminClient({"bootstrap.servers": options.bootstrap})
    admin.list_topics(timeout=30)
    names = [f"{options.prefix}-{index:06d}" for index in range(options.topics)]
    # Metadata of hundreds of thousands of topics costs this client more than creating them costs the server.
    looked_at = names[-options.at_once :] if len(names) > MAX_LOOKED_AT else None
    before = 0 if looked_at else led_topics(options.bootstrap, None)

    began = time.monotonic()
    for at in range(0, len(names), options.at_once):
        new = [NewTopic(name, num_partitions=1) for name in names[at : at + options.at_once]]
        futures = admin.create_topics(new, operation_timeout=options.limit_s, request_timeout=options.limit_s)
        for name, future in futures.items():
            try:
                future.result()
            except KafkaException as error:
                raise SystemExit(f"creating {name}: {error}") from error
        if time.monotonic() - began > options.limit_s:
            raise SystemExit(f"{at} of {len(names)} topics were created within {options.limit_s} s")
    answered = time.monotonic() - began
    while led_topics(options.bootstrap, looked_at) - before < len(looked_at or names):
        if time.monotonic() - began > options.limit_s:
            raise SystemExit(f"not all topics had a leader within {options.limit_s} s")
        time.sleep(0.02)
    seconds = time.monotonic() - began
    print(
        json.dumps(
            {
                "records": options.topics,  # under the name that other clients use for what they count
                "answered_s": answered,
                "seconds": seconds,
                "per_s": options.topics / seconds,
            }
        )
    )


if __name__ == "__main__":
    main()

"""Fills a server with topics and bytes over bare sockets, up to a goal or a time limit, whichever comes first.

Prints one JSON object with what was reached: topics created and given a message, bytes sent, and why it ended early if
it did. A server that cannot reach the goal is reported with what it stored.
"""

import argparse
import json
import os
import time
from collections.abc import Iterator
from itertools import cycle

from bench import wire

AT_ONCE = 500
"""Topics in one request."""
RECORD = 980
"""Bytes of each record in bulk: a batch of a thousand stays below 1 MiB, the default maximum."""


class OutOfTime(RuntimeError):
    """The time limit was reached before the goal."""


def make_topics(client: wire.ToLeaders, *, names: list[str], value: bytes, deadline: float) -> None:
    """Create topics in one request and write one record to each in another. Raises OutOfTime, Refused."""
    if time.monotonic() > deadline:
        raise OutOfTime("making topics took too long")
    client.create_topics(names)
    batch = wire.record_batch([value])
    while True:
        try:
            client.produce(dict.fromkeys(names, batch))
            return
        except wire.Refused as refused:
            if time.monotonic() > deadline:
                raise OutOfTime(f"the new topics took no records in time; last: {refused}") from refused
            time.sleep(0.05)


def pour(client: wire.ToLeaders, *, topics: list[str], octets: int, deadline: float) -> Iterator[int]:
    """Produce batches of about 1 MB of 1,000 random records to the topics in turn; yield the size of each."""
    batch = wire.record_batch([os.urandom(RECORD) for _ in range(1000)])
    left = octets
    for topic in cycle(topics):
        if left <= 0:
            return
        if time.monotonic() > deadline:
            raise OutOfTime("writing the bytes took too long")
        client.produce({topic: batch})
        left -= len(batch)
        yield len(batch)


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--bootstrap", required=True)
    parse.add_argument("--topics", type=int, required=True)
    parse.add_argument("--gib", type=float, default=0.0, help="GiB to write, over the first hundred topics")
    parse.add_argument("--size", type=int, default=100, help="bytes of each topic's one message")
    parse.add_argument("--limit-s", type=float, default=900.0)
    options = parse.parse_args()
    deadline = time.monotonic() + options.limit_s
    names = [f"filled-{index:06d}" for index in range(options.topics)]
    goal = int(options.gib * (1 << 30))
    made = sent = 0
    why: str | None = None
    began = time.monotonic()
    try:
        with wire.ToLeaders(options.bootstrap, timeout_s=min(options.limit_s, 180.0)) as client:
            while made < len(names):
                chosen = names[made : made + AT_ONCE]
                make_topics(client, names=chosen, value=b"x" * options.size, deadline=deadline)
                made += len(chosen)
            for block in pour(client, topics=names[:100], octets=goal, deadline=deadline):
                sent += block
    except (OutOfTime, wire.Refused, OSError) as error:
        why = f"{type(error).__name__}: {error}"
    print(
        json.dumps(
            {
                "topics": made,
                "topics_goal": options.topics,
                "bytes": sent,
                "bytes_goal": goal,
                "seconds": time.monotonic() - began,
                "ended": why,
            }
        )
    )


if __name__ == "__main__":
    main()

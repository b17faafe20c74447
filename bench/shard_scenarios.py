"""The gain of a larger pod: one node and two, as the shards of one pod, beside one broker with many partitions.

One replica each. The client is the same single program, and shares the two cores with the servers: so the records per
second of the server's CPU time are reported besides the records per second.
"""

from collections.abc import Callable
from typing import Any

from bench import java_tools, wire
from bench.scenarios import Figures, Row, Scenario, Sizes, size_label, with_cpu
from bench.servers import Server

PARTITIONS = 24
TOPIC = "shards"


def _java(size: int) -> Callable[[Server, Sizes], Figures]:
    def measure(server: Server, sizes: Sizes) -> Figures:
        records, warm_up = sizes.records(size)
        with wire.Client(server.bootstrap) as admin:
            admin.create_topics([TOPIC], partitions=PARTITIONS)
        wire.wait_for_ack(server.bootstrap, topic=TOPIC, timeout_s=30.0)
        to = server.bootstrap
        common: dict[str, Any] = {"topic": TOPIC, "limit_s": sizes.limit_s}
        return with_cpu(
            server,
            records=records + warm_up,
            produce=lambda: java_tools.produce(to, records=records, size=size, warm_up=warm_up, **common),
            consume=lambda: java_tools.consume(to, records=records + warm_up, **common),
        )

    return measure


def _scenario(shards: int, size: int) -> Scenario:
    label = size_label(size)
    where = f"{PARTITIONS} partitions, {label}, {shards} node{'s' if shards > 1 else ''}"
    by_cpu = 2.0 if shards > 1 else None
    return Scenario(
        f"shards-{shards}-{size}",
        (
            Row("produce", f"Java produce, {where}", "per_s", "records/s"),
            Row("produce_cpu", "the same, per second of the server's CPU", "per_cpu_s", "records", reach=by_cpu),
            Row("consume", f"Java consume, {where}", "per_s", "records/s"),
            Row("consume_cpu", "the same, per second of the server's CPU", "per_cpu_s", "records", reach=by_cpu),
        ),
        _java(size),
        shards=shards,
    )


SHARD_SCENARIOS: tuple[Scenario, ...] = tuple(_scenario(shards, size) for size in (100, 1024) for shards in (1, 2))

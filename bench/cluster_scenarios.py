"""What is measured of three nodes beside three Kafka brokers: three replicas, two in sync at least, on both."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bench import java_tools, wire
from bench.figures import quantile
from bench.jars import BENCH
from bench.scenarios import ClientFailed, Figures, Row, Scenario, Sizes, client, start_empty, waiting
from bench.servers import Server

NODES = 3
PARTITIONS = 6
REST_S = 5.0
"""Between a node's return and the next kill."""
SETTLE_S = 60.0


def _java(size: int) -> Callable[[Server, Sizes], Figures]:
    def measure(server: Server, sizes: Sizes) -> Figures:
        records, warm_up = sizes.cluster_bytes // size, sizes.cluster_warm_up_bytes // size
        with wire.Client(server.bootstrap) as admin:
            admin.create_topics(["java"], partitions=PARTITIONS)
        wire.wait_for_ack(server.bootstrap, topic="java", timeout_s=30.0)
        common: dict[str, Any] = {"topic": "java", "limit_s": sizes.limit_s}
        produced = java_tools.produce(server.bootstrap, records=records, size=size, warm_up=warm_up, **common)
        consumed = java_tools.consume(server.bootstrap, records=records + warm_up, **common)
        return {"produce": dict(produced), "consume": dict(consumed)}

    return measure


def _throughput(name: str, size: int) -> Scenario:
    label = f"{size} B" if size < 1024 else "1 KiB"
    return Scenario(
        name,
        (
            Row("produce", f"Java produce, 6 partitions, {label}, acks=all", "per_s", "records/s", reach=1.5),
            Row("consume", f"Java consume, 6 partitions, {label}", "per_s", "records/s", reach=1.0),
        ),
        _java(size),
        nodes=NODES,
    )


def _spread(topics: int, *, reach: float | None = None, above: float | None = None) -> Scenario:
    def measure(server: Server, sizes: Sizes) -> Figures:
        count = min(topics, sizes.spread_records // 10)
        names = [f"spread-{index:06d}" for index in range(count)]
        with wire.Client(server.bootstrap, timeout_s=sizes.limit_s) as admin:
            for at in range(0, count, wire.AT_ONCE):
                admin.create_topics(names[at : at + wire.AT_ONCE])
        found = client(
            "librdkafka_produce",
            bootstrap=server.bootstrap,
            topic="spread",
            topics=count,
            records=sizes.spread_records,
            size=100,
            limit_s=sizes.limit_s,
        )
        return {"produce": found | {"topics": count}, "p99": found}

    title = f"librdkafka, {topics:,} topics, 100 B, acks=all"
    return Scenario(
        f"cluster-spread-{topics}",
        (
            Row("produce", title, "per_s", "records/s", reach=reach, above=above),
            Row("p99", f"librdkafka, {topics:,} topics, p99", "p99_ms", "ms", more_is_better=False),
        ),
        measure,
        nodes=NODES,
    )


def in_sync(bootstrap: str, topic: str) -> int:
    """The least number of replicas in sync over the partitions of a topic, 0 while any has no leader."""
    try:
        with wire.Client(bootstrap, timeout_s=5.0) as admin:
            (found,) = admin.metadata([topic]).topics
    except OSError:
        return 0
    return min((len(part.isr_nodes) if part.leader_id >= 0 else 0 for part in found.partitions), default=0)


def await_whole(server: Server, topic: str, *, timeout_s: float) -> None:
    """Until every partition has its three replicas in sync, as every node tells it. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while any(in_sync(address, topic) < NODES for address in server.addresses):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{topic} was not whole again after {timeout_s:.0f} s")
        time.sleep(0.1)


def longest(gaps: list[tuple[int, float, float]], kills: list[float], *, within_s: float) -> list[float]:
    """For each kill, the longest time that any partition went without an acknowledgement which reached into the
    `within_s` after it; 0 where there was none."""
    return [
        max((end - begin for _, begin, end in gaps if end > kill and begin < kill + within_s), default=0.0)
        for kill in kills
    ]


def _kills(server: Server, sizes: Sizes) -> Figures:
    """kill -9 of the leader of partition 0, again and again; the node comes back after each, and is waited for."""
    with wire.Client(server.bootstrap) as admin:
        admin.create_topics(["steady"], partitions=PARTITIONS)
    wire.wait_for_ack(server.bootstrap, topic="steady", timeout_s=30.0)
    writer = subprocess.Popen(
        [
            *(sys.executable, "-m", "bench.clients.steady_writer", "--bootstrap", server.bootstrap),
            *("--topic", "steady", "--partitions", str(PARTITIONS)),
        ],
        cwd=BENCH.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    kills: list[float] = []
    try:
        for _ in range(sizes.kills):
            await_whole(server, "steady", timeout_s=SETTLE_S)
            time.sleep(REST_S)
            victim = server.addresses.index(wire.leaders(server.bootstrap, ["steady"])["steady"][0])
            kills.append(time.time())
            server.kill_node(victim)
            time.sleep(sizes.down_s)
            server.start_node(victim)
        await_whole(server, "steady", timeout_s=SETTLE_S)
        out, _ = writer.communicate("end\n", timeout=120.0)
    finally:
        writer.kill()
        writer.wait()
    if writer.returncode:
        raise ClientFailed(f"steady_writer ended with {writer.returncode}")
    told = json.loads(out.strip().splitlines()[-1])
    found = sorted(longest([tuple(each) for each in told["gaps"]], kills, within_s=sizes.down_s))
    figures = {
        "p50_s": quantile(found, 0.5),
        "worst_s": found[-1],
        "all_s": found,
        "acknowledged": told["acknowledged"],
        "refused": told["refused"],
    }
    return {"p50": figures, "worst": figures}


def _create(server: Server, sizes: Sizes) -> Figures:
    topics = sizes.many_topics if server.name == "headrace" else min(sizes.many_topics, sizes.created_topics)
    found = client("create_topics", bootstrap=server.bootstrap, topics=topics, limit_s=sizes.limit_s)
    return {"create": found}


CLUSTER_SCENARIOS: tuple[Scenario, ...] = (
    _throughput("cluster-java-100", 100),
    _throughput("cluster-java-1024", 1024),
    replace(waiting("cluster-waiters", "bare sockets", "waiters"), nodes=NODES, client_limit=None),
    _spread(100, reach=4.0),
    _spread(1_000, reach=15.0),
    _spread(5_000, above=25_000.0),
    _spread(10_000, above=15_000.0),
    Scenario(
        "cluster-start",
        (
            Row("ready", "three nodes ready after start", "seconds", "s", more_is_better=False, reach=5.0),
            Row("ack", "three nodes, first record acknowledged", "first_ack_s", "s", more_is_better=False),
            Row("idle", "resident memory of three nodes, idle", "mib", "MiB", more_is_better=False, reach=4.0),
        ),
        start_empty,
        starts=False,
        nodes=NODES,
    ),
    Scenario(
        "cluster-kill",
        (
            Row("p50", "kill -9: without an acknowledged write, p50", "p50_s", "s", more_is_better=False, below=2.5),
            Row(
                "worst",
                "kill -9: without an acknowledged write, worst",
                "worst_s",
                "s",
                more_is_better=False,
                below=5.0,
            ),
        ),
        _kills,
        runs_at_most=1,
        nodes=NODES,
    ),
    Scenario(
        "cluster-create",
        (Row("create", "creating topics (Headrace 100,000, Kafka 10,000)", "per_s", "topics/s", above=5_000.0),),
        _create,
        runs_at_most=1,
        nodes=NODES,
    ),
)

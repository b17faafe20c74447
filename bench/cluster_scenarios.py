"""Measurements of three nodes beside three Kafka brokers: three replicas, at least two in sync, on both."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench import java_tools, wire
from bench.figures import quantile
from bench.jars import BENCH
from bench.scenarios import (
    ClientFailed,
    Figures,
    Row,
    Scenario,
    Sizes,
    client,
    size_label,
    spread,
    start_empty,
    topics_for,
    waiting,
)
from bench.servers import Server, resident_bytes, stored_bytes

NODES = 3
PARTITIONS = 6
JOIN_PARTITIONS = 24
REST_S = 5.0
"""Seconds between a cluster that is whole again and the next kill, and around a join and a drain."""
WHOLE_S = 60.0
"""Seconds within which all replicas have to be in sync again."""


def _java(size: int) -> Callable[[Server, Sizes], Figures]:
    def measure(server: Server, sizes: Sizes) -> Figures:
        records, warm_up = sizes.records(size, nodes=NODES)
        with wire.Client(server.bootstrap) as admin:
            admin.create_topics(["java"], partitions=PARTITIONS)
        wire.wait_for_ack(server.bootstrap, topic="java", timeout_s=30.0)
        common: dict[str, Any] = {"topic": "java", "limit_s": sizes.limit_s}
        produced = java_tools.produce(server.bootstrap, records=records, size=size, warm_up=warm_up, **common)
        consumed = java_tools.consume(server.bootstrap, records=records + warm_up, **common)
        return {"produce": dict(produced), "consume": dict(consumed)}

    return measure


def _throughput(name: str, size: int) -> Scenario:
    label = size_label(size)
    return Scenario(
        name,
        (
            Row("produce", f"Java produce, 6 partitions, {label}, acks=all", "per_s", "records/s", reach=1.5),
            Row("consume", f"Java consume, 6 partitions, {label}", "per_s", "records/s", reach=1.0),
        ),
        _java(size),
        nodes=NODES,
    )


def in_sync(bootstrap: str, topic: str) -> int:
    """Return the least number of in-sync replicas over the partitions of a topic, 0 while any has no leader."""
    try:
        with wire.Client(bootstrap, timeout_s=5.0) as admin:
            (found,) = admin.metadata([topic]).topics
    except OSError:
        return 0
    return min((len(part.isr_nodes) if part.leader_id >= 0 else 0 for part in found.partitions), default=0)


def await_whole(server: Server, topic: str, *, timeout_s: float) -> None:
    """Wait until every node reports three in-sync replicas for every partition. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while any(in_sync(address, topic) < NODES for address in server.addresses):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{topic} had not all replicas in sync again after {timeout_s:.0f} s")
        time.sleep(0.1)


def longest(gaps: list[tuple[int, float, float]], kills: list[float], *, within_s: float) -> list[float]:
    """Return, for each kill, the longest period without an acknowledgement in any partition that overlaps the
    `within_s` seconds after the kill; 0 if there was none.
    """
    return [
        max((end - begin for _, begin, end in gaps if end > kill and begin < kill + within_s), default=0.0)
        for kill in kills
    ]


@contextmanager
def steady_writer(
    server: Server, *, partitions: int, rate: float, size: int, told: dict[str, Any], least_s: float = 0.2
) -> Iterator[None]:
    """Write to the partitions of the topic `steady` while the context is active; then `told` has what the writer
    printed.
    """
    writer = subprocess.Popen(
        [
            *(sys.executable, "-m", "bench.clients.steady_writer", "--bootstrap", server.bootstrap),
            *("--topic", "steady", "--partitions", str(partitions), "--rate", str(rate), "--size", str(size)),
            *("--least-s", str(least_s)),
        ],
        cwd=BENCH.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield
        out, _ = writer.communicate("end\n", timeout=120.0)
    finally:
        writer.kill()
        writer.wait()
    if writer.returncode:
        raise ClientFailed(f"steady_writer ended with {writer.returncode}")
    told |= json.loads(out.strip().splitlines()[-1])


def _kills(server: Server, sizes: Sizes) -> Figures:
    """Kill the leader of partition 0 repeatedly (kill -9); the node is restarted after each kill, and awaited."""
    with wire.Client(server.bootstrap) as admin:
        admin.create_topics(["steady"], partitions=PARTITIONS)
    wire.wait_for_ack(server.bootstrap, topic="steady", timeout_s=30.0)
    kills: list[float] = []
    told: dict[str, Any] = {}
    with steady_writer(server, partitions=PARTITIONS, rate=2_000.0, size=100, told=told):
        for _ in range(sizes.kills):
            await_whole(server, "steady", timeout_s=WHOLE_S)
            time.sleep(REST_S)
            victim = server.addresses.index(wire.leaders(server.bootstrap, ["steady"])["steady"][0])
            kills.append(time.time())
            server.kill_node(victim)
            time.sleep(sizes.down_s)
            server.start_node(victim)
        await_whole(server, "steady", timeout_s=WHOLE_S)
    found = sorted(longest([tuple(each) for each in told["gaps"]], kills, within_s=sizes.down_s))
    figures = {
        "p50_s": quantile(found, 0.5),
        "worst_s": found[-1],
        "all_s": found,
        "acknowledged": told["acknowledged"],
        "refused": told["refused"],
    }
    return {"p50": figures, "worst": figures}


def _joins(server: Server, sizes: Sizes) -> Figures:
    """A fourth node joins under load. Kafka gets the command to move partitions there at once; Headrace needs none."""
    with wire.Client(server.bootstrap) as admin:
        admin.create_topics(["steady"], partitions=JOIN_PARTITIONS)
    wire.wait_for_ack(server.bootstrap, topic="steady", timeout_s=30.0)
    records = sizes.cluster_bytes // 1024
    java_tools.produce(server.bootstrap, topic="steady", records=records, size=1024, warm_up=0, limit_s=sizes.limit_s)
    logs = {log.name for index in range(NODES) for log in server.node_folder(index).iterdir() if log.is_dir()}
    told: dict[str, Any] = {}
    mover: threading.Thread | None = None
    failed: list[BaseException] = []

    def move() -> None:
        try:
            wire.wait_for_answer(server.bootstrap, brokers=NODES + 1, alive=lambda: True, timeout_s=60.0)
            brokers = range(1, NODES + 2)
            java_tools.spread_over(server.bootstrap, topic="steady", brokers=brokers, limit_s=sizes.limit_s)
        except BaseException as error:
            failed.append(error)

    with steady_writer(server, partitions=JOIN_PARTITIONS, rate=3_000.0, size=2_000, told=told):
        time.sleep(REST_S)
        began = time.monotonic()
        joined = server.add_node()
        if server.name == "kafka":
            mover = threading.Thread(target=move)
            mover.start()
        while _led_by(server, joined) < 0.2 * JOIN_PARTITIONS:
            if failed:
                raise failed[0]
            if time.monotonic() - began > sizes.limit_s:
                raise TimeoutError(f"the new node led too few partitions for {sizes.limit_s:.0f} s")
            time.sleep(0.1)
        seconds = time.monotonic() - began
        joined_logs = [log for log in server.node_folder(joined).iterdir() if log.is_dir()]
        stored = {log.name: stored_bytes(log) for log in joined_logs}
        if mover is not None:
            mover.join()
    figures = {
        "seconds": seconds,
        "stored_mib": sum(stored.values()) / (1 << 20),
        "copied_mib": sum(octets for log, octets in stored.items() if log in logs) / (1 << 20),
        "written_before_mib": records * 1024 / (1 << 20),
        "written_meanwhile_mib": seconds * 3_000 * 2_000 / (1 << 20),
        "refused": told["refused"],
    }
    return {"joined": figures, "stored": figures, "copied": figures}


def _led_by(server: Server, index: int) -> int:
    """Return how many partitions of the topic a node leads."""
    led = wire.leaders(server.addresses[0], ["steady"])["steady"]
    return sum(address == server.addresses[index] for address in led.values())


def _create(server: Server, sizes: Sizes) -> Figures:
    topics = topics_for(server, sizes)
    found = client("create_topics", bootstrap=server.bootstrap, topics=topics, limit_s=sizes.limit_s)
    return {"create": found}


def _requests(server: Server, sizes: Sizes) -> Figures:
    """Measure the server's CPU time per request, over few topics and over many: on Kafka a tenth of the many."""
    many = topics_for(server, sizes)
    found = {}
    for prefix, topics in (("few", 100), ("many", many)):
        client("create_topics", bootstrap=server.bootstrap, topics=topics, prefix=prefix, limit_s=sizes.limit_s)
        found[prefix] = client(
            "requests_over_topics",
            bootstrap=server.bootstrap,
            prefix=prefix,
            topics=topics,
            requests=sizes.requests,
            pids=",".join(map(str, server.pids)),
            limit_s=sizes.limit_s,
        )
    ratio = found["many"]["cpu_us"] / found["few"]["cpu_us"]
    return {"few": found["few"], "many": found["many"] | {"topics": many}, "ratio": {"ratio": ratio}}


def _kills_among_many(server: Server, sizes: Sizes) -> Figures:
    topics = topics_for(server, sizes)
    filled = client("fill", bootstrap=server.bootstrap, topics=topics, limit_s=sizes.fill_limit_s)
    found = _kills(server, replace(sizes, kills=max(1, sizes.kills // 4)))
    return {key: dict(figures) | {"filled": filled} for key, figures in found.items()}


def _million(server: Server, sizes: Sizes) -> Figures:
    topics = 10 * sizes.many_topics
    limit_s = 5 * sizes.limit_s
    found = client("create_topics", bootstrap=server.bootstrap, topics=topics, limit_s=limit_s)
    time.sleep(sizes.idle_s)
    stored = stored_bytes(server.folder) / (1 << 30)
    return {"create": found, "memory": {"mib": resident_bytes(server.pids) / (1 << 20), "stored_gib": stored}}


def _drain(server: Server, sizes: Sizes) -> Figures:
    """Drain a node under load that has replicas of many open partitionlets: of three quarters of all topics."""
    topics = sizes.many_topics * (NODES + 1) // NODES
    filled = client("fill", bootstrap=server.bootstrap, topics=topics, limit_s=sizes.fill_limit_s)
    with wire.Client(server.bootstrap) as admin:
        admin.create_topics(["steady"], partitions=PARTITIONS)
    wire.wait_for_ack(server.bootstrap, topic="steady", timeout_s=30.0)
    told: dict[str, Any] = {}
    with steady_writer(server, partitions=PARTITIONS, rate=2_000.0, size=100, told=told):
        time.sleep(REST_S)
        command = [Path(sys.executable).with_name("headrace"), "node", "drain", "1", "--bootstrap", server.bootstrap]
        began = time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=sizes.limit_s)
        seconds = time.monotonic() - began
        time.sleep(REST_S)
    pause = max((end - begin for _, begin, end in told["gaps"]), default=0.0)
    return {"drain": {"seconds": seconds, "filled": filled}, "pause": {"pause_s": pause, "refused": told["refused"]}}


CLUSTER_SCENARIOS: tuple[Scenario, ...] = (
    _throughput("cluster-java-100", 100),
    _throughput("cluster-java-1024", 1024),
    replace(waiting("cluster-waiters", "bare sockets", "waiters"), nodes=NODES, client_limit=None),
    spread(100, prefix="cluster-", nodes=NODES, reach=4.0),
    spread(1_000, prefix="cluster-", nodes=NODES, reach=15.0),
    spread(5_000, prefix="cluster-", nodes=NODES, above=25_000.0),
    spread(10_000, prefix="cluster-", nodes=NODES, above=15_000.0),
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
            Row(
                "p50", "kill -9: time without an acknowledged write, p50", "p50_s", "s", more_is_better=False, below=2.5
            ),
            Row(
                "worst",
                "kill -9: time without an acknowledged write, worst",
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
        "cluster-join",
        (
            Row(
                "joined",
                "a node joins: time until it leads a fifth of the writes",
                "seconds",
                "s",
                more_is_better=False,
            ),
            Row("stored", "a node joins: bytes that it has stored by then", "stored_mib", "MiB", more_is_better=False),
            Row(
                "copied",
                "of these, bytes in logs older than the node (Headrace: of the catalog)",
                "copied_mib",
                "MiB",
                more_is_better=False,
            ),
        ),
        _joins,
        runs_at_most=3,
        nodes=NODES,
    ),
    Scenario(
        "cluster-drain",
        (
            Row(
                "drain",
                "one of four nodes, with 100,000 open partitionlets, is drained",
                "seconds",
                "s",
                more_is_better=False,
                below=60.0,
            ),
            Row(
                "pause", "longest time without an acknowledged write during that", "pause_s", "s", more_is_better=False
            ),
        ),
        _drain,
        runs_at_most=3,
        only=("headrace",),
        nodes=NODES + 1,
    ),
    Scenario(
        "cluster-create",
        (Row("create", "creating topics (Headrace 100,000, Kafka 10,000)", "per_s", "topics/s", above=5_000.0),),
        _create,
        runs_at_most=1,
        nodes=NODES,
    ),
    Scenario(
        "cluster-requests",
        (
            Row("few", "server CPU per request, 100 topics", "cpu_us", "us", more_is_better=False),
            Row(
                "many",
                "server CPU per request, 100,000 topics",
                "cpu_us",
                "us",
                more_is_better=False,
            ),
            Row("ratio", "ratio of the two", "ratio", "x", more_is_better=False, below=1.15),
        ),
        _requests,
        runs_at_most=3,
        nodes=NODES,
    ),
    Scenario(
        "cluster-kill-100000",
        (
            Row(
                "p50",
                "kill -9 among 100,000 topics, p50",
                "p50_s",
                "s",
                more_is_better=False,
                below=2.5,
            ),
            Row(
                "worst",
                "kill -9 among 100,000 topics, worst",
                "worst_s",
                "s",
                more_is_better=False,
                below=5.0,
            ),
        ),
        _kills_among_many,
        runs_at_most=1,
        nodes=NODES,
    ),
    Scenario(
        "cluster-million",
        (
            Row("create", "creating 1,000,000 topics", "per_s", "topics/s", above=5_000.0),
            Row("memory", "resident memory of three nodes, 1,000,000 topics", "mib", "MiB", more_is_better=False),
        ),
        _million,
        runs_at_most=1,
        nodes=NODES,
        only=("headrace",),
    ),
)

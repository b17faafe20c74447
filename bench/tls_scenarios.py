"""The cost of TLS: the throughput of Kafka's own programs over listeners with TLS, and handshakes a second.

Both servers show the same ECDSA certificate, and request none. Throughput has the goals of the same rows in plain text:
TLS must not change which server is ahead.
"""

import re
import subprocess
import time
from collections.abc import Callable
from typing import Any

from bench import java_tools, wire
from bench.cluster_scenarios import NODES, PARTITIONS, steady_writer
from bench.scenarios import ClientFailed, Figures, Row, Scenario, Sizes, client, size_label
from bench.servers import Server, cpu_seconds

CONNECTING = 4
"""Programs that connect concurrently."""
COUNT = re.compile(r"(\d+) connections in \d+ real seconds")


def _java(size: int, *, nodes: int) -> Callable[[Server, Sizes], Figures]:
    def measure(server: Server, sizes: Sizes) -> Figures:
        records, warm_up = sizes.records(size, nodes=nodes)
        with wire.Client(server.bootstrap) as admin:
            admin.create_topics(["java"], partitions=1 if nodes == 1 else PARTITIONS)
        wire.wait_for_ack(server.bootstrap, topic="java", timeout_s=30.0)
        common: dict[str, Any] = {
            "topic": "java",
            "limit_s": sizes.limit_s,
            "properties": server.certificates.properties,
        }
        produced = java_tools.produce(server.tls_bootstrap, records=records, size=size, warm_up=warm_up, **common)
        consumed = java_tools.consume(server.tls_bootstrap, records=records + warm_up, **common)
        return {"produce": dict(produced), "consume": dict(consumed)}

    return measure


def _throughput(size: int, *, nodes: int) -> Scenario:
    label = size_label(size)
    where = "1 node, 1 topic" if nodes == 1 else f"{nodes} nodes, {PARTITIONS} partitions"
    return Scenario(
        f"{'cluster-' if nodes > 1 else ''}tls-java-{size}",
        (
            Row("produce", f"Java produce over TLS, {where}, {label}, acks=all", "per_s", "records/s"),
            Row("consume", f"Java consume over TLS, {where}, {label}", "per_s", "records/s"),
        ),
        _java(size, nodes=nodes),
        nodes=nodes,
        tls=True,
    )


def _handshakes(server: Server, sizes: Sizes) -> Figures:
    """Run several `openssl s_time` concurrently: full handshakes of TLS 1.3, each on a new connection."""
    seconds = max(3, int(sizes.waiting_s))
    address = server.tls_bootstrap.partition(",")[0]
    command = ["openssl", "s_time", "-connect", address, "-new", "-tls1_3", "-time", str(seconds)]
    subprocess.run([*command[:-1], "2"], capture_output=True, timeout=60, check=False)  # warms up Java's compiler
    used, began = cpu_seconds(server.pids), time.monotonic()
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(CONNECTING)]
    told = [each.communicate(timeout=seconds + 60)[0] for each in running]
    took = time.monotonic() - began
    counts = [int(found[1]) for text in told if (found := COUNT.search(text)) is not None]
    if len(counts) < CONNECTING:
        raise ClientFailed(f"openssl s_time printed no count: {told[0][-500:]}")
    used = cpu_seconds(server.pids) - used
    total = sum(counts)
    return {"rate": {"per_s": total / took, "cpu_ms": used / total * 1e3, "handshakes": total}}


def _storm(server: Server, sizes: Sizes) -> Figures:
    """Open 2,000 connections a second to the listener with TLS, beside a producer on the plain one."""
    with wire.Client(server.bootstrap) as admin:
        admin.create_topics(["steady"], partitions=1)
    wire.wait_for_ack(server.bootstrap, topic="steady", timeout_s=30.0)
    told: dict[str, Any] = {}
    with steady_writer(server, partitions=1, rate=1_000.0, size=100, told=told, least_s=0.02):
        time.sleep(3.0)  # the producer has warmed up
        began = time.time()
        storm = client(
            "connect_storm",
            bootstrap=server.tls_bootstrap.partition(",")[0],
            rate=2_000,
            seconds=sizes.waiting_s,
            limit_s=sizes.limit_s,
        )
        ended = time.time()
    gaps = [end - begin for _, begin, end in told["gaps"] if end > began and begin < ended]
    counts = {"acknowledged": told["acknowledged"], "refused_writes": told["refused"]}
    return {"gap": {"worst_ms": max(gaps, default=0.02) * 1e3, **counts, **storm}}


TLS_SCENARIOS: tuple[Scenario, ...] = (
    *(_throughput(size, nodes=nodes) for nodes in (1, NODES) for size in (100, 1024)),
    Scenario(
        "tls-handshakes",
        (Row("rate", "TLS handshakes (1.3, ECDSA P-256)", "per_s", "1/s", reach=1.0),),
        _handshakes,
        tls=True,
    ),
    Scenario(
        "tls-storm",
        (
            Row(
                "gap",
                "longest gap between acknowledgements, during 2,000 TLS connections per second",
                "worst_ms",
                "ms",
                more_is_better=False,
                below=100.0,
            ),
        ),
        _storm,
        tls=True,
    ),
)

"""The scenarios: each drives one server and returns values by row of the table.

A scenario depends neither on the server nor on the number of runs. `measure` gets a started server on fresh data (or,
with `starts=False`, one that it starts itself) and returns, by row, a mapping that holds the row's value.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench import java_tools, wire
from bench.jars import BENCH
from bench.servers import Server, cpu_seconds, resident_bytes, stored_bytes

Figures = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of all scenarios; `QUICK` only shows that the harness works."""

    bytes_produced: int = 500_000_000
    warm_up_bytes: int = 200_000_000
    waiting_s: float = 15.0
    spread_records: int = 500_000
    created_topics: int = 10_000
    many_topics: int = 100_000
    stored_gib: float = 20.0
    fill_limit_s: float = 900.0
    restarts: int = 5
    idle_s: float = 10.0
    backlog_bytes: int = 1_000_000_000
    cluster_bytes: int = 200_000_000
    cluster_warm_up_bytes: int = 50_000_000
    kills: int = 20
    down_s: float = 12.0
    requests: int = 200_000
    link_bytes: int = 300_000_000
    lag_s: float = 30.0
    link_rest_s: float = 70.0
    """Seconds until polls of a quiet source have reached their longest wait."""
    link_idle_s: float = 90.0
    links: int = 1_000
    limit_s: float = 300.0

    def records(self, size: int, *, nodes: int = 1) -> tuple[int, int]:
        """Return how many records of `size` bytes to produce, and how many before them to warm up."""
        if nodes == 1:
            return self.bytes_produced // size, self.warm_up_bytes // size
        return self.cluster_bytes // size, self.cluster_warm_up_bytes // size


QUICK = Sizes(
    bytes_produced=20_000_000,
    warm_up_bytes=2_000_000,
    waiting_s=2.0,
    spread_records=20_000,
    created_topics=300,
    many_topics=1_000,
    stored_gib=0.1,
    fill_limit_s=60.0,
    restarts=1,
    idle_s=1.0,
    backlog_bytes=20_000_000,
    cluster_bytes=5_000_000,
    cluster_warm_up_bytes=1_000_000,
    kills=1,
    down_s=12.0,
    requests=2_000,
    link_bytes=10_000_000,
    lag_s=3.0,
    link_rest_s=1.0,
    link_idle_s=2.0,
    links=10,
    limit_s=120.0,
)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: its value, unit and goal."""

    key: str
    title: str
    figure: str
    unit: str
    more_is_better: bool = True
    reach: float | None = None
    """Goal: at least this many times better than Kafka; None if there is no such goal."""
    below: float | None = None
    """Goal: the value itself is below this."""
    above: float | None = None
    """Goal: the value itself reaches this."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A measurement, and the rows that it fills."""

    name: str
    rows: tuple[Row, ...]
    measure: Callable[[Any, Sizes], Figures]
    """Gets a `Server`, or with `paired` a `pairs.Pair`."""
    starts: bool = True
    """Whether the runner starts the server first."""
    nodes: int = 1
    """Nodes of the server, or of each of the two clusters of a Headrace pair."""
    shards: int | None = None
    """Number of Headrace nodes that act as shards of one pod, beside one broker of Kafka; None: as many nodes as Kafka
    has.
    """
    paired: bool = False
    """Whether the scenario drives two clusters and the copying between them."""
    brokers: int = 1
    """Brokers of each of the two clusters of a Kafka pair."""
    runs_at_most: int | None = None
    """The maximum number of runs, for scenarios that take minutes and repeat internally."""
    tls: bool = False
    """Whether the server's nodes also have listeners with TLS."""
    rights: bool = False
    """Whether these require a certificate, and rights can be checked."""
    only: Sequence[str] = ("kafka", "headrace")
    """The servers on which the scenario runs."""
    client_limit: Callable[[Sizes], Mapping[str, Any]] | None = None
    """Measures the client alone, against a server that does nothing."""


class ClientFailed(RuntimeError):
    """A client program ended with an error."""


def client(program: str, *, limit_s: float, **options: object) -> dict[str, Any]:
    """Run `python -m bench.clients.<program>` and return the JSON object that it prints. Raises ClientFailed."""
    arguments = [text for key, value in options.items() for text in (f"--{key.replace('_', '-')}", str(value))]
    run = subprocess.run(
        [sys.executable, "-m", f"bench.clients.{program}", *arguments],
        cwd=BENCH.parent,
        capture_output=True,
        text=True,
        timeout=limit_s + 120.0,
        check=False,
    )
    if run.returncode != 0:
        raise ClientFailed(f"{program} {' '.join(arguments)}: {run.stderr[-1500:]}")
    last: dict[str, Any] = json.loads(run.stdout.strip().splitlines()[-1])
    return last


def size_label(size: int) -> str:
    """Return a record's size as titles show it."""
    return f"{size} B" if size < 1024 else "1 KiB"


def with_cpu(
    server: Server,
    *,
    records: int,
    produce: Callable[[], Mapping[str, Any]],
    consume: Callable[[], Mapping[str, Any]],
) -> Figures:
    """Run both programs, each over `records` records, and add how many that is per second of the server's CPU."""
    at = [cpu_seconds(server.pids)]
    produced = produce()
    at.append(cpu_seconds(server.pids))
    consumed = consume()
    at.append(cpu_seconds(server.pids))
    return {
        "produce": dict(produced),
        "produce_cpu": {"per_cpu_s": records / (at[1] - at[0])},
        "consume": dict(consumed),
        "consume_cpu": {"per_cpu_s": records / (at[2] - at[1])},
    }


def _java(size: int) -> Callable[[Server, Sizes], Figures]:
    def measure(server: Server, sizes: Sizes) -> Figures:
        records, warm_up = sizes.records(size)
        common: dict[str, Any] = {"topic": "java", "limit_s": sizes.limit_s}
        wire.wait_for_ack(server.bootstrap, topic="java", timeout_s=30.0)
        produced = java_tools.produce(server.bootstrap, records=records, size=size, warm_up=warm_up, **common)
        consumed = java_tools.consume(server.bootstrap, records=records + warm_up, **common)
        return {"produce": dict(produced), "consume": dict(consumed)}

    return measure


def _librdkafka(size: int) -> Callable[[Server, Sizes], Figures]:
    def measure(server: Server, sizes: Sizes) -> Figures:
        records, warm_up = sizes.records(size)
        common: dict[str, Any] = {"bootstrap": server.bootstrap, "topic": "librdkafka", "limit_s": sizes.limit_s}
        produced = client("librdkafka_produce", records=records, size=size, warmup=warm_up, **common)
        consumed = client("librdkafka_consume", records=records + warm_up, **common)
        return {"produce": produced, "consume": consumed}

    return measure


def _throughput(name: str, who: str, size: int, measure: Callable[[Server, Sizes], Figures]) -> Scenario:
    label = size_label(size)
    return Scenario(
        name,
        (
            Row("produce", f"{who} produce, 1 topic, {label}, acks=all", "per_s", "records/s", reach=1.0),
            Row("consume", f"{who} consume, 1 topic, {label}", "per_s", "records/s", reach=1.0),
        ),
        measure,
    )


def _waiters(program: str) -> tuple[Callable[[Server, Sizes], Figures], Callable[[Sizes], Mapping[str, Any]]]:
    def measure(server: Server, sizes: Sizes) -> Figures:
        seconds = sizes.waiting_s
        warm_up = min(5.0, seconds)
        found = client(
            program, bootstrap=server.bootstrap, seconds=seconds, warm_up_s=warm_up, limit_s=seconds + warm_up
        )
        return {"rate": found, "p50": found, "p99": found}

    def limit(sizes: Sizes) -> Mapping[str, Any]:
        return client(program, seconds=min(5.0, sizes.waiting_s), warm_up_s=1.0, limit_s=30.0)

    return measure, limit


def waiting(name: str, who: str, program: str) -> Scenario:
    """Return the scenario of 32 producers that wait for each acknowledgement, by a client program."""
    measure, limit = _waiters(program)
    return Scenario(
        name,
        (
            Row("rate", f"32 waiting producers ({who}), 100 B", "per_s", "requests/s", reach=1.0),
            Row("p50", f"32 waiting producers ({who}), p50", "p50_ms", "ms", more_is_better=False),
            Row("p99", f"32 waiting producers ({who}), p99", "p99_ms", "ms", more_is_better=False, reach=1.0),
        ),
        measure,
        client_limit=limit,
    )


def spread(
    topics: int, *, prefix: str = "", nodes: int = 1, reach: float | None = None, above: float | None = None
) -> Scenario:
    """Return the scenario of one librdkafka producer whose records go to `topics` topics in turn."""

    def measure(server: Server, sizes: Sizes) -> Figures:
        count = min(topics, sizes.spread_records // 10)
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
        f"{prefix}spread-{topics}",
        (
            Row("produce", title, "per_s", "records/s", reach=reach, above=above),
            Row("p99", f"librdkafka, {topics:,} topics, p99", "p99_ms", "ms", more_is_better=False),
        ),
        measure,
        nodes=nodes,
    )


def _create(server: Server, sizes: Sizes) -> Figures:
    found = client("create_topics", bootstrap=server.bootstrap, topics=sizes.created_topics, limit_s=sizes.limit_s)
    return {"create": found}


def start_empty(server: Server, sizes: Sizes) -> Figures:
    """Start on fresh folders, without the formatting for Kafka; then again on the same folders."""
    began = time.perf_counter()
    first = server.start()
    wire.wait_for_ack(server.bootstrap, topic="ready", timeout_s=60.0)
    acknowledged = time.perf_counter() - began
    time.sleep(sizes.idle_s)
    idle = resident_bytes(server.pids) / (1 << 20)
    server.stop()
    again = server.start()
    ready = {"seconds": first, "first_ack_s": acknowledged, "again_s": again}
    return {"ready": ready, "ack": ready, "idle": {"mib": idle}}


def _restart(server: Server, *, sizes: Sizes, topic: str, crash: bool) -> dict[str, Any]:
    """End and start the server `restarts` times; return the medians until it answers (`answer_s`) and until it accepts
    a record (`seconds`). If the server does not start again, `ended` says why.
    """
    answers: list[float] = []
    acks: list[float] = []
    for _ in range(sizes.restarts):
        if crash:
            server.kill()
        else:
            server.stop(timeout_s=300.0)
        began = time.perf_counter()
        try:
            answers.append(server.start(timeout_s=sizes.fill_limit_s))
            wire.wait_for_ack(server.bootstrap, topic=topic, timeout_s=sizes.fill_limit_s)
        except (RuntimeError, TimeoutError) as error:
            return {"seconds": None, "all_s": acks, "ended": str(error)[-500:]}
        acks.append(time.perf_counter() - began)
    return {"seconds": median(acks), "answer_s": median(answers), "all_s": acks}


def topics_for(server: Server, sizes: Sizes) -> int:
    """Return how many topics "many" are: on Kafka a tenth."""
    return sizes.many_topics if server.name == "headrace" else min(sizes.many_topics, sizes.created_topics)


def _fill(server: Server, *, gib: float, sizes: Sizes) -> dict[str, Any]:
    """Fill a server with as many topics as it can hold; with a third, a tenth, … of them if it failed.

    Kafka begins with a tenth: with 100,000 requested it had 19,500 after 900 s, and could not be restarted after a
    stop, as its memory maps were exhausted. Returns what the server holds in the end, and under `fell_over` the failed
    attempts.
    """
    limit = sizes.fill_limit_s
    fell_over: list[dict[str, Any]] = []
    most = topics_for(server, sizes)
    for part in (1, 3, 10, 30):
        topics = most // part
        filled = client("fill", bootstrap=server.bootstrap, topics=topics, gib=gib, limit_s=limit)
        if filled["ended"] is None or (filled["ended"].startswith("OutOfTime") and _takes_records(server)):
            break
        fell_over.append(filled)
        server.clear()
        server.start()
    return filled | {"fell_over": fell_over, "stored_gib": stored_bytes(server.folder) / (1 << 30)}


def _takes_records(server: Server) -> bool:
    try:
        wire.wait_for_ack(server.bootstrap, topic="filled-000000", timeout_s=30.0)
    except TimeoutError:
        return False
    return True


def _loaded(server: Server, sizes: Sizes) -> Figures:
    """Fill the server as far as possible, then restart it after a clean stop and after a kill."""
    filled = _fill(server, gib=sizes.stored_gib, sizes=sizes)
    clean = _restart(server, sizes=sizes, topic="filled-000000", crash=False)
    crashed = _restart(server, sizes=sizes, topic="filled-000000", crash=True) if clean["seconds"] else clean
    return {"clean": clean | {"filled": filled}, "crash": crashed | {"filled": filled}}


def _many_topics(server: Server, sizes: Sizes) -> Figures:
    filled = _fill(server, gib=0.0, sizes=sizes)
    time.sleep(sizes.idle_s)
    return {"memory": {"mib": resident_bytes(server.pids) / (1 << 20), "filled": filled}}


def _spark(server: Server, sizes: Sizes) -> Figures:
    size = 100
    records = sizes.backlog_bytes // size
    common: dict[str, Any] = {"bootstrap": server.bootstrap, "topic": "backlog", "records": records, "size": size}
    client("librdkafka_produce", partitions=4, limit_s=sizes.limit_s, **common)
    return {"read": client("spark_read", source=server.name, limit_s=sizes.limit_s, **common)}


SCENARIOS: tuple[Scenario, ...] = (
    _throughput("java-100", "Java", 100, _java(100)),
    _throughput("java-1024", "Java", 1024, _java(1024)),
    _throughput("librdkafka-100", "librdkafka", 100, _librdkafka(100)),
    _throughput("librdkafka-1024", "librdkafka", 1024, _librdkafka(1024)),
    waiting("waiters", "bare sockets", "waiters"),
    waiting("waiters-librdkafka", "librdkafka", "waiters_librdkafka"),
    spread(1_000, reach=3.0),
    spread(10_000, reach=5.0),
    Scenario(
        "create-10000",
        (Row("create", "creating 10,000 topics", "seconds", "s", more_is_better=False, reach=10.0),),
        _create,
    ),
    Scenario(
        "start-empty",
        (
            Row("ready", "ready after start, empty", "seconds", "s", more_is_better=False, reach=5.0),
            Row("idle", "resident memory, idle", "mib", "MiB", more_is_better=False, reach=4.0),
        ),
        start_empty,
        starts=False,
    ),
    Scenario(
        "start-loaded",
        (
            Row(
                "clean",
                "ready, 100,000 topics (Kafka 10,000), 20 GiB",
                "seconds",
                "s",
                more_is_better=False,
                reach=5.0,
            ),
            Row("crash", "the same after kill -9", "seconds", "s", more_is_better=False, reach=5.0),
        ),
        _loaded,
        runs_at_most=1,
    ),
    Scenario(
        "memory-100000",
        (
            Row(
                "memory",
                "resident memory, 100,000 topics (Kafka 10,000) of one message",
                "mib",
                "MiB",
                more_is_better=False,
                below=400.0,
            ),
        ),
        _many_topics,
        runs_at_most=1,
    ),
    Scenario(
        "spark",
        (Row("read", "Spark batch read, 1 GB of 100 B records, warm", "per_s", "records/s", reach=1.5),),
        _spark,
    ),
)

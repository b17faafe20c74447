"""`headrace bench`: a cluster's performance for the stock client, from where this command runs.

Three stages over topics of its own, which it deletes afterwards: sending records as fast as the client can, reading
them back, then sending records one by one at a fixed rate, to see how long each takes to be acknowledged and to arrive.
Only Kafka's own APIs are used, so that the same command measures any Kafka.
"""

import math
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headrace.base.errors import HeadraceError
from headrace.cli.options import Bootstrap, DataFolder, Output
from headrace.cli.output import OutputFormat, note, print_json, print_line, print_table
from headrace.cli.signals import Interrupts, Uninterrupted

if TYPE_CHECKING:
    from headrace.cli.target import Target

BATCH: Final = 10_000
SILENCE_S: Final = 30.0
"""Seconds without a record after which records count as lost."""
FULL_WAIT_S: Final = 0.1
WARM_UP: Final = 20
"""Number of paced records at the start whose latency is not counted, since they open connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Throughput of one stage."""

    stage: str
    records: int
    seconds: float
    records_per_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Latency percentiles of one stage in ms."""

    stage: str
    records: int
    p50_ms: float
    p99_ms: float
    max_ms: float


def bench(
    records: Annotated[int, typer.Option("--records", "-n", min=1, help="Records to send and read")] = 500_000,
    size: Annotated[int, typer.Option("--size", min=1, max=1_000_000, help="Bytes of each record's value")] = 100,
    topics: Annotated[int, typer.Option("--topics", min=1, max=100_000, help="Topics to spread records over")] = 1,
    partitions: Annotated[int, typer.Option("--partitions", min=1, max=100_000, help="Partitions of each topic")] = 1,
    rate: Annotated[
        int, typer.Option("--rate", min=1, max=1_000_000, help="Records per second in the paced stage")
    ] = 500,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0, max=86_400, help="Seconds of the paced stage; 0: leave it out")
    ] = 5.0,
    compression: Annotated[str, typer.Option("--compression", help="none, gzip, snappy, lz4 or zstd")] = "none",
    stream: Annotated[
        str, typer.Option("--stream", help="Stream of its topics; empty: plain names, for any Kafka")
    ] = "/default",
    bootstrap: Bootstrap = None,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Measure throughput and latency with librdkafka.

    The stock client sends with acks=all to topics that the command creates and deletes.

    \b
    Example:
      headrace bench --records 100000 --topics 10
    """
    from confluent_kafka.admin import AdminClient

    from headrace.cli.connect import check_access
    from headrace.cli.kafka_client import client_config, client_errors
    from headrace.cli.target import find_target

    target, interrupts = find_target(bootstrap, data), Interrupts()
    check_access(target)
    run = f"bench-{uuid.uuid4().hex[:8]}"
    names = [f"{stream}:{run}-{number}" if stream else f"{run}-{number}" for number in range(topics)]
    with client_errors("bench"), interrupts.caught():
        admin = AdminClient(client_config(target, {}))
        with own_topics(admin, names, partitions, interrupts):
            throughput = [
                _produce(target, names, interrupts, records=records, size=size, compression=compression),
                _consume(target, names, interrupts, records=records, size=size),
            ]
            latency = _paced(target, names[0], interrupts, rate=rate, seconds=seconds, size=size) if seconds else []
    if output is OutputFormat.JSON:
        print_json({"throughput": [asdict(each) for each in throughput], "latency": [asdict(each) for each in latency]})
        return
    print_table(
        ("stage", "records", "seconds", "records/s", "MB/s"),
        (_throughput_row(each) for each in throughput),
        right=("records", "seconds", "records/s", "MB/s"),
    )
    if latency:
        print_line()
        columns = ("stage", "records", "p50 ms", "p99 ms", "max ms")
        print_table(columns, (_latency_row(each) for each in latency), right=columns[1:])


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` of the ordered values lie (nearest rank)."""
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)]


@contextmanager
def own_topics(admin: Any, names: Sequence[str], partitions: int, interrupts: Interrupts) -> Iterator[None]:
    """Create topics for the duration of the context, and delete them afterwards, even after an interrupt."""
    try:
        with interrupts:  # an unfinished creation could take effect after the deletion
            _create(admin, names, partitions)
        yield
    finally:
        _delete(admin, names)


def _create(admin: Any, names: Sequence[str], partitions: int) -> None:
    from confluent_kafka.cimpl import NewTopic

    wanted = [NewTopic(name, num_partitions=partitions, replication_factor=-1) for name in names]
    for future in admin.create_topics(wanted, operation_timeout=30).values():
        future.result()


def _delete(admin: Any, names: Sequence[str]) -> None:
    from confluent_kafka import KafkaException

    for name, future in admin.delete_topics(list(names), operation_timeout=30).items():
        try:
            future.result()
        except KafkaException as error:
            note(f"could not delete {name}: {error.args[0]}")


def _produce(
    target: "Target", names: Sequence[str], interrupts: Interrupts, *, records: int, size: int, compression: str
) -> Throughput:
    from confluent_kafka import Producer

    from headrace.cli.kafka_client import producer_config
    from headrace.cli.sending import Sender

    settings = {
        "acks": "all",
        "linger.ms": 5,
        "compression.codec": compression,
        "queue.buffering.max.messages": 500_000,
    }
    sender = Sender(Uninterrupted(Producer(producer_config(target, settings)), interrupts), target)
    value = bytes(size)
    began = time.monotonic()
    for number in range(records):
        sender.send(names[number % len(names)], value)
    sender.finish()
    return _throughput("produce", records, size, time.monotonic() - began)


def _consume(target: "Target", names: Sequence[str], interrupts: Interrupts, *, records: int, size: int) -> Throughput:
    from headrace.cli.kafka_client import describe

    consumer = _assigned_consumer(target, names, interrupts)
    try:
        left, began, heard = records, time.monotonic(), time.monotonic()
        while left > 0:
            messages = consumer.consume(BATCH, 0.5)
            for message in messages:
                if message.error() is not None:
                    raise describe(message.error(), "bench")
            left -= len(messages)
            if messages:
                heard = time.monotonic()
            elif time.monotonic() - heard > SILENCE_S:
                raise HeadraceError(f"{left} of {records} records did not come back within {SILENCE_S:.0f} s")
        return _throughput("consume", records, size, time.monotonic() - began)
    finally:
        consumer.close()


def _paced(
    target: "Target", name: str, interrupts: Interrupts, *, rate: int, seconds: float, size: int
) -> list[Latency]:
    """Send at a fixed rate, and time each record until its acknowledgement and until its arrival at a consumer."""
    from confluent_kafka import Producer

    from headrace.cli.kafka_client import describe, producer_config

    total = max(1, round(rate * seconds)) + WARM_UP
    acknowledged: list[float] = []
    arrived: list[float] = []
    failures: list[Any] = []
    producer = Uninterrupted(Producer(producer_config(target, {"acks": "all", "linger.ms": 0})), interrupts)
    consumer = _assigned_consumer(target, [name], interrupts, at_end=True)
    padding = bytes(max(0, size - 8))

    def receive(timeout_s: float) -> None:
        message = consumer.poll(timeout_s)
        if message is None:
            return
        if message.error() is not None:
            raise describe(message.error(), "bench")
        arrived.append(time.monotonic() - int.from_bytes(message.value()[:8], "big") / 1e9)

    def send() -> None:
        sent = time.monotonic_ns()

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                failures.append(error)
            acknowledged.append((time.monotonic_ns() - sent) / 1e9)

        value = sent.to_bytes(8, "big") + padding
        while True:
            try:
                producer.produce(name, value, on_delivery=delivered)
                return
            except BufferError:  # the cluster is too slow: waiting here counts as latency
                producer.poll(FULL_WAIT_S)

    try:
        began = time.monotonic()
        for number in range(total):
            send()
            while (left := began + (number + 1) / rate - time.monotonic()) > 0:
                producer.poll(0)
                receive(min(left, 0.001))
        producer.flush(SILENCE_S)
        heard, known = time.monotonic(), len(arrived) + len(acknowledged)
        while min(len(arrived), len(acknowledged)) < total and time.monotonic() - heard < SILENCE_S:
            receive(0.1)
            producer.poll(0)
            if len(arrived) + len(acknowledged) > known:
                heard, known = time.monotonic(), len(arrived) + len(acknowledged)
    finally:
        consumer.close()
    if failures:
        raise describe(failures[0], "bench")
    if len(arrived) < total:
        raise HeadraceError(f"{total - len(arrived)} of {total} paced records did not arrive within {SILENCE_S:.0f} s")
    if len(acknowledged) < total:
        lacking = total - len(acknowledged)
        raise HeadraceError(f"{lacking} of {total} paced records were not acknowledged within {SILENCE_S:.0f} s")
    return [_latency("send to acknowledgement", acknowledged), _latency("send to consumer", arrived)]


def _assigned_consumer(target: "Target", names: Sequence[str], interrupts: Interrupts, *, at_end: bool = False) -> Any:
    from confluent_kafka import Consumer, TopicPartition

    from headrace.cli.kafka_client import client_config, partitions_of

    settings = {"group.id": "headrace-bench", "enable.auto.commit": False, "fetch.wait.max.ms": 100}
    consumer = Uninterrupted(Consumer(client_config(target, settings)), interrupts)
    places = []
    for name in names:
        for partition in partitions_of(consumer, name):
            place = TopicPartition(name, partition)
            low, high = consumer.get_watermark_offsets(place, timeout=SILENCE_S)
            place.offset = high if at_end else low
            places.append(place)
    consumer.assign(places)
    return consumer


def _throughput_row(measured: Throughput) -> tuple[str, ...]:
    return (
        measured.stage,
        f"{measured.records:,}",
        f"{measured.seconds:.2f}",
        f"{measured.records_per_s:,.0f}",
        f"{measured.bytes_per_s / 1e6:.1f}",
    )


def _latency_row(measured: Latency) -> tuple[str, ...]:
    figures = (measured.p50_ms, measured.p99_ms, measured.max_ms)
    return (measured.stage, f"{measured.records:,}", *(f"{figure:.2f}" for figure in figures))


def _throughput(stage: str, records: int, size: int, seconds: float) -> Throughput:
    return Throughput(
        stage=stage,
        records=records,
        seconds=round(seconds, 3),
        records_per_s=round(records / seconds, 1),
        bytes_per_s=round(records * size / seconds, 1),
    )


def _latency(stage: str, seconds: Sequence[float]) -> Latency:
    ordered = sorted(value * 1000 for value in seconds[WARM_UP:])
    return Latency(
        stage=stage,
        records=len(ordered),
        p50_ms=round(percentile(ordered, 0.5), 3),
        p99_ms=round(percentile(ordered, 0.99), 3),
        max_ms=round(ordered[-1], 3),
    )

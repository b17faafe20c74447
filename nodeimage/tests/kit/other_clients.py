"""Programs of other stock clients: a producer with acks=all and two members of a group, otherwise with defaults.

Each records what it sees in a `History` (cluster_history.py). An exception of a client, or an error that it reports in
place of an acknowledgement, is an error there.
"""

import asyncio
import itertools
import threading
import time
from typing import Any, ClassVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from kafka import KafkaConsumer, KafkaProducer

from kit.cluster_history import History, Read, Where, Write
from kit.java_clients import JavaClients, program

PACE_S = 0.005
MEMBERS = ("m0", "m1")
GROUP = "others"
END_S = 60.0
POLL_MS = 5_000
"""Milliseconds of a poll of kafka-python: longer than a rebalance. A member of 3.0 whose poll ends within a rebalance
may never get its assignment: it asks its coordinator nothing more, and each poll returns at once."""


class Program:
    """A producer and the members of a group, running from `start` on."""

    idempotent: ClassVar[bool] = True
    """Whether the client's producers are idempotent by default."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, history: History) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.partitions = partitions
        self.history = history

    def start(self) -> None:
        """Begin."""
        raise NotImplementedError

    def look(self) -> None:
        """Bring the history up to date, if that does not happen automatically."""

    def stop_writing(self) -> None:
        """End the producer, once all of its records are answered."""
        raise NotImplementedError

    def close(self) -> None:
        """End the members."""
        raise NotImplementedError

    def new_write(self, number: int) -> Write:
        """The producer's next record, which is unique."""
        where = Where(self.topic, number % self.partitions)
        write = Write("w", where, f"w/{number}".encode(), time.monotonic())
        self.history.writes.append(write)
        return write

    def failed(self, who: str, error: object) -> None:
        """An error reached the program."""
        self.history.errors.append(f"{who} at {time.monotonic():.3f}: {error!r}")

    def given(self, member: str, partition: int, offset: int, value: bytes) -> None:
        """A member received a record."""
        self.history.reads.append(Read(member, Where(self.topic, partition), offset, value, time.monotonic()))


class KafkaPython(Program):
    """kafka-python: threads."""

    def start(self) -> None:
        self._ends = threading.Event()
        self._closes = threading.Event()
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._members = [threading.Thread(target=self._poll, args=(name,), daemon=True) for name in MEMBERS]
        for each in (self._writer, *self._members):
            each.start()

    def stop_writing(self) -> None:
        self._ends.set()
        self._writer.join(END_S)

    def close(self) -> None:
        self._closes.set()
        for each in self._members:
            each.join(END_S)

    def _write(self) -> None:
        try:
            producer = KafkaProducer(bootstrap_servers=self.bootstrap, acks="all")
            for number in itertools.count():
                if self._ends.wait(PACE_S):
                    break
                write = self.new_write(number)
                sent = producer.send(self.topic, write.value, partition=write.where.partition)
                sent.add_callback(lambda done, write=write: self.history.wrote(write, done.offset))
                sent.add_errback(lambda error: self.failed("w", error))
            producer.flush(END_S)
            producer.close()
        except Exception as error:
            self.failed("w", error)

    def _poll(self, name: str) -> None:
        try:
            consumer = KafkaConsumer(
                self.topic, bootstrap_servers=self.bootstrap, group_id=GROUP, auto_offset_reset="earliest"
            )
            while not self._closes.is_set():
                for records in consumer.poll(timeout_ms=POLL_MS).values():
                    for each in records:
                        self.given(name, each.partition, each.offset, each.value)
            consumer.close()
        except Exception as error:
            self.failed(name, error)


class AioKafka(Program):
    """aiokafka: tasks on a loop in a separate thread."""

    idempotent = False

    def start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._ends = asyncio.Event()
        self._closes = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._writer = asyncio.run_coroutine_threadsafe(self._write(), self._loop)
        self._members = [asyncio.run_coroutine_threadsafe(self._poll(name), self._loop) for name in MEMBERS]

    def stop_writing(self) -> None:
        self._loop.call_soon_threadsafe(self._ends.set)
        self._writer.result(END_S)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._closes.set)
        for each in self._members:
            each.result(END_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(END_S)
        self._loop.close()

    async def _write(self) -> None:
        def answered(done: "asyncio.Future[Any]", write: Write) -> None:
            if error := done.exception():
                self.failed("w", error)
            else:
                self.history.wrote(write, done.result().offset)

        try:
            async with AIOKafkaProducer(bootstrap_servers=self.bootstrap, acks="all") as producer:
                for number in itertools.count():
                    if self._ends.is_set():
                        break
                    write = self.new_write(number)
                    sent = await producer.send(self.topic, write.value, partition=write.where.partition)
                    sent.add_done_callback(lambda done, write=write: answered(done, write))
                    await asyncio.sleep(PACE_S)
                await producer.flush()
        except Exception as error:
            self.failed("w", error)

    async def _poll(self, name: str) -> None:
        try:
            async with AIOKafkaConsumer(
                self.topic, bootstrap_servers=self.bootstrap, group_id=GROUP, auto_offset_reset="earliest"
            ) as consumer:
                while not self._closes.is_set():
                    for records in (await consumer.getmany(timeout_ms=100)).values():
                        for each in records:
                            self.given(name, each.partition, each.offset, each.value)
        except Exception as error:
            self.failed(name, error)


class Java(Program):
    """Kafka's own clients of one release, in a JVM."""

    release: ClassVar[str]

    def start(self) -> None:
        self._java = JavaClients(self.release, self.bootstrap, program(self.release))
        self._writes = True
        self._taken = dict.fromkeys(MEMBERS, 0)
        pace_ms = round(PACE_S * 1000)
        self._java.call("feed_start", name="w", topic=self.topic, partitions=self.partitions, pace_ms=pace_ms)
        for name in MEMBERS:
            self._java.call("member_start", name=name, topics=[self.topic], config={"group.id": GROUP})

    def look(self) -> None:
        if self._writes:
            self._answered(self._java.call("feed_take", name="w"))
        for name in MEMBERS:
            self._told(name, self._java.call("member_state", name=name))

    def stop_writing(self) -> None:
        self._answered(self._java.call("feed_stop", name="w"))
        self.history.writes.sort(key=lambda write: write.called)  # in the order sent, not that of the answers
        self._writes = False

    def close(self) -> None:
        for name in MEMBERS:
            self._told(name, self._java.call("member_stop", name=name))
        self._java.end()

    def _answered(self, answers: list[dict[str, Any]]) -> None:
        for each in answers:
            if each["error"] is not None:
                self.failed("w", each["error"])
                continue
            value = f"w/{each['number']}".encode()
            write = Write("w", Where(self.topic, each["partition"]), value, each["called"])
            self.history.writes.append(write)
            self.history.wrote(write, each["offset"])

    def _told(self, name: str, state: dict[str, Any]) -> None:
        if state["error"] is not None:
            self.failed(name, state["error"])
        for each in state["records"][self._taken[name] :]:
            self.given(name, each["partition"], each["offset"], each["value"].encode())
        self._taken[name] = len(state["records"])


class Java3(Java):
    """The last release of Kafka 3."""

    release = "3.9.1"


class Java4(Java):
    """The newest release."""

    release = "4.3.1"


__all__ = ["GROUP", "AioKafka", "Java3", "Java4", "KafkaPython", "Program"]

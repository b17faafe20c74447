"""The history of producers to a node that is repeatedly killed, and whether the log agrees with it.

Each `Writer` is a thread that chooses a partition for each batch. A *plain* one never repeats a batch: a batch without
an answer may be stored once or not at all. An *idempotent* one repeats a batch until it is answered, over restarts: the
batch must be stored exactly once, in order. `check` reads everything back.
"""

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from headrace.base.errors import Code
from headrace.kafka_client.blocking_client import BrokerConnection
from headrace.wire import fetch, produce
from headrace.wire.api_keys import ApiKey
from headrace.wire.batch import build_batch, iter_records

VERSION = 8
FETCH_VERSION = 11


@dataclass(slots=True)
class Batch:
    """One batch that a writer sent, and the offset of its first record once it is acknowledged."""

    topic: str
    partition: int
    values: list[bytes]
    offset: int | None = None


@dataclass(slots=True)
class Writer:
    """A producer that continues over every crash of the node until `stop`."""

    name: str
    address: tuple[str, int]
    partitions: list[tuple[str, int]]
    producer_id: int
    """-1: plain."""
    seed: int
    batches: list[Batch] = field(default_factory=list)
    errors: Counter[int] = field(default_factory=Counter)
    stopping: threading.Event = field(default_factory=threading.Event)
    failure: BaseException | None = None

    def start(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        thread.start()
        return thread

    def _run(self) -> None:
        try:
            self._write()
        except BaseException as error:
            self.failure = error

    def _write(self) -> None:
        chance = random.Random(self.seed)
        sequences = dict.fromkeys(self.partitions, 0)
        serial = itertools.count()
        connection: BrokerConnection | None = None
        pending: tuple[Batch, bytes] | None = None
        while not self.stopping.is_set() or pending is not None:
            if connection is None:
                connection = self._connect()
                if connection is None:
                    continue
            if pending is None:
                where = chance.choice(self.partitions)
                count = chance.randint(1, 20)
                values = [
                    b"%s-%d-" % (self.name.encode(), next(serial)) + bytes(chance.randint(0, 400)) for _ in range(count)
                ]
                pending = self._batch(where, values, sequences[where])
                sequences[where] += count
                self.batches.append(pending[0])
            try:
                answer = connection.call(ApiKey.PRODUCE, VERSION, pending[1])
            except (ConnectionError, TimeoutError):
                connection = None
                if self.producer_id < 0:
                    pending = None  # its outcome is unknown, and it is not sent again
                continue
            (result,), _ = produce.decode_response(answer, 0, VERSION)
            if result.error:
                self.errors[result.error] += 1
                assert result.error in (Code.LEADER_NOT_AVAILABLE, Code.KAFKA_STORAGE_ERROR), result
                if self.producer_id < 0:
                    pending = None
                time.sleep(0.01)
                continue
            pending[0].offset = result.base_offset
            pending = None
        if connection is not None:
            connection.close()

    def _connect(self) -> BrokerConnection | None:
        try:
            return BrokerConnection(*self.address, client_id=self.name, timeout_s=10)
        except (ConnectionError, TimeoutError):
            time.sleep(0.01)
            return None

    def _batch(self, where: tuple[str, int], values: list[bytes], sequence: int) -> tuple[Batch, bytes]:
        now = int(time.time() * 1000)
        plain = self.producer_id < 0
        records = build_batch(
            [(now, None, value, []) for value in values],
            producer_id=self.producer_id,
            producer_epoch=-1 if plain else 0,
            base_sequence=-1 if plain else sequence,
        )
        request = produce.ProduceRequest(
            None, -1, 10_000, [produce.PartitionRecords(where[0], where[1], memoryview(records))]
        )
        return Batch(*where, values), produce.encode_request(VERSION, request)


def read_all(address: tuple[str, int], topic: str, partition: int) -> list[tuple[int, bytes]]:
    """(offset, value) of every record of a partition."""
    found: list[tuple[int, bytes]] = []
    with BrokerConnection(*address, timeout_s=30) as connection:
        offset = 0
        while True:
            asked = fetch.FetchPartition(partition, -1, offset, -1, -1, 1 << 20)
            request = fetch.FetchRequest(0, 1, 4 << 20, 0, 0, -1, [fetch.FetchTopic(topic, None, [asked])], [], "")
            answer = fetch.decode_response(
                connection.call(ApiKey.FETCH, FETCH_VERSION, fetch.encode_request(FETCH_VERSION, request)),
                0,
                FETCH_VERSION,
            )
            (result,) = answer.topics[0].partitions
            assert result.error == 0, result
            before = offset
            for buffer in result.records:
                for record in iter_records(memoryview(buffer)):
                    if record.offset >= offset:
                        found.append((record.offset, record.value or b""))
                        offset = record.offset + 1
            if offset == before:
                assert offset == result.high_watermark, f"{topic}/{partition}: stuck at {offset}"
                return found


def check(writers: Iterable[Writer], read: Callable[[str, int], list[tuple[int, bytes]]]) -> dict[str, int]:
    """Fails on a lost acknowledged record, one at another offset, a duplicate, a gap, or a changed order."""
    writers = list(writers)
    partitions = {where for writer in writers for where in writer.partitions}
    stored = {where: read(*where) for where in partitions}
    acknowledged = unknown = 0
    for where, records in stored.items():
        assert [offset for offset, _ in records] == list(range(len(records))), f"{where} has gaps"
    seen = Counter((where, value) for where, records in stored.items() for _, value in records)
    doubled = [key for key, count in seen.items() if count > 1]
    assert not doubled, f"{len(doubled)} records are there twice, such as {doubled[0]}"
    for writer in writers:
        last: dict[tuple[str, int], int] = {}
        for batch in writer.batches:
            where = (batch.topic, batch.partition)
            if batch.offset is None:
                unknown += 1
                held = [seen[where, value] for value in batch.values]
                assert len(set(held)) == 1, f"half a batch of {writer.name} is there"
                continue
            acknowledged += len(batch.values)
            at = stored[where][batch.offset : batch.offset + len(batch.values)]
            assert [value for _, value in at] == batch.values, f"{writer.name} lost {where} at {batch.offset}"
            assert batch.offset > last.get(where, -1), f"{writer.name}: order of {where} changed"
            last[where] = batch.offset
        assert writer.producer_id < 0 or all(batch.offset is not None for batch in writer.batches)
    return {
        "acknowledged": acknowledged,
        "unanswered batches": unknown,
        "stored": sum(map(len, stored.values())),
    }

"""Stores a task's record batches, each once, and never mistakes different rows for stored ones.

Verifies a partition's answer "already stored". A token names a task, not its rows: another attempt may have different
rows (a random key, a source that is not repeatable, a topic that has grown), and the rows that reached a partition
first keep the token. So the stored batch is read back and compared. If it differs from the one sent, the latter is
stored too, under another token that is derived from its rows: rows may then be stored twice, and none is missing.

Invariants

1. A batch is skipped only if its token's batch is stored with the same rows, in any order.
2. Tokens derived from rows, which partitions keep like others, are used only for such differences.
"""

import hashlib
import itertools
from collections.abc import Iterable

from headrace.base.errors import Code
from headrace.wire import fetch
from headrace.wire.api_keys import ApiKey
from headrace_spark.cluster import BROKEN, Cluster
from headrace_spark.decode import CorruptRecords, Records, decode, whole_batches
from headrace_spark.encode import token_of, with_token
from headrace_spark.errors import RETRIABLE, BrokerError, code_name
from headrace_spark.options import Partition
from headrace_spark.producing import Outgoing, Repeat, send_all
from headrace_spark.reading import VERSION, fetch_request
from headrace_spark.tokens import made_from_rows

APPEND_TIME = 1
DIGEST_BYTES = 16


def store_once(cluster: Cluster, batches: Iterable[Outgoing], *, timed: bool) -> None:
    """Store every batch, those of one partition in the order given. Returns when all are acknowledged.

    `timed`: the rows have their own timestamps, so that two rows that differ only in them are different. Raises
    SourceError.
    """
    others: list[Outgoing] = []
    for repeat in send_all(cluster, batches):
        partition, batch = repeat.sent
        if not _is_stored(cluster, repeat, timed=timed):
            digest = _digest(_records(partition, memoryview(batch)), timed=timed)
            others.append((partition, with_token(batch, made_from_rows(token_of(batch), digest))))
    send_all(cluster, others)


def _is_stored(cluster: Cluster, repeat: Repeat, *, timed: bool) -> bool:
    partition, batch = repeat.sent
    stored = None if repeat.base_offset < 0 else _read_back(cluster, partition, repeat.base_offset)
    if stored is None or token_of(stored) != token_of(batch):
        return False
    there, sent = _records(partition, stored), _records(partition, memoryview(batch))
    timed = timed and APPEND_TIME not in there.timestamp_type
    return len(there.offset) == len(sent.offset) and _digest(there, timed=timed) == _digest(sent, timed=timed)


def _digest(records: Records, *, timed: bool) -> bytes:
    """Return a digest that is the same for the same rows, in any order."""
    times = records.timestamp.tolist() if timed else itertools.repeat(None)
    headers = itertools.repeat(None) if records.headers is None else records.headers.to_pylist()
    rows = zip(records.key.to_pylist(), records.value.to_pylist(), headers, times, strict=False)
    each = (hashlib.blake2b(repr(row).encode(), digest_size=DIGEST_BYTES).digest() for row in rows)
    return hashlib.blake2b(b"".join(sorted(each)), digest_size=DIGEST_BYTES).digest()


def _records(partition: Partition, batch: memoryview) -> Records:
    try:
        records, _ = decode(batch, first=0, end=1 << 62, with_headers=True)
    except CorruptRecords as error:
        raise BrokerError(Code.CORRUPT_MESSAGE, f"{partition[0]}/{partition[1]}: {error}") from error
    assert records is not None, "a batch with a token has records"
    return records


def _read_back(cluster: Cluster, partition: Partition, offset: int) -> memoryview | None:
    """Return the batch that begins at an offset; None if it no longer exists. Raises SourceError."""
    request = fetch_request([(partition, offset)], read_committed=False, partition_bytes=1, answer_bytes=1)
    retry = cluster.retry("read back what a partition has stored")
    replica: int | None = None
    while True:
        node = replica
        try:
            node = cluster.leaders([partition]).get(partition) if replica is None else replica
            if node is None:
                retry.pause(Code.LEADER_NOT_AVAILABLE)
                continue
            answer = cluster.to_node(node).call(ApiKey.FETCH, VERSION, request)
            response = fetch.decode_response(answer, 0, VERSION)
        except (*BROKEN, KeyError) as error:
            if node is not None:
                cluster.drop(node)
            replica = None
            retry.pause(error)
            continue
        result = response.topics[0].partitions[0] if response.topics else None
        code = int(response.error if result is None else result.error)
        if code == Code.OFFSET_OUT_OF_RANGE:
            return None
        if code != Code.NONE and code not in RETRIABLE:
            raise BrokerError(code, f"{partition[0]}/{partition[1]}: the node answers {code_name(code)}")
        if code == Code.NONE and result is not None:
            found = next(iter(whole_batches(memoryview(b"".join(result.records)))), None)
            if found is not None:
                return found
            if result.preferred_replica not in (-1, node):
                replica = result.preferred_replica
                continue
        cluster.forget(partition)
        replica = None
        retry.pause(code or Code.OFFSET_NOT_AVAILABLE)

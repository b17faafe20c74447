"""Invalid input gets the error code that clients expect, and nothing is lost by it."""

import json
import os
import random
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from headrace.base.errors import Code, HeadraceError
from headrace.kafka_client.blocking_client import BrokerConnection
from headrace.log.frames import MAX_PAYLOAD_BYTES
from headrace.wire import fetch, generic_codec, metadata, produce
from headrace.wire.api_keys import ApiKey
from headrace.wire.batch import build_batch, iter_records, read_batch
from headrace.wire.header import request_header
from kit.kafka_versions import told_versions

MIB = 1 << 20


class Client:
    """One connection, one request at a time."""

    def __init__(self, cluster: Any) -> None:
        self.wire = BrokerConnection(cluster.host, cluster.port, "bad", 30.0)

    def ask(self, key: ApiKey, version: int, **fields: Any) -> Any:
        body = self.wire.call(key, version, generic_codec.encode_request(key, version, fields))
        return generic_codec.decode_response(key, version, body)

    def name(self, *topics: str) -> list[metadata.TopicMeta]:
        asked = metadata.MetadataRequest([(topic, None) for topic in topics], True)
        body = self.wire.call(ApiKey.METADATA, 9, metadata.encode_request(9, asked))
        return list(metadata.decode_response(body, 0, 9).topics)

    def send(self, topic: str, records: bytes | None, *, partition: int = 0, acks: int = -1, version: int = 9) -> Any:
        view = memoryview(records) if records is not None else None
        asked = produce.ProduceRequest(None, acks, 1000, [produce.PartitionRecords(topic, partition, view)])
        body = self.wire.call(ApiKey.PRODUCE, version, produce.encode_request(version, asked))
        ((result,), _) = produce.decode_response(body, 0, version)
        return result

    def take(self, topic: str, *, offset: int = 0, partition: int = 0) -> Any:
        part = fetch.FetchPartition(partition, -1, offset, -1, -1, 64 * MIB)
        asked = fetch.FetchRequest(0, 1, 64 * MIB, 0, 0, -1, [fetch.FetchTopic(topic, None, [part])], [], "")
        body = self.wire.call(ApiKey.FETCH, 12, fetch.encode_request(12, asked))
        return fetch.decode_response(body, 0, 12).topics[0].partitions[0]

    def values(self, topic: str) -> list[bytes | None]:
        result = self.take(topic)
        assert result.error == 0, result
        return [record.value for records in result.records for record in iter_records(records)]


def batch(*values: bytes, **fields: Any) -> bytearray:
    return build_batch([(int(time.time() * 1000), None, value, []) for value in values], **fields)


def of_records(count: int, said: int) -> bytes:
    """A batch of `count` records whose header says another number."""
    made = batch(*[b"v"] * count)
    made[57:61], made[23:27] = struct.pack(">i", said), struct.pack(">i", said - 1)
    made[17:21] = struct.pack(">I", crc32c(bytes(made[21:])))
    return bytes(made)


def changed(at: int, raw: bytes, *, seal: bool = True) -> bytes:
    """A valid batch with bytes changed; `seal` recomputes its CRC."""
    made = batch(b"a", b"b")
    made[at : at + len(raw)] = raw
    if seal:
        made[17:21] = struct.pack(">I", crc32c(bytes(made[21:])))
    return bytes(made)


MESSAGE_V0 = struct.pack(">qiIbbii", 0, 15, 0, 0, 0, -1, 1) + b"x"
MESSAGE_V1 = struct.pack(">qiIbbqii", 0, 23, 0, 1, 0, 1_000, -1, 1) + b"x"

REFUSED: dict[str, tuple[bytes | None, Code]] = {
    "wrong crc": (changed(61, b"\xff", seal=False), Code.CORRUPT_MESSAGE),
    "magic 0": (MESSAGE_V0, Code.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    "magic 1": (MESSAGE_V1, Code.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    "magic 3": (changed(16, b"\x03"), Code.CORRUPT_MESSAGE),
    "length too long": (changed(8, struct.pack(">i", 10_000)), Code.CORRUPT_MESSAGE),
    "length too short": (changed(8, struct.pack(">i", 5)), Code.CORRUPT_MESSAGE),
    "negative length": (changed(8, struct.pack(">i", -1)), Code.CORRUPT_MESSAGE),
    "half a header": (bytes(batch(b"a"))[:40], Code.CORRUPT_MESSAGE),
    "one byte": (b"\x00", Code.CORRUPT_MESSAGE),
    "unknown codec": (changed(21, b"\x00\x07"), Code.INVALID_RECORD),
    "control batch": (changed(21, b"\x00\x20"), Code.INVALID_RECORD),
    "in a transaction": (changed(21, b"\x00\x10"), Code.INVALID_RECORD),
    "append time": (changed(21, b"\x00\x08"), Code.INVALID_RECORD),
    "no record": (changed(57, struct.pack(">i", 0)), Code.INVALID_RECORD),
    "gaps in offsets": (changed(23, struct.pack(">i", 7)), Code.INVALID_RECORD),
    "two batches": (bytes(batch(b"a") + batch(b"b")), Code.INVALID_RECORD),
    "empty": (b"", Code.INVALID_RECORD),
    "null": (None, Code.INVALID_RECORD),
    "too large": (bytes(batch(b"x" * 3 * MIB)), Code.MESSAGE_TOO_LARGE),
}


REFUSED |= {
    "records that are fewer than the header says": (of_records(2, 3), Code.INVALID_RECORD),
    "records that are more": (of_records(3, 2), Code.INVALID_RECORD),
    "a length within a record that goes beyond it": (changed(66, b"\x7e"), Code.INVALID_RECORD),
    "records that are not what they are packed by": (changed(22, b"\x01"), Code.INVALID_RECORD),
}


@pytest.fixture
def client(cluster: Any) -> Client:
    return Client(cluster)


@pytest.fixture
def topic(cluster: Any, client: Client) -> str:
    name: str = cluster.topic()
    (made,) = client.name(name)
    assert not made.error
    return name


@pytest.mark.parametrize("what", REFUSED)
def test_batches_that_are_refused_change_nothing(client: Client, topic: str, what: str) -> None:
    records, code = REFUSED[what]
    assert client.send(topic, bytes(batch(b"before"))).base_offset == 0
    result = client.send(topic, records)
    assert (result.error, result.base_offset) == (code, -1)
    assert result.message
    assert client.send(topic, bytes(batch(b"after"))).base_offset == 1
    assert client.values(topic) == [b"before", b"after"]


def kept(client: Client, topic: str, **configs: str) -> None:
    client.ask(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        resources=[
            {
                "resource_type": 2,
                "resource_name": topic,
                "configs": [
                    {"name": name.replace("_", "."), "config_operation": 0, "value": value}
                    for name, value in configs.items()
                ],
            }
        ],
        validate_only=False,
    )


def test_records_without_a_key_are_refused_one_by_one_where_a_topic_is_compacted(client: Client, topic: str) -> None:
    kept(client, topic, cleanup_policy="compact")
    keyed, keyless = (1000, b"k", b"v", []), (1000, None, b"v", [])
    result = client.send(topic, bytes(build_batch([keyed, keyless, keyed, keyless])))
    assert result.error == Code.INVALID_RECORD
    assert [index for index, _ in result.record_errors] == [1, 3]
    assert all("key" in reason for _, reason in result.record_errors)
    assert client.send(topic, bytes(build_batch([keyed, keyed]))).base_offset == 0


@pytest.mark.parametrize("compression", [1, 2, 3, 4])
def test_large_packed_batches_are_checked_as_small_ones_and_keep_their_order(
    client: Client, topic: str, compression: int
) -> None:
    large = build_batch([(1000, None, os.urandom(1000), []) for _ in range(60)], compression=compression)
    assert client.send(topic, bytes(large)).base_offset == 0
    broken = bytearray(large)
    broken[70:80] = bytes(10)
    broken[17:21] = struct.pack(">I", crc32c(bytes(broken[21:])))
    assert client.send(topic, bytes(broken)).error == Code.INVALID_RECORD
    small = build_batch([(1000, None, b"v", [])], compression=compression)
    assert client.send(topic, bytes(small)).base_offset == 60
    assert client.take(topic).high_watermark == 61


@pytest.mark.parametrize("compression", [0, 3])
def test_names_of_headers_may_be_any_bytes_in_batches_as_large_as_librdkafka_makes_them(
    client: Client, topic: str, compression: int
) -> None:
    many = build_batch([(1000, None, b"v", [("caf\udce9", b"1")])] * 10_000, compression=compression)
    assert client.send(topic, bytes(many)).base_offset == 0
    broken = bytearray(build_batch([(1000, None, b"v", [("caf\udce9", b"1")])] * 10_000))
    broken[-2] = 0x7E  # the length of the last value
    broken[17:21] = struct.pack(">I", crc32c(bytes(broken[21:])))
    assert client.send(topic, bytes(broken)).error == Code.INVALID_RECORD
    assert client.send(topic, bytes(batch(b"after"))).base_offset == 10_000


def test_a_largest_time_that_is_told_wrongly_is_put_right(client: Client, topic: str) -> None:
    """Some clients leave the first record's timestamp there; a look-up by time would not find the others."""
    sent = build_batch([(1000, None, b"a", []), (9000, None, b"b", [])])
    sent[35:43] = struct.pack(">q", 1000)
    sent[17:21] = struct.pack(">I", crc32c(bytes(sent[21:])))
    assert client.send(topic, bytes(sent)).error == 0
    (stored,) = client.take(topic).records
    assert read_batch(stored).max_timestamp == 9000


def test_no_batch_is_longer_than_what_can_be_replicated(client: Client, topic: str) -> None:
    """The limit holds whatever the topic's own limit; a batch with a token has no topic limit."""
    room = MAX_PAYLOAD_BYTES - len(batch(bytes(64 * MIB), producer_id=-2, producer_epoch=0, base_sequence=0)) + 64 * MIB
    for value, code in ((room + 1, Code.MESSAGE_TOO_LARGE), (room, Code.NONE)):
        longest = batch(bytes(value), producer_id=-2, producer_epoch=0, base_sequence=0)
        assert len(longest) == MAX_PAYLOAD_BYTES + value - room
        assert client.send(topic, bytes(longest)).error == code
    assert client.send(topic, bytes(batch(b"next"))).base_offset == 1


@pytest.mark.parametrize("version", range(12))
def test_old_messages_in_every_version_of_produce(client: Client, topic: str, version: int) -> None:
    assert client.send(topic, MESSAGE_V1, version=version).error == Code.UNSUPPORTED_FOR_MESSAGE_FORMAT
    assert client.send(topic, MESSAGE_V0, version=version).error == Code.UNSUPPORTED_FOR_MESSAGE_FORMAT
    assert client.take(topic).high_watermark == 0


def test_one_bad_partition_does_not_hurt_the_others(client: Client, topic: str) -> None:
    parts = [
        produce.PartitionRecords(topic, 0, memoryview(changed(61, b"\xff", seal=False))),
        produce.PartitionRecords(topic, 7, memoryview(batch(b"nowhere"))),
        produce.PartitionRecords(topic, 0, memoryview(batch(b"good"))),
        produce.PartitionRecords("/no/such:topic", 0, memoryview(batch(b"nowhere"))),
    ]
    asked = produce.ProduceRequest(None, -1, 1000, parts)
    body = client.wire.call(ApiKey.PRODUCE, 9, produce.encode_request(9, asked))
    results, _ = produce.decode_response(body, 0, 9)
    assert [(result.partition, result.error) for result in results] == [
        (0, Code.CORRUPT_MESSAGE),
        (7, Code.UNKNOWN_TOPIC_OR_PARTITION),
        (0, 0),
        (0, Code.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert client.values(topic) == [b"good"]


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_acks_that_do_not_exist(client: Client, topic: str, acks: int) -> None:
    assert client.send(topic, bytes(batch(b"a")), acks=acks).error == Code.INVALID_REQUIRED_ACKS
    assert client.take(topic).high_watermark == 0


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a..",
        "a b",
        "ä",
        "/x",
        "/x:",
        "/:t",
        "/x/:t",
        "x:t",
        "/x:a/b",
        "/x:t:t",
        "/x.y:t",
        "a" * 250,
        "/x:..",
    ],
)
def test_names_that_are_none(client: Client, name: str) -> None:
    (made,) = client.name(name)
    assert made.error == Code.INVALID_TOPIC_EXCEPTION
    created = client.ask(ApiKey.CREATE_TOPICS, 7, topics=[{"name": name, "num_partitions": 1, "replication_factor": 1}])
    assert created.topics[0].error_code == Code.INVALID_TOPIC_EXCEPTION
    assert client.send(name, bytes(batch(b"a"))).error == Code.INVALID_TOPIC_EXCEPTION
    assert client.take(name).error == Code.INVALID_TOPIC_EXCEPTION


def test_partitions_that_are_not_there(client: Client, topic: str) -> None:
    for partition in (-1, 1, 2**31 - 1):
        sent = client.send(topic, bytes(batch(b"a")), partition=partition)
        assert sent.error == Code.UNKNOWN_TOPIC_OR_PARTITION
        assert client.take(topic, partition=partition).error == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_stale_and_future_leader_epochs(cluster: Any, client: Client, topic: str) -> None:
    client.send(topic, bytes(batch(b"a")))
    cluster.admin("roll", {"topic": topic, "partition": 0})
    now = cluster.admin("chain", {"topic": topic})[-1]["leader_epoch"]
    for epoch, code in ((now, 0), (now - 1, Code.FENCED_LEADER_EPOCH), (now + 1, Code.UNKNOWN_LEADER_EPOCH)):
        part = {"partition_index": 0, "current_leader_epoch": epoch, "timestamp": -1}
        found = client.ask(ApiKey.LIST_OFFSETS, 7, topics=[{"name": topic, "partitions": [part]}])
        assert found.topics[0].partitions[0].error_code == code
        part = {"partition": 0, "current_leader_epoch": epoch, "leader_epoch": 0}
        ends = client.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, topics=[{"topic": topic, "partitions": [part]}])
        assert ends.topics[0].partitions[0].error_code == code


def test_commits_of_an_unknown_generation_or_member_commit_nothing(client: Client, topic: str) -> None:
    group = f"group-of-{topic[-8:]}"
    part = {"partition_index": 0, "committed_offset": 5}

    def commit(generation: int, member: str) -> int:
        answer = client.ask(
            ApiKey.OFFSET_COMMIT,
            8,
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member,
            topics=[{"name": topic, "partitions": [part]}],
        )
        return int(answer.topics[0].partitions[0].error_code)

    def held() -> int:
        asked = {"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}]}
        answer = client.ask(ApiKey.OFFSET_FETCH, 8, groups=[asked])
        return int(answer.groups[0].topics[0].partitions[0].committed_offset)

    assert commit(3, "nobody") in (Code.UNKNOWN_MEMBER_ID, Code.ILLEGAL_GENERATION)
    assert held() == -1
    join = {
        "group_id": group,
        "session_timeout": 30_000,
        "rebalance_timeout": 30_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }
    joined = client.ask(ApiKey.JOIN_GROUP, 3, **join)
    member, generation = joined.member_id, joined.generation_id
    client.ask(
        ApiKey.SYNC_GROUP,
        3,
        group_id=group,
        generation_id=generation,
        member_id=member,
        assignments=[{"member_id": member, "assignment": b""}],
    )
    assert commit(generation + 1, member) == Code.ILLEGAL_GENERATION
    assert commit(generation, "somebody-else") == Code.UNKNOWN_MEMBER_ID
    assert held() == -1
    assert commit(generation, member) == 0
    assert held() == 5


def test_random_bytes_from_many_clients_disturb_nobody(cluster: Any, client: Client, topic: str) -> None:
    chance = random.Random(7)
    peers = []
    spoken = {**told_versions(cluster.host, cluster.port), int(ApiKey.HEADRACE_ADMIN): (0, 0)}
    for number in range(150):
        key = chance.choice(list(spoken))
        body = request_header(key, chance.randint(*spoken[key]), number, "noise") + chance.randbytes(
            chance.randint(0, 300)
        )
        raw = chance.randbytes(200) if number % 3 == 0 else struct.pack(">i", len(body)) + body
        with socket.create_connection((cluster.host, cluster.port)) as noise:
            noise.sendall(raw)
            if number % 3 == 0 and not 0 < struct.unpack_from(">i", raw)[0] <= 100 * MIB:
                peers.append(noise.getsockname()[1])
                noise.settimeout(20)
                assert _ended(noise), "a length that cannot be"
        assert client.send(topic, bytes(batch(b"%d" % number))).base_offset == number
    assert client.values(topic) == [b"%d" % number for number in range(150)]
    log = cluster.log()
    told = sum(f"peer={cluster.host}:{peer}" in log for peer in peers)
    assert told or "suppressed=" in log, "each has its line in the log, and of very many their number is told"
    assert "internal error" not in log
    assert "Traceback" not in log


def _ended(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


# --- memory


@pytest.mark.alone
def test_lengths_that_are_claimed_and_idle_connections_cost_no_memory(new_cluster: Any) -> None:
    """Measures the node's resident memory."""
    cluster = new_cluster()
    client = Client(cluster)
    client.name("t")
    before = cluster.resident_bytes()
    idle = [socket.create_connection((cluster.host, cluster.port)) for _ in range(300)]
    for sock in idle:
        sock.sendall(struct.pack(">i", 99 * MIB) + b"\x00\x00")
    for sock in idle[:150]:  # requests that fit into the buffer stay incomplete too
        sock.sendall(b"x" * 2_000)
    claims = [socket.create_connection((cluster.host, cluster.port)) for _ in range(200)]
    for sock in claims:
        sock.sendall(struct.pack(">i", 2 * MIB))
    assert client.send("t", bytes(batch(b"served"))).error == 0
    deadline = time.monotonic() + 10
    while _connected(cluster) < 500:
        assert time.monotonic() < deadline
    grown = cluster.resident_bytes() - before
    assert grown < 40 * MIB, f"{grown / MIB:.0f} MiB for 500 connections that say nothing"
    for sock in idle + claims:
        sock.close()
    assert client.send("t", bytes(batch(b"and on"))).base_offset == 1


def _connected(cluster: Any) -> int:
    return int(cluster.admin("status")["clients"]["connected"])


@pytest.mark.alone
def test_a_client_that_asks_for_much_and_never_reads_costs_one_answer(new_cluster: Any) -> None:
    """Measures the node's resident memory."""
    cluster = new_cluster("--chunk-bytes=16777216")
    client = Client(cluster)
    client.name("t")
    for _ in range(160):
        assert client.send("t", bytes(batch(b"x" * 1_000_000))).error == 0
    before = cluster.resident_bytes()
    part = fetch.FetchPartition(0, -1, 0, -1, -1, 64 * MIB)
    asked = fetch.FetchRequest(0, 1, 64 * MIB, 0, 0, -1, [fetch.FetchTopic("t", None, [part])], [], "")
    body = request_header(ApiKey.FETCH, 12, 1, "deaf") + fetch.encode_request(12, asked)
    with socket.create_connection((cluster.host, cluster.port)) as deaf:
        deaf.sendall((struct.pack(">i", len(body)) + body) * 200)
        worst = 0
        for number in range(40):
            worst = max(worst, cluster.resident_bytes() - before)
            assert client.send("t", bytes(batch(b"%d" % number))).error == 0
            time.sleep(0.05)
        assert worst < 220 * MIB, f"{worst / MIB:.0f} MiB"


# --- disk


def _storage_error(client: Client, topic: str, size: int) -> bool:
    """Send until the node refuses for lack of room; every other outcome fails."""
    for _ in range(400):
        result = client.send(topic, bytes(batch(b"x" * size)))
        if result.error == Code.KAFKA_STORAGE_ERROR:
            return True
        assert result.error == 0, result
    return False


def _until_stored(client: Client, topic: str, value: bytes, *, within: float = 60) -> int:
    """Send until the node accepts the batch; returns the offset."""
    deadline = time.monotonic() + within
    while True:
        result = client.send(topic, bytes(batch(value)))
        if result.error == 0:
            return int(result.base_offset)
        assert result.error == Code.KAFKA_STORAGE_ERROR, result
        assert time.monotonic() < deadline, "writes did not come back"
        time.sleep(0.1)


def test_above_the_quota_writes_are_refused_and_come_back(new_cluster: Any) -> None:
    cluster = new_cluster("--chunk-bytes=1048576", f"--disk-quota={24 * MIB}", "--disk-reserve=0")
    client = Client(cluster)
    client.name("keep", "drop")
    assert client.send("keep", bytes(batch(b"kept"))).error == 0
    assert _storage_error(client, "drop", 200_000)
    assert client.values("keep") == [b"kept"]
    assert client.take("drop").records, "reads go on"
    (made,) = client.name("new")
    assert made.error in (0, Code.KAFKA_STORAGE_ERROR)
    client.ask(ApiKey.DELETE_TOPICS, 5, topic_names=["drop"], timeout_ms=5_000)
    offset = _until_stored(client, "keep", b"again")
    assert client.values("keep")[0] == b"kept"
    assert client.values("keep")[offset] == b"again"


def _can_mount() -> bool:
    return os.getuid() == 0 and subprocess.run(["which", "mount"], capture_output=True, check=False).returncode == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    """A separate file system of 96 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = (
        _can_mount()
        and not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=96m", "headrace-test", str(folder)], capture_output=True, check=False
        ).returncode
    )
    if not mounted:
        pytest.skip("needs the right to mount a file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)


def test_on_a_full_disk_reads_go_on_and_writes_come_back_with_room(new_cluster: Any, small_disk: Path) -> None:
    cluster = new_cluster(
        "--chunk-bytes=1048576",
        "--disk-reserve=0",
        "--partitionlet-bytes=3000000",
        "--rebalance-delay-ms=0",
        data=small_disk / "cluster",
    )
    client = Client(cluster)
    client.name("t", "other")
    for _ in range(12):
        assert client.send("t", bytes(batch(b"x" * 200_000))).error == 0
    assert client.send("other", bytes(batch(b"kept"))).error == 0
    ballast = small_disk / "ballast"
    _fill(ballast)
    assert _storage_error(client, "t", 200_000)
    stored = client.take("t", offset=0)
    assert (stored.error, bool(stored.records)) == (0, True)
    assert client.values("other") == [b"kept"]
    ends = client.take("t").high_watermark

    cluster.kill()  # a crash on a full disk; the new start's epoch needs some bytes, which it may just find
    reason = ""
    try:
        cluster.start()
    except HeadraceError as refused:
        reason = str(refused)
        os.truncate(ballast, ballast.stat().st_size - 512 * 1024)
        cluster.start()
    assert not reason or "disk is full" in reason or "No space left" in reason or "no room" in reason, reason
    client = Client(cluster)
    assert client.take("t").high_watermark == ends
    assert client.values("other") == [b"kept"]

    ballast.unlink()
    offset = _until_stored(client, "t", b"room again")
    assert offset >= ends
    committed = client.ask(
        ApiKey.OFFSET_COMMIT,
        8,
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": offset}]}],
    )
    assert committed.topics[0].partitions[0].error_code == 0
    (made,) = client.name("new")
    assert made.error == 0
    cluster.restart()
    assert Client(cluster).take("t").high_watermark == offset + 1


def _fill(ballast: Path) -> None:
    """Write until not a single block is free."""
    with ballast.open("wb", buffering=0) as file:
        for size in (MIB, 4096, 1):
            try:
                while True:
                    file.write(b"\x00" * size)
            except OSError:
                continue


# --- folders


NODE = "import sys, headrace.node.process; sys.exit(headrace.node.process.main())"
AS_NOBODY = f"import os, headrace.node.process; os.setgid(65534); os.setuid(65534); {NODE}"


def _start(data: Path, store: Path, *, program: str = NODE) -> "subprocess.CompletedProcess[str]":
    """Start a node that should refuse to start."""
    return subprocess.run(
        [sys.executable, "-c", program, "--data", str(data), "--store", str(store)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _refused(run: "subprocess.CompletedProcess[str]", reason: str) -> None:
    assert run.returncode == 2, run
    assert len(run.stderr.splitlines()) == 1, run.stderr
    assert run.stderr.startswith("headrace: ")
    assert reason in run.stderr


def test_folders_that_are_refused_with_one_line(new_cluster: Callable[..., Any], tmp_path: Path) -> None:
    cluster = new_cluster()
    data, store = cluster.data / "node-1", cluster.data / "cluster.sqlite"
    _refused(_start(data, store), f"in use by process {cluster.pid}")
    cluster.stop()
    _refused(_start(data, tmp_path / "other.sqlite"), "belongs to cluster")
    identity = data / "node.json"
    kept = identity.read_text()
    identity.write_text(json.dumps(json.loads(kept) | {"format": 99}))
    _refused(_start(data, store), "use a newer headrace")
    identity.write_text(kept)
    in_the_way = tmp_path / "file"
    in_the_way.write_text("not a folder")
    _refused(_start(in_the_way / "node", store), "cannot")
    cluster.start()
    cluster.stop()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become nobody")
def test_a_folder_without_permission_is_refused_with_one_line(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    _refused(_start(closed / "node", closed / "store.sqlite", program=AS_NOBODY), "ermission denied")

"""The audit log as a stream: written in order, each event once, bounded, and readable by administrators only."""

import asyncio
import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from structlog.testing import capture_logs

from headrace.base.errors import Code, KafkaError
from headrace.catalog.access import SecureCluster
from headrace.catalog.topics import DeleteTopics
from headrace.node import Node
from headrace.node import audit_stream as module
from headrace.node.audit_stream import MAX_WAITING, STREAM, TOPIC, TTL_MS, tell_now_and_then
from headrace.node.parts import NodeParts
from headrace.partitions.lookups import now
from headrace.peer.messages import AppendOnce
from headrace.security.access_rules import Kind, Permission
from headrace.security.scram_common import salted_password
from headrace.wire.api_keys import ApiKey
from kit.one_node import OneNode, until
from kit.parts import broker, node
from kit.secured_node import ROOT, SecuredNode

__all__ = ["broker", "node"]

EVENT = {"at_ms": 1_700_000_000_000, "user": "bob", "action": "produce", "allowed": False}


@pytest.fixture
async def secured(broker: NodeParts) -> SecuredNode:
    found = SecuredNode(broker)
    await found.secure()
    return found


async def events(node: Node) -> list[dict[str, Any]]:
    """The events in the stream so far."""
    one = OneNode(node)
    if await one.row(TOPIC, STREAM) is None:
        return []
    return [json.loads(value or b"") for value in await one.values(TOPIC, stream=STREAM)]


async def written(node: Node, count: int) -> list[dict[str, Any]]:
    """The stream's events, once there are `count` of them."""

    async def are_there() -> bool:
        return len(await events(node)) >= count

    await until(are_there)
    return await events(node)


async def test_events_come_in_order_with_their_times_and_administrators_alone_may_read_them(
    node: Node, secured: SecuredNode
) -> None:
    bob = secured.connection("bob")
    for name in ("/s:a", "/s:b"):
        assert not secured.parts.authorizer.allows(bob, Permission.PRODUCE, Kind.TOPIC, name, api="Produce")
    found = await written(node, 2)
    assert [(each["node"], each["user"], each["name"], each["api"]) for each in found] == [
        (1, "bob", "/s:a", "Produce"),
        (1, "bob", "/s:b", "Produce"),
    ]
    assert [dict(each) | {"node": 1} for each in secured.told] == found
    records = await OneNode(node).records(TOPIC, stream=STREAM)
    assert [record.timestamp for record in records] == [each["at_ms"] for each in found]
    stream = await secured.parts.catalog.query(lambda reader: reader.streams.at(STREAM))
    assert stream is not None
    assert (stream.policy.ttl_ms, stream.policy.auto_create) == (TTL_MS, False)
    for permission in Permission:
        name = f"{STREAM}:{TOPIC}"
        assert not secured.parts.authorizer.allows(bob, permission, Kind.TOPIC, name)
        assert secured.parts.authorizer.allows(secured.connection(ROOT), permission, Kind.TOPIC, name)


async def test_before_security_is_on_there_is_no_stream_and_its_end_is_told(node: Node, broker: NodeParts) -> None:
    broker.audit_stream.take(EVENT)
    assert not broker.audit_stream._waiting
    await SecuredNode(broker).secure()
    broker.audit_stream.take(EVENT)
    await broker.catalog.submit(SecureCluster(on=False))
    broker.audit_stream.take({**EVENT, "action": "security"})
    assert [each["action"] for each in await written(node, 2)] == ["produce", "security"]


async def test_what_a_full_queue_takes_no_more_is_counted_and_told_with_the_next(
    node: Node, secured: SecuredNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = asyncio.Event()
    append = secured.parts.audit_stream._append

    async def waits(*arguments: Any) -> None:
        await gate.wait()
        await append(*arguments)

    monkeypatch.setattr(secured.parts.audit_stream, "_append", waits)
    for index in range(MAX_WAITING + 3):
        secured.parts.audit_stream.take({**EVENT, "name": str(index)})
    assert secured.parts.audit_stream.lost == 3
    gate.set()
    await written(node, MAX_WAITING)
    with capture_logs() as logged:
        secured.parts.audit_stream.take({**EVENT, "name": "next"})
    found = await written(node, MAX_WAITING + 1)
    assert [each["name"] for each in found[:-1]] == [str(index) for index in range(MAX_WAITING)]
    assert (found[-1]["name"], found[-1]["lost"]) == ("next", 3)
    assert [line["lost"] for line in logged] == [3]
    assert secured.parts.audit_stream._waiting_bytes == 0 or secured.parts.audit_stream._waiting


async def test_a_write_is_repeated_until_it_succeeds_and_is_there_once(
    node: Node, secured: SecuredNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.001)
    stream = secured.parts.audit_stream
    append, failures = stream._append, iter(["before", "after", "after"])

    async def failing(*arguments: Any) -> None:
        when = next(failures, None)
        if when != "before":
            await append(*arguments)
        if when is not None:
            raise KafkaError(Code.LEADER_NOT_AVAILABLE, "away")

    monkeypatch.setattr(stream, "_append", failing)
    with capture_logs() as logged:
        stream.take({**EVENT, "name": "first"})
        await until(lambda: not stream._waiting)
        stream.take({**EVENT, "name": "second"})
        found = await written(node, 2)
    assert [each["name"] for each in found] == ["first", "second"]
    told = [line["event"] for line in logged if "audit events" in line["event"]]
    assert told == ["audit events cannot be written to their stream", "audit events are written to their stream again"]


async def test_a_node_that_does_not_lead_the_partition_hands_the_batch_to_the_one_that_does(
    node: Node, secured: SecuredNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, asked = secured.parts.audit_stream, []
    once = stream._once

    async def ask_leader(container: int, message: AppendOnce, buffers: list[bytes], **_: Any) -> None:
        asked.append((message.partition, len(buffers)))
        await once.append(message.topic_id, message.partition, bytearray(buffers[0]))

    monkeypatch.setattr(stream, "_led", ())
    monkeypatch.setattr(secured.parts.cluster, "ask_leader", ask_leader)
    stream.take(EVENT)
    assert [each["user"] for each in await written(node, 1)] == ["bob"]
    assert asked == [(0, 1)]


async def test_a_topic_that_was_deleted_is_made_again(node: Node, secured: SecuredNode) -> None:
    for name in ("first", "second"):
        secured.parts.audit_stream.take({**EVENT, "name": name})
        assert [each["name"] for each in await written(node, 1)] == [name]
        await until(lambda: not secured.parts.audit_stream._waiting)
        row = await OneNode(node).row(TOPIC, STREAM)
        assert row is not None
        await secured.parts.catalog.submit(DeleteTopics([row.topic_id], now()))


async def test_what_was_left_out_is_told_though_nothing_follows() -> None:
    calls: list[int] = []
    task = asyncio.create_task(tell_now_and_then(lambda: calls.append(1), every_s=0.001))
    await until(lambda: len(calls) > 2)
    task.cancel()


# --- secrets


def forms(secret: bytes) -> list[bytes]:
    """The forms in which a secret may have been written."""
    return [secret, secret.hex().encode(), base64.b64encode(secret), repr(secret).encode()[2:-1]]


def files(folder: Path) -> dict[str, bytes]:
    """The contents of each file below a folder."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_no_secret_is_in_anything_that_was_written(
    node: Node,
    secured: SecuredNode,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    password = b"correct horse battery staple 4711"
    salt = b"salt-of-this-test-12"
    salted = salted_password("sha256", password, salt, 4096)
    broken = salted + b"one byte too many"
    await secured.access("cluster", "", "admin", f"u:{ROOT} | u:ANONYMOUS")
    told: list[str] = []
    secured.parts.audit.add_sink(lambda fields: told.append(repr(fields)))

    def run(action: Callable[[AdminClient], Any]) -> None:
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{secured.parts.node.port}"})
        try:
            told.append(repr(action(admin)))
        except KafkaException as error:
            told.append(repr(error))

    def upsert(admin: AdminClient, iterations: int) -> Any:
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, iterations)
        alteration = UserScramCredentialUpsertion("alice", info, password, salt)
        (future,) = admin.alter_user_scram_credentials([alteration]).values()
        return future.result(30)

    for iterations in (4096, 20_000):
        await asyncio.to_thread(run, lambda admin, count=iterations: upsert(admin, count))
    await asyncio.to_thread(run, lambda admin: admin.describe_user_scram_credentials(["alice"])["alice"].result(30))
    for user in (ROOT, "mallory"):
        for value in (salted, broken):
            fields = {"name": "bob", "mechanism": 1, "iterations": 4096, "salt": salt, "salted_password": value}
            answer = await secured.ask(
                user, ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, {"deletions": [], "upsertions": [fields]}
            )
            told.append(repr(answer))

    def failing(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a fault of the program's own")

    with monkeypatch.context() as faulty:
        faulty.setattr("headrace.partitions.lookups.submit_within", failing)
        await asyncio.to_thread(run, lambda admin: upsert(admin, 4096))
    told.append(repr(await OneNode(node).admin("status")))
    told.append(repr(await written(node, 3)))
    captured = capfd.readouterr()
    assert "a fault of the program's own" in captured.out + captured.err
    haystack = {"audit, answers, status": "\n".join(told).encode(), "log": (captured.out + captured.err).encode()}
    haystack |= await asyncio.to_thread(files, tmp_path)
    assert len(haystack) > 5
    for where, content in haystack.items():
        for secret in (password, salted):
            for form in forms(secret):
                assert form not in content, where

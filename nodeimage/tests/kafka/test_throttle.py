"""Clients above their quotas: what is counted, which delays answers report, and for how long no requests start."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, Producer

from headrace.base.errors import Code
from headrace.catalog.quotas import AlterQuotas, Quota
from headrace.kafka.connection import Connection, Slot
from headrace.kafka.throttle import MAX_FOR_TIME_S, SPAN_S, Throttle
from headrace.node.parts import NodeParts
from headrace.security.client_quotas import Entity, Key, Quotas, QuotaTable, entity_text
from headrace.security.principals import Mechanism, Principal
from headrace.wire import generic_codec
from headrace.wire.api_keys import ApiKey
from headrace.wire.header import read_response_header, request_header


@dataclass
class Session:
    """The part of a connection that the throttle uses."""

    user: str = "alice"
    client_id: str = "app"
    spent_s: float = 0.0
    held_s: list[float] = field(default_factory=list)
    slots: list[Any] = field(default_factory=list)

    @property
    def principal(self) -> Principal:
        return Principal(self.user, Mechanism.PLAIN)

    def throttle(self, seconds: float) -> None:
        self.held_s.append(seconds)


class Limited:
    """A throttle on a simulated clock."""

    def __init__(self, *limits: tuple[Entity, Key, float]) -> None:
        self.now = 0.0
        self._changed: list[Callable[[], None]] = []
        self.limits = SimpleNamespace(
            quotas=Quotas(QuotaTable(limits)), are_any=bool(limits), on_change=self._changed.append
        )
        self.throttle = Throttle(quotas=cast(Any, self.limits), time=lambda: self.now)

    def change(self, *, are_any: bool) -> None:
        self.limits.are_any = are_any
        for callback in self._changed:
            callback()


def slot() -> Slot:
    return cast(Slot, SimpleNamespace(throttle_ms=0))


def test_without_limits_it_is_off_and_the_first_turns_it_on() -> None:
    limited = Limited()
    assert not limited.throttle.is_on
    limited.change(are_any=True)
    assert limited.throttle.is_on
    limited.change(are_any=False)
    assert not limited.throttle.is_on


def test_bytes_above_the_limit_are_answered_with_the_time_to_wait() -> None:
    limited = Limited((Entity("alice"), Key.PRODUCE, 100.0), (Entity("alice"), Key.CONSUME, 10.0))
    session, asked = cast(Any, Session()), slot()
    limited.throttle.produced(session, asked, 1000)
    assert (asked.throttle_ms, session.held_s) == (0, [])
    limited.throttle.produced(session, asked, 200)
    assert asked.throttle_ms == 2000
    assert session.held_s == [2.0]
    limited.throttle.fetched(session, asked, 110)
    assert asked.throttle_ms == 2000, "the longest counts"
    assert limited.throttle.most_fetched(session) == 110
    bob = cast(Any, Session("bob"))
    limited.throttle.produced(bob, asked, 1 << 30)
    assert bob.held_s == []
    assert limited.throttle.most_fetched(bob) is None


async def test_the_time_of_requests_counts_against_the_next_of_the_client() -> None:
    limited = Limited((Entity("alice"), Key.REQUESTS, 1.0))
    session = cast(Any, Session())

    def busy(*_: Any) -> None:
        until = time.perf_counter() + 0.002
        while time.perf_counter() < until:
            pass

    limited.throttle.start(busy, session, cast(Any, None), memoryview(b""), asked := slot())
    assert session.spent_s >= 0.002
    assert asked.throttle_ms == 0
    session.spent_s = 1.0
    limited.throttle.start(busy, session, cast(Any, None), memoryview(b""), asked)
    assert asked.throttle_ms == MAX_FOR_TIME_S * 1000, "no longer, or a group takes the client for dead"
    assert session.spent_s < 1.0


async def test_only_the_steps_of_an_answer_on_the_loop_count() -> None:
    limited = Limited((Entity("alice"), Key.REQUESTS, 1.0))
    session = cast(Any, Session())
    gate = asyncio.get_running_loop().create_future()
    steps: list[str] = []

    async def answer() -> None:
        steps.append("asked")
        try:
            steps.append(await gate)
            await asyncio.sleep(0)
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            steps.append("cancelled")
            raise

    running = asyncio.create_task(limited.throttle.timed(session, answer))
    await asyncio.sleep(0.05)
    gate.set_result("answered")
    for _ in range(3):
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert steps == ["asked", "answered", "cancelled"]
    assert 0 < session.spent_s < 0.05

    async def failing() -> None:
        await asyncio.sleep(0)
        raise KeyError("x")

    with pytest.raises(KeyError):
        await limited.throttle.timed(session, failing)


def test_changes_of_topics_are_refused_to_clients_that_know_it_and_held_up_for_others() -> None:
    limited = Limited((Entity("alice"), Key.MUTATIONS, 1.0))
    session = cast(Any, Session(slots=[slot()]))
    found = limited.throttle.charge_mutations(session, [10, 5, 1, 1], strict=True)
    assert [None if each is None else each.code for each in found] == [
        None,
        None,
        Code.THROTTLING_QUOTA_EXCEEDED,
        Code.THROTTLING_QUOTA_EXCEEDED,
    ]
    assert "controller_mutation_rate is used up: try again in 4 s" in str(found[2])
    assert session.slots[0].throttle_ms == 4000
    limited.now = 4.0
    assert limited.throttle.charge_mutations(session, [1], strict=True) == [None]
    old = cast(Any, Session(slots=[slot()]))
    assert limited.throttle.charge_mutations(old, [3, 4], strict=False) == [None, None]
    assert old.slots[0].throttle_ms == 8000
    assert Limited().throttle.charge_mutations(old, [1 << 20], strict=True) == [None]


def test_connections_wait_their_turn_and_are_closed_when_too_many_wait() -> None:
    limited = Limited((Entity(ip="10.0.0.1"), Key.CONNECTIONS, 1.0))
    delays = [limited.throttle.connection_delay_s("::ffff:10.0.0.1") for _ in range(30)]
    assert delays[:11] == [0.0] * 11
    assert delays[11:14] == [1.0, 2.0, 3.0]
    assert delays[-1] is None
    assert all(each is None or each < SPAN_S for each in delays)
    assert limited.throttle.connection_delay_s("10.0.0.2") == 0
    assert limited.throttle.connection_delay_s("") == 0
    assert Limited().throttle.connection_delay_s("10.0.0.1") == 0


# --- on a node


async def limit(broker: NodeParts, key: Key, value: float | None, **names: str | None) -> None:
    entity = entity_text({kind.replace("_", "-"): name for kind, name in names.items()})
    await broker.catalog.submit(AlterQuotas([Quota(entity, key, value)]))


async def test_a_producer_and_a_consumer_of_librdkafkas_hear_of_it_and_others_do_not(broker: NodeParts) -> None:
    await limit(broker, Key.PRODUCE, 1000.0, client_id="slow")
    await limit(broker, Key.CONSUME, 1000.0, client_id="slow")
    throttled: dict[str, list[float]] = {"slow": [], "quick": []}

    def client(name: str, **options: Any) -> dict[str, Any]:
        return {
            "bootstrap.servers": f"127.0.0.1:{broker.node.port}",
            "client.id": name,
            "throttle_cb": lambda event: throttled[name].append(event.throttle_time),
            **options,
        }

    def produce(name: str) -> None:
        producer = Producer(client(name))
        for _ in range(20):
            producer.produce("t", b"v" * 1000)
        until = time.monotonic() + 60
        while (len(producer) or (name == "slow" and not throttled[name])) and time.monotonic() < until:
            producer.poll(0.05)
        assert len(producer) == 0, "nothing is refused"

    await asyncio.to_thread(produce, "quick")
    assert throttled["quick"] == []
    await asyncio.to_thread(produce, "slow")
    assert throttled["slow"]
    throttled["slow"].clear()

    def consume() -> None:
        consumer = Consumer(client("slow", **{"group.id": "g", "auto.offset.reset": "earliest"}))
        consumer.subscribe(["t"])
        until = time.monotonic() + 60
        while not throttled["slow"] and time.monotonic() < until:
            consumer.poll(0.05)
        consumer.close()

    await asyncio.to_thread(consume)
    assert throttled["slow"]


async def test_topics_above_the_quota_are_refused_by_its_error_and_validation_is_free(broker: NodeParts) -> None:
    await limit(broker, Key.MUTATIONS, 1.0, user="ANONYMOUS")
    topics = [{"name": f"t{index}", "num_partitions": 10, "replication_factor": -1} for index in range(3)]

    async def ask(key: ApiKey, version: int, fields: dict[str, Any]) -> Any:
        request = generic_codec.decode_request(key, version, generic_codec.encode_request(key, version, fields))
        api: Any = broker.dispatcher.apis[key]
        answer = await api.handler(request, Connection(broker.dispatcher))
        return generic_codec.decode_response(key, version, generic_codec.encode_response(key, version, answer))

    for _ in range(2):
        answer = await ask(ApiKey.CREATE_TOPICS, 7, {"topics": topics, "timeout": 0, "validate_only": True})
        assert [each.error_code for each in answer.topics] == [0, 0, 0]
    answer = await ask(ApiKey.CREATE_TOPICS, 7, {"topics": topics, "timeout": 0, "validate_only": False})
    assert [each.error_code for each in answer.topics] == [0, 0, Code.THROTTLING_QUOTA_EXCEEDED]
    growth = [{"name": "t0", "count": 11, "assignments": None}]
    answer = await ask(ApiKey.CREATE_PARTITIONS, 3, {"topics": growth, "timeout": 0, "validate_only": False})
    assert [each.error_code for each in answer.results] == [Code.THROTTLING_QUOTA_EXCEEDED]
    answer = await ask(ApiKey.DELETE_TOPICS, 6, {"topics": [{"name": "t0", "topic_id": None}], "timeout": 0})
    assert [each.error_code for each in answer.responses] == [Code.THROTTLING_QUOTA_EXCEEDED]
    answer = await ask(ApiKey.DELETE_TOPICS, 4, {"topic_names": ["t0"], "timeout": 0})
    assert [each.error_code for each in answer.responses] == [0], "a client that does not know it is held up instead"


async def test_the_answer_comes_at_once_and_says_how_long_to_wait(broker: NodeParts) -> None:
    await limit(broker, Key.MUTATIONS, 1.0, user=None)
    key, version = ApiKey.CREATE_TOPICS, 5
    topics = [{"name": "t", "num_partitions": 30, "replication_factor": -1}]
    body = generic_codec.encode_request(key, version, {"topics": topics, "timeout": 0, "validate_only": False})
    reader, writer = await asyncio.open_connection(broker.node.host, broker.node.port)
    head = request_header(key, version, 1, "by hand")
    writer.write((len(head) + len(body)).to_bytes(4, "big") + head + body)
    began = asyncio.get_running_loop().time()
    raw = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
    assert asyncio.get_running_loop().time() - began < 5
    _, at = read_response_header(raw, key, version)
    answer = generic_codec.decode_response(key, version, raw[at:])
    assert [each.error_code for each in answer.topics] == [0]
    assert answer.throttle_time.total_seconds() > 10
    (session,) = broker.connections.open
    assert session.has_work
    assert not session._may_start()
    writer.close()
    await writer.wait_closed()


def test_what_clients_are_told_to_wait_is_counted_by_quota() -> None:
    limited = Limited((Entity("alice"), Key.PRODUCE, 100.0))
    session, asked = cast(Any, Session()), slot()
    for _ in range(2):
        limited.throttle.produced(session, asked, 5_000)
    assert limited.throttle.throttled_s == {"producer_byte_rate": sum(session.held_s)}

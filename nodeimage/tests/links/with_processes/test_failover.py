"""Homes that move under load, by agreement and by force, and two clusters that both believe they are home."""

import time

import pytest

from headrace.kafka_client.blocking_client import BrokerConnection
from headrace.wire import produce
from headrace.wire.api_keys import ApiKey
from headrace.wire.batch import build_batch
from kit.cluster_nodes import HOST, Cluster, until
from kit.linked_clusters import (
    STREAM,
    Linked,
    await_caught_up,
    await_same,
    call,
    cluster_id,
    committed,
    ends,
    headrace_json,
    link,
    make,
    shown,
)
from kit.moving_clients import GROUP, PARTITIONS, Clients, acknowledged, forgive_moves, log_of, quarantined

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TOPIC = "t"
PRODUCER = 7_000_001
PRODUCE_VERSION = 9
OUT_OF_ORDER = 45


def test_failover_and_failback(linked: Linked) -> None:
    north, south = linked.start("north", "south")
    make(north, TOPIC, partitions=PARTITIONS)
    make(north, "p", partitions=1)
    link(south, north)
    # An idempotent producer whose state has to reach the south.
    assert [_produce(north, first) for first in (0, 5)] == [(0, 0), (0, 5)]
    clients = Clients(TOPIC)
    old = clients.write_at(north)
    member = clients.read_at(north)
    until("its cursors are in the south", lambda: min(committed(south, GROUP, TOPIC, PARTITIONS)) > 0)
    clients.leave(member)
    until("the producer's records are in the south", lambda: ends(south, "p") == [10])
    # The source is lost, with records that exist nowhere else.
    linked.cut("north", "south")
    clients.await_writes(old, time.monotonic())
    north.kill(1)
    clients.lose(old)
    moved = headrace_json(south, "stream", "move-home", STREAM, "--force")
    assert {each["topic"]: (each["moved"], each["error"]) for each in moved} == {
        f"{STREAM}:{TOPIC}": (True, None),
        f"{STREAM}:p": (True, None),
    }
    assert all(each["not_replicated"] is not None for each in moved)
    clients.forget_commits_above(committed(south, GROUP, TOPIC, PARTITIONS))
    # Same group, same producer, another address.
    new = clients.write_at(south)
    member = clients.read_at(south)
    assert _produce(south, 5) == (0, 5), "sent again, it is known"
    assert _produce(south, 20)[0] == OUT_OF_ORDER
    assert _produce(south, 10) == (0, 10)
    # The source comes back, and follows.
    linked.ways.heal()
    north.start()
    north.await_ready()
    north.await_whole()
    until("the north follows", lambda: _home(north, TOPIC) == cluster_id(south), timeout_s=90)
    until("what only it had is set aside", lambda: call(north, "link.list"))
    (back,) = [each["name"] for each in call(north, "link.list")]
    assert back == f"back-{cluster_id(south)}"
    only_there = acknowledged(old) - {value for where in clients.places for _, value in log_of(south, where)}
    assert only_there
    until("all of it is set aside", lambda: only_there <= set(quarantined(north, TOPIC).values()))
    # And back, under load.
    forgive_moves(new)
    moved = headrace_json(north, "stream", "move-home", STREAM)
    assert all(each["moved"] and not each["error"] and each["not_replicated"] == 0 for each in moved), moved
    clients.stop(new)
    clients.leave(member)
    newest = clients.write_at(north)
    member = clients.read_at(north)
    assert _produce(north, 15) == (0, 15)
    clients.stop(newest)
    await_same(south, north, TOPIC, "p")
    clients.leave(member)
    assert clients.check(north, north) == len(only_there)
    told = shown(north, back)["diverged"]
    assert sum(each["records"] for each in told if each["topic"] == TOPIC) == len(quarantined(north, TOPIC))


def test_an_agreed_move_under_load_loses_and_doubles_nothing(linked: Linked) -> None:
    north, south = linked.start("north", "south")
    make(north, TOPIC, partitions=PARTITIONS)
    link(south, north)
    clients = Clients(TOPIC)
    old = clients.write_at(north, 3)
    member = clients.read_at(north)
    await_caught_up(south)
    began = time.monotonic()
    forgive_moves(old)
    (moved,) = headrace_json(south, "topic", "move-home", f"{STREAM}:{TOPIC}")
    assert (moved["moved"], moved["error"], moved["not_replicated"]) == (True, None, 0)
    print(f"moved within {time.monotonic() - began:.1f} s")
    clients.stop(old)
    told = [line for writer in old for line in writer.refusals]
    assert all(cluster_id(south) in line or "POLICY" in line.upper() for line in told), told[:3]
    clients.leave(member)
    new = clients.write_at(south, 3)
    member = clients.read_at(south)
    clients.await_writes(new, time.monotonic())
    clients.stop(new)
    assert not [line for writer in new for line in writer.refusals]
    (back,) = [each["name"] for each in call(north, "link.list")]
    await_caught_up(north, back)
    await_same(north, south, TOPIC)
    clients.leave(member)
    clients.check(south)
    assert not shown(north, back)["diverged"]


def test_of_two_that_believe_to_be_home_the_higher_wins_and_the_rest_is_set_aside(linked: Linked) -> None:
    north, south, west = linked.start("north", "south", "west")
    make(north, TOPIC, partitions=PARTITIONS)
    link(south, north)
    link(west, north)
    clients = Clients(TOPIC)
    in_north = clients.write_at(north)
    await_caught_up(south)
    linked.cut("north", "south")
    (moved,) = headrace_json(south, "topic", "move-home", f"{STREAM}:{TOPIC}", "--force")
    assert (moved["moved"], moved["error"]) == (True, None)
    in_south = clients.write_at(south)
    clients.await_writes([*in_north], time.monotonic())  # both accept records
    forgive_moves(in_north)
    await_caught_up(west)
    linked.ways.heal()
    until("the north gives way", lambda: _home(north, TOPIC) == cluster_id(south), timeout_s=90)
    until("and the west with it", lambda: _home(west, TOPIC) == cluster_id(south), timeout_s=90)
    clients.stop(in_north)
    clients.await_writes(in_south, time.monotonic())
    clients.stop(in_south)
    await_same(north, south, TOPIC)
    await_same(west, south, TOPIC)
    aside = quarantined(north, TOPIC)
    assert quarantined(west, TOPIC).items() <= aside.items(), "what the west had is a part of it"
    assert clients.check(south, north) > 0


def _home(cluster: Cluster, topic: str) -> str:
    """The cluster that is home of a topic, according to `cluster`."""
    home = call(cluster, "topic.show", topic=f"{STREAM}:{topic}").get("home")
    return cluster_id(cluster) if home is None else str(home["cluster"])


def _produce(cluster: Cluster, first: int) -> tuple[int, int]:
    """Write five records of one idempotent producer, from this sequence on; returns the error and the offset."""
    values = [(1_700_000_000_000 + first, None, b"%d" % (first + each), []) for each in range(5)]
    batch = build_batch(values, producer_id=PRODUCER, producer_epoch=0, base_sequence=first)
    parts = [produce.PartitionRecords("p", 0, memoryview(batch))]
    request = produce.encode_request(PRODUCE_VERSION, produce.ProduceRequest(None, -1, 30_000, parts))
    with BrokerConnection(HOST, cluster.nodes[1].port, "test", 60.0) as connection:
        body = connection.call(ApiKey.PRODUCE, PRODUCE_VERSION, request)
    (result,), _ = produce.decode_response(body, 0, PRODUCE_VERSION)
    return result.error, result.base_offset

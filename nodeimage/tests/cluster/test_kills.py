"""kill -9 of one node, of two in a moment, and of all: nothing is lost, and writes go on (invariants 1 to 8)."""

import itertools
import re
import time

import pytest
from confluent_kafka import KafkaError, Producer

from kit.cluster_clients import Load, at, read_to
from kit.cluster_history import Where
from kit.cluster_nodes import Cluster, until
from kit.cluster_targets import TARGETS, Target, busiest_leader

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

_serial = itertools.count()


@pytest.mark.parametrize("target", TARGETS, ids=lambda each: each.__name__)
def test_a_node_that_is_killed_takes_nothing_with_it(three: Cluster, target: Target) -> None:
    load = Load(three)
    victim = target(three, load)
    killed = time.monotonic()
    three.kill(victim)
    load.await_writes(time.monotonic())
    load.await_topics(killed)
    three.start(victim)
    three.await_ready(victim)
    three.await_whole()
    load.await_writes(time.monotonic())
    load.finish()


def test_all_nodes_killed_at_once_come_back_with_everything(three: Cluster) -> None:
    load = Load(three)
    load.forgive_coordinators_lost_twice()
    three.kill(1, 2, 3)
    three.start()
    three.await_ready()
    load.await_writes(time.monotonic(), within_s=30.0)
    three.await_whole()
    load.finish()


def test_two_nodes_killed_within_a_round_trip_lose_nothing_that_was_acknowledged(three: Cluster) -> None:
    """With two of three gone nothing is acknowledged; what was before is there when one of them is back."""
    load = Load(three)
    first = busiest_leader(three, load)
    second = next(number for number in three.nodes if number != first)
    three.kill(first, second)
    three.start(second)
    three.await_ready(second)
    load.await_writes(time.monotonic())
    three.start(first)
    three.await_ready(first)
    three.await_whole()
    load.finish()


def test_the_last_replica_standing_takes_nothing_reads_on_and_forgets_nothing(three: Cluster) -> None:
    """As in KIP-966: two are killed in turn, then the last; who is behind is back first, and must not lead.

    What the last one led before, it reads out; of what it leads since, it may not know all (invariant 8).
    """
    load = Load(three)
    last = busiest_leader(three, load)
    first, second = (number for number in three.nodes if number != last)
    three.kill(first)
    load.await_writes(time.monotonic())
    known = time.monotonic()
    load.await_writes(known)  # with what was sent now, the followers heard that all before is committed
    safe = load.acknowledged_before(known)
    led = load.led_by(last)
    assert led
    load.forgive_coordinators_lost_twice(KafkaError.COORDINATOR_NOT_AVAILABLE)  # their log is as the others
    three.kill(second)
    alone = three.nodes[last].node_id
    until("the last one leads everything", lambda: all(each.leader == alone for each in three.containers()))
    for where in led:
        until(
            f"{where} is refused",
            lambda where=where: refusal(three, where) == KafkaError.NOT_ENOUGH_REPLICAS,
        )
    acknowledged = len(load.history.times)
    found = read_to(three, {where: max(safe[where]) + 1 for where in led})
    for where in led:
        assert safe[where].items() <= dict(found[where]).items(), f"{where} is not read as before"
    assert len(load.history.times) == acknowledged, "one replica alone has acknowledged something"
    load.fail_on_errors()
    three.kill(last)
    before = len(three.nodes[first].log())
    three.start(first)

    def decided() -> bool:
        led_anew = any(each.leader != alone for each in three.containers())
        waits = re.findall(r"kind=wait .* container=(\d+)", three.nodes[first].log()[before:])
        return led_anew or {each.container_id for each in three.containers()} == {int(each) for each in waits}

    until("it has decided, alone, about each container", decided)
    assert all(each.leader == alone for each in three.containers()), three.events()
    three.start()
    three.await_ready()
    load.await_writes(time.monotonic(), within_s=30.0)
    three.await_whole()
    load.finish()


def refusal(cluster: Cluster, where: Where) -> int:
    """Why a record is not taken; fails where it is. What comes before the others count as gone has no answer."""
    told: list[KafkaError | None] = []
    producer = Producer({**at(cluster.bootstrap), "acks": "all", "retries": 0, "message.timeout.ms": 3_000})
    value = b"nobody's %d" % next(_serial)
    producer.produce(where.topic, value, partition=where.partition, on_delivery=lambda error, _: told.append(error))
    producer.flush(20)
    (error,) = told
    assert error is not None, f"a record of {where} was taken"
    return int(error.code())


def test_the_same_node_killed_again_as_soon_as_it_serves_loses_nothing(three: Cluster) -> None:
    load = Load(three)
    for _ in range(4):
        victim = busiest_leader(three, load)
        three.kill(victim)
        three.start(victim)
        three.await_ready(victim)
    load.await_writes(time.monotonic())
    three.await_whole()
    load.finish()

"""A committed offset changes on a disk: nobody is told another one, and the node gets its tables from the others."""

import sqlite3
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.kafka_client.blocking_client import BrokerConnection
from headrace.tables import table_check
from kit.cluster_nodes import Cluster, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

COMMITTED = 0x3A5A5A5A  # some bytes that stand nowhere else in the file


def consumer(three: Cluster) -> Consumer:
    return Consumer({"bootstrap.servers": three.bootstrap, "group.id": "readers", "enable.auto.commit": False})


def committed(three: Cluster) -> int:
    """What a client is told, which asks again while there is no coordinator."""
    asking = consumer(three)
    try:
        (found,) = asking.committed([TopicPartition("t", 0)], timeout=60)
        return int(found.offset)
    finally:
        asking.close()


def tables(three: Cluster, number: int) -> Path:
    return three.nodes[number].data / "catalog" / "catalog.sqlite"


def kinds_of(three: Cluster, number: int) -> set[str]:
    """Of the events of a node."""
    with BrokerConnection("127.0.0.1", three.nodes[number].port) as connection:
        return {event["kind"] for event in connection.admin("cluster.events", {"events": 200})}


@pytest.mark.parametrize("role", ["primary", "follower"])
def test_a_committed_offset_that_changes_on_the_disk_is_told_to_nobody(three: Cluster, role: str) -> None:
    admin = AdminClient({"bootstrap.servers": three.bootstrap})
    admin.create_topics([NewTopic("t", 1)])["t"].result(60)
    writing = consumer(three)
    writing.commit(offsets=[TopicPartition("t", 0, COMMITTED)], asynchronous=False)
    writing.close()
    leader = three.number_of(three.catalog().leader)
    damaged = leader if role == "primary" else next(number for number in three.nodes if number != leader)
    if role == "primary":  # as it runs
        connection = sqlite3.connect(tables(three, damaged), isolation_level=None, timeout=30)
        assert connection.execute('UPDATE cursors SET "offset" = "offset" - 4096').rowcount == 1
        connection.close()
        assert committed(three) == COMMITTED
        until("another node leads", lambda: three.number_of(three.catalog().leader) != damaged)
    else:  # a bit, while it is down
        three.terminate(damaged)
        content = tables(three, damaged).read_bytes()
        assert content.count(COMMITTED.to_bytes(4, "big")) == 1
        changed = (COMMITTED ^ 1 << 12).to_bytes(4, "big")
        tables(three, damaged).write_bytes(content.replace(COMMITTED.to_bytes(4, "big"), changed))
        three.start(damaged)
        three.await_ready(damaged)
    until("it is told", lambda: "catalog_damaged" in three.nodes[damaged].log())
    until("the tables check", lambda: not table_check.damage_in(tables(three, damaged)))
    three.await_whole()
    until("its events say so", lambda: {"damaged", "repaired"} <= kinds_of(three, damaged))
    for number in [number for number in three.nodes if number != damaged]:  # now it leads, by all that it has
        three.terminate(number)
        three.start(number)
        three.await_ready(number)
    until("a coordinator answers", lambda: _asked(three) == COMMITTED)


def _asked(three: Cluster) -> int:
    try:
        return committed(three)
    except KafkaException:
        return -1

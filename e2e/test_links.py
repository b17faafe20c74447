"""A stream that is copied between two StreamClusters in two namespaces: a network cut, a failover, and the failback."""

import contextlib
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import kube
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from kit.cluster_clients import END_S, Load, Member, Writer, at, make_topics, read_back
from kit.cluster_history import History, Log, Where, faults_of

BEHAVIOUR = "11 links"
STREAM = "/default"
"""The stream of topics whose names hold none."""
PAUSE_S = 5.0
CUT_S = 20.0
NOTICED_S = 90.0
AGAIN_S = 180.0
PARTITIONS = 4
WRITTEN = 500
BACKLOG = 100_000
FILLING = 240
SLOW = "1Mi"
"""Throttle by which only a few of the backlog's 24 MB are copied before the link is deleted."""


class Pair:
    """The clusters, and the links by which `south` copies from `north`."""

    def __init__(self, north: kube.Cluster, south: kube.Cluster) -> None:
        self.north = north
        self.south = south

    def link(self, name: str, topics: Sequence[str], **more: Any) -> None:
        """Apply a link in both directions, so that either cluster may be the home, unless `more` says otherwise."""
        spec = {
            "clusterRef": {"name": self.south.name},
            "source": {"clusterRef": {"name": self.north.name, "namespace": self.north.namespace}, "stream": STREAM},
            "target": {"stream": STREAM},
            "topics": list(topics),
            "mode": "MultiHome",
            **more,
        }
        kube.apply(kube.resource("ReplicationLink", name, self.south.namespace, spec))

    def condition(self, name: str, type: str) -> tuple[str, str, str]:
        """Return (status, reason, message)."""
        return kube.condition(kube.get("replicationlink", name, self.south.namespace), type)

    def await_link(self, name: str, *types: str) -> float:
        """Wait until conditions are true; return the seconds that it took."""
        began = time.monotonic()

        def is_so() -> bool:
            found = {type: self.condition(name, type) for type in types}
            assert all(state == "True" for state, _, _ in found.values()), found
            return True

        kube.until(f"{name} is {types}", is_so, timeout_s=AGAIN_S, every_s=1)
        return time.monotonic() - began

    def told(self, name: str) -> set[str]:
        """Return the reasons of the resource's events."""
        events = kube.listed("events", self.south.namespace)
        return {each["reason"] for each in events if each["involvedObject"]["name"] == name}


@pytest.fixture(scope="module")
def pair(namespace: str) -> Iterator[Pair]:
    """Two clusters of two nodes that are ready; `south` may copy from `north`."""
    elsewhere = f"e2e-{uuid.uuid4().hex[:6]}"
    kube.kubectl("create", "namespace", elsewhere)
    north = kube.Cluster("north", elsewhere, nodes=2, allowedNamespaces={"names": [namespace]})
    south = kube.Cluster("south", namespace, nodes=2)
    for cluster in (north, south):
        cluster.apply()
    for cluster in (north, south):
        cluster.await_ready()
    yield Pair(north, south)
    for cluster in (north, south):
        cluster.close()
    kube.kubectl("delete", "namespace", elsewhere, "--wait=false", check=False)


@contextlib.contextmanager
def cut(one: kube.Cluster, other: kube.Cluster) -> Iterator[None]:
    """Drop all packets between the pods of two clusters, on every worker, while the context is active."""
    ends = [[pod["status"]["podIP"] for pod in cluster.pods()] for cluster in (one, other)]
    ways = [way for left in ends[0] for right in ends[1] for way in ((left, right), (right, left))]

    def on_workers(change: str) -> None:
        rules = [f"iptables {change} FORWARD -s {source} -d {to} -j DROP" for source, to in ways]
        for worker in kube.workers():
            kube.run("docker", "exec", worker, "sh", "-ec", "\n".join(rules))

    on_workers("-I")
    try:
        yield
    finally:
        on_workers("-D")


def logs(cluster: kube.Cluster, places: Sequence[Where]) -> dict[Where, list[tuple[int, bytes]]]:
    """Return all records in partitions."""
    return {where: list(log) for where, log in read_back(cluster, places).items()}


def await_copy(of: kube.Cluster, on: kube.Cluster, places: Sequence[Where]) -> dict[Where, Log]:
    """Wait until both clusters have the same records, and return them."""
    wanted = logs(of, places)

    def same() -> bool:
        found = logs(on, places)
        different = {where: (len(found[where]), len(log)) for where, log in wanted.items() if found[where] != log}
        assert not different, f"{on.name} has other records: {different}"
        return True

    kube.until(f"{on.name} has what {of.name} has", same, timeout_s=AGAIN_S, every_s=2)
    return dict(wanted)


def ends(cluster: kube.Cluster, places: Sequence[Where]) -> list[int]:
    """Return the end offsets of partitions; 0 for those that do not exist yet."""
    consumer = Consumer({**at(cluster.bootstrap), "group.id": "ends"})
    try:
        there = consumer.list_topics(timeout=10.0).topics
        asked = [TopicPartition(where.topic, where.partition) for where in places if where.topic in there]
        return [consumer.get_watermark_offsets(each, timeout=10.0)[1] for each in asked] or [0] * len(places)
    finally:
        consumer.close()


def write(cluster: kube.Cluster, places: Sequence[Where], values: Sequence[bytes]) -> None:
    """Write the values; returns when all are acknowledged."""
    producer = Producer(
        {**at(cluster.bootstrap), "enable.idempotence": True, "queue.buffering.max.messages": 1_000_000}
    )
    for number, value in enumerate(values):
        where = places[number % len(places)]
        producer.produce(where.topic, value, partition=where.partition)
    assert producer.flush(END_S) == 0


def cursors(cluster: kube.Cluster, group: str, places: Sequence[Where]) -> dict[Where, int]:
    """Return a group's committed offsets, as a stock client sees them."""
    consumer = Consumer({**at(cluster.bootstrap), "group.id": group})
    try:
        asked = [TopicPartition(where.topic, where.partition) for where in places]
        found = consumer.committed(asked, timeout=10.0)
    finally:
        consumer.close()
    return {Where(each.topic, each.partition): each.offset for each in found}


class Program:
    """A producer and a member of a group that run at one cluster for a while, and record what they see."""

    def __init__(self, cluster: kube.Cluster, history: History, group: str, places: Sequence[Where], name: str) -> None:
        topics = sorted({where.topic for where in places})
        self.history = history
        self.writer = Writer(f"w-{name}", history, cluster.bootstrap, places)
        self.member = Member(f"m-{name}", history, cluster.bootstrap, group, topics)

    def run(self, records: int) -> None:
        """Run until `records` records are written and acknowledged, and the member has received them."""
        began, before = len(self.history.times), len(self.history.reads)
        for client in (self.writer, self.member):
            client.start()

        def done() -> bool:
            assert not self.history.errors, self.history.errors[:3]
            assert len(self.history.times) - began >= records, f"{len(self.history.times) - began} acknowledged"
            return len(self.history.reads) > before

        try:
            kube.until("the program has written and read", done, timeout_s=AGAIN_S, every_s=0.2)
            self.writer.stopping.set()
            self.writer.join(END_S)
            acknowledged = {(each.where, each.offset) for each in self.writer.writes if each.offset >= 0}

            def given() -> bool:
                return acknowledged <= {(each.where, each.offset) for each in list(self.history.reads)}

            kube.until("the member is given all of them", given, timeout_s=AGAIN_S, every_s=0.5)
        finally:
            for client in (self.writer, self.member):
                client.stopping.set()
                client.join(END_S)
        assert not self.history.errors, self.history.errors[:3]


@contextlib.contextmanager
def writing_until_moved(cluster: kube.Cluster, history: History, places: Sequence[Where]) -> Iterator[None]:
    """Run a producer at a cluster from before the home moves away until it is notified of the move."""
    writer = Writer("w-until-moved", history, cluster.bootstrap, places)
    writer.forgives = lambda error: error.code() == KafkaError.POLICY_VIOLATION
    writer.start()
    try:
        kube.until("records are acknowledged", lambda: sum(each.offset >= 0 for each in list(writer.writes)) > WRITTEN)
        yield
        kube.until("an event reports that the home has moved", lambda: writer.refusals, every_s=0.1)
    finally:
        writer.stopping.set()
        writer.join(END_S)
    assert not history.errors, history.errors[:3]


def test_a_link_that_is_cut_continues_where_it_was_and_holds_nobody_back(pair: Pair) -> None:
    with kube.reported(f"{BEHAVIOUR}: a cut") as figures:
        load = Load(pair.north, writers=2, members=1, topics=1, partitions=PARTITIONS)
        pair.link("cut", load.topics)
        figures["caught_up_s"] = pair.await_link("cut", "Ready", "CaughtUp")
        since = time.monotonic()
        with cut(pair.north, pair.south):
            load.write_on_for(CUT_S)
            kube.until("it is reported", lambda: pair.condition("cut", "Connected")[0] == "False", timeout_s=NOTICED_S)
            figures["noticed_s"] = kube.below(time.monotonic() - since, NOTICED_S)
            assert pair.condition("cut", "Ready")[1] == "SourceSilent"
            status = (kube.get("replicationlink", "cut", pair.south.namespace) or {})["status"]
            assert status["state"] == "Connecting", status
            assert status["lagSeconds"] > 0, "nobody knows what was written since"
        figures["again_s"] = pair.await_link("cut", "Ready", "CaughtUp")
        figures["source_without_a_write_s"] = kube.below(load.longest_pause(since, time.monotonic()), PAUSE_S)
        history = load.finish()
        figures["records"] = len(history.times)
        await_copy(pair.north, pair.south, load.places)
        wanted = cursors(pair.north, load.group, load.places)
        kube.until(
            "the group's cursors are there", lambda: cursors(pair.south, load.group, load.places) == wanted, every_s=1
        )
        assert {"LinkCreated", "SourceLost", "SourceConnected"} <= pair.told("cut")


def test_the_copy_takes_over_and_gives_back(pair: Pair) -> None:
    topic = f"moved-{uuid.uuid4().hex[:6]}"
    group = f"{topic}-group"
    places = [Where(topic, number) for number in range(PARTITIONS)]
    history, lost = History(), History()
    with kube.reported(f"{BEHAVIOUR}: failover and failback") as figures:
        make_topics(pair.north, [topic], PARTITIONS)
        pair.link("moved", [topic])
        pair.await_link("moved", "Ready")
        Program(pair.north, history, group, places, "before").run(WRITTEN)
        await_copy(pair.north, pair.south, places)
        wanted = cursors(pair.north, group, places)
        kube.until("its cursors are there", lambda: cursors(pair.south, group, places) == wanted, every_s=1)
        with cut(pair.north, pair.south):
            # North still considers itself the home: only it has the records that it accepts now.
            Program(pair.north, lost, f"{group}-lost", places, "lost").run(WRITTEN)
            began = time.monotonic()
            (moved,) = pair.south.headrace("topic", "move-home", f"{STREAM}:{topic}", "--force")
            assert moved["moved"], moved
            assert not moved["error"], moved
            Program(pair.south, history, group, places, "failover").run(WRITTEN)
            figures["failover_s"] = time.monotonic() - began
        began = time.monotonic()
        await_copy(pair.south, pair.north, places)
        figures["follows_s"] = time.monotonic() - began
        aside = [Where(f"{topic}.diverged", where.partition) for where in places]
        found = [value for log in logs(pair.north, aside).values() for _, value in log]
        kept = set(found)
        assert len(kept) == len(found), "some were set aside twice"
        only_north = {each.value for each in lost.writes if each.offset >= 0}
        assert only_north <= kept, f"{len(only_north - kept)} of {len(only_north)} records are nowhere"
        assert kept <= {each.value for each in lost.writes}, "others were set aside too"
        figures["kept_aside"] = len(kept)
        kube.until("it is reported", lambda: "HomeMoved" in pair.told("moved"), timeout_s=AGAIN_S, every_s=2)
        with writing_until_moved(pair.south, history, places):
            began = time.monotonic()
            (back,) = pair.north.headrace("topic", "move-home", f"{STREAM}:{topic}")
            assert back["moved"], back
            assert not back["error"], back
            figures["failback_s"] = time.monotonic() - began
        Program(pair.north, history, group, places, "back").run(WRITTEN)
        final = await_copy(pair.north, pair.south, places)
        assert faults_of(history, final) == []
        figures["records"] = len(history.times)
        kube.kubectl("delete", "replicationlink", "moved", "-n", pair.south.namespace, timeout_s=120)
        for cluster in (pair.south, pair.north):
            names = [each["name"] for each in cluster.headrace("link", "list")]
            assert "moved" not in names, f"{cluster.name} has {names}"
        assert logs(pair.south, places) == final, "what was copied stays"


def test_a_link_that_is_deleted_in_mid_copy_and_applied_again_doubles_nothing(pair: Pair) -> None:
    topic = f"again-{uuid.uuid4().hex[:6]}"
    places = [Where(topic, number) for number in range(PARTITIONS)]
    with kube.reported(f"{BEHAVIOUR}: deleted in mid-copy and applied again") as figures:
        make_topics(pair.north, [topic], PARTITIONS)
        pair.link("again", [topic], mode="OneWay", throttle=SLOW)
        pair.await_link("again", "Ready")
        write(
            pair.north,
            places,
            [b"%08d" % number + os.urandom(FILLING // 2).hex().encode() for number in range(BACKLOG)],
        )
        kube.until("some of it is there", lambda: sum(ends(pair.south, places)) > 0, every_s=0.1)
        kube.kubectl("delete", "replicationlink", "again", "-n", pair.south.namespace, timeout_s=120)
        held = ends(pair.south, places)
        figures["records_held"] = sum(held)
        assert 0 < sum(held) < BACKLOG
        write(pair.north, places, [b"after"] * PARTITIONS)
        assert ends(pair.south, places) == held, "nobody copies now"
        began = time.monotonic()
        pair.link("again", [topic], mode="OneWay")
        final = await_copy(pair.north, pair.south, places)
        figures["whole_s"] = time.monotonic() - began
        figures["records"] = sum(len(log) for log in final.values())
        assert figures["records"] == BACKLOG + PARTITIONS
        pair.await_link("again", "Ready", "CaughtUp")


def test_a_pattern_that_no_topic_matches_is_reported_until_one_does(pair: Pair) -> None:
    topic = f"later-{uuid.uuid4().hex[:6]}"
    with kube.reported(f"{BEHAVIOUR}: a pattern that no topic matches") as figures:
        pair.link("later", [f"{topic}*"], mode="OneWay")

        def told() -> str:
            status, reason, message = pair.condition("later", "Ready")
            assert (status, reason) == ("False", "TopicsRefused"), (status, reason, message)
            assert f"{topic}*" in message, message
            return message

        figures["said"] = kube.until("it says so", told)[:160]
        assert "TopicsRefused" in pair.told("later")
        make_topics(pair.north, [topic], 1)
        places = [Where(topic, 0)]
        write(pair.north, places, [b"a", b"b"])
        assert len(await_copy(pair.north, pair.south, places)[places[0]]) == 2
        figures["accepted_s"] = pair.await_link("later", "Ready", "CaughtUp")

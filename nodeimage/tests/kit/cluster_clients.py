"""Stock clients under faults: idempotent producers, a group's members, watchers, and a creator of topics, all of which
record what they see.

`Load` runs them over topics of its own, and at the end reads everything back and calls the checker. All clients have
librdkafka's defaults except where a test needs speed (linger, when to commit). An error that reaches a program is a
fault, except for the effects of a rebalance on a commit.
"""

import itertools
import os
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.kafka_client.blocking_client import BrokerConnection
from headrace.wire import metadata
from headrace.wire.api_keys import ApiKey
from kit.cluster_history import (
    Commit,
    CursorSeen,
    EndSeen,
    History,
    Listed,
    Log,
    Making,
    Outcome,
    Read,
    Where,
    Write,
    faults_of,
    topic_faults_of,
)
from kit.cluster_nodes import POLL_S, Cluster, until
from kit.machine_disk import machine_disk
from kit.patience import PATIENCE

DEBUG = {"debug": os.environ["HEADRACE_PRODUCER_DEBUG"]} if "HEADRACE_PRODUCER_DEBUG" in os.environ else {}
"""Settings by which librdkafka logs about its producers, such as "eos,msg"; nothing by default."""
PACE_S = 0.004
FILLING = 200
"""Bytes of a record, in addition to its unique part."""
WATCH_S = 0.2
COMMIT_EACH_S = 0.5
REFUSE_EACH_S = 0.5
MAKE_EACH_S = 0.5
MAKE_S = 5.0
AGAIN_S = 0.1
HEARD_S = 10.0 * PATIENCE
"""Seconds within which every node knows of a new topic."""
METADATA_VERSION = 12
TOPIC_TAKES_BYTES = 250_000
"""The largest batch for topics of a load."""
BATCH_BYTES = 200_000
"""The largest batch of a writer; while it waits for seconds, it gathers more than a topic accepts."""
CALL_S = 10.0
GO_ON_S = 10.0
"""Seconds after a fault within which writes to every partition continue."""
END_S = 90.0 * PATIENCE
REBALANCED = {
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError._ASSIGNMENT_LOST,
    KafkaError._NO_OFFSET,
}
REFUSED = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError._INVALID_DIFFERENT_RECORD,
    KafkaError.INVALID_TIMESTAMP,
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
}
"""Errors about the record itself: no attempt stored it. After any other error it is unknown whether a queued record was
stored.

librdkafka only reports the answer to its last attempt, so an error that depends on the moment (which node leads, which
topics exist, who may write, whether there is room) says nothing about an earlier attempt whose answer was lost; neither
does giving up (timed out, purged, a fatal error). INVALID_MSG is a batch that was damaged on its way."""
IN_DOUBT = {
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._DESTROY_BROKER,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NOT_CONTROLLER,
}
"""Answers to an admin call that leave its outcome open: the call is repeated, as an operator would. _DESTROY_BROKER:
librdkafka dropped a node that left the cluster, while the call waited for it."""

NOT_NOW = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError._WAIT_COORD,
    KafkaError._TIMED_OUT,
}
"""Answers to a commit after which librdkafka gives up following a few attempts."""
NOT_NOW_S = 10.0 * (PATIENCE - 1)
"""Seconds for which these are not faults, on a busy machine."""

_serial = itertools.count(1)


def at(bootstrap: str) -> dict[str, Any]:
    """Settings by which a client finds the cluster. Its messages about unreachable nodes are suppressed."""
    return {"bootstrap.servers": bootstrap, "log_level": 7 if DEBUG else 0}


class Client(threading.Thread):
    """A thread that runs `step` until it is told to end. An exception that escapes it is a fault."""

    def __init__(self, name: str, history: History) -> None:
        super().__init__(name=name, daemon=True)
        self.history = history
        self.stopping = threading.Event()
        self.abandoned = threading.Event()
        """Set when pending operations no longer matter."""

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.step()
            self.end()
        except BaseException as error:
            self.history.errors.append(f"{self.name} at {time.monotonic():.3f}: {error!r}")

    def step(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """Called after the last step."""


class Writer(Client):
    """A producer with acks=all that writes to each partition in turn, at a steady pace."""

    def __init__(
        self,
        name: str,
        history: History,
        bootstrap: str,
        places: Iterable[Where],
        *,
        idempotent: bool = True,
        filling: int = FILLING,
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        super().__init__(name, history)
        self.places = list(places)
        self.writes: list[Write] = []
        self.refusals: list[str] = []
        """Errors that are not faults, because `forgives` accepts them."""
        self.forgives: Callable[[KafkaError], bool] = lambda _: False
        self._filling = b"." * filling
        config = {"enable.idempotence": idempotent, "acks": "all", "linger.ms": 5, "batch.size": BATCH_BYTES}
        self._producer = Producer({**at(bootstrap), **config, **settings, **DEBUG})

    def step(self) -> None:
        where = self.places[len(self.writes) % len(self.places)]
        write = Write(self.name, where, f"{self.name}/{len(self.writes)}/".encode() + self._filling, time.monotonic())
        self.writes.append(write)
        try:
            self._producer.produce(
                where.topic,
                write.value,
                partition=where.partition,
                on_delivery=lambda error, message: self._delivered(write, error, message),
            )
        except KafkaException as refused:  # before it was sent, for example if the client knows no such topic
            if not self.forgives(refused.args[0]):
                raise
            self._delivered(write, refused.args[0], None)
            write.outcome = Outcome.FAILED  # it was never queued
        self._producer.poll(PACE_S)

    def end(self) -> None:
        deadline = time.monotonic() + END_S
        while (left := len(self._producer)) and time.monotonic() < deadline and not self.abandoned.is_set():
            self._producer.flush(0.5)
        if left and not self.abandoned.is_set():
            self.history.errors.append(f"{self.name}: {left} records had no answer for {END_S:.0f} s")
        if self.abandoned.is_set():
            self._producer.purge()  # a program that has ended sends nothing again, whichever nodes return
        self.history.writes.extend(self.writes)

    def _delivered(self, write: Write, error: KafkaError | None, message: Message | None) -> None:
        if error is None and message is not None:
            self.history.wrote(write, message.offset())
            return
        assert error is not None
        write.outcome = Outcome.FAILED if error.code() in REFUSED else Outcome.UNKNOWN
        write.returned = time.monotonic()
        told = f"{self.name} at {write.returned:.3f}, called at {write.called:.3f}, {write.where}: {error}"
        given_up = self.abandoned.is_set()  # an operation that is pending when a program gives up has no answer
        (self.refusals if given_up or self.forgives(error) else self.history.errors).append(told)


class Refused(Writer):
    """A producer whose records are all larger than the topics accept: none may be found anywhere.

    It is not idempotent: an idempotent librdkafka producer would begin a new epoch after each refusal, and hardly do
    anything else.
    """

    def __init__(self, name: str, history: History, bootstrap: str, places: Iterable[Where]) -> None:
        super().__init__(name, history, bootstrap, places, idempotent=False, filling=TOPIC_TAKES_BYTES)
        self.forgives = lambda error: error.code() in REFUSED

    def step(self) -> None:
        super().step()
        self.stopping.wait(REFUSE_EACH_S)

    def end(self) -> None:
        super().end()
        taken = [write for write in self.writes if write.outcome is Outcome.OK]
        self.history.errors.extend(f"{self.name}: {write.where} took {write.value[:40]!r}" for write in taken)


class Member(Client):
    """A member of a group: polls, and commits the offsets of its records."""

    def __init__(self, name: str, history: History, bootstrap: str, group: str, topics: list[str]) -> None:
        super().__init__(name, history)
        self.group = group
        self.forgives: Callable[[KafkaError], bool] = lambda _: False
        """Whether an error of a commit is not a fault, besides those of a rebalance."""
        self._consumer = Consumer(
            {
                **at(bootstrap),
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self._next: dict[tuple[str, int], int] = {}
        self._due = time.monotonic()
        self._refused_since: float | None = None
        self._consumer.subscribe(topics, on_revoke=self._revoked, on_lost=self._revoked)

    def step(self) -> None:
        for message in self._consumer.consume(100, 0.1):
            if error := message.error():
                self.history.errors.append(f"{self.name} at {time.monotonic():.3f}: {error}")
                continue
            where = Where(message.topic(), message.partition())
            self.history.reads.append(Read(self.name, where, message.offset(), message.value(), time.monotonic()))
            self._next[where.topic, where.partition] = message.offset() + 1
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + COMMIT_EACH_S
            self._commit()

    def end(self) -> None:
        self._commit()
        self._consumer.close()

    def _commit(self) -> None:
        asked, self._next = self._next, {}
        if not asked:
            return
        now = time.monotonic()
        commits = [Commit(self.group, Where(topic, number), at, now) for (topic, number), at in asked.items()]
        self.history.commits.extend(commits)
        by_place = {(each.where.topic, each.where.partition): each for each in commits}
        try:
            answers = self._consumer.commit(
                offsets=[TopicPartition(*place, at) for place, at in asked.items()], asynchronous=False
            )
        except KafkaException as error:
            code = error.args[0].code()
            for each in commits:
                each.outcome = Outcome.FAILED if code in REBALANCED else Outcome.UNKNOWN
            if self._is_fault(error.args[0]):
                self.history.errors.append(f"{self.name} at {time.monotonic():.3f}: commit: {error}")
            return
        for answer in answers:
            each = by_place[answer.topic, answer.partition]
            each.outcome = Outcome.OK if answer.error is None else Outcome.FAILED
            each.returned = time.monotonic()
            if answer.error is None:
                self._refused_since = None
            elif self._is_fault(answer.error):
                self.history.errors.append(f"{self.name}: commit of {answer}: {answer.error}")

    def _is_fault(self, error: KafkaError) -> bool:
        if error.code() in REBALANCED or self.forgives(error):
            return False
        now = time.monotonic()
        self._refused_since = self._refused_since or now
        return error.code() not in NOT_NOW or now - self._refused_since >= NOT_NOW_S

    def _revoked(self, consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        self._next.clear()


class Reader(Client):
    """Reads partitions of one incarnation from their first offsets."""

    def __init__(self, name: str, history: History, bootstrap: str, places: Iterable[Where]) -> None:
        super().__init__(name, history)
        self._places = {(where.topic, where.partition): where for where in places}
        self._consumer = Consumer({**at(bootstrap), "group.id": name, "enable.auto.commit": False})
        self._consumer.assign([TopicPartition(*place, 0) for place in self._places])
        self.given: set[Where] = set()
        """The positions at which it received a record."""

    def step(self) -> None:
        for message in self._consumer.consume(100, 0.1):
            if error := message.error():
                self.history.errors.append(f"{self.name} at {time.monotonic():.3f}: {error}")
                continue
            where = self._places[message.topic(), message.partition()]
            self.history.reads.append(Read(self.name, where, message.offset(), message.value(), time.monotonic()))
            self.given.add(where)

    def end(self) -> None:
        self._consumer.close()


class Follower(Client):
    """A member of a group that stays while its topic is deleted and created again."""

    def __init__(self, name: str, history: History, bootstrap: str, topic: str) -> None:
        super().__init__(name, history)
        self.forgives: Callable[[KafkaError], bool] = lambda _: False
        self._consumer = Consumer({**at(bootstrap), "group.id": name, "auto.offset.reset": "earliest"})
        self._consumer.subscribe([topic])

    def step(self) -> None:
        for message in self._consumer.consume(100, 0.1):
            if error := message.error():
                if not self.forgives(error):
                    self.history.errors.append(f"{self.name} at {time.monotonic():.3f}: {error}")
                continue
            where = Where(message.topic(), message.partition())
            self.history.across.append(Read(self.name, where, message.offset(), message.value(), time.monotonic()))

    def end(self) -> None:
        self._consumer.close()


class Maker(Client):
    """Creates topics, each fourth with an invalid setting. If the outcome is unknown, the request is repeated until it
    is known.
    """

    def __init__(self, name: str, history: History, bootstrap: str, prefix: str) -> None:
        super().__init__(name, history)
        self.forgives: Callable[[KafkaError], bool] = lambda _: False
        """Whether an error is not a fault, besides those that leave the outcome open: the request is repeated."""
        self._prefix = prefix
        self._serial = itertools.count(1)
        self._cluster = bootstrap
        self._admin = AdminClient(at(bootstrap))

    def step(self) -> None:
        number = next(self._serial)
        valid = number % 4 != 0
        made = Making(f"{self._prefix}-topic-{number}", 1 + number % 3, time.monotonic())
        self.history.topics.append(made)
        while made.outcome is Outcome.UNKNOWN and not self.stopping.is_set():
            self._make(made, {} if valid else {"cleanup.policy": "none-such"})
            if made.outcome is Outcome.UNKNOWN:
                self.stopping.wait(AGAIN_S)
        if made.outcome is (Outcome.FAILED if valid else Outcome.OK):
            self.history.errors.append(f"{self.name}: {made} ended as {made.outcome}")
        self.stopping.wait(MAKE_EACH_S)

    def _make(self, made: Making, configs: dict[str, str]) -> None:
        wanted = NewTopic(made.topic, made.partitions, config=configs)
        try:
            self._admin.create_topics([wanted], operation_timeout=MAKE_S, request_timeout=MAKE_S)[made.topic].result()
            outcome = Outcome.OK
        except KafkaException as error:
            match error.args[0].code():
                case KafkaError.TOPIC_ALREADY_EXISTS:  # by an attempt whose answer was lost
                    outcome = Outcome.OK
                case KafkaError.INVALID_CONFIG:  # an error of the request itself, whatever happened to other attempts
                    outcome = Outcome.FAILED
                case code:
                    if code not in IN_DOUBT and not self.forgives(error.args[0]):
                        self.history.errors.append(f"{self.name} at {time.monotonic():.3f}: {made.topic}: {error}")
                    if code == KafkaError._TIMED_OUT:
                        # The client may wait for the last known controller, which may be dead: librdkafka looks up the
                        # controller when it connects to a node, not when the controller is gone (docs/protocol.md).
                        self._admin = AdminClient(at(self._cluster))
                    return
        made.incarnation = incarnation_of(self._admin, made.topic) if outcome is Outcome.OK else ""
        made.returned = time.monotonic()
        made.outcome = outcome


class Watcher(Client):
    """Requests latest offsets and committed offsets all the time. A request without an answer proves nothing."""

    def __init__(self, name: str, history: History, bootstrap: str, group: str, places: Iterable[Where]) -> None:
        super().__init__(name, history)
        self.places = list(places)
        self.group = group
        self._turn = itertools.cycle(self.places)
        self._consumer = Consumer({**at(bootstrap), "group.id": group, "enable.auto.commit": False})

    def step(self) -> None:
        where = next(self._turn)
        called = time.monotonic()
        try:
            found = self._consumer.get_watermark_offsets(
                TopicPartition(where.topic, where.partition), timeout=CALL_S, cached=False
            )
            if found is not None:  # in time
                self.history.ends.append(EndSeen(where, found[1], called, time.monotonic()))
        except KafkaException:
            pass
        self._see_committed_offsets()
        self.stopping.wait(WATCH_S)

    def end(self) -> None:
        """One more request for all partitions, since nobody has yet seen the last acknowledged records."""
        deadline = time.monotonic() + END_S
        while not self._see_committed_offsets() and time.monotonic() < deadline and not self.abandoned.is_set():
            self.abandoned.wait(AGAIN_S)
        self._consumer.close()

    def _see_committed_offsets(self) -> bool:
        """Request the committed offsets; returns whether all were returned."""
        called = time.monotonic()
        asked = [TopicPartition(each.topic, each.partition) for each in self.places]
        try:
            found = [each for each in self._consumer.committed(asked, timeout=CALL_S) if each.error is None]
        except KafkaException:
            return False
        for each in found:
            offset = each.offset if each.offset >= 0 else -1
            seen = CursorSeen(self.group, Where(each.topic, each.partition), offset, called, time.monotonic())
            self.history.committed_offsets.append(seen)
        return len(found) == len(asked)


class Load:
    """Clients at work over topics of their own."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        topics: int = 2,
        partitions: int = 6,
        writers: int = 3,
        members: int = 2,
        filling: int = FILLING,
        writer_settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.cluster = cluster
        self.name = f"load{next(_serial)}"
        self.history = History()
        self.group = f"{self.name}-group"
        self.topics = [f"{self.name}-{number}" for number in range(topics)]
        make_topics(cluster, self.topics, partitions, {"max.message.bytes": str(TOPIC_TAKES_BYTES)})
        self.places = [Where(topic, number) for number in range(partitions) for topic in self.topics]
        to = cluster.bootstrap
        self.writers = [
            Writer(f"w{number}", self.history, to, self.places, filling=filling, settings=writer_settings)
            for number in range(writers)
        ]
        self.writers.append(Refused("refused", self.history, to, self.places))
        self.members = [Member(f"m{number}", self.history, to, self.group, self.topics) for number in range(members)]
        self.watcher = Watcher("watcher", self.history, to, self.group, self.places)
        self.maker = Maker("maker", self.history, to, self.name)
        self.history.topics += [Making(topic, partitions, 0.0, Outcome.OK, 0.0) for topic in self.topics]
        machine_disk()
        self.began = time.monotonic()
        cluster.on_close.append(self.abandon)
        for each in self.clients():
            each.start()
        self.await_writes(self.began, within_s=60.0)
        until("a member is given records", lambda: self.history.reads or self.history.errors)

    def clients(self) -> list[Client]:
        """All clients."""
        return [*self.writers, *self.members, self.watcher, self.maker]

    def forgive_missing_containers(self) -> None:
        """The containers' records are gone: until they are back, no node can say where a new topic's partitions are."""
        self.maker.forgives = lambda error: error.code() == KafkaError.LEADER_NOT_AVAILABLE

    def forgive_coordinators_lost_twice(self, *also: int) -> None:
        """librdkafka holds a commit back while its coordinator is away, but only once: if all nodes go, and the
        coordinator is found and lost again as they return, it gives the commit up. `also`: other accepted codes.
        """
        for member in self.members:
            member.forgives = lambda error: error.code() in (KafkaError._WAIT_COORD, *also)

    def abandon(self) -> None:
        """Let the clients end, whatever operations are pending."""
        for each in self.clients():
            each.abandoned.set()
            each.stopping.set()
        for each in self.clients():
            each.join(END_S)

    def await_writes(self, since: float, *, within_s: float = GO_ON_S, places: list[Where] | None = None) -> float:
        """Wait until each partition has acknowledged a record that was sent after `since`; returns the seconds that
        this took.
        """
        within_s *= PATIENCE
        wanted = places or self.places

        def silent() -> list[Where]:
            return [where for where in wanted if self.history.newest.get(where, 0.0) <= since]

        with self.history.acknowledged:
            while not self.history.acknowledged.wait_for(lambda: not silent() or self.history.errors, POLL_S):
                if self._seconds_passed(since) > within_s:
                    pytest.fail(
                        f"no write to {silent()} within {within_s:.0f} s of {since:.3f}\n{self.cluster.events()}"
                    )
        self.fail_on_errors()
        took = self._seconds_passed(since)
        print(f"writes went on after {took:.2f} s")
        return took

    def _seconds_passed(self, since: float) -> float:
        """Seconds since then, except those in which this machine's disk hung."""
        now = time.monotonic()
        return now - since - machine_disk().stood_still(since, now)

    def longest_pause(self, since: float, until: float) -> float:
        """The longest time without an acknowledged write, in seconds, not counting hangs of the machine's disk."""
        return self.history.longest_pause(since, until, apart=machine_disk().stood_still)

    def await_topics(self, since: float, *, within_s: float = GO_ON_S) -> None:
        """Wait until a topic is created that was requested after `since`."""
        until(
            "a topic is made",
            lambda: (
                self.history.errors
                or any(each.called > since and each.outcome is Outcome.OK for each in list(self.history.topics))
            ),
            timeout_s=since + within_s - time.monotonic(),
        )
        self.fail_on_errors()
        print(f"a topic was made after {time.monotonic() - since:.2f} s")

    def write_on_for(self, seconds: float, *, within_s: float = GO_ON_S) -> None:
        """Wait until so many seconds have passed; meanwhile each partition keeps acknowledging records."""
        began = time.monotonic()
        while time.monotonic() < began + seconds:
            self.await_writes(time.monotonic(), within_s=within_s)

    def fresh_writes_go_on(self, *, within_s: float = GO_ON_S) -> None:
        """A program that starts now can write to each partition.

        Running programs may wait for requests at a node that neither answers nor closes the connection.
        """
        writer = Writer(f"fresh{len(self.writers)}", self.history, self.cluster.bootstrap, self.places)
        self.writers.append(writer)
        since = time.monotonic()
        writer.start()
        until(
            "a new producer writes to each partition",
            lambda: (
                {each.where for each in list(writer.writes) if each.outcome is Outcome.OK} == set(self.places)
                or self.history.errors
            ),
            timeout_s=since + within_s - time.monotonic(),
        )
        writer.stopping.set()
        self.fail_on_errors()

    def acknowledged_before(self, moment: float) -> dict[Where, dict[int, bytes]]:
        """By partition, the records acknowledged by then, by offset."""
        found: dict[Where, dict[int, bytes]] = {where: {} for where in self.places}
        for writer in self.writers:
            for write in list(writer.writes):
                if write.outcome is Outcome.OK and write.offset >= 0 and write.returned < moment:
                    found[write.where][write.offset] = write.value
        return found

    def led_by(self, number: int) -> list[Where]:
        """The partitions that a node leads, according to Metadata."""
        told = AdminClient(at(self.cluster.bootstrap)).list_topics(timeout=CALL_S).topics
        node_id = self.cluster.nodes[number].node_id
        return [where for where in self.places if told[where.topic].partitions[where.partition].leader == node_id]

    def fail_on_errors(self) -> None:
        """Fail on errors that have already reached a program."""
        if self.history.errors:
            pytest.fail("\n".join([*self.history.errors[:20], self.cluster.events()]))

    def finish(self) -> History:
        """End the clients, read everything back, and fail on what is wrong."""
        began = time.monotonic()
        for client in (*self.writers, self.maker):
            client.stopping.set()
        for client in (*self.writers, self.maker):
            client.join(END_S + 10)
        print(f"writers ended after {time.monotonic() - began:.1f} s")
        final = read_back(self.cluster, self.places)
        try:
            self._await_members(final)
        finally:
            for member in self.members:
                member.stopping.set()
            for member in self.members:
                member.join(END_S)
            members_ended = time.monotonic()
            self.watcher.stopping.set()
            self.watcher.join(END_S + CALL_S)
        print(f"clients ended after {time.monotonic() - began:.1f} s")
        self._ask_for_topics()
        last = {each.where for each in self.history.committed_offsets if each.called > members_ended}
        assert last == set(self.places), f"nobody was told the cursors of {set(self.places) - last} in the end"
        faults = faults_of(self.history, final)
        if faults:
            pytest.fail("\n".join([*faults, self.cluster.events()]))
        assert len(self.history.times) > len(self.places)
        print(
            f"{len(self.history.times)} writes acknowledged, {_count(self.history.writes, Outcome.FAILED)} refused, "
            f"{len(self.history.reads)} records given to members, "
            f"{_count(self.history.commits, Outcome.OK)} cursors committed, "
            f"{len(self.history.ends)} ends and {len(self.history.committed_offsets)} cursors asked for, "
            f"{_count(self.history.topics, Outcome.OK)} topics made"
        )
        return self.history

    def _ask_for_topics(self) -> None:
        """Of each node, until there is nothing wrong, or for as long as a node may take to hear of a topic."""
        names = sorted({each.topic for each in self.history.topics})
        deadline = time.monotonic() + HEARD_S
        while True:
            self.history.listings = listings(self.cluster, names)
            if not topic_faults_of(self.history) or time.monotonic() > deadline:
                return
            time.sleep(POLL_S)

    def _await_members(self, final: dict[Where, Log]) -> None:
        wanted = {(where, offset) for where, log in final.items() for offset, _ in log}
        seen = 0

        def given() -> bool:
            nonlocal seen
            new = self.history.reads[seen:]
            seen += len(new)
            wanted.difference_update((each.where, each.offset) for each in new)
            return not wanted or bool(self.history.errors)

        deadline = time.monotonic() + END_S
        while not given():
            if time.monotonic() > deadline:
                some = sorted(wanted)[:3]
                pytest.fail(f"{len(wanted)} records reached no member, such as {some}\n{self.cluster.events()}")
            time.sleep(0.05)


def _count(operations: Iterable[Write | Commit | Making], outcome: Outcome) -> int:
    return sum(each.outcome is outcome for each in operations)


def make_topics(
    cluster: Cluster, names: list[str], partitions: int, configs: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Create topics, and wait until each serving node knows them: a subscriber at another node would be told that they
    do not exist.

    Fails if they cannot be created within a minute.
    """
    admin = AdminClient(at(cluster.bootstrap))
    wanted = [NewTopic(name, partitions, config=dict(configs)) for name in names]
    for future in admin.create_topics(wanted, operation_timeout=60).values():
        future.result(60)
    await_heard(cluster, names)


def await_heard(cluster: Cluster, names: Iterable[str]) -> None:
    """Wait until each serving node has these topics."""
    wanted = set(names)
    until(
        f"every node has heard of {sorted(wanted)}",
        lambda: all(listing.keys() >= wanted for listing in listings(cluster, wanted).values()),
    )


def incarnation_of(admin: AdminClient, topic: str) -> str:
    """The topic's incarnation as reported to the client; "" if there is none, since the queried node is away or does
    not know the topic yet.
    """
    try:
        found = admin.describe_topics(TopicCollection([topic]), request_timeout=MAKE_S)[topic].result().topic_id
    except KafkaException:
        return ""
    return struct.pack(">qq", found.get_most_significant_bits(), found.get_least_significant_bits()).hex()


def listings(cluster: Cluster, names: Iterable[str]) -> dict[str, Mapping[str, Listed]]:
    """By node, the state of topics at each serving node."""
    return {
        f"node {number}": {str(each.name): _listed(each) for each in topics if each.error == 0}
        for number, topics in _told(cluster, names).items()
    }


def leaders(cluster: Cluster, names: Iterable[str]) -> set[int]:
    """The ids of the nodes that lead partitions of topics, according to Metadata of any serving node."""
    return {part.leader for topics in _told(cluster, names).values() for topic in topics for part in topic.partitions}


def _told(cluster: Cluster, names: Iterable[str]) -> dict[int, list[metadata.TopicMeta]]:
    asked = metadata.MetadataRequest([(name, None) for name in names], allow_auto_create=False)
    request = metadata.encode_request(METADATA_VERSION, asked)
    found = {}
    for number, node in cluster.nodes.items():
        if node.is_up and not node.stopped:
            with BrokerConnection(node.host, node.port, "test", CALL_S) as connection:
                body = connection.call(ApiKey.METADATA, METADATA_VERSION, request)
            found[number] = metadata.decode_response(body, 0, METADATA_VERSION).topics
    return found


def _listed(topic: metadata.TopicMeta) -> Listed:
    led = sum(each.error == 0 and each.leader >= 0 for each in topic.partitions)
    return Listed(led, topic.topic_id.hex())


def read_back(cluster: Cluster, places: Iterable[Where]) -> dict[Where, Log]:
    """All records of partitions, from the first offset to the latest."""
    consumer = Consumer({**at(cluster.bootstrap), "group.id": "read-back", "enable.auto.commit": False})
    try:
        ends = {where: _end(consumer, where) for where in places}
    finally:
        consumer.close()
    return read_to(cluster, ends)


def read_to(cluster: Cluster, ends: Mapping[Where, int]) -> dict[Where, Log]:
    """The records of partitions, from the first offset at least up to those before `ends`."""
    consumer = Consumer({**at(cluster.bootstrap), "group.id": "read-back", "enable.auto.commit": False})
    try:
        found: dict[Where, Any] = {where: [] for where in ends}
        names = {(where.topic, where.partition): where for where in ends}
        left = {where for where in ends if ends[where]}
        consumer.assign([TopicPartition(where.topic, where.partition, 0) for where in left])
        deadline = time.monotonic() + END_S
        while left:
            if time.monotonic() > deadline:
                pytest.fail(f"cannot read {sorted(left)[:3]} to the end\n{cluster.events()}")
            for message in consumer.consume(1000, 0.2):
                assert message.error() is None, message.error()
                where = names[message.topic(), message.partition()]
                found[where].append((message.offset(), message.value()))
                if message.offset() + 1 >= ends[where]:
                    left.discard(where)
        return found
    finally:
        consumer.close()


def _end(consumer: Consumer, where: Where) -> int:
    def asked() -> tuple[int] | None:
        try:
            place = TopicPartition(where.topic, where.partition)
            found = consumer.get_watermark_offsets(place, timeout=CALL_S, cached=False)
            return None if found is None else (int(found[1]),)
        except KafkaException:
            return None

    return int(until(f"the end of {where} is told", asked)[0])

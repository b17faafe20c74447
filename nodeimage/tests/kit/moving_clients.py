"""Clients that change from one cluster to another when a home moves, and what must hold of the whole afterwards.

Their actions go into one history (cluster_history.py). Records that only one cluster had when it gave way are in
`<topic>.diverged` there: they count as kept, if each is there once under its former position, and not as part of the
topic.
"""

import time
from collections.abc import Iterable

from confluent_kafka import KafkaError

from kit.cluster_clients import Member, Writer, at
from kit.cluster_history import History, Log, Outcome, Where, faults_of
from kit.cluster_nodes import Cluster, until
from kit.linked_clusters import ends, records

PARTITIONS = 3
GROUP = "group"
REFUSED_AS_COPY = KafkaError.POLICY_VIOLATION
Place = tuple[int, int]


class Clients:
    """Writers and members, at one cluster at a time."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.places = [Where(topic, number) for number in range(PARTITIONS)]
        self.history = History()
        self._serial = 0
        self.writers: list[Writer] = []
        self.members: list[Member] = []

    def write_at(self, cluster: Cluster, count: int = 2) -> list[Writer]:
        """Start writers, and wait until each partition has acknowledged one of their records."""
        began = time.monotonic()
        started = []
        for _ in range(count):
            self._serial += 1
            writer = Writer(f"w{self._serial}", self.history, cluster.bootstrap, self.places)
            cluster.on_close.append(lambda writer=writer: _abandon([writer]))  # type: ignore[misc]
            started.append(writer)
            writer.start()
        self.writers += started
        self.await_writes(started, began)
        return started

    def await_writes(self, writers: list[Writer], since: float, timeout_s: float = 60.0) -> None:
        """Wait until records of these writers sent after `since` are acknowledged in every partition."""

        def silent() -> set[Where]:
            written = {
                each.where
                for writer in writers
                for each in list(writer.writes)
                if each.outcome is Outcome.OK and each.called > since
            }
            return set(self.places) - written

        until("writes are acknowledged", lambda: self.history.errors or not silent(), timeout_s=timeout_s)
        assert not self.history.errors, self.history.errors[:5]

    def stop(self, writers: Iterable[Writer]) -> None:
        """End writers, with all of their records answered."""
        _end(writers)
        assert not self.history.errors, self.history.errors[:5]

    def lose(self, writers: Iterable[Writer]) -> None:
        """End writers whose cluster is gone."""
        _abandon(writers)

    def read_at(self, cluster: Cluster) -> Member:
        """Start a member of the one group, and wait until it receives a record."""
        before = len(self.history.reads)
        member = Member(f"m{len(self.members)}", self.history, cluster.bootstrap, GROUP, [self.topic])
        cluster.on_close.append(member.stopping.set)
        self.members.append(member)
        member.start()
        until("a member is given records", lambda: self.history.errors or len(self.history.reads) > before)
        return member

    def leave(self, member: Member) -> None:
        """End a member."""
        member.stopping.set()
        member.join(60)
        assert not self.history.errors, self.history.errors[:5]

    def forget_commits_above(self, committed_offsets: list[int]) -> int:
        """Forget commits that had not been replicated when their cluster was lost; returns how many."""
        gone = 0
        for each in self.history.commits:
            if each.outcome is Outcome.OK and each.offset > committed_offsets[each.where.partition]:
                each.outcome = Outcome.UNKNOWN
                gone += 1
        return gone

    def check(self, cluster: Cluster, *gave_way: Cluster) -> int:
        """No acknowledged record is lost: each is in the log, or set aside in clusters that gave way; none is
        duplicated.

        Returns how many acknowledged records are set aside.
        """
        final = {where: log_of(cluster, where) for where in self.places}
        aside: dict[Place, bytes] = {}
        for each in gave_way:
            aside |= quarantined(each, self.topic)
        count = 0
        for write in self.history.writes:
            if write.outcome is Outcome.OK and aside.get((write.where.partition, write.offset)) == write.value:
                write.outcome = Outcome.UNKNOWN
                count += 1
        self.history.reads[:] = [
            read for read in self.history.reads if aside.get((read.where.partition, read.offset)) != read.value
        ]
        faults = faults_of(self.history, final)
        assert not faults, "\n".join(faults)
        both = {value for log in final.values() for _, value in log} & set(aside.values())
        assert not both, f"{len(both)} records are in the log and set aside, such as {min(both)[:40]!r}"
        assert len(self.history.times) > PARTITIONS
        print(f"{len(self.history.times)} writes acknowledged, {count} of them set aside")
        return count


def log_of(cluster: Cluster, where: Where) -> Log:
    """All records of a partition."""
    return [(each.offset, each.value or b"") for each in records(cluster, where.topic, where.partition)]


def quarantined(cluster: Cluster, topic: str) -> dict[Place, bytes]:
    """The records that a cluster has set aside of a topic, by former partition and offset; fails on a duplicate."""
    found: dict[Place, bytes] = {}
    for partition in range(len(ends(cluster, f"{topic}.diverged"))):
        for each in records(cluster, f"{topic}.diverged", partition):
            headers = dict(each.headers)
            old = int(headers["headrace.partition"] or b""), int(headers["headrace.offset"] or b"")
            assert old[0] == partition
            assert old not in found, f"{old} is set aside twice"
            found[old] = each.value or b""
    return found


def acknowledged(writers: Iterable[Writer]) -> set[bytes]:
    """The values of records acknowledged to these writers."""
    return {write.value for writer in writers for write in list(writer.writes) if write.outcome is Outcome.OK}


def forgive_moves(writers: Iterable[Writer]) -> None:
    """The home is about to move: a refusal because the topic is now a copy is not a fault, and stored nothing."""
    for writer in writers:
        writer.forgives = lambda error: error.code() == REFUSED_AS_COPY


def _end(writers: Iterable[Writer]) -> None:
    for writer in writers:
        writer.stopping.set()
    for writer in writers:
        writer.join(120)


def _abandon(writers: Iterable[Writer]) -> None:
    for writer in writers:
        writer.abandoned.set()
    _end(writers)


__all__ = ["GROUP", "PARTITIONS", "Clients", "acknowledged", "at", "forgive_moves", "log_of", "quarantined"]

"""What must hold of topics that several clusters have (docs/links.md).

During a run: a home never falls in a cluster; the histories of two clusters that are settled for the same home are the
same; if no home was taken by force, an offset means one record, whichever cluster returns it. When all is at rest:
every cluster names the same home; the same offset has the same bytes in all of them; a record exists once, and those of
its producer are in order; records that a home acknowledged are at their offsets or, if homes were taken by force, set
aside in that cluster, once. If the end of a container was given up, records may be missing, but an offset still means
one record.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.base.ids import Home
from headrace.catalog.rows import INTENDED, OPEN, SEALED, PartitionletRow
from headrace.links.failover.diverged import HOME, OFFSET, PARTITION
from headrace.links.topics.topic_plan import DIVERGED
from headrace.wire.batch import batch_records, iter_batches
from simulation.broker_side import BrokerSide
from simulation.checks import Violation
from simulation.linked_clients import Acknowledged, Written
from simulation.linked_cluster import LinkedCluster, TopicState, chains_of, topics_of
from simulation.topics import ROLL_GAP, TopicChecks

if TYPE_CHECKING:
    from simulation.linked import World
    from simulation.node import Node

_STAMPED = slice(12, 16)
"""The leader epoch within a batch, which each cluster sets itself."""
_ENDLESS = 1 << 62


class Held(NamedTuple):
    """A record as a cluster has it."""

    value: bytes
    headers: tuple[tuple[str, bytes | None], ...]


class Copy(NamedTuple):
    """A partition as a cluster has it."""

    records: dict[int, Held]
    batches: dict[tuple[int, int], bytes]
    """By first and last offset, without what each cluster stamps on it."""


class LinkedTopicChecks(TopicChecks):
    """The checks within one cluster: chains may jump, and be cut, where homes moved."""

    more_tables = ("links", "home_starts", "settled_homes", "pending_homes")

    def _chains(self, node: "Node", rows: dict[str, Any]) -> None:
        chains: defaultdict[tuple[int, int], list[PartitionletRow]] = defaultdict(list)
        for row in sorted(rows["partitionlets"], key=lambda row: row[0]):
            chains[row[1], row[2]].append(PartitionletRow(*row[:9], (), bool(row[10])))
        for place, chain in chains.items():
            where = f"the catalog of node {node.number}: the chain of {place}"
            states = [row.state for row in chain if row.state != INTENDED]
            if states != [SEALED] * (len(states) - 1) + [OPEN] or len(chain) > len(states) + 1:
                self._fail(f"{where} has states {[row.state for row in chain]}")
            for one, other in pairwise(row for row in chain if row.state != INTENDED):
                if one.end > other.first:
                    self._fail(f"{where}: {one} is followed by {other}")
                if other.leader_epoch < one.leader_epoch + ROLL_GAP:
                    self._fail(f"{where}: the leader epoch of {other} does not rise over {one}")


class LinkChecks:
    """The observer of all clusters."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.failure: Violation | None = None
        self._homes: dict[tuple[str, bytes], Home] = {}
        self._settled: dict[tuple[bytes, int, Home], tuple[tuple[tuple[int, str, int], ...], str]] = {}
        self._known: defaultdict[tuple[str, int], dict[int, bytes]] = defaultdict(dict)
        """For topics whose homes nobody took by force: the record at each offset."""

    def fail(self, text: str) -> None:
        """Keep the first violation, and end the run."""
        if self.failure is None:
            self.failure = Violation(f"{self._world.loop.now:.3f} s: {text}")
            self._world.trace(f"VIOLATION {text}")
            self._world.loop.stopped = True

    # --- as it goes

    def acknowledge(self, written: Written, cluster: str, base: int, values: Sequence[bytes]) -> None:
        """A producer was told the offset of its batch."""
        written.acknowledged += [Acknowledged(cluster, base + at, value) for at, value in enumerate(values)]
        self._same(written, cluster, [(base + at, value) for at, value in enumerate(values)])

    def read(self, written: Written, cluster: str, batches: Sequence[bytes]) -> None:
        """A reader received this."""
        found = [
            (record.offset, record.value or b"")
            for run in batches
            for header, batch in iter_batches(run)
            for record in batch_records(header, batch)
        ]
        self._same(written, cluster, found)

    def _same(self, written: Written, cluster: str, found: Sequence[tuple[int, bytes]]) -> None:
        if written.topic in self._world.forced:
            return
        known = self._known[written.topic, written.partition]
        for offset, value in found:
            before = known.setdefault(offset, value)
            if before != value:
                self.fail(
                    f"{written.topic}/{written.partition} at {offset}: {cluster} has {value[:20]!r}, elsewhere it was "
                    f"{before[:20]!r}, and nobody took the home by force"
                )

    def look(self, cluster: LinkedCluster) -> None:
        """Compare the homes in the catalogs of a cluster's nodes."""
        for node in cluster.nodes:
            cluster.topics.look(node)
        for upper in cluster.ready():
            for state in topics_of(upper).values():
                self._home(cluster, upper, state)

    def _home(self, cluster: LinkedCluster, upper: BrokerSide, state: TopicState) -> None:
        (applied,) = upper.catalog._connection.execute("SELECT value FROM counters WHERE name = 'applied'").fetchone()
        known = self._homes.get((cluster.name, state.topic_id))
        at = self._world.applied.get((cluster.name, state.topic_id), 0)
        if applied >= at:
            if known is not None and state.home < known:
                self.fail(f"{cluster.name}: the home of {state.name} fell from {known} to {state.home}")
            self._homes[cluster.name, state.topic_id] = state.home
            self._world.applied[cluster.name, state.topic_id] = applied
        for partition, home in state.settled.items():
            if home != state.home:
                continue  # a home that had ended before a partition was settled for it leaves no trace
            history = tuple(start for start in state.histories.get(partition, ()) if (start[0], start[1]) <= home)
            before, where = self._settled.setdefault((state.topic_id, partition, home), (history, cluster.name))
            if before != history:
                self.fail(
                    f"{state.name}/{partition} settled for {home}: {cluster.name} has the history {history}, "
                    f"{where} had {before}"
                )

    # --- at rest

    def at_the_end(self) -> None:
        """Read everything in every cluster."""
        world = self._world
        for cluster in world.clusters:
            self.look(cluster)
        states = {cluster.name: cluster.topics_here() for cluster in world.clusters}
        for written in world.written:
            copies = {
                cluster.name: read_copy(self, cluster, state, written.partition)
                for cluster in world.clusters
                if (state := states[cluster.name].get(written.topic)) is not None
                and written.partition < state.partitions
            }
            home = next(iter(states[name][written.topic].home.cluster for name in copies), None)
            if home is not None and world.gave_up(written):
                self._is_safe(written, states, {**copies, home: Copy({}, {})}, home)
                continue
            if home is None or home not in copies:
                if written.acknowledged:
                    self.fail(f"{written.topic}/{written.partition}: its home {home} does not have it")
                continue
            self._compare(written, copies)
            self._in_order(written, copies[home])
            self._is_safe(written, states, copies, home)

    def _compare(self, written: Written, copies: dict[str, Copy]) -> None:
        (first, one), *others = copies.items()
        for name, other in others:
            where = f"{written.topic}/{written.partition}"
            if written.topic not in self._world.lost and one.records.keys() != other.records.keys():
                differing = sorted(one.records.keys() ^ other.records.keys())
                self.fail(f"{where}: {first} and {name} do not both have {differing[:9]}")
            for offset, record in one.records.items():
                its = other.records.get(offset)
                if its is not None and its != record:
                    self.fail(f"{where} at {offset}: {first} has {record.value[:20]!r}, {name} {its.value[:20]!r}")
            for key, batch in one.batches.items():
                its_batch = other.batches.get(key)
                if its_batch != batch and (its_batch is not None or written.topic not in self._world.lost):
                    self.fail(f"{where}: the batch at {key} has other bytes in {name} than in {first}")

    def _in_order(self, written: Written, copy: Copy) -> None:
        where = f"{written.topic}/{written.partition}"
        if written.topic not in self._world.lost and sorted(copy.records) != list(range(len(copy.records))):
            self.fail(f"{where} has a gap: {sorted(copy.records)[:20]}")
        last: dict[int, int] = {}
        for offset, record in sorted(copy.records.items()):
            name = written.names.get(record.value)
            if name is None:
                self.fail(f"{where} at {offset}: {record.value[:20]!r}, which nobody sent")
                return
            producer, number = name
            gap = number - last[producer] - 1 if producer in last else 0
            # A producer that lost records written elsewhere may continue after them.
            if gap < 0 or (gap and written.topic not in self._world.forced):
                self.fail(f"{where} at {offset}: record {number} of producer {producer} comes after {last[producer]}")
            last[producer] = number

    def _is_safe(
        self, written: Written, states: dict[str, dict[str, TopicState]], copies: dict[str, Copy], home: str
    ) -> None:
        where = f"{written.topic}/{written.partition}"
        forced = written.topic in self._world.forced
        kept = {name: self._kept_aside(name, written, states[name].get(written.topic + DIVERGED)) for name in copies}
        if not forced and any(kept.values()):
            self.fail(f"{where}: records were set aside, and nobody took the home by force: {kept}")
        for each in written.acknowledged if written.topic not in self._world.lost else ():
            held = copies[home].records.get(each.offset)
            if held is not None and held.value == each.value:
                continue
            own = copies[each.cluster].records.get(each.offset) if each.cluster in copies else None
            if own is not None and own.value == each.value and self._world.gave_up(written):
                continue  # no other cluster has the partition: it stays where it is
            aside = kept.get(each.cluster, Counter())[each.offset, each.value]
            if not forced or not aside:
                self.fail(
                    f"{where} at {each.offset}: {each.cluster} acknowledged {each.value[:20]!r}, and there is "
                    f"{None if held is None else held.value[:20]!r}"
                )

    def _kept_aside(self, name: str, written: Written, state: TopicState | None) -> Counter[tuple[int, bytes]]:
        """Former offset and record of everything that a cluster set aside of a partition."""
        if state is None or written.partition >= state.partitions:
            return Counter()
        copy = read_copy(self, self._world.by_name[name], state, written.partition)
        found: Counter[tuple[int, bytes]] = Counter()
        whole: Counter[tuple[Any, ...]] = Counter()
        for record in copy.records.values():
            headers = dict(record.headers)
            if headers.get(PARTITION) != str(written.partition).encode() or record.value not in written.sent:
                self.fail(f"{name}: {state.name} has {record}, which does not belong there")
            old = int(headers[OFFSET] or b"-1")
            found[old, record.value] += 1
            whole[old, record.value, headers[HOME]] += 1
        twice = [key for key, count in whole.items() if count > 1]
        if twice:
            self.fail(f"{name}: {state.name}/{written.partition} has {twice[:3]} more than once")
        return found


def read_copy(checks: LinkChecks, cluster: LinkedCluster, state: TopicState, partition: int) -> Copy:
    """A whole partition, from every in-sync replica, which must all have the same."""
    copy = Copy({}, {})
    chain = chains_of(cluster.ready()[0], state.number).get(partition, [])
    for row in chain:
        record = cluster.record(row.container)
        assert record is not None
        seen: list[tuple[int, Copy]] = []
        for node_id, _ in record.in_sync:
            node = cluster.by_id(node_id)
            replica = node.replicas.replica(row.container) if node.replicas is not None else None
            assert replica is not None
            seen.append((node.number, _read(replica.log, row)))
        number, first = seen[0]
        for other, found in seen[1:]:
            if found != first:
                checks.fail(f"{cluster.name}: {state.name}/{partition}, {row}: nodes {number} and {other} differ")
        copy.records.update(first.records)
        copy.batches.update(first.batches)
    return copy


def _read(log: Any, row: PartitionletRow) -> Copy:
    found = Copy({}, {})
    limit = row.end if row.state == SEALED else _ENDLESS
    at: int = row.first
    while at < limit and (runs := log.read(row.id, at, limit=limit, max_bytes=1 << 20)):
        for run in runs:
            for header, batch in iter_batches(run):
                last = header.base_offset + header.last_offset_delta
                plain = bytearray(batch)
                plain[_STAMPED] = bytes(4)
                found.batches[header.base_offset, last] = bytes(plain)
                for record in batch_records(header, batch):
                    found.records[record.offset] = Held(record.value or b"", tuple(record.headers))
                at = last + 1
    return found

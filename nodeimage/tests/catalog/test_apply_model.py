"""Random commands against a model in plain Python, and against a second file that gets them in one go.

The model holds the rules of the catalog's commands in dicts; it shares nothing with the tables but the commands.
"""

import itertools
import sqlite3
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import (
    ContainerId,
    Epoch,
    LeaderEpoch,
    Millis,
    Offset,
    PartitionletId,
    Position,
    StreamNumber,
    partitionlet_id,
)
from headrace.catalog import deletions, topics
from headrace.catalog.chains import ROLL_GAP, LogStart, RollDone, Rolled, RollIntent, RollTarget, SetLogStart
from headrace.catalog.command import CatalogCommand
from headrace.catalog.commands import decode, encode
from headrace.catalog.committed_offsets import (
    CommitOffsets,
    CommittedOffset,
    CopyOffsets,
    DeleteOffsets,
    ExpireOffsets,
    ExpireSomeOffsets,
)
from headrace.catalog.deletions import ForgetDeleted
from headrace.catalog.feature_level import RaiseLevel
from headrace.catalog.groups import DeleteGroups, PutGroup
from headrace.catalog.homes import HomeChange, SetHome
from headrace.catalog.policy import StreamPolicy
from headrace.catalog.reader import Reader
from headrace.catalog.rows import INTENDED, OPEN, SEALED
from headrace.catalog.streams import CreateStream, DeleteStream
from headrace.catalog.tables import SCHEMA, open_tables
from headrace.catalog.topics import CreatePartitions, CreateTopics, DeleteTopics, NewTopic
from headrace.tables.table_check import damage_in
from headrace.tables.transactions import apply_all

PATHS = st.sampled_from(["/a", "/b/c"])
NAMES = st.sampled_from(["t", "u", "v.w"])
IDS = st.integers(0, 3).map(lambda number: bytes([number]) * 16)
PARTITIONS = st.integers(0, 3)
OFFSETS = st.integers(0, 40)
HOMES = st.tuples(st.integers(0, 4), st.sampled_from(["a", "b"]))
LISTS = st.dictionaries(
    PARTITIONS,
    st.dictionaries(st.tuples(st.integers(1, 4), st.sampled_from(["a", "b"])), OFFSETS, max_size=3).map(
        lambda starts: [(*home, Offset(start)) for home, start in starts.items()]
    ),
)
GROUPS = st.sampled_from(["g", "h"])
TIMES = st.integers(0, 30).map(Millis)


@dataclass
class Piece:
    """A partitionlet."""

    id: int
    container: int
    first: int
    leader_epoch: int
    container_epoch: int
    state: int
    end: int = -1
    epochs: tuple[tuple[int, int], ...] = ()


Starts = list[tuple[int, str, int]]


@dataclass
class Topic:
    number: int
    stream: str
    name: str
    chains: list[list[Piece]]
    home: tuple[int, str] | None = None
    starts: dict[int, int] = field(default_factory=dict)
    pending: dict[int, Starts] | None = None
    settled: dict[int, tuple[int, str]] = field(default_factory=dict)
    histories: dict[int, Starts] = field(default_factory=dict)

    def settle(self, partition: int, home: tuple[int, str], first: int) -> None:
        before = self.settled.get(partition)
        if before is not None and before > home:
            return
        if before != home:
            self.settled[partition] = home
            if home == self.home and self.pending is not None:
                self.histories[partition] = sorted(self.pending.get(partition, [(*home, 0)]))
            elif home == self.home and home[0]:
                kept = [start for start in self.histories.get(partition, []) if start[2] <= first and start[:2] != home]
                self.histories[partition] = [*kept, (*home, first)]
        if all(self.settled.get(each) == self.home for each in range(len(self.chains))):
            self.pending = None


@dataclass
class Group:
    generation: int
    members: tuple[str, ...]
    changed: int
    committed_offsets: dict[tuple[bytes, int], tuple[int, int]] = field(default_factory=dict)


class Model:
    """The expected contents of the catalog."""

    def __init__(self) -> None:
        self.streams: dict[str, tuple[int, itertools.count[int]]] = {}
        self.topics: dict[bytes, Topic] = {}
        self.groups: dict[str, Group] = {}
        self.stream_numbers = itertools.count(1)
        self.topic_numbers = itertools.count(1)

    def new_id(self, stream: str) -> int:
        number, serials = self.streams[stream]
        return partitionlet_id(stream=StreamNumber(number), serial=next(serials))

    def opened(self, stream: str, containers: list[ContainerId]) -> list[list[Piece]]:
        return [[Piece(self.new_id(stream), container, 0, 0, 1, OPEN)] for container in containers]

    def create_topic(self, item: NewTopic, before: set[bytes]) -> Code:
        """`before`: topics created by an earlier command that no earlier item of this one repeats."""
        if item.stream not in self.streams:
            return Code.INVALID_TOPIC_EXCEPTION
        for topic_id, topic in self.topics.items():
            if (topic.stream, topic.name) == (item.stream, item.name):
                repeated = topic_id == item.topic_id and topic_id in before
                before.discard(topic_id)
                return Code.NONE if repeated else Code.TOPIC_ALREADY_EXISTS
        if item.partitions == 0:
            return Code.INVALID_PARTITIONS
        if item.topic_id in self.topics:
            return Code.INVALID_REQUEST
        chains = self.opened(item.stream, item.container_ids)
        topic = Topic(next(self.topic_numbers), item.stream, item.name, chains, item.home)
        if item.home is not None and item.home[0]:
            topic.settled = dict.fromkeys(range(item.partitions), item.home)
            for partition, counter, cluster, start in item.histories:
                topic.histories.setdefault(partition, []).append((counter, cluster, start))
        self.topics[item.topic_id] = topic
        return Code.NONE

    def set_home(self, item: HomeChange) -> Code:
        topic = self.topics.get(item.topic_id)
        if topic is None:
            return Code.UNKNOWN_TOPIC_ID
        home = (item.counter, item.cluster)
        if home == topic.home:
            return Code.NONE
        if not item.counter or (topic.home is not None and home < topic.home):
            return Code.FENCED_LEADER_EPOCH
        topic.home, topic.pending = home, None if item.lists is None else dict(item.lists)
        return Code.NONE

    def delete_topic(self, topic_id: bytes) -> Code:
        if self.topics.pop(topic_id, None) is None:
            return Code.UNKNOWN_TOPIC_ID
        for group in self.groups.values():
            group.committed_offsets = {
                key: value for key, value in group.committed_offsets.items() if key[0] != topic_id
            }
        return Code.NONE

    def chain(self, topic_id: bytes, partition: int) -> list[Piece] | None:
        topic = self.topics.get(topic_id)
        return topic.chains[partition] if topic is not None and partition < len(topic.chains) else None

    def intend(self, item: RollTarget) -> Code:
        chain = self.chain(item.topic_id, item.partition)
        if chain is None:
            return Code.UNKNOWN_TOPIC_OR_PARTITION
        open_one = next(piece for piece in chain if piece.state == OPEN)
        if open_one.id != item.expected_open:
            return Code.INVALID_REQUEST
        if chain[-1].state == INTENDED and chain[-1].id != item.abandoned:
            return Code.NONE if chain[-1].container == item.container else Code.INVALID_REQUEST
        if chain[-1].state == INTENDED:
            chain.pop()
        new = self.new_id(self.topics[item.topic_id].stream)
        chain.append(Piece(new, item.container, -1, -1, -1, INTENDED))
        return Code.NONE

    def finish(self, item: Rolled) -> Code:
        chain = self.chain(item.topic_id, item.partition)
        if chain is None:
            return Code.UNKNOWN_TOPIC_OR_PARTITION
        open_one = next(piece for piece in chain if piece.state == OPEN)
        if open_one.id == item.opened:
            return Code.NONE
        last = chain[-1]
        if open_one.id != item.sealed or (last.id, last.state) != (item.opened, INTENDED) or item.end < open_one.first:
            return Code.INVALID_REQUEST
        topic = self.topics[item.topic_id]
        first = item.end if item.resume < 0 else item.resume
        open_one.state, open_one.end, open_one.epochs = SEALED, item.end, tuple(item.epochs)
        last.state, last.first, last.container_epoch = OPEN, first, item.container_epoch
        last.leader_epoch = max([open_one.leader_epoch, *(epoch for epoch, _ in item.epochs)]) + ROLL_GAP
        for piece in chain[:-1]:
            piece.end = min(piece.end, first)
        chain[:] = [piece for piece in chain if piece is last or piece.first < piece.end]
        self.drop_below(topic, item.partition)
        if first < item.end or item.home is not None:
            key = item.topic_id, item.partition
            for group in self.groups.values():
                if key in group.committed_offsets:
                    offset, at = group.committed_offsets[key]
                    group.committed_offsets[key] = min(offset, first), at
        if first > item.end and chain == [last]:
            topic.starts[item.partition] = max(first, topic.starts.get(item.partition, 0))
        if item.home is not None:
            topic.settle(item.partition, item.home, first)
        return Code.NONE

    def set_start(self, item: LogStart) -> Code:
        if self.chain(item.topic_id, item.partition) is None:
            return Code.UNKNOWN_TOPIC_OR_PARTITION
        topic = self.topics[item.topic_id]
        if item.offset > topic.starts.get(item.partition, 0):
            topic.starts[item.partition] = item.offset
            self.drop_below(topic, item.partition)
            first = next(piece for piece in topic.chains[item.partition] if piece.state != INTENDED).first
            topic.starts[item.partition] = max(first, item.offset)  # there is no record in a gap
        return Code.NONE

    def drop_below(self, topic: Topic, partition: int) -> None:
        start = topic.starts.get(partition, 0)
        chain = topic.chains[partition]
        chain[:] = [piece for piece in chain if piece.state != SEALED or piece.end > start]

    def commit(self, command: CommitOffsets) -> Code | list[Code]:
        group = self.groups.get(command.group)
        if command.generation < 0:
            if group is not None and group.members:
                return Code.UNKNOWN_MEMBER_ID
        elif group is None or group.generation != command.generation:
            return Code.ILLEGAL_GENERATION
        elif command.member_id not in group.members:
            return Code.UNKNOWN_MEMBER_ID
        group = self.groups.setdefault(command.group, Group(0, (), command.now))
        codes = []
        for item in command.items:
            known = self.chain(item.topic_id, item.partition) is not None
            codes.append(Code.NONE if known else Code.UNKNOWN_TOPIC_OR_PARTITION)
            if known:
                group.committed_offsets[item.topic_id, item.partition] = (item.offset, command.now)
        return codes

    def copy(self, command: CopyOffsets) -> list[Code]:
        group = self.groups.get(command.group)
        if group is not None and group.members:
            return [Code.NON_EMPTY_GROUP] * len(command.items)
        if group is not None and command.alive:
            group.changed = max(group.changed, command.now)
        before = {} if group is None else dict(group.committed_offsets)
        codes = []
        for item in command.items:
            topic = self.topics.get(item.topic_id)
            key = item.topic_id, item.partition
            if topic is None or item.partition >= len(topic.chains):
                codes.append(Code.UNKNOWN_TOPIC_OR_PARTITION)
            elif topic.home is None or (topic.home[1] == command.cluster and not command.moved):
                codes.append(Code.POLICY_VIOLATION)
            else:
                codes.append(Code.NONE)
                known, at = item.committed_ms >= 0, item.committed_ms
                if item.expected is not None and before.get(key, (-1, -1)) != item.expected:
                    continue
                if command.only_newer and key in before:
                    offset, stored = before[key]
                    if (at <= stored) if known else (item.offset <= offset):
                        continue
                group = self.groups.setdefault(command.group, Group(0, (), command.now))
                group.committed_offsets[key] = (item.offset, at if known else command.now)
        return codes

    def expire(self, before: int) -> tuple[int, int]:
        committed_offsets = groups = 0
        for name, group in list(self.groups.items()):
            if group.members or group.changed >= before:
                continue
            kept = {key: value for key, value in group.committed_offsets.items() if value[1] >= before}
            committed_offsets += len(group.committed_offsets) - len(kept)
            group.committed_offsets = kept
            if not kept:
                groups += 1
                del self.groups[name]
        return committed_offsets, groups


def copied(count: int, home: tuple[int, str] | None) -> tuple[Any, str, list[tuple[int, int, str, Offset]]]:
    """Home, origin and histories of a new topic."""
    if home is None:
        return None, "", []
    return home, "b", [(each, *home, Offset(3)) for each in range(count)] if home[0] else []


class CatalogAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "one.sqlite"
        self.connection = open_tables(self.path)
        self.connection.execute("PRAGMA synchronous=OFF")  # this test simulates no crashes
        self.reader = Reader(self.path)
        self.model = Model()
        self.log: list[tuple[Position, bytes]] = []
        self.create_stream("/a", Millis(0))  # most rules have little effect without a topic
        self.create_topics([("/a", "t", bytes(16), 2), ("/a", "u", bytes([1]) * 16, 1)], Millis(0))

    def apply(self, command: CatalogCommand[Any]) -> Any:
        position = Position(10 * (len(self.log) + 1))
        self.log.append((position, encode(command)))
        (decided,) = apply_all(self.connection, [(position, command)], SCHEMA)
        return decided.code if isinstance(decided, KafkaError) else decided

    @rule(path=PATHS, now=TIMES)
    def create_stream(self, path: str, now: Millis) -> None:
        outcome = self.apply(CreateStream(path, StreamPolicy(), now))
        assert outcome.changed == (path not in self.model.streams)
        if outcome.changed:
            self.model.streams[path] = (next(self.model.stream_numbers), itertools.count(1))

    @rule(path=PATHS, now=TIMES, seldom=st.integers(0, 4))
    def delete_stream(self, path: str, now: Millis, seldom: int) -> None:
        force = seldom == 4
        outcome = self.apply(DeleteStream(path, now, force))
        held = [topic_id for topic_id, topic in self.model.topics.items() if topic.stream == path]
        if path not in self.model.streams:
            assert outcome is Code.UNKNOWN_TOPIC_OR_PARTITION
        elif held and not force:
            assert outcome is Code.POLICY_VIOLATION
        else:
            assert outcome.stream.topics == len(held)
            for topic_id in held:
                self.model.delete_topic(topic_id)
            del self.model.streams[path]

    @rule(
        wanted=st.lists(st.tuples(PATHS, NAMES, IDS, PARTITIONS), max_size=4),
        now=TIMES,
        copy=st.sampled_from([None, (0, "b"), (2, "b")]),
    )
    def create_topics(
        self, wanted: list[tuple[str, str, bytes, int]], now: Millis, copy: tuple[int, str] | None = None
    ) -> None:
        items = [
            NewTopic(path, name, id_, count, {}, [ContainerId(9)] * count, [Epoch(1)] * count, home, origin, histories)
            for path, name, id_, count in wanted
            for home, origin, histories in [copied(count, copy)]
        ]
        foreseen = self.reader.topics.check_new(items)
        codes = [outcome.code for outcome in self.apply(CreateTopics(items, now))]
        assert [Code.NONE if each is None else each.code for each in foreseen] == codes
        before = set(self.model.topics)
        assert codes == [self.model.create_topic(item, before) for item in items]

    @rule(ids=st.lists(IDS, max_size=3), now=TIMES)
    def delete_topics(self, ids: list[bytes], now: Millis) -> None:
        outcomes = self.apply(DeleteTopics(ids, now))
        assert [outcome.code for outcome in outcomes] == [self.model.delete_topic(id_) for id_ in ids]

    @rule(id_=IDS, count=st.integers(0, 5), now=TIMES)
    def create_partitions(self, id_: bytes, count: int, now: Millis) -> None:
        topic = self.model.topics.get(id_)
        added = max(0, count - (0 if topic is None else len(topic.chains)))
        containers = [ContainerId(8)] * added
        command = CreatePartitions(id_, count, containers, [Epoch(1)] * added, now)
        outcome = self.apply(command)
        if topic is None:
            assert outcome is Code.UNKNOWN_TOPIC_ID
        elif not added:
            assert outcome is Code.INVALID_PARTITIONS
        else:
            assert len(outcome.partitionlets) == added
            if topic.home is not None and topic.home[0]:
                for partition in range(len(topic.chains), count):
                    topic.settled[partition] = topic.home
                    topic.histories[partition] = [(*topic.home, 0)]
            topic.chains += self.model.opened(topic.stream, containers)
            assert self.apply(command) == outcome

    @rule(data=st.data(), container=st.integers(1, 2).map(ContainerId), now=TIMES)
    def roll_intent(self, data: st.DataObject, container: ContainerId, now: Millis) -> None:
        id_, partition = self.draw_partition(data)
        expected, abandoned = self.draw_pieces(data, id_, partition)
        item = RollTarget(id_, partition, expected, container, abandoned)
        (outcome,) = self.apply(RollIntent([item], now))
        assert outcome.code == self.model.intend(item)
        if outcome.code is Code.NONE:
            chain = self.model.chain(id_, partition)
            assert chain is not None
            assert outcome.partitionlet.id == chain[-1].id

    @rule(id_=IDS, home=HOMES, lists=st.none() | LISTS)
    def set_home(self, id_: bytes, home: tuple[int, str], lists: dict[int, list[tuple[int, str, Offset]]]) -> None:
        item = HomeChange(id_, *home, lists)
        assert self.apply(SetHome([item])) == [self.model.set_home(item)]

    @rule(data=st.data(), group=GROUPS, count=st.integers(0, 2), now=TIMES)
    def copy_committed_offsets(self, data: st.DataObject, group: str, count: int, now: Millis) -> None:
        committed_offsets = []
        for _ in range(count):
            id_, partition = self.draw_partition(data)
            at = data.draw(st.just(Millis(-1)) | TIMES)
            stands = (
                self.model.groups[group].committed_offsets.get((id_, partition)) if group in self.model.groups else None
            )
            expected = data.draw(st.sampled_from([None, (-1, -1), (1, 1), stands or (-1, -1)]))
            offset = Offset(data.draw(OFFSETS))
            committed_offsets.append(
                CommittedOffset(id_, partition, offset, LeaderEpoch(-1), committed_ms=at, expected=expected)  # type: ignore[arg-type]
            )
        flags = data.draw(st.fixed_dictionaries({name: st.booleans() for name in ("only_newer", "moved", "alive")}))
        command = CopyOffsets(group, committed_offsets, now, "a", **flags)
        assert self.apply(command) == self.model.copy(command)

    @rule(data=st.data(), end=OFFSETS, failovers=st.integers(0, 300), now=TIMES)
    def roll_done(self, data: st.DataObject, end: int, failovers: int, now: Millis) -> None:
        id_, partition = self.draw_partition(data)
        sealed, opened = self.draw_pieces(data, id_, partition)
        self.finish_roll(id_, partition, sealed, opened, end=end, failovers=failovers, now=now)

    @rule(data=st.data(), resume=OFFSETS, home=st.none() | HOMES, now=TIMES)
    def settling_roll(self, data: st.DataObject, resume: int, home: tuple[int, str] | None, now: Millis) -> None:
        there = data.draw(st.integers(0, 3))
        topics = [topic.home for topic in self.model.topics.values() if topic.home is not None]
        if there and topics:
            home = data.draw(st.sampled_from(topics))
        self.whole_roll(data=data, records=3, failovers=0, now=now, resume=resume, home=home)

    @rule(data=st.data(), records=st.integers(0, 5), failovers=st.integers(0, 300), now=TIMES)
    def whole_roll(
        self,
        data: st.DataObject,
        records: int,
        failovers: int,
        now: Millis,
        resume: int = -1,
        home: tuple[int, str] | None = None,
    ) -> None:
        id_, partition = self.draw_partition(data)
        self.roll(id_, partition, records=records, failovers=failovers, now=now, resume=resume, home=home)

    def roll(
        self,
        id_: bytes,
        partition: int,
        *,
        records: int = 3,
        failovers: int = 0,
        now: Millis,
        resume: int = -1,
        home: tuple[int, str] | None,
    ) -> None:
        chain = self.model.chain(id_, partition)
        if chain is None:
            return
        open_one = next(piece for piece in chain if piece.state == OPEN)
        item = RollTarget(id_, partition, PartitionletId(open_one.id), ContainerId(chain[-1].container))
        self.apply(RollIntent([item], now))
        self.model.intend(item)
        if chain[-1].state == INTENDED:
            new = PartitionletId(chain[-1].id)
            end = open_one.first + records
            open_now = item.expected_open
            self.finish_roll(
                id_, partition, open_now, new, end=end, failovers=failovers, now=now, resume=resume, home=home
            )

    def finish_roll(
        self,
        id_: bytes,
        partition: int,
        sealed: PartitionletId,
        opened: PartitionletId,
        *,
        end: int,
        failovers: int,
        now: Millis,
        resume: int = -1,
        home: tuple[int, str] | None = None,
    ) -> None:
        chain = self.model.chain(id_, partition) or []
        base = next((piece.leader_epoch for piece in chain if piece.state == OPEN), 0)
        epochs = [(LeaderEpoch(base), Offset(0)), (LeaderEpoch(base + failovers), Offset(end))]
        item = Rolled(id_, partition, sealed, Offset(end), epochs, opened, Epoch(3), Offset(resume), home)
        (outcome,) = self.apply(RollDone([item], now))
        assert outcome.code == self.model.finish(item)

    def draw_partition(self, data: st.DataObject) -> tuple[bytes, int]:
        """Mostly an existing partition, sometimes any."""
        there = [(id_, partition) for id_, topic in self.model.topics.items() for partition in range(len(topic.chains))]
        if there and data.draw(st.integers(0, 5)):
            return data.draw(st.sampled_from(there))
        return data.draw(IDS), data.draw(PARTITIONS)

    def draw_pieces(self, data: st.DataObject, id_: bytes, partition: int) -> tuple[PartitionletId, PartitionletId]:
        """Mostly the open and the intended partitionlet, sometimes any two of the chain, or none."""
        chain = self.model.chain(id_, partition) or []
        tail = [piece.id for piece in chain if piece.state in (OPEN, INTENDED)] + [0]
        if data.draw(st.integers(0, 3)):
            return PartitionletId(tail[0]), PartitionletId(tail[1] if len(tail) > 1 else 0)
        some = st.sampled_from([0, *(piece.id for piece in chain)]).map(PartitionletId)
        return data.draw(some), data.draw(some)

    @rule(data=st.data(), count=st.integers(0, 2), offset=OFFSETS)
    def set_log_start(self, data: st.DataObject, count: int, offset: int) -> None:
        items = []
        for _ in range(count):
            id_, partition = self.draw_partition(data)
            bounds = [piece.end for piece in self.model.chain(id_, partition) or [] if piece.state == SEALED]
            items.append(LogStart(id_, partition, Offset(data.draw(st.sampled_from([offset, *bounds])))))
        codes = [outcome.code for outcome in self.apply(SetLogStart(items))]
        assert codes == [self.model.set_start(item) for item in items]

    @rule(data=st.data(), group=GROUPS, member=st.sampled_from(["m", "n"]), count=st.integers(0, 2), now=TIMES)
    def commit(self, data: st.DataObject, group: str, member: str, count: int, now: Millis) -> None:
        committed_offsets = []
        for _ in range(count):
            id_, partition = self.draw_partition(data)
            committed_offsets.append(CommittedOffset(id_, partition, Offset(data.draw(OFFSETS)), LeaderEpoch(-1)))
        held = self.model.groups.get(group)
        present = held.generation if held is not None and held.members else -1
        generation = data.draw(st.sampled_from([present, present, present, -1, 0, 2]))
        command = CommitOffsets(group, generation, member, committed_offsets, now)
        assert self.apply(command) == self.model.commit(command)

    @rule(group=GROUPS, items=st.lists(st.tuples(IDS, PARTITIONS), max_size=3))
    def delete_committed_offsets(self, group: str, items: list[tuple[bytes, int]]) -> None:
        outcome = self.apply(DeleteOffsets(group, items))
        if group not in self.model.groups:
            assert outcome is Code.GROUP_ID_NOT_FOUND
            return
        for (id_, partition), code in zip(items, outcome, strict=True):
            known = self.model.chain(id_, partition) is not None
            assert code is (Code.NONE if known else Code.UNKNOWN_TOPIC_OR_PARTITION)
            self.model.groups[group].committed_offsets.pop((id_, partition), None)

    @rule(group=GROUPS, generation=st.integers(0, 3), members=st.sets(st.sampled_from(["m", "n"])), now=TIMES)
    def put_group(self, group: str, generation: int, members: set[str], now: Millis) -> None:
        held = self.model.groups.get(group)
        outcome = self.apply(PutGroup(group, generation, "consumer", "", "", sorted(members), b"", "State", now))
        if held is not None and generation < held.generation:
            assert outcome is Code.ILLEGAL_GENERATION
        else:
            committed_offsets = {} if held is None else held.committed_offsets
            self.model.groups[group] = Group(generation, tuple(sorted(members)), now, committed_offsets)

    @rule(group=GROUPS)
    def delete_group(self, group: str) -> None:
        (code,) = self.apply(DeleteGroups([group]))
        held = self.model.groups.get(group)
        if held is None:
            assert code is Code.GROUP_ID_NOT_FOUND
        elif held.members:
            assert code is Code.NON_EMPTY_GROUP
        else:
            assert code is Code.NONE
            del self.model.groups[group]

    @rule(before=TIMES)
    def expire(self, before: Millis) -> None:
        assert tuple(self.apply(ExpireOffsets(before)))[:2] == self.model.expire(before)

    @invariant()
    def the_reader_sees_what_the_model_holds(self) -> None:
        model, reader = self.model, self.reader
        assert {row.path: row.number for row in reader.streams.page()} == {
            path: number for path, (number, _) in model.streams.items()
        }
        for row in reader.streams.page():
            inside = [topic for topic in model.topics.values() if topic.stream == row.path]
            assert (row.topics, row.partitions) == (len(inside), sum(len(topic.chains) for topic in inside))
        assert {
            row.topic_id: (row.number, row.stream, row.name, row.partitions) for row in reader.topics.of_all_streams()
        } == {id_: (each.number, each.stream, each.name, len(each.chains)) for id_, each in model.topics.items()}
        numbers = [topic.number for topic in model.topics.values()]
        for row in reader.topics.of_all_streams():
            topic = model.topics[row.topic_id]
            assert row.home == topic.home
            assert {key[1]: home for key, home in reader.homes.settled([row.number]).items()} == topic.settled
            assert {key[1]: starts for key, starts in reader.homes.histories([row.number]).items()} == {
                partition: sorted(starts) for partition, starts in topic.histories.items() if starts
            }
            assert reader.homes.pending([row.number]) == ({} if topic.pending is None else {row.number: topic.pending})
        assert {row.topic_id for row in reader.homes.unsettled()} == {
            id_
            for id_, topic in model.topics.items()
            if topic.home is not None
            and topic.home[0]
            and any(topic.settled.get(each) != topic.home for each in range(len(topic.chains)))
        }
        assert reader.chains.log_starts(numbers) == {
            (topic.number, partition): start
            for topic in model.topics.values()
            for partition, start in topic.starts.items()
            if start
        }
        live: dict[int, int] = {}
        for topic in model.topics.values():
            for partition, chain in enumerate(topic.chains):
                assert [
                    Piece(
                        row.id,
                        row.container,
                        row.first,
                        row.leader_epoch,
                        row.container_epoch,
                        row.state,
                        row.end,
                        row.epochs,
                    )
                    for row in reader.chains.chain(topic.number, partition)
                ] == chain
                live |= {piece.id: max(0, piece.first, topic.starts.get(partition, 0)) for piece in chain}
        assert reader.chains.live(map(PartitionletId, live)) == live
        assert {row.group: (row.generation, row.member_ids, row.changed) for row in reader.groups.page()} == {
            name: (group.generation, group.members, group.changed) for name, group in model.groups.items()
        }
        for name, group in model.groups.items():
            assert {
                (row.topic_id, row.partition): (row.offset, row.committed_at)
                for row in reader.groups.committed_offsets(name)
            } == group.committed_offsets

    def teardown(self) -> None:
        """The same commands, decoded from their bytes and applied in two batches, give the same rows."""
        again = open_tables(self.path.with_name("two.sqlite"))
        commands = [(position, decode(payload)) for position, payload in self.log]
        half = len(commands) // 2
        for part in (commands[:half], commands[half:]):
            apply_all(again, part, SCHEMA)
        assert list(again.iterdump()) == list(self.connection.iterdump())
        for connection in (again, self.connection):
            (_, _, path) = connection.execute("PRAGMA database_list").fetchone()
            assert damage_in(Path(path)) == []  # the totals match the rows, whatever has changed them
            connection.close()
        self.reader.close()
        self.folder.cleanup()


class CatalogInPieces(CatalogAgainstModel):
    """From feature level 1 on: deleted streams and topics disappear as before, and their rows are deleted in small
    steps."""

    def __init__(self) -> None:
        self.patch = pytest.MonkeyPatch()
        for module in (deletions, topics):
            self.patch.setattr(module, "AT_ONCE", 12)
        super().__init__()
        self.apply(RaiseLevel(1))

    @rule()
    def forget(self) -> None:
        self.apply(ForgetDeleted())

    @rule(before=TIMES)
    def expire(self, before: Millis) -> None:
        """Committed offsets of deleted topics keep their groups until they are deleted."""
        while self.apply(ForgetDeleted()).more:
            pass
        super().expire(before)

    @rule(before=TIMES)
    def expire_some(self, before: Millis) -> None:
        while self.apply(ForgetDeleted()).more:
            pass
        assert tuple(self.apply(ExpireSomeOffsets(before)))[:2] == self.model.expire(before)

    def teardown(self) -> None:
        while self.apply(ForgetDeleted()).more:
            pass
        self.the_reader_sees_what_the_model_holds()
        for table in ("partitionlets", "log_starts", "home_starts", "settled_homes", "pending_homes", "cursors"):
            left = f"SELECT count(*) FROM {table} WHERE topic NOT IN (SELECT number FROM topics)"
            assert self.connection.execute(left).fetchone() == (0,)
        lost = "SELECT count(*) FROM topics WHERE stream NOT IN (SELECT number FROM streams)"
        assert self.connection.execute(lost).fetchone() == (0,)
        super().teardown()
        self.patch.undo()


TestCatalogAgainstModel = pytest.mark.timeout(600)(CatalogAgainstModel.TestCase)
TestCatalogAgainstModel.settings = settings(
    max_examples=35, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestCatalogInPieces = pytest.mark.timeout(600)(CatalogInPieces.TestCase)
TestCatalogInPieces.settings = settings(
    max_examples=15, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_what_is_pending_stays_while_partitions_are_rolled_for_lower_homes_than_they_are_settled_for() -> None:
    """No node rolls a partition for a home before its topic has it."""
    machine = CatalogAgainstModel()
    id_, now = bytes([1]) * 16, Millis(0)
    machine.roll(id_, 0, now=now, home=(2, "a"))
    machine.set_home(id_, (2, "a"), {})
    for home in ((1, "a"), (2, "a")):
        machine.roll(id_, 0, now=now, home=home)
        machine.the_reader_sees_what_the_model_holds()
    machine.teardown()


def test_the_standard_librarys_sqlite_has_what_the_statements_need() -> None:
    assert sqlite3.sqlite_version_info >= (3, 24, 0)
    assert sqlite3.connect(":memory:").execute("SELECT sum(value) FROM json_each('[1, 2]')").fetchone() == (3,)

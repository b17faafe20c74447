"""Commands on a catalog's tables that most of their tests need."""

import uuid
from typing import Any

from headrace.base.errors import Code
from headrace.base.ids import (
    ContainerId,
    Epoch,
    LeaderEpoch,
    Millis,
    Offset,
)
from headrace.catalog.chains import (
    RollDone,
    Rolled,
    RollIntent,
    RollTarget,
)
from headrace.catalog.committed_offsets import CommitOffsets, CommittedOffset
from headrace.catalog.groups import PutGroup
from headrace.catalog.topics import CreateTopics, NewTopic
from kit.catalog import Tables

NOW = Millis(1_700_000_000_000)
ID = bytes(16)
"""The id of the topic that `create_copy` creates."""


def new_topic(name: str, *, partitions: int = 1, stream: str = "/s", configs: dict[str, str] | None = None) -> NewTopic:
    """A topic to create in containers 10 and up, with a random id."""
    return NewTopic(
        stream,
        name,
        uuid.uuid4().bytes,
        partitions,
        configs or {},
        [ContainerId(10 + index) for index in range(partitions)],
        [Epoch(3)] * partitions,
    )


def create(tables: Tables, name: str, **options: Any) -> bytes:
    """Create a topic; returns its id."""
    item = new_topic(name, **options)
    (outcome,) = tables.apply(CreateTopics([item], NOW))
    assert outcome.code is Code.NONE
    return item.topic_id


def create_copy(tables: Tables, *, partitions: int = 1, **copy: Any) -> int:
    """Create the topic t, of which other clusters may have copies; returns its number."""
    places = [ContainerId(1)] * partitions
    item = NewTopic("/s", "t", ID, partitions, {}, places, [Epoch(1)] * partitions, **copy)
    (outcome,) = tables.apply(CreateTopics([item], NOW))
    assert outcome.code is Code.NONE
    return int(outcome.topic.number)


def chain(tables: Tables, topic_id: bytes, partition: int = 0) -> list[Any]:
    """A partition's partitionlets."""
    topic = tables.reader.topics.by_id(topic_id)
    assert topic is not None
    return tables.reader.chains.chain(topic.number, partition)


def roll(tables: Tables, topic_id: bytes, *, end: int, epochs: list[tuple[int, int]]) -> Any:
    """Roll partition 0 into container 20; returns the partitionlet that is then open."""
    (open_one,) = chain(tables, topic_id)[-1:]
    (intent,) = tables.apply(RollIntent([RollTarget(topic_id, 0, open_one.id, ContainerId(20))], NOW))
    item = Rolled(
        topic_id,
        0,
        open_one.id,
        Offset(end),
        [(LeaderEpoch(epoch), Offset(first)) for epoch, first in epochs],
        intent.partitionlet.id,
        Epoch(5),
    )
    (done,) = tables.apply(RollDone([item], NOW))
    assert done.code is Code.NONE
    return done.partitionlet


def put_group(tables: Tables, *, generation: int, members: list[str], now: int = NOW) -> None:
    """Store a consumer group."""
    state = "Stable" if members else "Empty"
    tables.apply(PutGroup("g", generation, "consumer", "range", "", members, b"opaque", state, Millis(now)))


def commit(
    tables: Tables, topic_id: bytes, *, generation: int, member: str = "m", offset: int = 1, now: int = NOW
) -> Any:
    """Commit one offset; returns the code."""
    item = CommittedOffset(topic_id, 0, Offset(offset), LeaderEpoch(2), "note")
    return tables.apply(CommitOffsets("g", generation, member, [item], Millis(now)))

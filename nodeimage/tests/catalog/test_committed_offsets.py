"""Committed offsets: fenced, and expired."""

import uuid

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import (
    LeaderEpoch,
    Millis,
    Offset,
)
from headrace.catalog.committed_offsets import CommitOffsets, CommittedOffset, DeleteOffsets, Expired, ExpireOffsets
from kit.catalog import Tables
from kit.catalog_commands import NOW, commit, create, put_group


def test_commits_are_fenced_by_the_group_as_stored(tables: Tables) -> None:
    topic_id = create(tables, "t")
    with pytest.raises(KafkaError) as before:
        commit(tables, topic_id, generation=0)
    assert before.value.code is Code.ILLEGAL_GENERATION
    put_group(tables, generation=4, members=["m", "n"])
    assert commit(tables, topic_id, generation=4, offset=11) == [Code.NONE]
    for generation, member, code in (
        (3, "m", Code.ILLEGAL_GENERATION),
        (5, "m", Code.ILLEGAL_GENERATION),
        (4, "stranger", Code.UNKNOWN_MEMBER_ID),
        (-1, "", Code.UNKNOWN_MEMBER_ID),
    ):
        with pytest.raises(KafkaError) as caught:
            commit(tables, topic_id, generation=generation, member=member, offset=99)
        assert caught.value.code is code
    (committed_offset,) = tables.reader.groups.committed_offsets("g")
    assert committed_offset == (topic_id, "/s", "t", 0, 11, 2, "note", NOW)
    put_group(tables, generation=5, members=[])
    assert commit(tables, topic_id, generation=-1, member="", offset=12) == [Code.NONE]


def test_a_commit_outside_a_group_makes_an_empty_one(tables: Tables) -> None:
    topic_id = create(tables, "t")
    other = create(tables, "other")
    items = [
        CommittedOffset(topic_id, 0, Offset(1), LeaderEpoch(-1)),
        CommittedOffset(uuid.uuid4().bytes, 0, Offset(1), LeaderEpoch(-1)),
        CommittedOffset(other, 1, Offset(1), LeaderEpoch(-1)),
        CommittedOffset(other, 0, Offset(7), LeaderEpoch(-1)),
    ]
    assert tables.apply(CommitOffsets("g", -1, "", items, NOW)) == [
        Code.NONE,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.NONE,
    ]
    assert [group.state for group in tables.reader.groups.page()] == ["Empty"]
    assert [committed_offset.offset for committed_offset in tables.reader.groups.committed_offsets("g")] == [1, 7]
    assert [committed_offset.offset for committed_offset in tables.reader.groups.committed_offsets("g", [2])] == [7]
    assert tables.apply(DeleteOffsets("g", [(other, 0), (other, 9)])) == [Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION]
    assert [committed_offset.name for committed_offset in tables.reader.groups.committed_offsets("g")] == ["t"]
    with pytest.raises(KafkaError) as caught:
        tables.apply(DeleteOffsets("nobody", []))
    assert caught.value.code is Code.GROUP_ID_NOT_FOUND


def test_committed_offsets_expire_only_in_groups_long_empty(tables: Tables) -> None:
    topic_id = create(tables, "t")
    put_group(tables, generation=1, members=["m"], now=NOW)
    commit(tables, topic_id, generation=1, now=NOW)
    assert tables.apply(ExpireOffsets(Millis(NOW + 100))) == Expired(0, 0)
    put_group(tables, generation=2, members=[], now=NOW + 50)
    assert tables.apply(ExpireOffsets(Millis(NOW + 50))) == Expired(0, 0)
    commit(tables, topic_id, generation=-1, member="", now=NOW + 90)
    assert tables.apply(ExpireOffsets(Millis(NOW + 60))) == Expired(0, 0)
    assert tables.apply(ExpireOffsets(Millis(NOW + 91))) == Expired(1, 1)
    assert tables.reader.groups.page() == []

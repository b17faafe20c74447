"""The lag of consumer groups."""

from headrace.base.errors import Code
from headrace.catalog.committed_offsets import CommitOffsets, CommittedOffset
from kit.admin_calls import create


class TestGroups:
    @staticmethod
    async def commit(broker, topic_id, offset, *, group="g", partition=0):
        committed_offset = CommittedOffset(topic_id=topic_id, partition=partition, offset=offset, leader_epoch=-1)
        codes = await broker.catalog.submit(
            CommitOffsets(group=group, generation=-1, member_id="", items=[committed_offset], now=broker.runtime.now())
        )
        assert codes == [Code.NONE]

    async def test_lag_is_what_stands_between_committed_offset_and_end(self, call, ask, append, broker):
        topic_id = await create(ask, "t", 2)
        await append("t", b"a", b"b", b"c")
        await append("t", b"d", partition=1)
        await self.commit(broker, topic_id, 1)
        await self.commit(broker, topic_id, 1, partition=1)
        [listed] = await call("groups.list")
        assert (listed["group"], listed["state"], listed["partitions"], listed["lag"]) == ("g", "Empty", 2, 2)
        shown = await call("groups.show", group="g")
        found = [(each["partition"], each["cursor"], each["end"], each["lag"]) for each in shown["partitions"]]
        assert found == [(0, 1, 3, 2), (1, 1, 1, 0)]
        assert shown["members"] == []

    async def test_lag_of_partitions_that_nobody_uses(self, call, ask, append, broker):
        topic_id = await create(ask, "t")
        await append("t", b"a", b"b", b"c")
        await self.commit(broker, topic_id, 1)
        (topic,) = await broker.topics.resolve(["t"])
        topic.partitions.clear()
        [listed] = await call("groups.list")
        assert (listed["lag"], topic.partitions) == (2, {})

    async def test_a_committed_offset_ahead_of_the_end_is_no_negative_lag(self, call, ask, broker):
        await self.commit(broker, await create(ask, "t"), 9)
        [listed] = await call("groups.list")
        assert listed["lag"] == 0

    async def test_an_unknown_group_is_unknown(self, refused):
        code, message = await refused("groups.show", group="none")
        assert code == Code.GROUP_ID_NOT_FOUND
        assert "none" in message

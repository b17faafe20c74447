"""The stored state of a topic, as observers see it: from memory, from this node's disks, and from other nodes."""

from types import SimpleNamespace
from typing import Any

from headrace.base.ids import ContainerId, Offset
from headrace.catalog.rows import INTENDED, OPEN, SEALED
from headrace.partitions.partition_states import PartitionStates
from headrace.partitions.reads.local_reads import Extent

T = b"t" * 16


def row(number: int, partition: int, *, state: int = OPEN, first: int = 0, container: int = 7) -> Any:
    return SimpleNamespace(
        id=number,
        partition=partition,
        state=state,
        first=first,
        container=ContainerId(container),
        epochs=[(4, 0), (6, 50)] if state == SEALED else [],
        leader_epoch=2,
        current_leader_epoch=lambda epoch: 100 + epoch,
    )


class Node:
    """A catalog, other nodes' answers, and the partitions in memory."""

    def __init__(self, *rows: Any) -> None:
        self.rows = list(rows)
        self.starts: dict[tuple[int, int], Offset] = {}
        self.sizes: dict[int, Extent] = {}
        self.held: dict[int, Any] = {}
        self.asked: list[int] = []
        self.chains = self.topics = self

    # --- the catalog's reader

    def chain(self, topic: int) -> list[Any]:
        return self.rows

    def log_starts(self, topics: list[int]) -> dict[tuple[int, int], Offset]:
        return self.starts

    def by_ids(self, topic_ids: set[bytes]) -> dict[bytes, Any]:
        return {T: SimpleNamespace(number=5, topic_id=T)} if T in topic_ids else {}

    def open_of(self, topics: Any) -> dict[int, list[Any]]:
        return {5: [each for each in self.rows if each.state == OPEN]}

    # --- the rest

    async def query(self, function: Any) -> Any:
        return function(self)

    async def extents(self, rows: Any) -> dict[int, Extent]:
        self.asked = [each.id for each in rows]
        return {number: extent for number, extent in self.sizes.items() if number in self.asked}

    def cached_id(self, topic_id: bytes) -> Any:
        return SimpleNamespace(partitions=self.held) if topic_id == T and self.held else None

    def leader(self, container: ContainerId) -> tuple[int, int] | None:
        return (1, 9) if container == 7 else None

    @property
    def states(self) -> PartitionStates:
        given: Any = self
        return PartitionStates(catalog=given, cluster=given, topics=given, remote_reads=given)

    async def shown(self) -> list[tuple[int, ...]]:
        topic: Any = SimpleNamespace(number=5, topic_id=T)
        return [tuple(each) for each in await self.states.of_topic(topic)]


async def test_a_partition_is_the_sum_of_its_partitionlets_but_for_those_that_are_intended() -> None:
    node = Node(row(1, 0, state=SEALED), row(2, 0, first=60), row(3, 1), row(4, 1, state=INTENDED))
    node.sizes = {1: Extent(100, -1), 2: Extent(30, 75), 3: Extent(5, 4)}
    node.starts = {(5, 0): Offset(20)}
    assert await node.shown() == [(0, 20, 75, 109, 130, 2), (1, 0, 4, 109, 5, 1)]


async def test_what_is_in_memory_knows_its_end_best() -> None:
    node = Node(row(1, 0))
    node.sizes = {1: Extent(30, 75)}
    node.held = {0: SimpleNamespace(high_watermark=70)}
    assert [state[2] for state in await node.shown()] == [70]


async def test_of_what_other_nodes_do_not_tell_it_is_known_where_it_begins() -> None:
    node = Node(row(1, 0, first=60))
    assert await node.shown() == [(0, 0, 60, 109, 0, 1)]
    node.starts = {(5, 0): Offset(90)}
    assert [state[1:3] for state in await node.shown()] == [(90, 90)], "a log start is never above the end"


async def test_the_epoch_is_the_leaders_now_and_that_of_its_end_of_what_is_sealed() -> None:
    assert [state[3] for state in await Node(row(1, 0)).shown()] == [109]
    assert [state[3] for state in await Node(row(1, 0, container=8)).shown()] == [2], "nobody leads it"
    assert [state[3] for state in await Node(row(1, 0, state=SEALED)).shown()] == [6]


async def test_ends_are_asked_for_only_where_they_are_not_in_memory() -> None:
    node = Node(row(1, 0), row(2, 1), row(3, 2))
    node.held = {0: SimpleNamespace(high_watermark=70)}
    node.sizes = {2: Extent(0, 8)}
    ends = await node.states.ends([(T, 0), (T, 1), (T, 2), (b"u" * 16, 0)])
    assert ends == {(T, 0): 70, (T, 1): 8}
    assert node.asked == [2, 3]
    assert await node.states.ends([(T, 0)]) == {(T, 0): 70}
    assert node.asked == [2, 3], "nothing is missing"

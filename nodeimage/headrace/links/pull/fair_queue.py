"""The order in which partitions that are due are fetched: topics by turns, and each topic's partitions by turns, so
that neither a topic of a thousand partitions nor a partition that never ends keeps the others waiting. Pure."""

from collections import OrderedDict, deque

from headrace.links.source.source import TopicPartition


class FairQueue:
    """Partitions that wait; one that waits already is not added again."""

    __slots__ = ("_topics", "_waiting")

    def __init__(self) -> None:
        self._topics: OrderedDict[bytes, deque[TopicPartition]] = OrderedDict()
        self._waiting: set[TopicPartition] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, at: TopicPartition, *, first: bool = False) -> None:
        """`first`: it had its turn and nothing came of it."""
        if at in self._waiting:
            return
        self._waiting.add(at)
        queue = self._topics.get(at.topic_id)
        if queue is None:
            queue = self._topics[at.topic_id] = deque()
        if first:
            queue.appendleft(at)
            self._topics.move_to_end(at.topic_id, last=False)
        else:
            queue.append(at)

    def take(self) -> TopicPartition:
        """The next one. There is one."""
        topic_id, queue = next(iter(self._topics.items()))
        at = queue.popleft()
        if queue:
            self._topics.move_to_end(topic_id)
        else:
            del self._topics[topic_id]
        self._waiting.remove(at)
        return at

    def clear(self) -> None:
        """None waits any more."""
        self._topics.clear()
        self._waiting.clear()

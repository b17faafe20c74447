"""The order in which due partitions are fetched: topics take turns, and so do the partitions of a topic, so that
neither a topic of a thousand partitions nor an endless partition keeps the others waiting. Pure."""

from collections import OrderedDict, deque

from headrace.links.source.source import TopicPartition


class FairQueue:
    """A queue of partitions; adding one that is already queued changes nothing."""

    __slots__ = ("_topics", "_waiting")

    def __init__(self) -> None:
        self._topics: OrderedDict[bytes, deque[TopicPartition]] = OrderedDict()
        self._waiting: set[TopicPartition] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, at: TopicPartition, *, first: bool = False) -> None:
        """Queue a partition. `first`: at the head, since its last turn brought nothing."""
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
        """Remove and return the next partition. The queue must not be empty."""
        topic_id, queue = next(iter(self._topics.items()))
        at = queue.popleft()
        if queue:
            self._topics.move_to_end(topic_id)
        else:
            del self._topics[topic_id]
        self._waiting.remove(at)
        return at

    def clear(self) -> None:
        """Remove all partitions."""
        self._topics.clear()
        self._waiting.clear()

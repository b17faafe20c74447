"""Whether a partition takes records here, from producers or from a link (DESIGN section 9).

A topic's home is what the catalog says now; a partition is *settled* for a home once it was rolled for it. Between the
two nothing is appended. At home producers write, from the offset on at which that home begins; up to there, and
elsewhere altogether, records come from other clusters and keep their offsets. So no offset is ever given twice.
"""

from collections.abc import Callable, Mapping

from headrace.base.errors import Code, KafkaError, StorageFull
from headrace.base.ids import Home
from headrace.base.runtime import Runtime
from headrace.catalog.rows import TopicRow
from headrace.container.commit_waiters import Waiting
from headrace.partitions.partition import Partition
from headrace.partitions.refusals import why_not_committed
from headrace.partitions.topic import Topic
from headrace.wire.batch import BatchHeader


def home_of(row: TopicRow, own_cluster: str) -> Home:
    """A topic's home; this cluster's lowest where it was never another."""
    return row.home if row.home is not None else Home(0, own_cluster)


def is_settled_for(home: Home | None, settled: Home | None) -> bool:
    """Whether a partition that was last rolled for `settled` (None: never) is settled for its topic's home."""
    return settled == home or (settled is None and (home is None or home.counter == 0))


def is_settled(topic: Topic, partition: Partition) -> bool:
    """Whether a partition was rolled for the home that its topic has, or was made under it."""
    return is_settled_for(topic.home, partition.home)


class HomeAddresses:
    """Where clients reach the clusters that are homes of copies here, as far as links know it."""

    def __init__(self) -> None:
        self._by_cluster: Mapping[str, str] = {}

    def replace(self, addresses: Mapping[str, str]) -> None:
        """By cluster id, all that are known."""
        self._by_cluster = addresses

    def of(self, cluster: str) -> str | None:
        """A cluster's address; None where it is not known."""
        return self._by_cluster.get(cluster)

    def elsewhere(self, name: str, home: Home) -> KafkaError:
        """What a client gets that wants to change a topic where it is a copy. `name`: what it calls the topic."""
        address = self.of(home.cluster)
        return KafkaError(
            Code.POLICY_VIOLATION,
            f"{name} is a copy here; its home is cluster {home.cluster}{f' ({address})' if address else ''}: go there, "
            "or move its home here",
        )


class HomeCheck:
    """What a topic's home lets be written here."""

    def __init__(
        self, *, runtime: Runtime, own_cluster: str, addresses: HomeAddresses, due: Callable[[Partition], bool]
    ) -> None:
        """`own_cluster`: this cluster's id. `due`: whether a partition's next batch belongs in a new partitionlet."""
        self._runtime = runtime
        self._own_cluster = own_cluster
        self._addresses = addresses
        self._due = due

    def refusal(self, topic: Topic, partition: Partition, *, name: str) -> KafkaError | None:
        """Why a producer may not write to a partition of a topic that has a home in the catalog; None: it may. `name`:
        what the producer calls the topic."""
        home = topic.home
        if home is None:
            return None
        if home.cluster != self._own_cluster:
            return self.elsewhere(name, home)
        if not is_settled(topic, partition):
            return KafkaError(Code.LEADER_NOT_AVAILABLE, f"{name} has just moved here; try again")
        if partition.next_offset < partition.home_start:
            return KafkaError(
                Code.LEADER_NOT_AVAILABLE,
                f"{name} moves here, and offsets {partition.next_offset} to {partition.home_start} of "
                f"partition {partition.index} are still to come; try again",
            )
        return None

    def elsewhere(self, name: str, home: Home) -> KafkaError:
        """What a client gets that wants to change a topic where it is a copy."""
        return self._addresses.elsewhere(name, home)

    def shown(self, home: Home) -> dict[str, object]:
        """For people, with its address where links know it."""
        address = self._addresses.of(home.cluster)
        return {"cluster": home.cluster, "counter": home.counter, **({} if address is None else {"address": address})}

    def copy_append(
        self,
        topic: Topic,
        partition: Partition,
        batch: memoryview,
        header: BatchHeader,
        *,
        waiting: Waiting,
    ) -> bool:
        """Append a batch of the topic's home at its own offsets; `waiting` hears of its commit. False: it is here.

        `batch` is writable: its leader epoch becomes ours, all else stays as it is. It was checked (`read_batch`, with
        `from_client` false), and it follows what was appended before, with or without a gap.

        Raises, with nothing changed: KafkaError NOT_LEADER_OR_FOLLOWER (look it up anew), LEADER_NOT_AVAILABLE (it
        rolls, or a roll is due: await `Rolls.wait_for_roll`), FENCED_LEADER_EPOCH (not settled for its topic's home, or
        home is here: meet the source again), NOT_ENOUGH_REPLICAS (later), INVALID_RECORD (a batch that no sound source
        has), and StorageFull (await `container.make_room`).
        """
        container = partition.container
        if partition.left or partition.deleted or container.lost:
            raise KafkaError(Code.NOT_LEADER_OR_FOLLOWER, "this node leads the partition no more")
        if partition.rolling or partition.seal is not None or self._due(partition):
            raise KafkaError(Code.LEADER_NOT_AVAILABLE, "the partition is about to go on elsewhere")
        home = topic.home
        if home is None or not is_settled(topic, partition):
            raise KafkaError(Code.FENCED_LEADER_EPOCH, f"{topic.row.full_name} is not settled for its home")
        end = header.base_offset + header.last_offset_delta + 1
        at_home = home.cluster == self._own_cluster
        if at_home and partition.next_offset >= partition.home_start:
            raise KafkaError(Code.FENCED_LEADER_EPOCH, f"{topic.row.full_name} is at home here, and takes no copies")
        if end <= partition.next_offset:
            return False
        if header.base_offset < partition.next_offset or header.last_offset_delta < 0:
            raise KafkaError(
                Code.INVALID_RECORD,
                f"a batch from {header.base_offset} to {end} at {topic.row.full_name}/{partition.index}, which ends at "
                f"{partition.next_offset}: the source holds other batches than this copy",
            )
        if at_home and end > partition.home_start:
            raise KafkaError(
                Code.INVALID_RECORD,
                f"a batch up to {end}, while {topic.row.full_name} is at home here from {partition.home_start} on",
            )
        if container.refuses:
            raise StorageFull(container.refuses)
        if not container.has_room(header.length):
            raise StorageFull("no chunk is ready for this batch")
        if (why_not := why_not_committed(container)) is not None:
            raise why_not
        partition.append_copy(batch, header, now=self._runtime.now(), request=waiting)
        return True

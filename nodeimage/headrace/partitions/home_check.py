"""Checks whether a partition accepts records in this cluster, from producers or from a link (docs/links.md).

A topic's home is the one that the catalog has now; a partition is *settled* for a home once it was rolled for it.
Nothing is appended to a partition that is not settled for its topic's home. In the home cluster producers write from
the offset at which the home begins; below that offset, and in all other clusters, records come from other clusters and
keep their offsets. So no offset is ever assigned twice.
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
    """A topic's home; this cluster with counter 0 if the home was never moved."""
    return row.home if row.home is not None else Home(0, own_cluster)


def is_settled_for(home: Home | None, settled: Home | None) -> bool:
    """Whether a partition that was last rolled for `settled` (None: never) is settled for its topic's home."""
    return settled == home or (settled is None and (home is None or home.counter == 0))


def is_settled(topic: Topic, partition: Partition) -> bool:
    """Whether a partition was rolled for its topic's present home, or created under it."""
    return is_settled_for(topic.home, partition.home)


class HomeAddresses:
    """The addresses at which clients reach the home clusters of copies, as far as links know them."""

    def __init__(self) -> None:
        self._by_cluster: Mapping[str, str] = {}

    def replace(self, addresses: Mapping[str, str]) -> None:
        """Set all known addresses, by cluster id."""
        self._by_cluster = addresses

    def of(self, cluster: str) -> str | None:
        """A cluster's address; None if it is not known."""
        return self._by_cluster.get(cluster)

    def elsewhere(self, name: str, home: Home) -> KafkaError:
        """The error for a client that tries to change a copy of a topic. `name`: what the client calls the topic."""
        address = self.of(home.cluster)
        return KafkaError(
            Code.POLICY_VIOLATION,
            f"{name} is a copy here; its home is cluster {home.cluster}{f' ({address})' if address else ''}: go there, "
            "or move its home here",
        )


class HomeCheck:
    """Decides which records a partition accepts in this cluster, given its topic's home."""

    def __init__(
        self, *, runtime: Runtime, own_cluster: str, addresses: HomeAddresses, due: Callable[[Partition], bool]
    ) -> None:
        """`own_cluster`: this cluster's id. `due`: whether a partition has to roll before its next batch."""
        self._runtime = runtime
        self._own_cluster = own_cluster
        self._addresses = addresses
        self._due = due

    def refusal(self, topic: Topic, partition: Partition, *, name: str) -> KafkaError | None:
        """Why a producer may not write to a partition now; None if it may, as always where the topic's home was never
        moved. `name`: what the producer calls the topic."""
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
                f"{name} is moving here, and offsets {partition.next_offset} to {partition.home_start} of "
                f"partition {partition.index} have not arrived yet; try again",
            )
        return None

    def elsewhere(self, name: str, home: Home) -> KafkaError:
        """As `HomeAddresses.elsewhere`."""
        return self._addresses.elsewhere(name, home)

    def shown(self, home: Home) -> dict[str, object]:
        """A home as fields for users, with the cluster's address if links know it."""
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
        """Append a batch from the topic's home at its own offsets; `waiting` is notified of its commit. Returns False
        if the partition has the batch already.

        `batch` is writable: its leader epoch is replaced by this partition's, everything else stays as it is. It was
        checked (`read_batch`, with `from_client` false), and follows what was appended before, with or without a gap.

        Raises, with nothing changed: KafkaError NOT_LEADER_OR_FOLLOWER (look the partition up again),
        LEADER_NOT_AVAILABLE (the partition rolls, or a roll is due: await `Rolls.wait_for_roll`), FENCED_LEADER_EPOCH
        (the partition is not settled for its topic's home, or home is here: compare with the source again),
        NOT_ENOUGH_REPLICAS (retry later), INVALID_RECORD (a batch that no sound source has), and StorageFull (await
        `container.make_room`).
        """
        container = partition.container
        if partition.left or partition.deleted or container.lost:
            raise KafkaError(Code.NOT_LEADER_OR_FOLLOWER, "this node no longer leads the partition")
        if partition.rolling or partition.seal is not None or self._due(partition):
            raise KafkaError(Code.LEADER_NOT_AVAILABLE, "the partition is about to be rolled")
        home = topic.home
        if home is None or not is_settled(topic, partition):
            raise KafkaError(Code.FENCED_LEADER_EPOCH, f"{topic.row.full_name} is not settled for its home")
        end = header.base_offset + header.last_offset_delta + 1
        at_home = home.cluster == self._own_cluster
        if at_home and partition.next_offset >= partition.home_start:
            raise KafkaError(
                Code.FENCED_LEADER_EPOCH,
                f"{topic.row.full_name} is at home here, and accepts no records from other clusters",
            )
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

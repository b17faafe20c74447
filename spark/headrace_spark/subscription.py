"""Which partitions a query reads, and from where to where: the questions of its driver to the cluster.

Responsible for turning options into partitions and offsets, for topics that come and go under a pattern, and for the
weights that plans are made with. Knows nothing of Spark.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from headrace_spark.cluster import Cluster
from headrace_spark.errors import BadOption
from headrace_spark.offsets import commit_cursors, find_offsets
from headrace_spark.options import EARLIEST, LATEST, Partition, Place, ReadOptions
from headrace_spark.plan import OffsetRange, limited
from headrace_spark.reading import mean_record_bytes, raise_or_skip

SAMPLED_AT_ONCE = 64
"""Partitions whose record size is asked for in one go; the others are taken to be like them."""
SAMPLE_HOLDS = 100
"""Offsets after a sample for which it is not taken anew, so that small batches go without."""
CUT, MOST_CUTS = 8, 8
"""By how much a range is shortened at once where records at its end are larger than thought, and how often."""
USUAL_RECORD_BYTES = 200.0


class Subscription:
    """What the options of one query name, as the cluster has it now."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._cluster = Cluster(options.connection)
        self._sizes: dict[Partition, float] = {}
        self._sampled: dict[Partition, int] = {}
        self._told: set[str] = set()

    def close(self) -> None:
        """Close the connections to the cluster."""
        self._cluster.close()

    def partitions(self, *, optional: Collection[str] = ()) -> list[Partition]:
        """Every partition of the topics named, or matched now, sorted. Raises SourceError where a topic is absent that
        is not `optional`."""
        options = self._options
        if options.pattern is None:
            counts = self._cluster.partition_counts(options.topics)
            absent = [topic for topic in options.topics if topic not in counts and topic not in optional]
            if absent:
                raise BadOption(
                    f"the cluster has no topic {', '.join(absent)}; create it first, or use topicPattern to take "
                    "topics as they appear"
                )
        else:
            counts = {
                topic: count
                for listed, count in self._cluster.partition_counts(None).items()
                if not listed.startswith("__") and (topic := options.matched(listed)) is not None
            }
        return [(topic, number) for topic in sorted(counts) for number in range(counts[topic])]

    def at(self, place: Place, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The offset that a place means in each partition. Raises SourceError."""
        wanted = list(partitions)
        known = set(wanted)
        strangers = [partition for partition, _ in place.each if partition not in known]
        if strangers:
            raise BadOption(
                f"startingOffsets or endingOffsets name {strangers[0][0]}/{strangers[0][1]}, which is not read"
            )
        each = dict(place.each)
        mark = place.time if place.time is not None else place.mark
        asked = {partition: each.get(partition, EARLIEST if mark is None else mark) for partition in wanted}
        fixed = {partition: offset for partition, offset in asked.items() if partition in each and offset >= 0}
        marked = {partition: at for partition, at in asked.items() if partition not in fixed}
        return fixed | find_offsets(self._cluster, marked, read_committed=self._options.read_committed)

    def earliest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The offset of the first record of each partition."""
        return find_offsets(self._cluster, dict.fromkeys(partitions, EARLIEST), read_committed=False)

    def latest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The offset after the last record of each partition that may be read."""
        return find_offsets(
            self._cluster, dict.fromkeys(partitions, LATEST), read_committed=self._options.read_committed
        )

    def advance(self, positions: Mapping[Partition, int]) -> tuple[dict[Partition, int], dict[Partition, int]]:
        """(where each partition stands, the offset after its last record): for the partitions of `positions` and for
        those that came since, which start at their first record.

        What was lost (a topic deleted or made anew, offsets that expired) raises DataLoss, or is passed over where
        failOnDataLoss is false.
        """
        options = self._options
        seen = {topic for topic, _ in positions}
        current = self.partitions(optional=seen if options.fail_on_data_loss else options.topics)
        known = set(current)
        gone = sorted(partition for partition in positions if partition not in known)
        if gone:
            self._lost(f"{gone[0][0]}/{gone[0][1]} is gone from the cluster, with what was not read")
        added = [partition for partition in current if partition not in positions]
        start = {partition: positions[partition] for partition in current if partition in positions}
        end = self.latest(current)
        for partition, offset in self.earliest(added).items():
            if offset > 0:
                self._lost(
                    f"{partition[0]}/{partition[1]}: offsets 0 to {offset} expired before the query saw the partition"
                )
            start[partition] = offset
        for partition, offset in end.items():
            if offset < start[partition]:
                self._lost(
                    f"{partition[0]}/{partition[1]} ends at {offset}, and was read up to {start[partition]}; "
                    "was the topic made anew?"
                )
                start[partition] = offset
        return start, end

    def _lost(self, what: str) -> None:
        """Raise DataLoss, or say once that the query goes on: it asks every few milliseconds."""
        if self._options.fail_on_data_loss or what not in self._told:
            self._told.add(what)
            raise_or_skip(self._options, what)

    def targets(self) -> dict[Partition, int]:
        """The offset after the last record of each partition that is there now. Raises SourceError."""
        return self.latest(self.partitions(optional=self._options.topics))

    def record_bytes(self, ranges: Sequence[OffsetRange]) -> dict[Partition, float]:
        """About how many bytes a record of each range has, as stored."""
        old = (one for one in ranges if not 0 <= one.start - self._sampled.get(one.key, one.end) < SAMPLE_HOLDS)
        asked = [(one.key, one.start) for one in sorted(old, key=lambda one: -one.records)[:SAMPLED_AT_ONCE]]
        if asked:
            self._sizes |= mean_record_bytes(self._cluster, asked, options=self._options)
            self._sampled |= dict(asked)
        usual = sum(self._sizes.values()) / len(self._sizes) if self._sizes else USUAL_RECORD_BYTES
        return {one.key: self._sizes.get(one.key, usual) for one in ranges}

    def within(
        self, limit: int, ranges: Sequence[OffsetRange], sizes: Mapping[Partition, float]
    ) -> tuple[list[OffsetRange], dict[Partition, float]]:
        """The ranges cut to about `limit` bytes, and what a record of each then counts as: `sizes`, or more where
        records at the end of what was cut are much larger.

        These may be few, or may be all but the first: so a range is shortened by and by, until they lie behind it.
        """
        found, kept = dict(sizes), limited(ranges, weight=sizes, limit=limit)
        for _ in range(MOST_CUTS):
            largest = sorted(kept, key=lambda one: -one.records * found[one.key])[:SAMPLED_AT_ONCE]
            last = mean_record_bytes(self._cluster, [(one.key, one.end - 1) for one in largest], options=self._options)
            more = {key: min(size, CUT * found[key]) for key, size in last.items() if size > 2 * found[key]}
            if not more:
                break
            found |= more
            kept = limited(ranges, weight=found, limit=limit)
        return kept, found

    def commit(self, group: str, positions: Mapping[Partition, int]) -> None:
        """Commit the group's cursors."""
        commit_cursors(self._cluster, group, positions)

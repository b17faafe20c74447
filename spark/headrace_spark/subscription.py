"""Which partitions a query reads, and from where to where, as its driver finds out from the cluster.

Resolves options to partitions and offsets, follows topics that are created and deleted under a pattern, and estimates
the weights for plans. Knows nothing about Spark.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from headrace_spark.cluster import Cluster
from headrace_spark.errors import BadOption
from headrace_spark.offsets import commit_cursors, find_offsets
from headrace_spark.options import EARLIEST, LATEST, Partition, Place, ReadOptions
from headrace_spark.plan import OffsetRange, limited
from headrace_spark.reading import mean_record_bytes, raise_or_skip

SAMPLED_AT_ONCE = 64
"""The maximum number of partitions whose record size is sampled at once; the others are assumed to have the mean size.
"""
SAMPLE_HOLDS = 100
"""Offsets after a sample within which it is not repeated, so that small batches need no samples."""
CUT, MAX_CUTS = 8, 8
"""CUT: the factor by which a range is shortened at once if records at its end are larger than assumed. MAX_CUTS: how
often.
"""
USUAL_RECORD_BYTES = 200.0


class Subscription:
    """Resolves the options of one query against the cluster's present state."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._cluster = Cluster(options.connection)
        self._sizes: dict[Partition, float] = {}
        self._sampled: dict[Partition, int] = {}
        self._logged: set[str] = set()

    def close(self) -> None:
        """Close the connections to the cluster."""
        self._cluster.close()

    def partitions(self, *, optional: Collection[str] = ()) -> list[Partition]:
        """Return every partition of the named or currently matching topics, sorted. Raises SourceError if a topic is
        absent that is not `optional`.
        """
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
        """Return the offset of a place in each partition. Raises SourceError."""
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
        """Return the offset of each partition's first record."""
        return find_offsets(self._cluster, dict.fromkeys(partitions, EARLIEST), read_committed=False)

    def latest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the offset after each partition's last readable record."""
        return find_offsets(
            self._cluster, dict.fromkeys(partitions, LATEST), read_committed=self._options.read_committed
        )

    def advance(self, positions: Mapping[Partition, int]) -> tuple[dict[Partition, int], dict[Partition, int]]:
        """Return (each partition's position, the offset after its last record): for the partitions of `positions` and
        for new ones, which start at their first record.

        Losses (a topic deleted or recreated, offsets that expired) raise DataLoss, or are skipped if failOnDataLoss is
        false.
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
                    "was the topic recreated?"
                )
                start[partition] = offset
        return start, end

    def _lost(self, what: str) -> None:
        """Raise DataLoss, or log once that the query continues: this is called every few milliseconds."""
        if self._options.fail_on_data_loss or what not in self._logged:
            self._logged.add(what)
            raise_or_skip(self._options, what)

    def targets(self) -> dict[Partition, int]:
        """Return the offset after the last record of each existing partition. Raises SourceError."""
        return self.latest(self.partitions(optional=self._options.topics))

    def record_bytes(self, ranges: Sequence[OffsetRange]) -> dict[Partition, float]:
        """Return about how many bytes a record of each range has, as stored."""
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
        """Return the ranges shortened to about `limit` bytes, and the weight of a record of each: `sizes`, or more if
        records at the end of a shortened range are much larger.

        Large records may be few, or may be all but the first: so a range is shortened step by step, until they are
        beyond its end.
        """
        found, kept = dict(sizes), limited(ranges, weight=sizes, limit=limit)
        for _ in range(MAX_CUTS):
            largest = sorted(kept, key=lambda one: -one.records * found[one.key])[:SAMPLED_AT_ONCE]
            last = mean_record_bytes(self._cluster, [(one.key, one.end - 1) for one in largest], options=self._options)
            more = {key: min(size, CUT * found[key]) for key, size in last.items() if size > 2 * found[key]}
            if not more:
                break
            found |= more
            kept = limited(ranges, weight=found, limit=limit)
        return kept, found

    def commit(self, group: str, positions: Mapping[Partition, int]) -> None:
        """Commit the group's offsets."""
        commit_cursors(self._cluster, group, positions)

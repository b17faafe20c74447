"""The lag of the groups that this node coordinates, computed periodically for scrapes.

All their committed offsets are read, AT_ONCE at a time whatever the number of groups. A scan begins LOOK_S seconds
after the last one, or SHARE times as long after it as it took, whichever is later. The groups that are furthest behind
are reported individually, up to MAX_GROUPS; the others are only counted. A node that does not coordinate groups
reports none."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from headrace.admin.lag_history import Key, LagHistory
from headrace.base.errors import HeadraceError
from headrace.base.runtime import Runtime
from headrace.catalog.catalog import Catalog
from headrace.catalog.names import DEFAULT_STREAM
from headrace.catalog.reader import Reader
from headrace.catalog.rows import CommittedOffsetRow
from headrace.coordination.takeover import Coordination
from headrace.metrics import declarations as declared
from headrace.metrics.readings import Reading
from headrace.partitions.lookups import yield_to_loop
from headrace.partitions.partition_states import PartitionStates

log = structlog.get_logger()

LOOK_S: Final = 10.0
SHARE: Final = 50
AT_ONCE: Final = 250
"""Committed offsets that are read, and added up, in one step: about half a millisecond of work."""
MAX_GROUPS: Final = 100
MAX_OF_A_GROUP: Final = 500
"""The maximum number of partitions, and of topics, of one group that are reported under kafka-exporter's names."""

_Place = tuple[str, int, int]
"""The place of a committed offset: its group, the number of its topic, its partition."""
_BEFORE_ALL: Final = ("", -1, -1)


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """A group's offset and lag on one partition."""

    topic: str
    partition: int
    offset: int
    records: int


@dataclass(slots=True)
class GroupLag:
    """A group's lag at one time."""

    group: str
    members: int | None = None
    """None: the group is not in memory, and so has no members."""
    records: int = 0
    most: int = 0
    """The records that the partition furthest behind lacks."""
    seconds: float | None = 0.0
    """None: unknown, because its partitions are beyond those that LagHistory keeps. If some are known, the oldest of
    these."""
    partitions: list[PartitionLag] = field(default_factory=list)
    """The first MAX_OF_A_GROUP partitions."""
    topics: dict[str, int] = field(default_factory=dict)
    """Records by topic, for the first MAX_OF_A_GROUP topics."""

    def add(self, row: CommittedOffsetRow, records: int, seconds: float | None) -> None:
        """Add a partition that is `records` behind; the oldest of them has existed for `seconds`, None if unknown."""
        if records:  # one that has nothing to consume says nothing about the others
            if self.seconds is None or not self.records:
                self.seconds = seconds
            elif seconds is not None:
                self.seconds = max(self.seconds, seconds)
        self.records += records
        self.most = max(self.most, records)
        topic = shown_name(row.stream, row.name)
        if len(self.partitions) < MAX_OF_A_GROUP:
            self.partitions.append(PartitionLag(topic, row.partition, row.offset, records))
        if topic in self.topics or len(self.topics) < MAX_OF_A_GROUP:
            self.topics[topic] = self.topics.get(topic, 0) + records


@dataclass(frozen=True, slots=True)
class Looked:
    """The result of one scan of all groups."""

    groups: int = 0
    told: tuple[GroupLag, ...] = ()

    @property
    def dropped(self) -> int:
        """How many groups are not reported individually."""
        return self.groups - len(self.told)


class GroupMetrics:
    """Computes the group metrics of one node."""

    def __init__(
        self, *, runtime: Runtime, catalog: Catalog, coordination: Coordination, states: PartitionStates
    ) -> None:
        self._runtime = runtime
        self._catalog = catalog
        self._coordination = coordination
        self._states = states
        self._history = LagHistory()
        self.looked: Looked | None = None
        """The last result; None if this node does not coordinate groups, or has not scanned them yet, or if the last
        scan failed."""

    def start(self) -> None:
        """Scan repeatedly, as long as the node runs."""
        self._runtime.spawn(self._scan_forever())

    def readings(self) -> Iterator[Reading]:
        """The readings of groups for `/metrics`."""
        looked = self.looked
        if looked is None:
            return
        yield Reading(declared.GROUPS, float(looked.groups))
        yield Reading(declared.SERIES_DROPPED, float(looked.dropped), ("groups",))
        for each in looked.told:
            name = (each.group,)
            yield Reading(declared.GROUP_LAG_RECORDS, float(each.records), name)
            yield Reading(declared.GROUP_LAG_MAX_RECORDS, float(each.most), name)
            yield Reading(declared.GROUP_MEMBERS, float(each.members or 0), name)
            if each.seconds is not None:
                yield Reading(declared.GROUP_LAG_SECONDS, round(each.seconds, 3), name)

    async def look(self) -> None:
        """Scan all groups now."""
        if not self._coordination.is_here:
            self.looked = None
            return
        service = self._coordination.present
        members: dict[str, int | None] = {}
        for number, (name, _, _) in enumerate(await service.listing()):
            members[name] = service.member_count(name)
            await yield_to_loop(number)
        groups = len(members)
        furthest = FurthestBehind()
        ends: dict[Key, int] = {}
        after: _Place | None = _BEFORE_ALL
        while after is not None:
            rows, after = await self._catalog.query(lambda reader, after=after: _committed_offsets(reader, after))  # type: ignore[misc]
            await self._see_ends(ends, (row for _, row in rows))
            self._add(furthest, rows, members, ends)
        for number, (name, count) in enumerate(members.items()):  # groups that have committed nothing
            furthest.begin(GroupLag(name, count))
            await yield_to_loop(number)
        self._history.forget_others(ends.keys())
        self.looked = Looked(groups, tuple(furthest.told()))

    async def _see_ends(self, ends: dict[Key, int], rows: Iterable[CommittedOffsetRow]) -> None:
        """Find the ends of the rows' partitions that this scan does not know yet."""
        seen = await self._states.ends({(row.topic_id, row.partition) for row in rows} - ends.keys())
        now = self._runtime.loop.time()
        for key, end in seen.items():
            self._history.note(key, end, now=now)
        ends |= seen

    def _add(
        self,
        furthest: "FurthestBehind",
        rows: Iterable[tuple[str, CommittedOffsetRow]],
        members: dict[str, int | None],
        ends: Mapping[Key, int],
    ) -> None:
        """Add up rows, which are in order of groups. `members`: the member counts of the groups not yet begun."""
        now = self._runtime.loop.time()
        for name, row in rows:
            group = furthest.last
            if group is None or group.group != name:
                if name not in members:  # the group is being deleted, or is new
                    continue
                group = furthest.begin(GroupLag(name, members.pop(name)))
            key = (row.topic_id, row.partition)
            records = max(0, ends.get(key, row.offset) - row.offset)
            group.add(row, records, 0.0 if not records else self._history.age_s(key, row.offset, now=now))

    async def _scan_forever(self) -> None:
        while True:
            began = self._runtime.loop.time()
            try:
                await self.look()
            except HeadraceError as error:  # the catalog's leader or the coordinator changes
                self.looked = None
                log.debug("the lag of groups could not be read", reason=str(error))
            except Exception:
                self.looked = None
                log.exception("reading the lag of groups failed")
            took = self._runtime.loop.time() - began
            await asyncio.sleep(max(LOOK_S, SHARE * took))


def shown_name(stream: str, topic: str) -> str:
    """A topic's name as clients of its stream use it: with the stream, unless that is the default one."""
    return topic if stream == DEFAULT_STREAM else f"{stream}:{topic}"


class FurthestBehind:
    """Selects the groups to report individually from any number of groups."""

    def __init__(self) -> None:
        self._found: list[GroupLag] = []

    @property
    def last(self) -> GroupLag | None:
        """The group begun last, or None."""
        return self._found[-1] if self._found else None

    def begin(self, group: GroupLag) -> GroupLag:
        """Add the next group; all of its lag is added before another group begins."""
        if len(self._found) >= 2 * MAX_GROUPS:
            self._found = self.told()
        self._found.append(group)
        return group

    def told(self) -> list[GroupLag]:
        """The groups that are furthest behind, in order."""
        return sorted(self._found, key=lambda each: (-each.records, each.group))[:MAX_GROUPS]


def _committed_offsets(reader: Reader, after: _Place) -> tuple[list[tuple[str, CommittedOffsetRow]], _Place | None]:
    """[blocking] The next committed offsets of all groups, and the place of the last of them; None at the end."""
    rows = reader.groups.committed_offsets_after(after, limit=AT_ONCE)
    if len(rows) < AT_ONCE:
        return rows, None
    group, last = rows[-1]
    topic = reader.topics.by_id(last.topic_id)
    # The topic exists, since it was read in the same snapshot.
    return rows, None if topic is None else (group, topic.number, last.partition)

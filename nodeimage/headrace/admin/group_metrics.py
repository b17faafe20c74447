"""How far the groups that this node coordinates are behind, looked at now and then for those who scrape it.

All groups are gone through, some at a time, every LOOK_S, or every SHARE times as long as that took. The groups that
are furthest behind are told one by one, up to MOST_GROUPS; of the others, how many there are. A node that does not
coordinate groups tells of none.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from headrace.admin.lag_history import Key, LagHistory
from headrace.base.errors import HeadraceError
from headrace.base.runtime import Runtime
from headrace.catalog.catalog import Catalog
from headrace.catalog.names import DEFAULT_STREAM
from headrace.catalog.reader import Reader
from headrace.catalog.rows import CursorRow
from headrace.coordination.takeover import Coordination
from headrace.metrics import declarations as declared
from headrace.metrics.readings import Reading
from headrace.partitions.partition_states import PartitionStates

log = structlog.get_logger()

LOOK_S: Final = 10.0
SHARE: Final = 50
AT_ONCE: Final = 100
"""Groups whose committed offsets are read at once."""
MOST_GROUPS: Final = 100


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """A group on one partition."""

    topic: str
    partition: int
    offset: int
    records: int


@dataclass(frozen=True, slots=True)
class GroupLag:
    """A group at one time."""

    group: str
    records: int
    most: int
    """Of the partition that is furthest behind."""
    seconds: float | None
    """None: not known yet."""
    members: int | None
    """None: the group is not in memory, and so has none."""
    partitions: tuple[PartitionLag, ...]


@dataclass(frozen=True, slots=True)
class Looked:
    """What one look at all groups has found."""

    groups: int = 0
    told: tuple[GroupLag, ...] = ()

    @property
    def dropped(self) -> int:
        """Groups that are not told one by one."""
        return self.groups - len(self.told)


class GroupMetrics:
    """Of one node."""

    def __init__(
        self, *, runtime: Runtime, catalog: Catalog, coordination: Coordination, states: PartitionStates
    ) -> None:
        self._runtime = runtime
        self._catalog = catalog
        self._coordination = coordination
        self._states = states
        self._history = LagHistory()
        self.looked: Looked | None = None
        """None: this node does not coordinate groups, or has not looked at them yet."""

    def start(self) -> None:
        """Look from now on, for as long as the node runs."""
        self._runtime.spawn(self._look_on())

    def readings(self) -> Iterator[Reading]:
        """What `/metrics` tells of groups."""
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
        """Look at all groups, now."""
        if not self._coordination.is_here:
            self.looked = None
            return
        service = self._coordination.present
        names = sorted(name for name, _, _ in await service.listing())
        members = service.member_counts()
        found: list[GroupLag] = []
        keys: set[Key] = set()
        for first in range(0, len(names), AT_ONCE):
            some = names[first : first + AT_ONCE]
            cursors = await self._catalog.query(lambda reader, some=some: _cursors_of(reader, some))  # type: ignore[misc]
            ends = await self._states.ends((row.topic_id, row.partition) for rows in cursors for row in rows)
            now = self._runtime.loop.time()
            for key, end in ends.items():
                self._history.note(key, end, now=now)
            keys |= ends.keys()
            found += [
                self._lag(name, rows, ends, members.get(name), now=now)
                for name, rows in zip(some, cursors, strict=True)
            ]
            found = furthest_behind(found)
        self._history.forget_others(keys)
        self.looked = Looked(len(names), tuple(found))

    def _lag(
        self,
        name: str,
        rows: Sequence[CursorRow],
        ends: Mapping[Key, int],
        members: int | None,
        *,
        now: float,
    ) -> GroupLag:
        partitions = []
        ages = []
        for row in rows:
            key = (row.topic_id, row.partition)
            records = max(0, ends.get(key, row.offset) - row.offset)
            partitions.append(PartitionLag(shown_name(row.stream, row.name), row.partition, row.offset, records))
            ages.append(0.0 if not records else self._history.age_s(key, row.offset, now=now))
        known = [age for age in ages if age is not None]
        return GroupLag(
            group=name,
            records=sum(each.records for each in partitions),
            most=max((each.records for each in partitions), default=0),
            seconds=max(known, default=0.0) if known or not ages else None,
            members=members,
            partitions=tuple(partitions),
        )

    async def _look_on(self) -> None:
        while True:
            began = self._runtime.loop.time()
            try:
                await self.look()
            except HeadraceError as error:  # the catalog, or who coordinates, changes: the next look may find them
                self.looked = None
                log.debug("groups could not be looked at", reason=str(error))
            except Exception:
                self.looked = None
                log.exception("looking at groups went wrong")
            took = self._runtime.loop.time() - began
            await asyncio.sleep(max(LOOK_S, SHARE * took))


def shown_name(stream: str, topic: str) -> str:
    """A topic's name as clients of its stream use it: with the stream, but for the default one."""
    return topic if stream == DEFAULT_STREAM else f"{stream}:{topic}"


def furthest_behind(found: Sequence[GroupLag]) -> list[GroupLag]:
    """Those that are told one by one."""
    return sorted(found, key=lambda each: (-each.records, each.group))[:MOST_GROUPS]


def _cursors_of(reader: Reader, groups: Sequence[str]) -> list[list[CursorRow]]:
    """[blocking]"""
    return [reader.groups.cursors(group) for group in groups]

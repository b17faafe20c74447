"""Failover of topics' homes to this cluster: agreed with the present home, or by force.

Agreed: the present home is demoted (`home.cede`: from then on it takes no writes, so the ends of its partitions are
final), this cluster is promoted and takes over the histories, the home is applied to the partitions, missing records
are still copied, and writes are accepted from the offset at which the new home begins. Each step may be repeated, and
checks the present state when the failover is requested again. After a crash the failover continues by itself, since the
topic syncer of the link finds the higher home at the source.

By force: this cluster is promoted to the next home epoch, from where its partitions end. Records that the former home
has beyond that no longer belong to the history: they are quarantined wherever they are, also at the former home once
it is back.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from typing import Any, Final, NamedTuple

import structlog

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.base.ids import Home, Millis, Offset
from headrace.catalog.catalog import Catalog
from headrace.catalog.committed_offsets import CommittedOffset, CopyOffsets
from headrace.catalog.homes import HomeChange, SetHome
from headrace.catalog.link_config import matches
from headrace.catalog.reader import Reader
from headrace.catalog.rows import PAUSED, CommittedOffsetRow, LinkRow, TopicRow
from headrace.links.source.source import NOT_READY, Demoted, Source, SourceCommittedOffset, TopicPartition
from headrace.links.topics.committed_offsets import copied, is_newer, stored_here
from headrace.links.topics.topic_apply import TopicApplier
from headrace.links.topics.topic_plan import DIVERGED
from headrace.partitions.home_check import home_of
from headrace.partitions.lookups import now
from headrace.partitions.partition_states import PartitionStates

__all__ = ["Failover", "Moved"]

log = structlog.get_logger(__name__)

PAGE: Final = 1_000
DEMOTED_AT_ONCE: Final = 500
APPLY_WAIT_S: Final = 60.0
"""How long to wait until homes have moved and partitions are settled for them, in seconds."""
CAUGHT_UP_S: Final = 120.0
"""How long to wait until the copies have what the former home had, in seconds."""
COMMITTED_OFFSETS_S: Final = 10.0
"""How long to wait until the former home's group coordinators are ready to return committed offsets, in seconds."""
LOOK_S: Final = 0.05


class Moved(NamedTuple):
    """The outcome for one topic."""

    topic: str
    home: Home
    moved: bool
    not_replicated: int | None = None
    error: str | None = None

    def shown(self) -> dict[str, Any]:
        """As a JSON object for the answer of the admin call."""
        return {
            "topic": self.topic,
            "home": self.home.cluster,
            "counter": self.home.counter,
            "moved": self.moved,
            "not_replicated": self.not_replicated,
            "error": self.error,
        }


class Failover:
    """Moves homes of topics to this cluster."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        states: PartitionStates,
        applier: TopicApplier,
        own_cluster: str,
        links: Callable[[str], Awaitable[Sequence[LinkRow]]],
        source: Callable[[LinkRow], Source],
        behind: Callable[[str], Awaitable[Callable[[bytes], int | None]]],
    ) -> None:
        """`links` returns a stream's links; `source` opens a link's source, which this object closes. `behind` returns
        for a stream a function from topic id to the number of records known to be missing here; None if it is not
        known."""
        self._catalog = catalog
        self._states = states
        self._applier = applier
        self._own = own_cluster
        self._links = links
        self._source = source
        self._behind = behind

    async def move_here(self, stream: str, topics: Sequence[str] | None, *, force: bool) -> list[dict[str, Any]]:
        """Move the homes of a stream's topics, all or those named, to this cluster; returns the outcome for each.

        Raises KafkaError for a stream that does not exist.
        """
        rows, unknown = await self._rows(stream, topics)
        moved = [
            Moved(f"{stream}:{name}", Home(0, ""), moved=False, error=f"there is no topic {stream}:{name}")
            for name in unknown
        ]
        moved += await (self._force(stream, rows) if force else self._agree(stream, rows))
        return [each.shown() for each in moved]

    async def _rows(self, stream: str, names: Sequence[str] | None) -> tuple[list[TopicRow], list[str]]:
        await self._catalog.catch_up()  # another node may have created the stream or a topic a moment ago
        if await self._catalog.query(lambda reader: reader.streams.at(stream)) is None:
            raise KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no stream {stream}")
        if names is not None:
            found = await self._catalog.query(lambda reader: reader.topics.named(stream, names))
            return list(found.values()), [name for name in dict.fromkeys(names) if name not in found]
        rows: list[TopicRow] = []
        after = ""
        while True:
            page = await self._catalog.query(partial(_page, stream=stream, after=after))
            rows += [row for row in page if not row.name.endswith(DIVERGED)]
            if len(page) < PAGE:
                return rows, []
            after = page[-1].name

    # --- by force

    async def _force(self, stream: str, rows: Sequence[TopicRow]) -> list[Moved]:
        behind = await self._behind(stream)
        answers: list[Moved] = []
        wanted: list[TopicRow] = []
        taken: list[bytes] = []
        for row in rows:
            home = home_of(row, self._own)
            # A home that moved here but is not complete yet is taken again by force, from where its partitions end.
            if home.cluster == self._own and await self._is_complete([row]):
                answers.append(Moved(row.full_name, home, moved=False, not_replicated=None))
            else:
                wanted.append(row)
        for start in range(0, len(wanted), PAGE):
            some = wanted[start : start + PAGE]
            homes = [home_of(row, self._own).taken_by(self._own) for row in some]
            items = [HomeChange(row.topic_id, *home, None) for row, home in zip(some, homes, strict=True)]
            codes = await self._catalog.submit(SetHome(items=items))
            for row, home, code in zip(some, homes, codes, strict=True):
                if code is Code.NONE:
                    taken.append(row.topic_id)
                    answers.append(Moved(row.full_name, home, moved=True, not_replicated=behind(row.topic_id)))
                else:
                    answers.append(
                        Moved(
                            row.full_name,
                            home_of(row, self._own),
                            moved=False,
                            error=f"its home has just changed: {code.name}",
                        )
                    )
        log.warning("homes were taken by force", stream=stream, topics=len(taken))
        late = await self._until(self._unsettled, taken, APPLY_WAIT_S)
        return [
            each._replace(error="its partitions are not rolled yet: it will take writes once they are")
            if each.topic in late
            else each
            for each in answers
        ]

    # --- agreed

    async def _agree(self, stream: str, rows: Sequence[TopicRow]) -> list[Moved]:
        answers: list[Moved] = []
        ours = [row for row in rows if home_of(row, self._own).cluster == self._own]
        late = await self._until(self._incomplete, [row.topic_id for row in ours if row.home is not None], 0.0)
        for row in ours:
            error = f"{_MOVES}" if row.full_name in late else None
            answers.append(Moved(row.full_name, home_of(row, self._own), moved=False, error=error))
        links = {link.name: link for link in await self._links(stream)}
        by_link: dict[str, list[TopicRow]] = {}
        for row in rows:
            home = home_of(row, self._own)
            if home.cluster == self._own:
                continue
            try:
                by_link.setdefault(_link_to(home.cluster, row, links.values()).name, []).append(row)
            except KafkaError as error:
                answers.append(Moved(row.full_name, home, moved=False, error=str(error)))
        for name, theirs in by_link.items():
            link = links[name]
            source = self._source(link)
            try:
                answers += await self._agree_with(source, link, theirs)
            finally:
                await source.close()
        return answers

    async def _agree_with(self, source: Source, link: LinkRow, rows: Sequence[TopicRow]) -> list[Moved]:
        refused: dict[bytes, str] = {}
        given: set[bytes] = set()
        committed_offsets: list[tuple[SourceCommittedOffset, CommittedOffsetRow | None]] = []
        unheard: str | None = None
        for start in range(0, len(rows), DEMOTED_AT_ONCE):
            ids = [row.topic_id for row in rows[start : start + DEMOTED_AT_ONCE]]
            demoted, faults = await self._demote(source, ids)
            given |= demoted.keys()
            if start + DEMOTED_AT_ONCE >= len(rows):
                committed_offsets, unheard = await self._newer_committed_offsets(source, given)
            refused |= faults
            refused |= await self._promote(source, demoted)
        moved = [row.topic_id for row in rows if row.topic_id not in refused]
        late = await self._until(self._unsettled, moved, APPLY_WAIT_S)
        late |= await self._until(self._incomplete, moved, CAUGHT_UP_S)
        waiting = await self._bring_committed_offsets(committed_offsets, set(moved))
        present = await self._catalog.query(lambda reader: reader.topics.by_ids([row.topic_id for row in rows]))
        log.info("homes moved here", source=source.name, link=link.name, topics=len(moved))
        return [
            Moved(
                topic=row.full_name,
                home=home_of(present.get(row.topic_id, row), self._own),
                moved=row.topic_id not in refused,
                not_replicated=0 if row.topic_id not in refused else None,
                error=refused.get(row.topic_id) or _remaining_problem(row, late=late, waiting=waiting, unheard=unheard),
            )
            for row in rows
        ]

    async def _demote(self, source: Source, ids: Sequence[bytes]) -> tuple[dict[bytes, Demoted], dict[bytes, str]]:
        """Ask the present home to give topics up. Returns its answers for those that it gives up, and by topic the
        reasons why it keeps the others."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + APPLY_WAIT_S
        asked = list(ids)
        demoted: dict[bytes, Demoted] = {}
        refused: dict[bytes, str] = {}
        while asked:
            try:
                answers = await source.demote(asked, to=self._own)
            except HeadraceError as error:
                # The demotion may have happened: the topic syncer finds out, or the next request does.
                reason = f"its home does not answer ({error}); ask again, or take the home with --force"
                return demoted, refused | dict.fromkeys(asked, reason)
            again: list[bytes] = []
            for answer in answers:
                if answer.code is Code.LEADER_NOT_AVAILABLE and loop.time() < deadline:
                    again.append(answer.topic_id)
                elif answer.code is Code.NONE:
                    demoted[answer.topic_id] = answer
                else:
                    refused[answer.topic_id] = answer.message or answer.code.name
            if again:
                await asyncio.sleep(LOOK_S)
            asked = again
        return demoted, refused

    async def _promote(self, source: Source, demoted: Mapping[bytes, Demoted]) -> dict[bytes, str]:
        """Make this cluster the home of topics that their former home gave up, with their histories. Returns by topic
        why that is not possible yet."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + APPLY_WAIT_S
        left = list(demoted)
        late: dict[bytes, str] = {}
        while left:
            try:
                topics = await source.topics_by_id(left)
                ours = [each for each in topics if each.home.cluster == self._own and each.home.counter > 0]
                theirs = [each for each in topics if each.home.cluster != self._own]
                late |= {
                    each.topic_id: f"meanwhile its home has moved on to cluster {each.home.cluster}"
                    for each in theirs
                    if each.home > demoted[each.topic_id].home
                }
                missing = set(left) - {each.topic_id for each in topics}
                late |= dict.fromkeys(missing, "its former home has deleted it; take the home with --force")
                again = [each.topic_id for each in theirs if each.home.counter > 0 and each.topic_id not in late]
                again += await self._applier.apply_homes(source, ours)
                # A source that knows no homes has only reported its ends: this cluster becomes home once it has reached
                # them.
                ended = {each.topic_id: each.home for each in theirs if each.home.counter == 0}
                if ended:
                    late |= await self._begin_after({each: demoted[each] for each in ended}, ended)
                left = again
            except HeadraceError as error:
                log.info(
                    "homes of topics could not be taken over from the source yet", source=source.name, reason=str(error)
                )
            if left and loop.time() >= deadline:
                return late | dict.fromkeys(
                    left, "its former home gave it up; this cluster becomes its home as soon as the former home answers"
                )
            if left:
                await asyncio.sleep(LOOK_S)
        return late

    async def _begin_after(self, demoted: Mapping[bytes, Demoted], homes: Mapping[bytes, Home]) -> dict[bytes, str]:
        """Become home of topics once this cluster has everything that the former home had when it was demoted. Returns
        by topic why that is not possible yet."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CAUGHT_UP_S
        left = set(demoted)
        while left:
            wanted = {(each, index): end for each in left for index, end in enumerate(demoted[each].ends)}
            reached = await self._states.ends(wanted)
            short = {at[0] for at, end in wanted.items() if reached.get(at, -1) < end}
            ready = sorted(left - short)
            if ready:
                items = [HomeChange(each, *homes[each].given_to(self._own), None) for each in ready]
                await self._catalog.submit(SetHome(items=items))
            left = short
            if left and loop.time() >= deadline:
                return dict.fromkeys(left, "the copy is not complete yet; ask again when the link has caught up")
            if left:
                await asyncio.sleep(LOOK_S)
        return {}

    async def _newer_committed_offsets(
        self, source: Source, topics: Set[bytes]
    ) -> tuple[list[tuple[SourceCommittedOffset, CommittedOffsetRow | None]], str | None]:
        """The former home's committed offsets that are newer than those here, each with the one stored here; and the
        reason why they may be incomplete, or None."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + COMMITTED_OFFSETS_S
        found: list[tuple[SourceCommittedOffset, CommittedOffsetRow | None]] = []
        after = None
        while topics:
            try:
                page = await source.committed_offsets(after=after, limit=PAGE)
            except HeadraceError as error:
                if error.code in NOT_READY and loop.time() < deadline:
                    await asyncio.sleep(LOOK_S)
                    continue
                log.warning(
                    "the former home's newest committed offsets may be missing", source=source.name, reason=str(error)
                )
                return found, str(error)
            wanted = [each for each in page.committed_offsets if each.key.topic_id in topics]
            groups = {each.key.group for each in wanted}
            here = await self._catalog.query(partial(stored_here, groups=groups))
            found += [(each, here.get(each.key)) for each in wanted if is_newer(each, here.get(each.key))]
            after = page.after
            if after is None:
                break
        return found, None

    async def _bring_committed_offsets(
        self, committed_offsets: Sequence[tuple[SourceCommittedOffset, CommittedOffsetRow | None]], topics: Set[bytes]
    ) -> set[bytes]:
        """Store the committed offsets whose records are here, unless the group has committed here meanwhile. Returns
        the topics of those whose records are not here yet."""
        wanted = [(each, row) for each, row in committed_offsets if each.key.topic_id in topics]
        reached = await self._states.ends(((each.key.topic_id, each.key.partition) for each, _ in wanted))
        by_group: dict[str, list[CommittedOffset]] = {}
        left: set[bytes] = set()
        for each, row in wanted:
            if each.offset > reached.get((each.key.topic_id, each.key.partition), -1):
                left.add(each.key.topic_id)
                continue
            stands = (Offset(-1), Millis(-1)) if row is None else (row.offset, row.committed_at)
            by_group.setdefault(each.key.group, []).append(copied(each, expected=stands))
        for group, items in by_group.items():
            command = CopyOffsets(group=group, items=items, now=now(), cluster=self._own, moved=True)
            await self._catalog.submit(command)
        return left

    # --- waiting

    async def _until(
        self, missing: Callable[[Sequence[bytes]], Awaitable[list[TopicRow]]], ids: Sequence[bytes], timeout_s: float
    ) -> set[str]:
        """Wait until nothing is missing from these topics; returns the full names of those that still lack
        something."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        left = list(ids)
        late: set[str] = set()
        while left:
            rows = await missing(left)
            left = [row.topic_id for row in rows]
            late = {row.full_name for row in rows}
            if left and loop.time() >= deadline:
                break
            if left:
                await asyncio.sleep(LOOK_S)
        return late

    async def _unsettled(self, ids: Sequence[bytes]) -> list[TopicRow]:
        return await self._catalog.query(partial(_unsettled, ids=ids))

    async def _incomplete(self, ids: Sequence[bytes]) -> list[TopicRow]:
        """The topics at home here that lack records of their former home."""
        rows = await self._catalog.query(lambda reader: list(reader.topics.by_ids(ids).values()))
        starts = await self._catalog.query(partial(_starts, rows=rows))
        reached = await self._states.ends(starts)
        short = {at.topic_id for at, start in starts.items() if reached.get(at, -1) < start}
        return [row for row in rows if row.topic_id in short]

    async def _is_complete(self, rows: Sequence[TopicRow]) -> bool:
        ids = [row.topic_id for row in rows if row.home is not None]
        return not ids or not (await self._unsettled(ids) or await self._incomplete(ids))


_MOVES: Final = "its home is here, and it takes writes once all records of its former home have arrived"
_ABOVE: Final = "they lie beyond the records that have arrived so far"


def _remaining_problem(row: TopicRow, *, late: Set[str], waiting: Set[bytes], unheard: str | None) -> str | None:
    """What a topic that is home here now still lacks; None: nothing. `late`: full names of topics that lack records,
    `waiting`: topics with committed offsets above the copies' ends, `unheard`: why committed offsets may be missing."""
    is_late = row.full_name in late
    told = _MOVES if is_late else "it is home here"
    why = _ABOVE if is_late and row.topic_id in waiting else unheard
    if why is None:
        return told if is_late else None
    return f"{told}; the offsets that groups committed last at its former home may be missing ({why})"


def _link_to(home: str, row: TopicRow, links: Iterable[LinkRow]) -> LinkRow:
    """The running link that copies a topic from its home, needed for the last records. Raises KafkaError if there is
    none."""
    bringing = [link for link in links if link.config.source_cluster == home and matches(link.config.topics, row.name)]
    running = next((link for link in bringing if link.state != PAUSED), None)
    if running is not None:
        return running
    if bringing:
        raise KafkaError(
            Code.INVALID_REQUEST,
            f"link {bringing[0].name}, which copies it from its home, is paused: `headrace link resume` first",
        )
    raise KafkaError(
        Code.INVALID_REQUEST,
        f"no link of {row.stream} copies it from its home, cluster {home}: create one, or let the --topics of an "
        "existing one match it, or take the home with --force, without the records that were not replicated",
    )


def _page(reader: Reader, *, stream: str, after: str) -> list[TopicRow]:
    """[blocking] A page of a stream's topics, after the name `after`."""
    return reader.topics.page(stream, after=after, limit=PAGE)


def _unsettled(reader: Reader, *, ids: Sequence[bytes]) -> list[TopicRow]:
    """[blocking] The topics with at least one partition that is not settled for the topic's home."""
    rows = [row for row in reader.topics.by_ids(ids).values() if row.home is not None and row.home.counter > 0]
    settled = reader.homes.settled([row.number for row in rows])
    return [row for row in rows if any(settled.get((row.number, index)) != row.home for index in range(row.partitions))]


def _starts(reader: Reader, *, rows: Sequence[TopicRow]) -> dict[TopicPartition, int]:
    """[blocking] The offset at which the present home of each partition begins."""
    histories = reader.homes.histories([row.number for row in rows])
    return {
        TopicPartition(row.topic_id, index): start.offset
        for row in rows
        for index in range(row.partitions)
        for start in histories.get((row.number, index), ())
        if row.home is not None and start[:2] == row.home
    }

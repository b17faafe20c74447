"""Copies consumer groups' committed offsets of one link: each once the records below it are committed here, and no
earlier.

A home's commits win over those made at a copy: a commit that the home's own feed reports is copied whatever is stored
here. When all committed offsets are scanned, or they arrive by way of another copy, an offset that was committed here
later stays (a copied one keeps the time that it has at its home). So a group that continues at a copy while the home is
away is not set back when the home returns, and of two links that copy an offset the one that is behind does not undo
it. Apache Kafka reports no times: its committed offsets win if they differ from those at this link's last look. Without
a last look, since the link has just started, or after a refused copy (the group had members here), the higher of the
two offsets stays.

Committed offsets of topics whose home is here are never touched, nor those of a group that has members here; the
catalog decides all of this when it applies the command.

A group whose committed offsets are copied has no members here, so they would expire, however active the group is at the
home. So a group whose offsets the source still reports is renewed once a day.

Level-triggered like the topic syncer: what is lost in a crash, or dropped when too many are held, is found by the next
scan.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import structlog

from headrace.base.errors import Code
from headrace.base.ids import LeaderEpoch, Millis, Offset
from headrace.catalog.catalog import Catalog
from headrace.catalog.committed_offsets import CommittedOffset, CopyOffsets
from headrace.catalog.reader import Reader
from headrace.catalog.rows import CommittedOffsetRow, TopicRow
from headrace.links.source.source import CommittedOffsetKey, Source, SourceCommittedOffset
from headrace.partitions.home_check import home_of
from headrace.partitions.lookups import now
from headrace.partitions.partition_states import PartitionStates

__all__ = ["CommittedOffsets", "copied", "is_newer", "stored_here"]

log = structlog.get_logger(__name__)

PAGE: Final = 2_000
SWEEP_S: Final = 600.0
LOOK_S: Final = 0.5
"""Interval at which held-back committed offsets are checked, in seconds."""
MAX_HELD: Final = 100_000
MAX_CHANGED: Final = 100_000
MAX_SEEN: Final = 100_000
FORGOTTEN_S: Final = 120.0
"""An offset whose topic has been missing here for this long, in seconds, is dropped and left to the next scan."""
SWEPT_AGAIN_S: Final = 30.0
RENEWED_MS: Final = 24 * 3600 * 1000
"""How often a group is renewed, in milliseconds: far less than the lifetime of committed offsets of an empty group
(storage/expiry.py)."""
GROUPS_AT_ONCE: Final = 64


class _Held(NamedTuple):
    committed_offset: SourceCommittedOffset
    told: bool
    """Whether the source reported it as it was committed; if not, a scan found it."""
    since: float


class CommittedOffsets:
    """Copies the committed offsets of one link, on the node that leads the catalog."""

    def __init__(
        self,
        source: Source,
        *,
        catalog: Catalog,
        states: PartitionStates,
        stream: str,
        own_cluster: str,
        on_caught_up: Callable[[], None],
        copies_home: Callable[[str], bool] = lambda _home: True,
    ) -> None:
        """`on_caught_up` is called whenever all that is due has been done. `copies_home`: whether this link is the one
        that copies the committed offsets of topics with that home."""
        self._source = source
        self._catalog = catalog
        self._states = states
        self._stream = stream
        self._own = own_cluster
        self._on_caught_up = on_caught_up
        self._copies_home = copies_home
        self._source_cluster = ""
        self._changed: dict[CommittedOffsetKey, None] = {}
        self._held: dict[CommittedOffsetKey, _Held] = {}
        self._seen: dict[CommittedOffsetKey, tuple[Offset, str]] = {}
        """The source's last committed offsets without a time that were copied, were refused, or changed nothing."""
        self._refused: set[CommittedOffsetKey] = set()
        """Those of `_seen` that were refused, as their groups had members here. The members may have committed since,
        so such an offset is copied only if it is above the one stored here."""
        self._sweep_at = 0.0
        self._wake = asyncio.Event()

    @property
    def held(self) -> int:
        """How many committed offsets wait for their records."""
        return len(self._held)

    def greeted(self, source_cluster: str) -> None:
        """Record the source's cluster id."""
        self._source_cluster = source_cluster

    def changed(self, keys: Iterable[CommittedOffsetKey]) -> None:
        """Handle that these were committed, or deleted, at the source."""
        self._changed.update(dict.fromkeys(keys))
        if len(self._changed) > MAX_CHANGED:
            self._changed.clear()
            self.look_at_all()
        self._wake.set()

    def look_at_all(self) -> None:
        """Scan everything, as committed offsets may have changed without being reported."""
        self._sweep_at = 0.0
        self._wake.set()

    async def run(self) -> None:
        """Copy changes until the first error. Raises HeadraceError."""
        while True:
            self._wake.clear()  # first, so that a change reported meanwhile wakes it again
            at = asyncio.get_running_loop().time()
            if at >= self._sweep_at:
                self._sweep_at = at + SWEEP_S  # set before the scan: another one may be requested meanwhile
                try:
                    await self._sweep()
                except BaseException:
                    self.look_at_all()
                    raise
            while self._changed:
                keys = list(self._changed)[:PAGE]
                for key in keys:  # before the request: a key that changes meanwhile must be queued again
                    del self._changed[key]
                try:
                    found = await self._source.committed_offsets_of(keys)
                except BaseException:
                    self._changed.update(dict.fromkeys(keys))
                    raise
                self._hold(found, told=True)
            await self._release()
            self._on_caught_up()
            wait_s = LOOK_S if self._held else max(0.0, self._sweep_at - asyncio.get_running_loop().time())
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _sweep(self) -> None:
        after: CommittedOffsetKey | None = None
        while True:
            page = await self._source.committed_offsets(after=after, limit=PAGE)
            self._hold(page.committed_offsets, told=False)
            await self._release()
            after = page.after
            if after is None:
                return

    def _hold(self, committed_offsets: Iterable[SourceCommittedOffset], *, told: bool) -> None:
        at = asyncio.get_running_loop().time()
        for committed_offset in committed_offsets:
            known = self._held.get(committed_offset.key)
            if known is None and len(self._held) >= MAX_HELD:
                self._sweep_at = min(self._sweep_at, at + SWEPT_AGAIN_S)
                return
            self._held[committed_offset.key] = _Held(committed_offset, told or (known is not None and known.told), at)

    # --- copying

    async def _release(self) -> None:
        """Copy those whose records are here."""
        keys = list(self._held)
        for start in range(0, len(keys), PAGE):
            await self._release_some([self._held[key] for key in keys[start : start + PAGE] if key in self._held])

    async def _release_some(self, held: Sequence[_Held]) -> None:
        ids = {each.committed_offset.key.topic_id for each in held}
        groups = {each.committed_offset.key.group for each in held}
        rows, here, old = await self._catalog.query(
            lambda reader: _look(reader, ids, groups, before=Millis(now() - RENEWED_MS))
        )
        wanted: list[_Held] = []
        alive: set[str] = set()
        older_too: set[CommittedOffsetKey] = set()
        for each in held:
            row = rows.get(each.committed_offset.key.topic_id)
            if row is None or row.partitions <= each.committed_offset.key.partition:
                if asyncio.get_running_loop().time() - each.since > FORGOTTEN_S:
                    self._drop(each)
                continue
            home = home_of(row, self._own).cluster
            if row.stream != self._stream or home == self._own or not self._copies_home(home):
                self._drop(each)
                continue
            alive.add(each.committed_offset.key.group)
            wins = home == self._source_cluster and self._is_news(each)
            if not self._is_due(each.committed_offset, here.get(each.committed_offset.key), wins=wins):
                self._finish(each)
                continue
            wanted.append(each)
            if wins:
                older_too.add(each.committed_offset.key)
        await self._renew(alive & old)
        end_of = await self._states.ends(
            (each.committed_offset.key.topic_id, each.committed_offset.key.partition) for each in wanted
        )
        by_group: dict[tuple[str, bool], list[_Held]] = {}
        for each in wanted:
            end = end_of.get((each.committed_offset.key.topic_id, each.committed_offset.key.partition))
            if end is not None and each.committed_offset.offset <= end:
                by_group.setdefault(
                    (each.committed_offset.key.group, each.committed_offset.key not in older_too), []
                ).append(each)
        parts = list(by_group.items())
        for start in range(0, len(parts), GROUPS_AT_ONCE):
            some = parts[start : start + GROUPS_AT_ONCE]
            await asyncio.gather(
                *(self._copy(group, part, only_newer=only_newer) for (group, only_newer), part in some)
            )

    def _is_news(self, held: _Held) -> bool:
        """Whether it was committed at the source since this link last looked."""
        committed_offset, seen = held.committed_offset, self._seen.get(held.committed_offset.key)
        return held.told if seen is None else seen != (committed_offset.offset, committed_offset.metadata)

    def _is_due(self, committed_offset: SourceCommittedOffset, here: CommittedOffsetRow | None, *, wins: bool) -> bool:
        if here is None:
            return True
        if (here.offset, here.metadata) == (committed_offset.offset, committed_offset.metadata):
            return False
        known = committed_offset.key in self._seen and committed_offset.key not in self._refused
        return wins or (not known and is_newer(committed_offset, here))

    async def _renew(self, groups: Iterable[str]) -> None:
        commands = [CopyOffsets(group=group, items=[], now=now(), cluster=self._own, alive=True) for group in groups]
        for start in range(0, len(commands), GROUPS_AT_ONCE):
            await asyncio.gather(*map(self._catalog.submit, commands[start : start + GROUPS_AT_ONCE]))

    async def _copy(self, group: str, held: Sequence[_Held], *, only_newer: bool) -> None:
        items = [copied(each.committed_offset) for each in held]
        command = CopyOffsets(group=group, items=items, now=now(), cluster=self._own, only_newer=only_newer)
        codes = await self._catalog.submit(command)
        for each, code in zip(held, codes, strict=True):
            if code is not Code.LEADER_NOT_AVAILABLE:
                self._finish(each, refused=code is not Code.NONE)

    def _finish(self, held: _Held, *, refused: bool = False) -> None:
        """Do nothing more about the source's current value until that changes; if it was refused, until the next
        scan."""
        committed_offset = held.committed_offset
        if committed_offset.committed_ms < 0:
            if len(self._seen) >= MAX_SEEN:
                self._seen.clear()
                self._refused.clear()
            self._seen[committed_offset.key] = (committed_offset.offset, committed_offset.metadata)
            if refused:
                self._refused.add(committed_offset.key)
            else:
                self._refused.discard(committed_offset.key)
        self._drop(held)

    def _drop(self, held: _Held) -> None:
        """Stop holding it, unless a newer one arrived meanwhile."""
        if self._held.get(held.committed_offset.key) is held:
            del self._held[held.committed_offset.key]


def copied(
    committed_offset: SourceCommittedOffset, *, expected: tuple[Offset, Millis] | None = None
) -> CommittedOffset:
    """A source's committed offset as an item of a catalog command."""
    return CommittedOffset(
        topic_id=committed_offset.key.topic_id,
        partition=committed_offset.key.partition,
        offset=committed_offset.offset,
        leader_epoch=LeaderEpoch(-1),  # another cluster's epochs mean nothing here
        metadata=committed_offset.metadata,
        committed_ms=committed_offset.committed_ms,
        expected=expected,
    )


def is_newer(committed_offset: SourceCommittedOffset, here: CommittedOffsetRow | None) -> bool:
    """Whether it is newer than the one stored here, by their times, or by their offsets if the source reports no
    time."""
    if here is None:
        return True
    if committed_offset.committed_ms < 0:
        return committed_offset.offset > here.offset
    return committed_offset.committed_ms > here.committed_at


def _look(
    reader: Reader, ids: set[bytes], groups: set[str], *, before: Millis
) -> tuple[Mapping[bytes, TopicRow], dict[CommittedOffsetKey, CommittedOffsetRow], set[str]]:
    """[blocking] The topics, the groups' committed offsets here, and the groups that will expire: those without members
    here that have not changed since `before`.
    """
    found = {name: reader.groups.named(name) for name in groups}
    old = {name for name, row in found.items() if row is not None and not row.member_ids and row.changed < before}
    return reader.topics.by_ids(ids), stored_here(reader, groups), old


def stored_here(reader: Reader, groups: Iterable[str]) -> dict[CommittedOffsetKey, CommittedOffsetRow]:
    """[blocking] The groups' committed offsets in this cluster."""
    return {
        CommittedOffsetKey(group, row.topic_id, row.partition): row
        for group in groups
        for row in reader.groups.committed_offsets(group)
    }

"""The bookkeeping of chunk garbage collection: what it still has to search for, and where it has searched. Pure.

For each container with a replica on this node: the partitionlets that lost records and have not been searched for,
which of its closed chunks have been searched, and whether its records arrived as they were written (the replica was up
to date), not later, while it caught up. So the work is proportional to what died, never to what a node holds.

A chunk that closes need not be scanned if all of it arrived as it was written: deaths since then are known. Dead
partitionlets are also searched for in younger chunks for a while (`recent`), since nodes hear of a death and receive
the last records of the dead partitionlet at different times. If it is not known what died (`all_died`), or too many
partitionlets died to be listed, all chunks are scanned.
"""

from array import array
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from headrace.base.errors import CorruptLog
from headrace.base.ids import ContainerId, PartitionletId, Position

MAX_SOUGHT: Final = 1 << 16
"""Partitionlets of one container that are searched for individually; if more died, all of its chunks are scanned."""
RECENT_S: Final = 600.0
RECENT_CHUNKS: Final = 2
"""Dead partitionlets are also searched for in the chunks that close next: in at least this many, and for at least
`RECENT_S` seconds."""
_VERSION: Final = 1

Sought = frozenset[PartitionletId] | None
"""Partitionlets that lost records; None: too many to list."""
NOTHING: Final[frozenset[PartitionletId]] = frozenset()


def joined(one: Sought, other: Sought) -> Sought:
    """The union of both; None if it is too large to list."""
    if one is None or other is None or len(one) + len(other) > MAX_SOUGHT:
        return None
    return one | other if one and other else one or other


class Kept(NamedTuple):
    """A container's state as stored for the next start. `sought`: the ids as an array's bytes; None: all chunks."""

    container: int
    looked_until: int
    unseen: list[int]
    sought: bytes | None


class _File(NamedTuple):
    version: int
    deaths: int
    containers: list[Kept]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_File).decode


class ContainerDeaths:
    """The state of one replica. `log` identifies it: another replica of the same container has not been searched
    yet."""

    __slots__ = (
        "_current_from",
        "_died_at",
        "_recent_chunks",
        "_records",
        "log",
        "looked_until",
        "open_dead",
        "open_start",
        "recent",
        "sought",
        "unseen",
    )

    def __init__(self, records: "DeadRecords", log: object | None) -> None:
        self._records = records
        self.log = log
        self.looked_until = 0
        """Position up to which closed chunks have been searched, except those in `unseen`."""
        self.unseen: frozenset[int] = frozenset()
        """Starts of chunks that must be scanned as a whole."""
        self.sought: Sought = NOTHING
        """Partitionlets that have not been searched for yet."""
        self.recent: Sought = NOTHING
        """Partitionlets that were searched for in the chunks that were closed at the time."""
        self.open_start = -1
        self.open_dead: int | None = None
        """Dead bytes of the open chunk that begins at `open_start`; None: it has to be scanned."""
        self._current_from: Position | None = None
        """Frames from this position on arrived when they were written; None: frames that arrive now are older."""
        self._died_at = 0.0
        self._recent_chunks = 0
        """Chunks that closed since partitionlets became `recent`."""

    def note_current(self, *, end: Position, current: bool) -> None:
        """Note whether frames beyond `end` arrive when they are written."""
        if not current:
            self._current_from = None
        elif self._current_from is None:
            self._current_from = end

    def is_known(self, start: int) -> bool:
        """Whether all deaths in a chunk that begins at `start` are among the known ones."""
        return self._current_from is not None and start >= self._current_from and self.recent is not None

    def seek(self, partitionlets: Iterable[PartitionletId]) -> None:
        """Search for these partitionlets, which lost records."""
        self.seek_again(frozenset(partitionlets))

    def seek_again(self, sought: Sought) -> None:
        """Search for partitionlets that have not been searched for everywhere."""
        self.sought = joined(self.sought, sought)
        self._records.changed = True

    def seek_all(self) -> None:
        """Scan all chunks, since it is not known what lost records."""
        self.seek_again(None)
        self.open_dead = None

    def take_sought(self, now: float) -> Sought:
        """The partitionlets to search for now; they become `recent`."""
        sought, self.sought = self.sought, NOTHING
        if sought is None or sought:
            self.recent = joined(self.recent, sought)
            self._died_at = now
            self._recent_chunks = 0
            self._records.changed = True
        return sought

    def require_scan(self, start: int) -> None:
        """Note that a closed chunk must be scanned as a whole."""
        self.unseen |= {start}
        self._records.changed = True

    def begin_scan(self, start: int) -> None:
        """Note that a chunk is being scanned."""
        if start in self.unseen:
            self.unseen -= {start}
            self._records.changed = True

    def closed(self, end: int, now: float) -> None:
        """Note that a chunk that has closed was searched, or is registered for a scan."""
        self.looked_until = max(self.looked_until, end)
        self._recent_chunks += 1
        if self._recent_chunks > RECENT_CHUNKS and now >= self._died_at + RECENT_S:
            self.recent = NOTHING
        self._records.changed = True

    def opened(self, start: int) -> None:
        """Note which chunk is open."""
        if start != self.open_start:
            self.open_start = start
            self.open_dead = 0 if self.is_known(start) else None

    def kept(self, container: ContainerId, postponed: Collection[int]) -> Kept:
        """The state to store for the next start."""
        ids = None if self.sought is None else array("q", sorted(self.sought)).tobytes()
        return Kept(container, self.looked_until, sorted(self.unseen.union(postponed)), ids)


class DeadRecords:
    """The state of all containers with a replica on this node."""

    def __init__(self) -> None:
        self._containers: dict[ContainerId, ContainerDeaths] = {}
        self._unclaimed: dict[ContainerId, set[PartitionletId]] = {}
        """Deaths in containers that have not been requested by `of` since: they may have no replica on this node."""
        self.changed = False
        """Whether the state to store for the next start may have changed."""

    def died(self, pairs: "array[int]") -> None:
        """Note that partitionlets lost records. `pairs`: container and partitionlet ids, alternating."""
        found: dict[ContainerId, set[PartitionletId]] = {}
        for at in range(0, len(pairs), 2):
            found.setdefault(ContainerId(pairs[at]), set()).add(PartitionletId(pairs[at + 1]))
        for container, partitionlets in found.items():
            known = self._containers.get(container)
            if known is not None:
                known.seek(partitionlets)
            else:
                self._unclaimed.setdefault(container, set()).update(partitionlets)

    def all_died(self) -> None:
        """Note that any record may have died, in any container."""
        self._unclaimed.clear()
        for each in self._containers.values():
            each.seek_all()

    def of(self, container: ContainerId, log: object) -> ContainerDeaths:
        """The state of the replica with this log; a new one if it is another replica than before."""
        known = self._containers.get(container)
        if known is not None and known.log is None:  # loaded from the previous process
            known.log = log
        if known is None or known.log is not log:
            known = self._containers[container] = ContainerDeaths(self, log)
        if waiting := self._unclaimed.pop(container, None):
            known.seek(waiting)
        return known

    def get(self, container: ContainerId) -> ContainerDeaths | None:
        """The state of a container's replica, if there is any."""
        return self._containers.get(container)

    def keep(self, containers: Collection[ContainerId]) -> None:
        """Forget all containers except these."""
        self._unclaimed.clear()
        for gone in self._containers.keys() - set(containers):
            del self._containers[gone]
            self.changed = True

    # --- over a restart

    def encode(self, deaths: int, postponed: Mapping[ContainerId, Collection[int]]) -> bytes:
        """The state to store for the next start. `deaths`: the tables' count up to which all deaths are included;
        `postponed`: starts of chunks that must be scanned again."""
        kept = [each.kept(id_, postponed.get(id_, ())) for id_, each in sorted(self._containers.items())]
        return _encode(_File(_VERSION, deaths, kept))

    def decode(self, raw: bytes) -> int:
        """Load the state that `encode` returned before the restart; returns its count of deaths. Raises CorruptLog."""
        try:
            file = _decode(raw)
        except msgspec.MsgspecError as error:
            raise CorruptLog(f"the saved state of garbage collection cannot be decoded: {error}") from error
        if file.version != _VERSION:
            raise CorruptLog(f"the saved state of garbage collection was written by version {file.version}")
        for kept in file.containers:
            known = self._containers[ContainerId(kept.container)] = ContainerDeaths(self, None)
            known.looked_until = kept.looked_until
            known.unseen = frozenset(kept.unseen)
            known.sought = None if kept.sought is None else frozenset(map(PartitionletId, array("q", kept.sought)))
        return file.deaths

    def forget(self) -> None:
        """Forget everything."""
        self._containers.clear()
        self._unclaimed.clear()

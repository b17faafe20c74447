"""What garbage collection of chunks still has to look for, and where it has looked: pure bookkeeping.

Of each container with a replica here: the partitionlets that lost records and have not been looked for, which of its
closed chunks have been looked at, and whether what comes into it came when it was written. So the work follows what
died, never what a node holds.

A chunk that closes need not be looked at whole where all of it came when it was written: what died since then is known.
It is looked for in younger chunks for a while too (`recent`), since nodes hear of a death and get the last records of
the dead at different times. Where it is not known what died (`everything`), or too much did to name it, all chunks are
looked at.
"""

from array import array
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from headrace.base.errors import CorruptLog
from headrace.base.ids import ContainerId, PartitionletId, Position

MOST_SOUGHT: Final = 1 << 16
"""Partitionlets of one container that are looked for one by one; of more, all chunks of the container are looked at."""
RECENT_S: Final = 600.0
RECENT_CHUNKS: Final = 2
"""For so long, and in so many chunks that close after it, what died is looked for."""
_VERSION: Final = 1

Sought = frozenset[PartitionletId] | None
"""Partitionlets that lost records; None: too many to name."""
NOTHING: Final[frozenset[PartitionletId]] = frozenset()


def joined(one: Sought, other: Sought) -> Sought:
    """Both."""
    if one is None or other is None or len(one) + len(other) > MOST_SOUGHT:
        return None
    return one | other if one and other else one or other


class Kept(NamedTuple):
    """What a later start needs to know of a container. `sought`: their ids as an array's bytes; None: all chunks."""

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
    """Of one replica. `log`: which it is; another one, of the same container, has been looked at nowhere."""

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
        """Closed chunks that end here or before have been looked at, all but the `unseen`."""
        self.unseen: frozenset[int] = frozenset()
        """Starts of chunks that are to be looked at whole."""
        self.sought: Sought = NOTHING
        """Not looked for yet."""
        self.recent: Sought = NOTHING
        """Looked for in what was closed by then."""
        self.open_start = -1
        self.open_dead: int | None = None
        """Bytes of the chunk that begins there and is open which are known to be dead; None: it has to be looked at."""
        self._current_from: Position | None = None
        """Frames from here on came when they were written; None: what comes now is older."""
        self._died_at = 0.0
        self._recent_chunks = 0
        """Closed since."""

    def goes_on(self, *, end: Position, current: bool) -> None:
        """What comes behind `end` comes when it is written, or not so."""
        if not current:
            self._current_from = None
        elif self._current_from is None:
            self._current_from = end

    def is_known(self, start: int) -> bool:
        """Whether what of a chunk that begins there is dead is among what is known to have died."""
        return self._current_from is not None and start >= self._current_from and self.recent is not None

    def seek(self, partitionlets: Iterable[PartitionletId]) -> None:
        """These lost records."""
        self.seek_again(frozenset(partitionlets))

    def seek_again(self, sought: Sought) -> None:
        """They have not been looked for everywhere."""
        self.sought = joined(self.sought, sought)
        self._records.changed = True

    def seek_all(self) -> None:
        """What lost records is not known."""
        self.seek_again(None)
        self.open_dead = None

    def take_sought(self, now: float) -> Sought:
        """What is to be looked for now; it is recent from now on."""
        sought, self.sought = self.sought, NOTHING
        if sought is None or sought:
            self.recent = joined(self.recent, sought)
            self._died_at = now
            self._recent_chunks = 0
            self._records.changed = True
        return sought

    def look_at(self, start: int) -> None:
        """A closed chunk is to be looked at whole."""
        self.unseen |= {start}
        self._records.changed = True

    def looks_at(self, start: int) -> None:
        """It is being looked at."""
        if start in self.unseen:
            self.unseen -= {start}
            self._records.changed = True

    def closed(self, end: int, now: float) -> None:
        """A chunk that closed has been looked at, or is to be."""
        self.looked_until = max(self.looked_until, end)
        self._recent_chunks += 1
        if self._recent_chunks > RECENT_CHUNKS and now >= self._died_at + RECENT_S:
            self.recent = NOTHING
        self._records.changed = True

    def opened(self, start: int) -> None:
        """This chunk is open."""
        if start != self.open_start:
            self.open_start = start
            self.open_dead = 0 if self.is_known(start) else None

    def kept(self, container: ContainerId, postponed: Collection[int]) -> Kept:
        """For a later start."""
        ids = None if self.sought is None else array("q", sorted(self.sought)).tobytes()
        return Kept(container, self.looked_until, sorted(self.unseen.union(postponed)), ids)


class DeadRecords:
    """Of all containers with a replica here."""

    def __init__(self) -> None:
        self._containers: dict[ContainerId, ContainerDeaths] = {}
        self._unclaimed: dict[ContainerId, set[PartitionletId]] = {}
        """Of containers that nobody has asked for since: they may have no replica here."""
        self.changed = False
        """What a later start needs may be something else than before."""

    def died(self, pairs: "array[int]") -> None:
        """Containers and partitionlets, in turns: these lost records."""
        found: dict[ContainerId, set[PartitionletId]] = {}
        for at in range(0, len(pairs), 2):
            found.setdefault(ContainerId(pairs[at]), set()).add(PartitionletId(pairs[at + 1]))
        for container, partitionlets in found.items():
            known = self._containers.get(container)
            if known is not None:
                known.seek(partitionlets)
            else:
                self._unclaimed.setdefault(container, set()).update(partitionlets)

    def everything(self) -> None:
        """Any record may have died, anywhere."""
        self._unclaimed.clear()
        for each in self._containers.values():
            each.seek_all()

    def of(self, container: ContainerId, log: object) -> ContainerDeaths:
        """Of a replica, whose log this is."""
        known = self._containers.get(container)
        if known is not None and known.log is None:  # of the process before
            known.log = log
        if known is None or known.log is not log:
            known = self._containers[container] = ContainerDeaths(self, log)
        if waiting := self._unclaimed.pop(container, None):
            known.seek(waiting)
        return known

    def get(self, container: ContainerId) -> ContainerDeaths | None:
        """As `of`, if anything is known."""
        return self._containers.get(container)

    def keep(self, containers: Collection[ContainerId]) -> None:
        """There are no other replicas here."""
        self._unclaimed.clear()
        for gone in self._containers.keys() - set(containers):
            del self._containers[gone]
            self.changed = True

    # --- over a restart

    def encode(self, deaths: int, postponed: Mapping[ContainerId, Collection[int]]) -> bytes:
        """What a later start needs. `deaths`: the count of the tables, of which all is told here; `postponed`: starts
        of chunks that are to be looked at again."""
        kept = [each.kept(id_, postponed.get(id_, ())) for id_, each in sorted(self._containers.items())]
        return _encode(_File(_VERSION, deaths, kept))

    def decode(self, raw: bytes) -> int:
        """Take up what `encode` gave before the restart; the count of the tables then. Raises CorruptLog."""
        try:
            file = _decode(raw)
        except msgspec.MsgspecError as error:
            raise CorruptLog(f"what chunks were looked at is not known: {error}") from error
        if file.version != _VERSION:
            raise CorruptLog(f"what chunks were looked at was written by version {file.version}")
        for kept in file.containers:
            known = self._containers[ContainerId(kept.container)] = ContainerDeaths(self, None)
            known.looked_until = kept.looked_until
            known.unseen = frozenset(kept.unseen)
            known.sought = None if kept.sought is None else frozenset(map(PartitionletId, array("q", kept.sought)))
        return file.deaths

    def forget(self) -> None:
        """Nothing is known of any."""
        self._containers.clear()
        self._unclaimed.clear()

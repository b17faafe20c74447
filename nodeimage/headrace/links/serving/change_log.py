"""The latest changes in one stream: each changed thing once, under the serial of its newest change.

Pure. The caller assigns serials in ascending order. Entries that a newer change of the same thing has replaced are
skipped, and removed once they outnumber the valid ones, so that the cost is per change. The log is complete for readers
that have seen everything up to a serial that is not below `floor`.
"""

from bisect import bisect_right
from typing import Final, NamedTuple

PARTITION: Final = 0
TOPIC: Final = 1
COMMITTED_OFFSET: Final = 2

Key = tuple[int, bytes, int] | tuple[int, bytes] | tuple[int, str, bytes, int]
"""(PARTITION, topic id, partition), (TOPIC, topic id) or (COMMITTED_OFFSET, group, topic id, partition)."""
SLACK: Final = 1024
"""How many replaced entries are tolerated in any case."""


class Page(NamedTuple):
    """Changes in the order of their serials. `serial`: the page is complete up to it."""

    changes: list[tuple[Key, int]]
    serial: int


class ChangeLog:
    """The changes of one stream."""

    __slots__ = ("_keys", "_latest", "_serials", "floor")

    def __init__(self, floor: int) -> None:
        """An empty log, complete for readers that have seen everything up to `floor`."""
        self.floor = floor
        self._latest: dict[Key, tuple[int, int]] = {}
        self._serials: list[int] = []
        self._keys: list[Key] = []

    def __len__(self) -> int:
        return len(self._latest)

    def note(self, key: Key, serial: int, value: int = -1) -> None:
        """Record a change of `key`; `serial` must be above all before. `value` is returned with it (a high
        watermark)."""
        self._latest[key] = (serial, value)
        self._serials.append(serial)
        self._keys.append(key)
        if len(self._keys) > 2 * len(self._latest) + SLACK:
            self._keep(self._live())

    def since(self, serial: int, *, newest: int, limit: int, kinds: tuple[int, ...]) -> Page:
        """The first `limit` changes of these kinds after `serial`; `newest` is the last assigned serial."""
        found: list[tuple[Key, int]] = []
        latest = self._latest
        for index in range(bisect_right(self._serials, serial), len(self._serials)):
            key = self._keys[index]
            at, value = latest.get(key, (-1, -1))
            if at == self._serials[index] and key[0] in kinds:
                found.append((key, value))
                if len(found) == limit:
                    return Page(found, at)
        return Page(found, newest)

    def forget(self, count: int) -> None:
        """Remove the oldest `count` changes. Readers that have not seen them all have to start over."""
        live = self._live()
        for key, serial in live[:count]:
            del self._latest[key]
            self.floor = serial
        self._keep(live[count:])

    def _live(self) -> list[tuple[Key, int]]:
        latest = self._latest
        return [
            (key, serial) for key, serial in zip(self._keys, self._serials, strict=True) if latest[key][0] == serial
        ]

    def _keep(self, live: list[tuple[Key, int]]) -> None:
        self._keys = [key for key, _ in live]
        self._serials = [serial for _, serial in live]

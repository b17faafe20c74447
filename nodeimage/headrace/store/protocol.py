"""What a cluster store is: a few thousand records by key, changed by compare and set only.

Everything blocks; call it from a thread. A version is a number that no other record or other state of the same record
ever has, so a record deleted and made again is not mistaken for the old one.

A `put` that raises StoreUnavailable may have landed or may still land: put again until a different version has been
seen, and conclude nothing from reading the record unchanged.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from headrace.base.errors import Code, HeadraceError, StorageFull

T = TypeVar("T")


class VersionConflict(HeadraceError):
    """The record is not at the version expected: another changed, made or deleted it. Read it, decide again."""

    def __init__(self, key: str, *, expected: int | None, found: int | None) -> None:
        super().__init__(f"{key}: expected version {expected}, found {found} (None: no record)")
        self.key = key
        self.expected = expected
        self.found = found


class NotOurs(HeadraceError):
    """A record that somebody else writes: on Kubernetes the cluster's own is the operator's."""


class StoreUnavailable(HeadraceError):
    """The store did not answer, or could not write. Reads and writes of data go on; changes of role wait."""

    code = Code.BROKER_NOT_AVAILABLE


class StoreFull(StoreUnavailable, StorageFull):
    """The store has no room on its disk."""

    code = Code.KAFKA_STORAGE_ERROR


@dataclass(frozen=True, slots=True)
class Versioned:
    """A record's value, with its version."""

    key: str
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Changes:
    """What changed since a revision, each key once, as it is now.

    `whole`: `records` is everything there is, and any other key is gone; so it is when `since` was 0 or too long ago.
    `removed`: the records of these keys that had at most this version are gone. A version that is higher than it was
    written after this look.
    """

    revision: int
    """Watch from here next."""
    records: list[Versioned]
    removed: Mapping[str, int]
    whole: bool
    generation: int = 0
    """How often this process has seen the store set back to an old copy of itself. With a higher one, revisions and
    versions may be lower than before: all that was shown is to be forgotten, and `whole` is set."""
    one_count: bool = False
    """Versions are revisions: what was put by a revision is there at that one."""


class ClusterStore(Protocol):
    """The map. Keys are paths such as `container/7`; prefixes are taken literally."""

    def get(self, key: str) -> Versioned | None:
        """The record, as it is now. Raises StoreUnavailable."""

    def list(self, prefix: str) -> list[Versioned]:
        """The records whose keys start with `prefix`, in order of key. Raises StoreUnavailable."""

    def put(self, key: str, value: bytes, expected_version: int | None) -> int:
        """Write the record if it is at `expected_version` (None: if there is none); its new version.

        Durable on return. Raises VersionConflict, StoreUnavailable.
        """

    def delete(self, key: str, expected_version: int) -> None:
        """Remove the record if it is at `expected_version`. Raises VersionConflict, StoreUnavailable."""

    def watch(self, prefix: str, *, since: int, timeout_s: float) -> Changes:
        """What changed after revision `since` (0: everything); waits up to `timeout_s` for a first change.

        Raises StoreUnavailable.
        """


class StoreCall(Protocol):
    """Runs a blocking function of the cluster store in a thread."""

    def __call__(self, function: Callable[[ClusterStore], T], /) -> Awaitable[T]:
        """What the function returns, or raises."""

"""The interface of a cluster store: a few thousand records by key, changed only by compare-and-set.

All methods block; call them from a thread. A version is a number that no other record, and no other state of the same
record, ever has, so a record that was deleted and recreated is not mistaken for the old one.

A `put` that raises StoreUnavailable may have been stored, or may still be: repeat it until a different version has been
seen, and conclude nothing from reading the record unchanged.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from headrace.base.errors import Code, HeadraceError, StorageFull

T = TypeVar("T")


class VersionConflict(HeadraceError):
    """The record is not at the expected version: another process changed, created or deleted it. Read it and decide
    again."""

    def __init__(self, key: str, *, expected: int | None, found: int | None) -> None:
        super().__init__(f"{key}: expected version {expected}, found {found} (None: no record)")
        self.key = key
        self.expected = expected
        self.found = found


class NotOurs(HeadraceError):
    """The record is written by another program: on Kubernetes, the operator writes the cluster's own record."""


class StoreUnavailable(HeadraceError):
    """The store did not answer, or could not write. Reads and writes of data continue; changes of role wait."""

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
    """The changes since a revision: each changed key once, in its current state.

    `whole`: `records` is the complete content, and any other key is gone; set if `since` was 0 or too long ago.
    `removed`: the records of these keys that had at most this version are gone. A record with a higher version was
    written after this result.
    """

    revision: int
    """The revision from which to watch next."""
    records: list[Versioned]
    removed: Mapping[str, int]
    whole: bool
    generation: int = 0
    """How often this process has seen the store restored to an old copy. When it increases, revisions and versions may
    be lower than before: everything shown so far is to be forgotten, and `whole` is set."""
    one_count: bool = False
    """Versions are revisions: a record put at a revision is part of the content at that revision."""


class ClusterStore(Protocol):
    """The store. Keys are paths such as `container/7`; prefixes are taken literally."""

    def get(self, key: str) -> Versioned | None:
        """Return the record's current state; None if there is none. Raises StoreUnavailable."""

    def list(self, prefix: str) -> list[Versioned]:
        """Return the records whose keys start with `prefix`, in order of key. Raises StoreUnavailable."""

    def put(self, key: str, value: bytes, expected_version: int | None) -> int:
        """Write the record if it is at `expected_version` (None: if there is none); return its new version.

        Durable on return. Raises VersionConflict, StoreUnavailable.
        """

    def delete(self, key: str, expected_version: int) -> None:
        """Remove the record if it is at `expected_version`. Raises VersionConflict, StoreUnavailable."""

    def watch(self, prefix: str, *, since: int, timeout_s: float) -> Changes:
        """Return the changes after revision `since` (0: everything); wait up to `timeout_s` for a first change.

        Raises StoreUnavailable.
        """


class StoreCall(Protocol):
    """Runs a blocking function of the cluster store in a thread."""

    def __call__(self, function: Callable[[ClusterStore], T], /) -> Awaitable[T]:
        """Return or raise what the function returns or raises."""

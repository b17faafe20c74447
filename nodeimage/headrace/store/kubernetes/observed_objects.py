"""What one process has seen of its cluster's objects: a cache that threads wait at.

Whoever talks to the API server says what it saw: the watches, and calls, whose answers may be ahead of the watches.

A get, a list and a write are answered from etcd's quorum, so what they tell is never older than what was known when
they were asked. If it is, etcd was restored from a backup: all is forgotten then, and listed anew.
"""

import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import structlog

from headrace.base.errors import CorruptLog
from headrace.store.kubernetes import objects
from headrace.store.kubernetes.cache import Cache
from headrace.store.kubernetes.objects import Object, Place, Resource
from headrace.store.protocol import Changes, StoreUnavailable, Versioned

log = structlog.get_logger()

SILENT_S: Final = 1.5
"""Without a word from the server for so long, the store counts as away."""


class ObservedObjects:
    """Threads may share it."""

    def __init__(self, cluster: str, own: Versioned) -> None:
        """`own`: the cluster's own record, which stands in no object that is watched."""
        self._cluster = cluster
        self._changed = threading.Condition()
        self._own = own
        self._cache = Cache()
        self._cache.holds(own)
        self.generation = 0
        """How often etcd was seen to have been restored: who watches begins anew with each."""
        self._unlisted = {resource.plural for resource, _ in objects.watched(cluster)}
        self.heard_at = float("-inf")
        """By the monotonic clock; when the server was heard of last."""
        self.trouble = "it was not asked yet"
        """What came of it instead, last."""

    def heard(self) -> None:
        """The server told something."""
        self.heard_at = time.monotonic()

    def highest(self, resource: Resource) -> int:
        """The highest version of any object of a kind that was seen."""
        with self._changed:
            return self._cache.highest.get(resource.kind, 0)

    def version(self, where: Place) -> int:
        """Of an object that is here; 0: it is not."""
        found = self.object(where)
        return 0 if found is None else objects.version(found)

    def versions(self, resource: Resource) -> dict[str, int]:
        """Of all objects of a kind, by name, also of those that are gone."""
        with self._changed:
            return self._cache.versions(resource)

    def compare(self, answered: int, known: int, generation: int) -> None:
        """What the server answered has this version, and was known to have that one when it was asked."""
        if answered < known:
            self._fell(answered, known, generation)

    def _fell(self, answered: int, known: int, generation: int) -> None:
        with self._changed:
            if generation != self.generation:
                return  # that is known already
            log.error("etcd was restored from a backup", version=answered, known=known)
            self.generation += 1
            self._cache = Cache(after=self._cache.revision)
            self._cache.holds(self._own)
            self._unlisted = {resource.plural for resource, _ in objects.watched(self._cluster)}
            self.trouble = "etcd was restored from a backup"
            self._changed.notify_all()

    def take(self, resource: Resource, found: Object, *, deleted: bool = False) -> None:
        """An object as it was then, or as it was when it went."""
        records: list[Versioned] = []
        if not deleted:
            try:
                records = objects.records(resource, self._cluster, found)
            except CorruptLog as error:
                log.error("an object of Kubernetes is left aside", error=str(error))
                return
        with self._changed:
            if self._cache.take(resource, found, records, deleted=deleted):
                self._changed.notify_all()

    def listed(self, resource: Resource, found: Iterable[Object], version: int) -> None:
        """All objects of a kind that there were at a version."""
        found = list(found)
        for each in found:
            self.take(resource, each)
        with self._changed:
            self._cache.only(resource, (str(each["metadata"]["name"]) for each in found), version)
            self._unlisted.discard(resource.plural)
            self._changed.notify_all()

    def object(self, where: Place) -> Object | None:
        """An object as last seen."""
        with self._changed:
            return self._cache.object(where)

    def changes(self, prefix: str, *, since: int, timeout_s: float) -> Changes:
        """See ClusterStore.watch. Raises StoreUnavailable where nothing changed, and nothing was heard either."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                changes = replace(self._cache.changes(prefix, since), generation=self.generation)
                if not self._unlisted and (changes.whole or changes.records or changes.removed):
                    return changes
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            unlisted = ", ".join(sorted(self._unlisted))
        if unlisted:
            raise StoreUnavailable(f"Kubernetes has not listed the {unlisted} of {self._cluster}: {self.trouble}")
        if time.monotonic() - self.heard_at > SILENT_S:
            raise StoreUnavailable(f"the cluster store does not answer: {self.trouble}")
        return changes

"""What one process has seen of its cluster's objects: a cache on which threads can wait.

Everything that talks to the API server reports what it saw: the watches, and calls, whose answers may be ahead of the
watches.

Gets, lists and writes are answered from etcd's quorum, so an answer is never older than what was known when the request
was made. If it is older, etcd was restored from a backup: everything is then forgotten and listed again.
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
"""Seconds without an answer from the server after which the store counts as unavailable."""


class ObservedObjects:
    """The objects of one cluster. Threads may share it."""

    def __init__(self, cluster: str, own: Versioned) -> None:
        """`own`: the cluster's own record, which is not in any watched object."""
        self._cluster = cluster
        self._changed = threading.Condition()
        self._own = own
        self._cache = Cache()
        self._cache.holds(own)
        self.generation = 0
        """How often a restore of etcd was detected: watchers start over with each."""
        self._unlisted = {resource.plural for resource, _ in objects.watched(cluster)}
        self.heard_at = float("-inf")
        """When the server last answered, by the monotonic clock."""
        self.trouble = "it was not asked yet"
        """Why the server last did not answer."""

    def heard(self) -> None:
        """Record that the server has answered."""
        self.heard_at = time.monotonic()

    def highest(self, resource: Resource) -> int:
        """Return the highest version seen of any object of a kind."""
        with self._changed:
            return self._cache.highest.get(resource.kind, 0)

    def version(self, where: Place) -> int:
        """Return the version of an object as last seen; 0 if there is none."""
        found = self.object(where)
        return 0 if found is None else objects.version(found)

    def versions(self, resource: Resource) -> dict[str, int]:
        """Return the versions of all objects of a kind, by name, including removed ones."""
        with self._changed:
            return self._cache.versions(resource)

    def compare(self, answered: int, known: int, generation: int) -> None:
        """Compare the version in an answer with the one known when the request was made: an older answer means a
        restore."""
        if answered < known:
            self._forget_all(answered, known, generation)

    def _forget_all(self, answered: int, known: int, generation: int) -> None:
        with self._changed:
            if generation != self.generation:
                return  # this restore is known already
            log.error("etcd was restored from a backup", version=answered, known=known)
            self.generation += 1
            self._cache = Cache(after=self._cache.revision)
            self._cache.holds(self._own)
            self._unlisted = {resource.plural for resource, _ in objects.watched(self._cluster)}
            self.trouble = "etcd was restored from a backup"
            self._changed.notify_all()

    def take(self, resource: Resource, found: Object, *, deleted: bool = False) -> None:
        """Process a state of an object, or its last state before its removal."""
        records: list[Versioned] = []
        if not deleted:
            try:
                records = objects.records(resource, self._cluster, found)
            except CorruptLog as error:
                log.error("an object of Kubernetes is ignored", error=str(error))
                return
        with self._changed:
            if self._cache.take(resource, found, records, deleted=deleted):
                self._changed.notify_all()

    def listed(self, resource: Resource, found: Iterable[Object], version: int) -> None:
        """Process all objects of a kind that existed at a version."""
        found = list(found)
        for each in found:
            self.take(resource, each)
        with self._changed:
            self._cache.only(resource, (str(each["metadata"]["name"]) for each in found), version)
            self._unlisted.discard(resource.plural)
            self._changed.notify_all()

    def object(self, where: Place) -> Object | None:
        """Return an object as last seen."""
        with self._changed:
            return self._cache.object(where)

    def changes(self, prefix: str, *, since: int, timeout_s: float) -> Changes:
        """See ClusterStore.watch. Raises StoreUnavailable if nothing changed and the server did not answer either."""
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

"""Objects and records, each as it was seen last, and what changed here since when. Pure; not for two threads at a time.

1. Of one object, a state is never replaced by an older one, wherever they come from: own writes, calls, watches, lists.
2. Revisions are this cache's own, and rise with each change of a record. They are no resource versions: those of
   different objects may arrive in any order.
3. A removal is remembered until FORGET others came after it; who asks from further back gets everything.
4. Where the API server's own versions fell, or an object's, as etcd was restored from a backup, all is forgotten: else
   the newer states that are no more would keep out all that comes, for ever.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from headrace.store.kubernetes.objects import Object, Place, Resource, version
from headrace.store.protocol import Changes, Versioned

FORGET: Final = 20_000

_At = tuple[str, str]
"""(kind, name)."""


class Cache:
    """One cluster's."""

    def __init__(self, after: int = 0) -> None:
        """`after`: the revision of a cache whose place it takes; who asks from there gets everything."""
        self.revision = after
        self.highest: dict[str, int] = {}
        """By kind, the highest version seen: a server may keep kinds in etcds of their own, each with its own count."""
        self._objects: dict[_At, Object] = {}
        self._versions: dict[_At, int] = {}
        """Of each object, the newest seen; of those that are gone, that of their end."""
        self._gone: dict[_At, None] = {}
        """Objects that are gone and whose end is remembered, oldest first."""
        self._records: dict[_At, dict[str, Versioned]] = {}
        """What each object holds, by key."""
        self._known: dict[str, Versioned] = {}
        self._changed: dict[str, int] = {}
        """At which revision each key changed last, in that order."""
        self._removed: dict[str, int] = {}
        """Of keys that are gone, the version of their end; in that order."""
        self._forgotten = after + 1 if after else 0

    def object(self, where: Place) -> Object | None:
        """An object as last seen."""
        return self._objects.get((where.resource.kind, where.name))

    def versions(self, resource: Resource) -> dict[str, int]:
        """Of the objects of a kind, by name, also of those that are gone."""
        return {name: seen for (kind, name), seen in self._versions.items() if kind == resource.kind}

    def holds(self, record: Versioned) -> None:
        """A record that stands in no object."""
        self._show(record)

    def take(self, resource: Resource, found: Object, records: Sequence[Versioned], *, deleted: bool = False) -> bool:
        """A state of an object, with the records in it, was seen. Whether a record changed by that."""
        at = (resource.kind, str(found["metadata"]["name"]))
        seen = version(found)
        if seen < self._versions.get(at, 0) or (seen == self._versions.get(at) and not deleted):
            return False
        before = self.revision
        self._versions[at] = seen
        self.highest[resource.kind] = max(self.highest.get(resource.kind, 0), seen)
        if deleted:
            self._objects.pop(at, None)
            self._end(at)
        else:
            self._gone.pop(at, None)
            kept = {name: value for name, value in found["metadata"].items() if name != "managedFields"}
            self._objects[at] = {**found, "kind": resource.kind, "apiVersion": resource.api_version, "metadata": kept}
        self._hold(at, records, seen)
        return self.revision > before

    def only(self, resource: Resource, names: Iterable[str], seen: int) -> bool:
        """A whole list at that version had these objects and no others. Whether a record changed by that."""
        before = self.revision
        listed = set(names)
        for at in [at for at in self._objects if at[0] == resource.kind and at[1] not in listed]:
            if self._versions[at] <= seen:
                self._versions[at] = seen
                del self._objects[at]
                self._end(at)
                self._hold(at, (), seen)
        return self.revision > before

    def changes(self, prefix: str, since: int) -> Changes:
        """What changed after that revision of this cache."""
        whole = since == 0 or since < self._forgotten
        keys = []
        for key, at in reversed(self._changed.items()):
            if at <= since and not whole:
                break
            if key.startswith(prefix):
                keys.append(key)
        keys.sort()
        return Changes(
            revision=self.revision,
            records=[self._known[key] for key in keys if key in self._known],
            removed={key: self._removed[key] for key in keys if key in self._removed},
            whole=whole,
        )

    def _end(self, at: _At) -> None:
        self._gone.pop(at, None)
        self._gone[at] = None
        while len(self._gone) > FORGET:
            oldest = next(iter(self._gone))
            del self._gone[oldest], self._versions[oldest]

    def _hold(self, at: _At, records: Iterable[Versioned], seen: int) -> None:
        before = self._records.pop(at, {})
        now = {each.key: each for each in records}
        if now:
            self._records[at] = now
        for key, record in now.items():
            if self._known.get(key) != record:
                self._show(record)
        for key in before.keys() - now.keys():
            self._known.pop(key, None)
            self._removed.pop(key, None)
            self._removed[key] = seen
            self._mark(key)
        while len(self._removed) > FORGET:
            oldest = next(iter(self._removed))
            del self._removed[oldest]
            self._forgotten = max(self._forgotten, self._changed.pop(oldest))

    def _show(self, record: Versioned) -> None:
        self._known[record.key] = record
        self._removed.pop(record.key, None)
        self._mark(record.key)

    def _mark(self, key: str) -> None:
        self.revision += 1
        self._changed.pop(key, None)
        self._changed[key] = self.revision

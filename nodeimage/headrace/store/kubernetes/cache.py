"""Objects and records as last seen, and their changes since a revision. Pure; not to be used by two threads at a time.

1. A state of an object is never replaced by an older one, whatever its source: own writes, calls, watches, lists.
2. Revisions belong to this cache, and increase with each change of a record. They are not resource versions: those of
   different objects may arrive in any order.
3. A removal is remembered until FORGET later ones have arrived; a caller that asks from further back gets everything.
4. If the versions of the API server or of an object decrease, because etcd was restored from a backup, everything is
   forgotten: otherwise states that no longer exist would block all later ones permanently.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from headrace.store.kubernetes.objects import Object, Place, Resource, version
from headrace.store.protocol import Changes, Versioned

FORGET: Final = 20_000
"""The maximum number of removals, of objects and of records, that are remembered."""

_At = tuple[str, str]
"""(kind, name)."""


class Cache:
    """The objects and records of one cluster."""

    def __init__(self, after: int = 0) -> None:
        """`after`: the revision of the cache that this one replaces; a caller that asks from there gets everything."""
        self.revision = after
        self.highest: dict[str, int] = {}
        """The highest version seen, by kind: a server may keep kinds in separate etcds, each with its own count."""
        self._objects: dict[_At, Object] = {}
        self._versions: dict[_At, int] = {}
        """The newest version seen of each object; for removed objects, the version of the removal."""
        self._gone: dict[_At, None] = {}
        """Removed objects whose removal is remembered, oldest first."""
        self._records: dict[_At, dict[str, Versioned]] = {}
        """The records in each object, by key."""
        self._known: dict[str, Versioned] = {}
        self._changed: dict[str, int] = {}
        """The revision of each key's last change, in that order."""
        self._removed: dict[str, int] = {}
        """The version of the removal of each removed key, in order of removal."""
        self._forgotten = after + 1 if after else 0

    def object(self, where: Place) -> Object | None:
        """Return an object as last seen."""
        return self._objects.get((where.resource.kind, where.name))

    def versions(self, resource: Resource) -> dict[str, int]:
        """Return the versions of the objects of a kind, by name, including removed ones."""
        return {name: seen for (kind, name), seen in self._versions.items() if kind == resource.kind}

    def holds(self, record: Versioned) -> None:
        """Add a record that is not in any object."""
        self._show(record)

    def take(self, resource: Resource, found: Object, records: Sequence[Versioned], *, deleted: bool = False) -> bool:
        """Process a state of an object, with the records in it; return whether a record changed."""
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
        """Process a complete list at version `seen` that had only these objects; return whether a record changed."""
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
        """Return the changes after a revision of this cache."""
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

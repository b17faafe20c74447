"""The resources of all kinds, as last reported by watches, lists and the answers to writes.

1. The newer of two states of a resource is kept, whichever arrived first.
2. A resource whose deletion a watch reported does not come back, even if a list that was under way still holds it; one
   that merely seemed to be gone may.

The cache does not interpret kinds; it only reports whether a state was news.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

DEAD: Final = 10_000
"""How many deleted resources are remembered."""

Body = Mapping[str, Any]


class Key(NamedTuple):
    """Identifies a resource."""

    kind: str
    namespace: str
    name: str


def key_of(body: Body) -> Key:
    """Return the key of a resource in the API server's form."""
    meta = body["metadata"]
    return Key(str(body["kind"]), str(meta.get("namespace", "")), str(meta["name"]))


class News(Enum):
    """What a state of a resource holds that was not known before."""

    NOTHING = "nothing"
    FIGURES = "figures"
    """Only the status changed, which the operator writes itself."""
    CHANGED = "changed"


class Cache:
    """The latest known state of the resources of all kinds, without metadata that only the API server needs."""

    def __init__(self) -> None:
        self._by_kind: dict[str, dict[tuple[str, str], Body]] = {}
        self._deleted: dict[str, None] = {}
        """The uids of the last deleted resources: a list that was under way does not bring them back."""
        self._listeners: list[Callable[[Key, Body], None]] = []

    def on_learnt(self, listener: Callable[[Key, Body], None]) -> None:
        """Call `listener` with each resource whose answer to a write holds a change by another writer (see `learn`)."""
        self._listeners.append(listener)

    def take(self, body: Body, *, deleted: bool = False) -> News:
        """Record a resource's current state, or its last one before deletion. A state older than the known one is no
        news.
        """
        key = key_of(body)
        of_kind = self._by_kind.setdefault(key.kind, {})
        at = (key.namespace, key.name)
        known = of_kind.get(at)
        uid = body["metadata"].get("uid")
        if deleted:
            self._note_deleted(uid)
            if known is None or known["metadata"].get("uid") != body["metadata"].get("uid"):
                return News.NOTHING
            del of_kind[at]
            return News.CHANGED
        if uid in self._deleted or (known is not None and _is_older(body, known)):
            return News.NOTHING
        meta = {name: value for name, value in body["metadata"].items() if name != "managedFields"}
        of_kind[at] = {**body, "metadata": meta}
        return News.FIGURES if known is not None and _asks_the_same(known, body) else News.CHANGED

    def learn(self, body: Body) -> None:
        """Record the API server's answer to one of the operator's writes. If the answer holds changes by other writers
        too, the listeners are called: the watch's event will hold the same state, and be no news.
        """
        key = key_of(body)
        known = self.get(key)
        if known is None or self.take(body) is not News.CHANGED:
            return  # deleted meanwhile, or nothing new
        if not _asks_the_same(known, body, names=SOMEBODY_ELSES):
            for listener in self._listeners:
                listener(key, body)

    def gone(self, key: Key, *, uid: str | None = None) -> bool:
        """Remove a resource that does not exist, whatever was reported before. Returns whether that was news."""
        of_kind = self._by_kind.get(key.kind, {})
        known = of_kind.get((key.namespace, key.name))
        if known is None or (uid is not None and known["metadata"].get("uid") != uid):
            return False
        del of_kind[key.namespace, key.name]
        return True

    def _note_deleted(self, uid: str | None) -> None:
        if uid is None:
            return
        self._deleted[uid] = None
        if len(self._deleted) > DEAD:
            del self._deleted[next(iter(self._deleted))]

    def get(self, key: Key) -> Body | None:
        """Return one resource; None if it is not known."""
        return self._by_kind.get(key.kind, {}).get((key.namespace, key.name))

    def all(self, kind: str) -> Sequence[Body]:
        """Return all resources of a kind."""
        return list(self._by_kind.get(kind, {}).values())

    def count(self, kind: str) -> int:
        """Return how many resources of a kind there are."""
        return len(self._by_kind.get(kind, {}))


def _is_older(body: Body, known: Body) -> bool:
    """Return whether `body` is older than `known`, or the same. Resource versions are numbers that rise (KEP-5504); of
    two uids the later arrival counts.
    """
    mine, theirs = body["metadata"], known["metadata"]
    if mine["resourceVersion"] == theirs["resourceVersion"]:
        return True
    if mine.get("uid") != theirs.get("uid"):
        return False
    try:
        return int(mine["resourceVersion"]) < int(theirs["resourceVersion"])
    except ValueError:
        return False


SOMEBODY_ELSES: Final = ("uid", "generation", "deletionTimestamp", "annotations", "labels")
"""Fields of metadata that the operator's own writes do not change."""
LOOKED_AT: Final = (*SOMEBODY_ELSES, "finalizers")


def _asks_the_same(one: Body, other: Body, *, names: Sequence[str] = LOOKED_AT) -> bool:
    """Return whether two states differ in nothing that a reconcile looks at."""
    return one["metadata"].get("generation") is not None and all(
        one["metadata"].get(name) == other["metadata"].get(name) for name in names
    )

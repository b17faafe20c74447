"""The resources of all kinds, as the watches, the lists and the answers to writes told of them last.

1. Of two states of a resource the newer one stays, whichever came first.
2. What a watch told of as deleted does not come back, though a list that was under way still has it; what only seems
   to be gone does.

Knows nothing of what the kinds mean, and tells only whether something was news.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

DEAD: Final = 10_000
"""Resources of which is remembered that they are gone."""

Body = Mapping[str, Any]


class Key(NamedTuple):
    """A resource."""

    kind: str
    namespace: str
    name: str


def key_of(body: Body) -> Key:
    """Of a resource as the API server gives it."""
    meta = body["metadata"]
    return Key(str(body["kind"]), str(meta.get("namespace", "")), str(meta["name"]))


class News(Enum):
    """What an event said that was not known."""

    NOTHING = "nothing"
    FIGURES = "figures"
    """Status alone, which is ours."""
    CHANGED = "changed"


class Cache:
    """The resources of all kinds, as last seen, without what only the API server needs of them."""

    def __init__(self) -> None:
        self._by_kind: dict[str, dict[tuple[str, str], Body]] = {}
        self._dead: dict[str, None] = {}
        """The uids that went last: what a list that was under way says of one brings it back no more."""
        self._learnt: list[Callable[[Key, Body], None]] = []

    def on_learnt(self, listener: Callable[[Key, Body], None]) -> None:
        """Call `listener` with each resource of which an answer to a write told what no watch will."""
        self._learnt.append(listener)

    def take(self, body: Body, *, deleted: bool = False) -> News:
        """A resource is so now, or was when it was deleted. An older state than the one that is here is no news."""
        key = key_of(body)
        of_kind = self._by_kind.setdefault(key.kind, {})
        at = (key.namespace, key.name)
        known = of_kind.get(at)
        uid = body["metadata"].get("uid")
        if deleted:
            self._bury(uid)
            if known is None or known["metadata"].get("uid") != body["metadata"].get("uid"):
                return News.NOTHING
            del of_kind[at]
            return News.CHANGED
        if uid in self._dead or (known is not None and _is_older(body, known)):
            return News.NOTHING
        meta = {name: value for name, value in body["metadata"].items() if name != "managedFields"}
        of_kind[at] = {**body, "metadata": meta}
        return News.FIGURES if known is not None and _asks_the_same(known, body) else News.CHANGED

    def learn(self, body: Body) -> None:
        """What the API server answered to a write of ours. No watch will tell of a change of somebody else's in it."""
        key = key_of(body)
        known = self.get(key)
        if known is None or self.take(body) is not News.CHANGED:
            return  # it has gone meanwhile, or says nothing new
        if not _asks_the_same(known, body, names=SOMEBODY_ELSES):
            for listener in self._learnt:
                listener(key, body)

    def gone(self, key: Key, *, uid: str | None = None) -> bool:
        """There is no such resource (any more), whatever was heard; whether that was news."""
        of_kind = self._by_kind.get(key.kind, {})
        known = of_kind.get((key.namespace, key.name))
        if known is None or (uid is not None and known["metadata"].get("uid") != uid):
            return False
        del of_kind[key.namespace, key.name]
        return True

    def _bury(self, uid: str | None) -> None:
        if uid is None:
            return
        self._dead[uid] = None
        if len(self._dead) > DEAD:
            del self._dead[next(iter(self._dead))]

    def get(self, key: Key) -> Body | None:
        """One resource."""
        return self._by_kind.get(key.kind, {}).get((key.namespace, key.name))

    def all(self, kind: str) -> Sequence[Body]:
        """All of a kind."""
        return list(self._by_kind.get(kind, {}).values())

    def count(self, kind: str) -> int:
        """How many there are."""
        return len(self._by_kind.get(kind, {}))


def _is_older(body: Body, known: Body) -> bool:
    """Or the same. Resource versions are numbers that rise (KEP-5504); of two uids the last counts."""
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
"""Of metadata, what a write of ours does not change."""
LOOKED_AT: Final = (*SOMEBODY_ELSES, "finalizers")


def _asks_the_same(one: Body, other: Body, *, names: Sequence[str] = LOOKED_AT) -> bool:
    """Whether two states differ in nothing that a reconcile looks at."""
    return one["metadata"].get("generation") is not None and all(
        one["metadata"].get(name) == other["metadata"].get(name) for name in names
    )

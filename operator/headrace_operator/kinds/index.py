"""Which resources speak of which: of a cluster, and of the same thing in it.

Kept up to date by the engine's events, so that a change reaches those that it concerns without anybody polling, and
two resources that clash find each other without a look at all of them. Works on what is written, valid or not.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import NamedTuple

from headrace_operator.engine import Body, Cache, Key


class _Spoken(NamedTuple):
    """What a resource speaks of."""

    cluster: Key
    thing: tuple[str, Key, str] | None


class Index:
    """Over a cache."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._of: dict[Key, _Spoken] = {}
        self._by_cluster: defaultdict[Key, set[Key]] = defaultdict(set)
        self._by_thing: defaultdict[tuple[str, Key, str], set[Key]] = defaultdict(set)

    def concerned(self, key: Key, body: Body) -> Iterable[Key]:
        """Take note of a resource that has changed or gone; the others that this concerns (engine.Referrers)."""
        if key.kind == "StreamCluster":
            return self.referring(key)
        if key.kind == "Namespace":
            return [each for each in self._of if each.namespace == key.name]
        others = self.alike(key)
        self._forget(key)
        if self._cache.get(key) is not None and (spoken := _spoken(key, body)) is not None:
            self._of[key] = spoken
            self._by_cluster[spoken.cluster].add(key)
            if spoken.thing is not None:
                self._by_thing[spoken.thing].add(key)
        return {*others, *self.alike(key)}

    def referring(self, cluster: Key) -> Collection[Key]:
        """The resources that name a cluster."""
        return tuple(self._by_cluster.get(cluster, ()))

    def topics_of(self, stream: Key) -> Collection[Key]:
        """The Topics of a Stream's path."""
        spoken = self._of.get(stream)
        if spoken is None or spoken.thing is None:
            return ()
        begin = f"{spoken.thing[2]}:"
        there = (key for key in self._by_cluster[spoken.cluster] if key.kind == "Topic")
        return tuple(key for key in there if (of := self._of[key].thing) is not None and of[2].startswith(begin))

    def alike(self, key: Key) -> Collection[Key]:
        """Other resources that are about the same thing."""
        spoken = self._of.get(key)
        if spoken is None or spoken.thing is None:
            return ()
        return tuple(each for each in self._by_thing[spoken.thing] if each != key)

    def _forget(self, key: Key) -> None:
        spoken = self._of.pop(key, None)
        if spoken is None:
            return
        self._by_cluster[spoken.cluster].discard(key)
        if not self._by_cluster[spoken.cluster]:
            del self._by_cluster[spoken.cluster]
        if spoken.thing is not None:
            self._by_thing[spoken.thing].discard(key)
            if not self._by_thing[spoken.thing]:
                del self._by_thing[spoken.thing]


def _spoken(key: Key, body: Body) -> _Spoken | None:
    spec = body.get("spec") or {}
    ref = spec.get("clusterRef") or {}
    if not ref.get("name"):
        return None
    cluster = Key("StreamCluster", str(ref.get("namespace") or key.namespace), str(ref["name"]))
    match key.kind:
        case "Volume":
            thing = str(spec.get("name") or key.name)
        case "Stream":
            thing = str(spec.get("path"))
        case "Topic":
            thing = f"{spec.get('stream')}:{spec.get('name') or key.name}"
        case _:
            return _Spoken(cluster, None)
    return _Spoken(cluster, (key.kind, cluster, thing))

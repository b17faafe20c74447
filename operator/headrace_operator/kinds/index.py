"""Which resources speak of which: of a cluster, and of the same thing in it.

Kept up to date by the engine's events, so that a change reaches those that it concerns without anybody polling, and
two resources that clash find each other without a look at all of them. Works on what is written, valid or not.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from headrace_operator.engine import Body, Cache, Key


class _Spoken(NamedTuple):
    """What a resource speaks of."""

    cluster: Key
    thing: tuple[str, Key, str] | None = None
    stream: str = ""
    """The path of the stream that it lies in."""
    source: Key | None = None
    """The cluster that it copies from."""

    @property
    def clusters(self) -> set[Key]:
        return {self.cluster} if self.source is None else {self.cluster, self.source}


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
            for cluster in spoken.clusters:
                self._by_cluster[cluster].add(key)
            if spoken.thing is not None:
                self._by_thing[spoken.thing].add(key)
        return {*others, *self.alike(key)}

    def referring(self, cluster: Key) -> Collection[Key]:
        """The resources that name a cluster."""
        return tuple(self._by_cluster.get(cluster, ()))

    def inside(self, stream: Key) -> Collection[Key]:
        """The Topics of a Stream's path, and the ReplicationLinks into it."""
        spoken = self._of.get(stream)
        if spoken is None or spoken.thing is None:
            return ()
        within = spoken.cluster, spoken.thing[2]
        there = self._by_cluster[spoken.cluster]
        return tuple(key for key in there if (self._of[key].cluster, self._of[key].stream) == within)

    def streams_around(self, key: Key) -> Collection[Key]:
        """The Streams that declare the path that a Topic or a ReplicationLink is in."""
        spoken = self._of.get(key)
        return () if spoken is None else tuple(self._by_thing.get(("Stream", spoken.cluster, spoken.stream), ()))

    def links_beside(self, link: Key) -> Collection[Key]:
        """The other ReplicationLinks into a ReplicationLink's stream."""
        spoken = self._of.get(link)
        if spoken is None:
            return ()
        into = spoken.cluster, spoken.stream
        return tuple(
            key
            for key in self._by_cluster[spoken.cluster]
            if key.kind == link.kind and key != link and (self._of[key].cluster, self._of[key].stream) == into
        )

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
        for cluster in spoken.clusters:
            self._by_cluster[cluster].discard(key)
            if not self._by_cluster[cluster]:
                del self._by_cluster[cluster]
        if spoken.thing is not None:
            self._by_thing[spoken.thing].discard(key)
            if not self._by_thing[spoken.thing]:
                del self._by_thing[spoken.thing]


def _spoken(key: Key, body: Body) -> _Spoken | None:
    spec = body.get("spec") or {}
    cluster = _cluster(key, spec)
    if cluster is None:
        return None
    match key.kind:
        case "Volume":
            return _Spoken(cluster, (key.kind, cluster, str(spec.get("name") or key.name)))
        case "Stream":
            return _Spoken(cluster, (key.kind, cluster, str(spec.get("path"))))
        case "Topic":
            stream = str(spec.get("stream"))
            return _Spoken(cluster, (key.kind, cluster, f"{stream}:{spec.get('name') or key.name}"), stream)
        case "StreamUser":
            return _Spoken(cluster, (key.kind, cluster, str(spec.get("user") or key.name)))
        case "ReplicationLink":
            name = str(spec.get("name") or key.name)
            stream = str((spec.get("target") or {}).get("stream"))
            return _Spoken(cluster, (key.kind, cluster, name), stream, _cluster(key, spec.get("source") or {}))
        case _:
            return _Spoken(cluster)


def _cluster(key: Key, spec: Mapping[str, Any]) -> Key | None:
    """The one that `clusterRef` names."""
    ref = spec.get("clusterRef") or {}
    if not ref.get("name"):
        return None
    return Key("StreamCluster", str(ref.get("namespace") or key.namespace), str(ref["name"]))

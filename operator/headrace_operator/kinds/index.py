"""Which resources refer to a cluster, and which declare the same thing in it.

The engine's events keep the index up to date, so that a change reaches the affected resources without polling, and two
conflicting resources find each other without a scan of all. It works on resources as written, valid or not.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from headrace_operator.engine import Body, Cache, Key


class _References(NamedTuple):
    """The references of a resource."""

    cluster: Key
    thing: tuple[str, Key, str] | None = None
    stream: str = ""
    """The path of the stream that the resource is in."""
    source: Key | None = None
    """The cluster that a link copies from."""

    @property
    def clusters(self) -> set[Key]:
        return {self.cluster} if self.source is None else {self.cluster, self.source}


class Index:
    """An index over a cache."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._of: dict[Key, _References] = {}
        self._by_cluster: defaultdict[Key, set[Key]] = defaultdict(set)
        self._by_thing: defaultdict[tuple[str, Key, str], set[Key]] = defaultdict(set)

    def concerned(self, key: Key, body: Body) -> Iterable[Key]:
        """Update the index with a resource that was changed or deleted; return the other affected resources
        (engine.Referrers).
        """
        if key.kind == "StreamCluster":
            return self.referring(key)
        if key.kind == "Namespace":
            return [each for each in self._of if each.namespace == key.name]
        others = self.alike(key)
        self._forget(key)
        if self._cache.get(key) is not None and (spoken := _references(key, body)) is not None:
            self._of[key] = spoken
            for cluster in spoken.clusters:
                self._by_cluster[cluster].add(key)
            if spoken.thing is not None:
                self._by_thing[spoken.thing].add(key)
        return {*others, *self.alike(key)}

    def referring(self, cluster: Key) -> Collection[Key]:
        """Return the resources that name a cluster."""
        return tuple(self._by_cluster.get(cluster, ()))

    def inside(self, stream: Key) -> Collection[Key]:
        """Return the Topics of a Stream's path, and the ReplicationLinks into it."""
        spoken = self._of.get(stream)
        if spoken is None or spoken.thing is None:
            return ()
        within = spoken.cluster, spoken.thing[2]
        there = self._by_cluster[spoken.cluster]
        return tuple(key for key in there if (self._of[key].cluster, self._of[key].stream) == within)

    def streams_around(self, key: Key) -> Collection[Key]:
        """Return the Streams that declare the path of a Topic or a ReplicationLink."""
        spoken = self._of.get(key)
        return () if spoken is None else tuple(self._by_thing.get(("Stream", spoken.cluster, spoken.stream), ()))

    def links_beside(self, link: Key) -> Collection[Key]:
        """Return the other ReplicationLinks into a ReplicationLink's stream."""
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
        """Return other resources that declare the same thing."""
        spoken = self._of.get(key)
        if spoken is None or spoken.thing is None:
            return ()
        return tuple(each for each in self._by_thing[spoken.thing] if each != key)

    def declaring(self, kind: str, cluster: Key, name: str) -> Collection[Key]:
        """Return the resources of a kind that declare the object of a name in a cluster."""
        return tuple(self._by_thing.get((kind, cluster, name), ()))

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


def _references(key: Key, body: Body) -> _References | None:
    spec = body.get("spec") or {}
    cluster = _cluster(key, spec)
    if cluster is None:
        return None
    match key.kind:
        case "Volume":
            return _References(cluster, (key.kind, cluster, str(spec.get("name") or key.name)))
        case "Stream":
            return _References(cluster, (key.kind, cluster, str(spec.get("path"))))
        case "Topic":
            stream = str(spec.get("stream"))
            return _References(cluster, (key.kind, cluster, f"{stream}:{spec.get('name') or key.name}"), stream)
        case "StreamUser":
            return _References(cluster, (key.kind, cluster, str(spec.get("user") or key.name)))
        case "ReplicationLink":
            name = str(spec.get("name") or key.name)
            stream = str((spec.get("target") or {}).get("stream"))
            return _References(cluster, (key.kind, cluster, name), stream, _cluster(key, spec.get("source") or {}))
        case _:
            return _References(cluster)


def _cluster(key: Key, spec: Mapping[str, Any]) -> Key | None:
    """Return the cluster that `clusterRef` names; None if it names none."""
    ref = spec.get("clusterRef") or {}
    if not ref.get("name"):
        return None
    return Key("StreamCluster", str(ref.get("namespace") or key.namespace), str(ref["name"]))

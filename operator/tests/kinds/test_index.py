"""Which resources refer to which: a change reaches those that it affects."""

from collections.abc import Iterable
from typing import Any

import pytest

from headrace_operator.engine import Cache, Key
from headrace_operator.kinds.index import Index

C = Key("StreamCluster", "ns", "c")
D = Key("StreamCluster", "far", "d")


class Declared:
    """An index over resources that are declared and removed."""

    def __init__(self) -> None:
        self.cache = Cache()
        self.index = Index(self.cache)
        self._version = 0

    def declare(self, kind: str, name: str, /, *, namespace: str = "ns", **spec: Any) -> tuple[Key, set[str]]:
        """Declare a resource; return the names of the resources that the change affects."""
        self._version += 1
        meta = {"name": name, "namespace": namespace, "uid": f"{kind} {name}", "resourceVersion": str(self._version)}
        body = {"kind": kind, "metadata": meta, "spec": {"clusterRef": {"name": "c"}, **spec}}
        self.cache.take(body)
        key = Key(kind, namespace, name)
        return key, names(self.index.concerned(key, body))

    def remove(self, key: Key) -> set[str]:
        body = self.cache.get(key)
        assert body is not None
        self.cache.take(body, deleted=True)
        return names(self.index.concerned(key, body))


def names(keys: Iterable[Key]) -> set[str]:
    return {key.name for key in keys}


@pytest.fixture
def declared() -> Declared:
    return Declared()


def test_a_cluster_concerns_all_that_name_it(declared: Declared) -> None:
    declared.declare("Stream", "plant", path="/plant")
    declared.declare("Topic", "pump", stream="/plant")
    declared.declare("Stream", "other", path="/o", clusterRef={"name": "d", "namespace": "far"})
    declared.declare("ReplicationLink", "l", source={"clusterRef": {"name": "d", "namespace": "far"}}, target={})
    assert names(declared.index.referring(C)) == {"plant", "pump", "l"}
    assert names(declared.index.referring(D)) == {"other", "l"}
    assert names(declared.index.concerned(C, {})) == {"plant", "pump", "l"}


def test_two_that_are_about_the_same_thing_find_each_other(declared: Declared) -> None:
    first, concerned = declared.declare("Stream", "a", path="/plant")
    assert concerned == set()
    second, concerned = declared.declare("Stream", "b", path="/plant")
    assert concerned == {"a"}
    assert names(declared.index.alike(first)) == {"b"}
    declared.declare("Stream", "elsewhere", path="/plant", clusterRef={"name": "d", "namespace": "far"})
    assert names(declared.index.alike(first)) == {"b"}
    assert declared.remove(second) == {"a"}, "it may hold from now on"
    assert declared.index.alike(first) == ()


def test_one_that_changes_concerns_those_it_clashed_with_and_those_it_does_now(declared: Declared) -> None:
    declared.declare("Topic", "a", stream="/s", name="t")
    declared.declare("Topic", "b", stream="/s", name="u")
    _, concerned = declared.declare("Topic", "c", stream="/s", name="t")
    assert concerned == {"a"}
    _, concerned = declared.declare("Topic", "c", stream="/s", name="u")
    assert concerned == {"a", "b"}


def test_what_lies_in_a_stream_finds_it_and_is_found_by_it(declared: Declared) -> None:
    stream, _ = declared.declare("Stream", "plant", path="/plant")
    topic, _ = declared.declare("Topic", "pump", stream="/plant")
    link, _ = declared.declare("ReplicationLink", "l", target={"stream": "/plant"}, source={})
    declared.declare("Topic", "far", stream="/other")
    assert names(declared.index.inside(stream)) == {"pump", "l"}
    assert names(declared.index.streams_around(topic)) == {"plant"}
    other, _ = declared.declare("ReplicationLink", "m", target={"stream": "/plant"}, source={})
    assert names(declared.index.links_beside(link)) == {"m"}
    declared.remove(other)
    assert declared.index.links_beside(link) == ()
    declared.remove(stream)
    assert declared.index.streams_around(topic) == ()


def test_what_names_no_cluster_concerns_nobody(declared: Declared) -> None:
    key, concerned = declared.declare("Stream", "odd", path="/plant", clusterRef={})
    assert concerned == set()
    assert declared.index.inside(key) == ()


def test_a_namespace_concerns_all_that_lie_in_it(declared: Declared) -> None:
    declared.declare("Stream", "here", path="/a")
    declared.declare("Stream", "there", path="/b", namespace="far")
    assert names(declared.index.concerned(Key("Namespace", "", "far"), {})) == {"there"}

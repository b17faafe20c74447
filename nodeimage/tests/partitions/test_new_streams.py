"""A stream created by a client belongs to him alone while security is on; some paths are reserved for the cluster."""

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.catalog.policy import StreamPolicy
from headrace.catalog.streams import CreateOwnedStream, CreateStream
from headrace.partitions.new_streams import check_new_path, new_stream
from headrace.security.access_rules import Permission
from kit.catalog import NOW

POLICY = StreamPolicy()


def test_while_security_is_off_it_has_the_expressions_that_are_given() -> None:
    plain = new_stream("/a", POLICY, access={}, owner=None, now=NOW)
    assert plain == CreateStream(path="/a", policy=POLICY, now=NOW)
    given = new_stream("/a", POLICY, access={Permission.PRODUCE: "p"}, owner=None, now=NOW)
    assert given == CreateOwnedStream(path="/a", policy=POLICY, access=[("produce", "p")], now=NOW)


def test_while_security_is_on_it_is_its_creators_but_for_what_is_given() -> None:
    made = new_stream("/a", POLICY, access={Permission.PRODUCE: "p"}, owner='Jörg "J"', now=NOW)
    assert isinstance(made, CreateOwnedStream)
    own = 'u:"Jörg \\"J\\""'
    assert dict(made.access) == {"produce": "p", "consume": own, "topic": own, "copy": own, "admin": own}


@pytest.mark.parametrize("path", ["/system", "/system/audit", "/system/a/b", "/system/probe/a", "/system/probes"])
def test_paths_of_the_cluster_are_its_own(path: str) -> None:
    with pytest.raises(KafkaError) as caught:
        new_stream(path, POLICY, access={}, owner=None, now=NOW)
    assert caught.value.code is Code.POLICY_VIOLATION


def test_others_are_not() -> None:
    for path in ("/systems", "/a/system", "/system/probe"):
        check_new_path(path)
    with pytest.raises(KafkaError):
        check_new_path("system")

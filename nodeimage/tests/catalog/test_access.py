"""Access expressions on all kinds of objects."""

import pytest

from headrace.base.errors import Code
from headrace.catalog.access import CLUSTER, GROUP, PREFIX, STREAM, TOPIC, AccessItem, SecureCluster, SetAccess
from headrace.catalog.feature_level import RaiseLevel
from headrace.catalog.policy import StreamPolicy
from headrace.catalog.rows import AccessRow
from headrace.catalog.streams import CreateOwnedStream, CreateStream, DeleteStream
from headrace.catalog.topics import DeleteTopics
from kit.catalog import Tables
from kit.catalog_commands import NOW, create


def set_one(tables: Tables, kind: str, named: str, expression: str | None, topic_id: bytes = b"") -> Code:
    (outcome,) = tables.apply(SetAccess([AccessItem(kind, named, "produce", expression, topic_id)], NOW))
    assert outcome.object == (named or "/s:t" * bool(topic_id))
    return Code(outcome.code)


def test_an_expression_is_set_replaced_and_removed_on_every_kind_of_object(tables: Tables) -> None:
    topic_id = create(tables, "t")
    objects = [(CLUSTER, "", b""), (PREFIX, "/plant", b""), (GROUP, "ops-", b""), (STREAM, "/s", b"")]
    objects.append((TOPIC, "", topic_id))
    for kind, named, of_topic in objects:
        for expression in ("u:alice", "u:bob", "u:bob"):
            assert set_one(tables, kind, named, expression, of_topic) is Code.NONE
    found = {
        AccessRow(kind, named or "/s:t" * bool(of_topic), "produce", "u:bob", of_topic)
        for kind, named, of_topic in objects
    }
    assert set(tables.reader.access.all()) == found
    assert set_one(tables, CLUSTER, "", "") is Code.NONE, "nobody is an expression of its own"
    assert AccessRow(CLUSTER, "", "produce", "") in tables.reader.access.all()
    for kind, named, of_topic in objects * 2:
        assert set_one(tables, kind, named, None, of_topic) is Code.NONE
    assert tables.reader.access.all() == []


def test_of_several_each_is_decided_alone(tables: Tables) -> None:
    items = [
        AccessItem(STREAM, "/none", "admin", "p"),
        AccessItem(TOPIC, "", "admin", "p", bytes(16)),
        AccessItem(STREAM, "/s", "admin", "p"),
    ]
    codes = [Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID, Code.NONE]
    assert [each.code for each in tables.apply(SetAccess(items, NOW))] == codes
    assert tables.reader.access.all() == [AccessRow(STREAM, "/s", "admin", "p")]


@pytest.mark.parametrize("level", [0, 2])
def test_what_is_deleted_leaves_no_expression_to_what_comes_after_it(tables: Tables, level: int) -> None:
    if level:
        tables.apply(RaiseLevel(level))
    topic_id = create(tables, "t")
    set_one(tables, TOPIC, "", "u:alice", topic_id)
    tables.apply(DeleteTopics([topic_id], NOW))
    assert tables.reader.access.all() == []
    set_one(tables, TOPIC, "", "u:alice", create(tables, "t"))
    set_one(tables, STREAM, "/s", "u:alice")
    tables.apply(DeleteStream("/s", NOW, force=True))
    tables.apply(CreateStream("/s", StreamPolicy(), NOW))
    create(tables, "t")
    assert tables.reader.access.all() == []
    assert tables.connection.execute("SELECT count(*) FROM topic_access").fetchone() == (0,)


def test_a_stream_with_an_owner_has_its_expressions_from_the_first_moment_on(tables: Tables) -> None:
    owned = CreateOwnedStream("/mine", StreamPolicy(ttl_ms=5), [("produce", "u:alice"), ("admin", "u:alice")], NOW)
    assert tables.apply(owned).changed
    found = [AccessRow(STREAM, "/mine", each, "u:alice") for each in ("admin", "produce")]
    assert tables.reader.access.all() == found
    (outcome,) = tables.apply(SetAccess([AccessItem(STREAM, "/mine", "admin", "u:bob")], NOW))
    assert outcome == (Code.NONE, "/mine")
    again = tables.apply(owned)
    assert (again.changed, again.stream.policy.ttl_ms) == (False, 5)
    assert AccessRow(STREAM, "/mine", "admin", "u:bob") in tables.reader.access.all(), "a repeat takes nothing back"


def test_security_is_off_until_it_is_turned_on(tables: Tables) -> None:
    assert not tables.reader.access.is_secured()
    for on in (True, True, False):
        assert tables.apply(SecureCluster(on)) == [Code.NONE]
        assert tables.reader.access.is_secured() is on


def test_what_was_read_before_is_written_if_it_still_holds(tables: Tables) -> None:
    topic_id = create(tables, "t")
    mine = AccessItem(TOPIC, "", "produce", "u:bob", topic_id)
    none_of_topic = AccessItem(TOPIC, "", "produce", None, topic_id)
    of_stream = AccessItem(STREAM, "/s", "produce", "u:alice")

    def attempt(*expected: AccessItem) -> Code:
        (outcome,) = tables.apply(SetAccess([mine], NOW, [*expected]))
        return Code(outcome.code)

    assert attempt(none_of_topic, of_stream) is Code.OPERATION_NOT_ATTEMPTED
    assert tables.reader.access.all() == []
    set_one(tables, STREAM, "/s", "u:alice")
    assert attempt(none_of_topic, of_stream) is Code.NONE
    assert attempt(none_of_topic, of_stream) is Code.NONE, "a repeat finds what the first has done"
    set_one(tables, TOPIC, "", "u:carol", topic_id)
    assert attempt(none_of_topic, of_stream) is Code.OPERATION_NOT_ATTEMPTED
    nothing = [AccessItem(STREAM, "/none", "produce", None), AccessItem(TOPIC, "", "produce", None, bytes(16))]
    assert attempt(*nothing) is Code.NONE, "what is not there has no expression"
    set_one(tables, CLUSTER, "", "u:alice")
    mine = AccessItem(GROUP, "ops-", "produce", "u:bob")
    assert attempt(AccessItem(CLUSTER, "", "produce", "u:alice")) is Code.NONE

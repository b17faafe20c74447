"""Links between clusters."""

import msgspec
import pytest

from headrace.base.errors import KafkaError
from headrace.base.ids import ContainerId, Epoch, LeaderEpoch, Millis, Offset
from headrace.catalog.chains import RollDone
from headrace.catalog.commands import decode, encode
from headrace.catalog.committed_offsets import CommittedOffset, CopyOffsets
from headrace.catalog.homes import HomeChange, SetHome
from headrace.catalog.link_config import LinkConfig
from headrace.catalog.links import DeleteLink, PutLink, SetLinkSource, SetLinkState
from headrace.catalog.rows import PAUSED, RUNNING
from headrace.catalog.streams import DeleteStream
from headrace.catalog.topics import CreateTopics, NewTopic
from kit.catalog import NOW, Tables, stream
from kit.catalog_commands import ID

CONFIG = LinkConfig(["far:9092"], "/src", ["pump-*"], throttle=5, credentials=b"sealed")
HERE, THERE = "here", "there"


def test_a_link_is_made_altered_paused_and_deleted(tables: Tables) -> None:
    made = tables.apply(PutLink("l", "/s", CONFIG, NOW, create=True))
    assert made.changed
    assert (made.link.stream, made.link.state, made.link.config) == ("/s", RUNNING, CONFIG)
    assert not tables.apply(PutLink("l", "/s", CONFIG, Millis(9), create=True)).changed
    other = msgspec.structs.replace(CONFIG, throttle=6)
    with pytest.raises(KafkaError, match="there is a link l already"):
        tables.apply(PutLink("l", "/s", other, NOW, create=True))
    with pytest.raises(KafkaError, match="there is no link m"):
        tables.apply(PutLink("m", "/s", other, NOW, create=False))
    tables.apply(stream("/t"))
    with pytest.raises(KafkaError, match="link l is of stream /s, not of /t"):
        tables.apply(PutLink("l", "/t", other, NOW, create=False))
    assert tables.apply(PutLink("l", "/s", other, NOW, create=False)).changed
    assert tables.apply(SetLinkState("l", PAUSED)).changed
    assert not tables.apply(SetLinkState("l", PAUSED)).changed
    with pytest.raises(KafkaError, match="never 'Sleeping'"):
        tables.apply(SetLinkState("l", "Sleeping"))
    expected = made.link._replace(config=other, state=PAUSED)
    assert tables.reader.links.all() == tables.reader.links.all("/s") == [expected]
    assert tables.reader.links.named("l") == expected
    assert tables.reader.links.all("/other") == []
    assert tables.apply(DeleteLink("l")).link == expected
    with pytest.raises(KafkaError, match="there is no link l"):
        tables.apply(DeleteLink("l"))
    again = tables.apply(PutLink("l", "/s", CONFIG, NOW, create=True))
    assert again.link.id > made.link.id


def test_a_stream_with_links_is_deleted_by_force_only(tables: Tables) -> None:
    tables.apply(PutLink("l", "/s", CONFIG, NOW, create=True))
    with pytest.raises(KafkaError, match="has the links l"):
        tables.apply(DeleteStream("/s", NOW))
    tables.apply(DeleteStream("/s", NOW, force=True))
    assert tables.reader.links.all() == []
    assert tables.connection.execute("SELECT count(*) FROM links").fetchone() == (0,)


def test_commands_of_earlier_versions_are_read_as_they_were_meant() -> None:
    topic = ["/s", "t", ID, 1, {}, [1], [1]]
    made = decode(msgspec.msgpack.encode({"type": "CreateTopics", "items": [topic], "now": 1}))
    assert made == CreateTopics([NewTopic("/s", "t", ID, 1, {}, [ContainerId(1)], [Epoch(1)])], Millis(1))
    rolled = decode(msgspec.msgpack.encode({"type": "RollDone", "items": [[ID, 0, 5, 9, [], 6, 1]], "now": 1}))
    assert isinstance(rolled, RollDone)
    assert (rolled.items[0].resume, rolled.items[0].home) == (-1, None)


def test_commands_on_links_and_homes_are_read_as_they_were_written() -> None:
    for command in (
        PutLink("l", "/s", CONFIG, NOW, create=True),
        SetHome([HomeChange(ID, 1, HERE, {0: [(1, HERE, Offset(5))], 7: []}), HomeChange(ID, 1, HERE)]),
        CopyOffsets("g", [CommittedOffset(ID, 0, Offset(1), LeaderEpoch(-1))], NOW, HERE),
        CopyOffsets("g", [CommittedOffset(ID, 0, Offset(1), LeaderEpoch(-1), "", Millis(3))], NOW, HERE, True, True),
    ):
        assert decode(encode(command)) == command


def test_who_the_source_is_is_kept_of_that_link_and_those_addresses_alone(tables: Tables) -> None:
    made = tables.apply(PutLink("l", "/s", CONFIG, NOW, create=True)).link
    told = SetLinkSource("l", made.id, CONFIG.source, THERE)
    altered = msgspec.structs.replace(CONFIG, source=["other:9092"], throttle=7)
    tables.apply(PutLink("l", "/s", altered, NOW, create=False))  # before the source answered
    assert tables.apply(told).link.config == altered
    tables.apply(PutLink("l", "/s", msgspec.structs.replace(altered, source=CONFIG.source), NOW, create=False))
    for changed in (True, False):
        outcome = tables.apply(told)
        assert (outcome.changed, outcome.link.config.source_cluster, outcome.link.config.throttle) == (
            changed,
            THERE,
            7,
        )
    assert tables.apply(SetLinkSource("l", made.id, CONFIG.source, "third")).link.config.source_cluster == THERE
    tables.apply(DeleteLink("l"))
    with pytest.raises(KafkaError):
        tables.apply(told)
    again = tables.apply(PutLink("l", "/s", CONFIG, NOW, create=True)).link
    assert tables.apply(told).link == again

"""Copies skip records that their source lacks."""

from headrace.node.parts import NodeParts
from kit.played_source import PlayedSource
from kit.pulled_records import ID, leader
from kit.pulling import Copies, Pulling, copy, until


async def test_a_gap_of_the_source_is_a_gap_here(
    target: NodeParts, source: PlayedSource, pull: Pulling, copies: Copies
) -> None:
    (at,) = source.topic("t", ID)
    await copy(target, "t", [at])
    source.produce(at, b"a")
    source.produce(at, b"b", gap=7)
    pull(source)
    await until(lambda: copies.end(at) == 9)
    assert [record.offset for record in await copies.records(at)] == [0, 8]


async def test_a_copy_that_begins_behind_the_sources_oldest_record_goes_on_there_and_its_log_start_says_so(
    target: NodeParts, source: PlayedSource, pull: Pulling, copies: Copies
) -> None:
    (at,) = source.topic("t", ID)
    await copy(target, "t", [at])
    for value in (b"a", b"b", b"c"):
        source.produce(at, value)
    source.drop(at, 2)
    puller = pull(source)
    await until(lambda: (puller.touched([at], led_here=True), copies.end(at) == 3)[1])
    assert [record.offset for record in await copies.records(at)] == [2]
    assert (await leader(target, at)).log_start == 2

"""The state of an open partitionlet in its container's log, with its producers."""

from types import SimpleNamespace
from typing import Any

import msgspec

from headrace.base.ids import Offset, PartitionletId
from headrace.catalog.rows import INTENDED, OPEN
from headrace.log.frames import FrameType
from headrace.log.reading import PartitionletState, ProducerEntry
from headrace.partitions.partition_tail import read_chain, read_tail, read_tails
from headrace.partitions.rolls.frames import Carried, Open, Seal

ID = PartitionletId(9)


def frame(type: FrameType, payload: object, *, epoch: int = 1) -> Any:
    return SimpleNamespace(type=type, epoch=epoch, payload=msgspec.msgpack.encode(payload))


def opened(*producers: Carried, epoch: int = 1) -> Any:
    made = Open(ID, "/s", "t", b"t" * 16, 0, 100, 1, 1, list(producers))
    return frame(FrameType.OPEN, [made], epoch=epoch)


def container(*frames: Any, recovered: int = 0, gaps_end: int = 0, **state: Any) -> Any:
    log = SimpleNamespace(
        load=lambda partitionlet, since: PartitionletState(**state),
        controls_of=lambda partitionlet: list(frames),
        gaps_end=gaps_end,
    )
    return SimpleNamespace(log=log, recovered_epoch=recovered)


def batch(base: int, sequence: int = 0) -> tuple[int, int, int, int]:
    return (sequence, sequence + 9, base, 5000)


def test_without_records_it_stands_where_it_began() -> None:
    tail = read_tail(container(opened()), ID, 100)
    assert (tail.next_offset, tail.seal, tail.size) == (100, None, 0)
    assert dict(tail.producers.items()) == {}


def test_it_ends_behind_its_last_record_and_never_below_what_the_catalog_says() -> None:
    assert read_tail(container(opened(), next_offset=150, bytes=70), ID, 100).next_offset == 150
    assert read_tail(container(opened(), next_offset=50), ID, 100).next_offset == 100


def test_a_seal_says_where_it_ended_whatever_records_are_left() -> None:
    seal = Seal(b"t" * 16, 0, 100, 180, [], [])
    tail = read_tail(container(opened(), frame(FrameType.SEAL, seal), next_offset=120, gaps_end=999), ID, 100)
    assert (tail.next_offset, tail.seal, tail.certain) == (180, seal, True)


def test_where_what_followed_may_have_been_given_back_by_others_it_is_not_certain() -> None:
    assert read_tail(container(opened(), next_offset=150, last_end=800, gaps_end=700), ID, 100).certain
    assert not read_tail(container(opened(), next_offset=150, last_end=700, gaps_end=700), ID, 100).certain


def test_producers_are_carried_over_and_go_on_with_what_was_written_since() -> None:
    carried = Carried(7, 2, [batch(80), batch(90, 10)])
    tail = read_tail(
        container(opened(carried), next_offset=120, producers={7: ProducerEntry(2, [batch(110, 20)])}), ID, 100
    )
    known = dict(tail.producers.items())[7]
    assert known.epoch == 2
    assert [each.base_offset for each in known.batches] == [80, 90, 110]


def test_a_new_epoch_of_a_producer_forgets_the_batches_of_the_one_before() -> None:
    carried = Carried(7, 2, [batch(80)])
    newer = read_tail(container(opened(carried), producers={7: ProducerEntry(3, [batch(110)])}), ID, 100)
    known = dict(newer.producers.items())[7]
    assert (known.epoch, [each.base_offset for each in known.batches]) == (3, [110])
    older = read_tail(container(opened(carried), producers={7: ProducerEntry(1, [batch(70)])}), ID, 100)
    assert dict(older.producers.items())[7].epoch == 2


def test_after_an_unclean_recovery_a_producer_whose_batches_may_be_lost_is_torn() -> None:
    """Whether its last batch here was its last acknowledged one is not known."""
    state: dict[str, Any] = {"next_offset": 130, "epochs": [(1, 100), (6, 120)]}
    before, since = ProducerEntry(1, [batch(110)]), ProducerEntry(1, [batch(120)])
    tail = read_tail(container(opened(), recovered=5, producers={7: before, 8: since}, **state), ID, 100)
    known = dict(tail.producers.items())
    assert (known[7].torn, known[8].torn) == (True, False)
    sound = read_tail(container(opened(epoch=5), recovered=5, producers={7: before}, **state), ID, 100)
    assert not dict(sound.producers.items())[7].torn, "it was opened since"


class Reader:
    """The rows of one partition."""

    def __init__(self, *states: int) -> None:
        self.rows = [
            SimpleNamespace(id=number, state=state, first=100, container_epoch=3) for number, state in enumerate(states)
        ]
        self.chains = self.homes = self

    def chain(self, topic: int, partition: int) -> list[Any]:
        return self.rows

    def log_starts(self, topics: list[int]) -> dict[tuple[int, int], Offset]:
        return {(5, 0): Offset(40)}

    def settled_at(self, topic: int, partition: int) -> None:
        return None


def test_a_chain_is_what_has_been_opened() -> None:
    reader: Any = Reader(OPEN, INTENDED)
    chain = read_chain(reader, 5, 0)
    assert chain is not None
    assert ([row.id for row in chain.rows], chain.log_start) == ([0], 40)
    nothing: Any = Reader(INTENDED)
    assert read_chain(nothing, 5, 0) is None


def test_damage_harms_those_alone_whom_it_meets() -> None:
    reader: Any = Reader(OPEN)
    chain = read_chain(reader, 5, 0)
    assert chain is not None
    sound, broken = container(opened(), next_offset=150), container()
    for each in (sound, broken):
        each.epoch, each.opened_at = 4, 0

    def fails(partitionlet: int, since: int) -> PartitionletState:
        raise OSError("bad sector")

    broken.log.load = fails
    tails = read_tails([((b"a", 0), chain, sound), ((b"b", 0), chain, broken)])
    good = tails[b"a", 0]
    assert not isinstance(good, Exception)
    assert good.next_offset == 150
    assert isinstance(tails[b"b", 0], OSError)

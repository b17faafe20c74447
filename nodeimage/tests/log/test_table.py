"""The index of frames in memory: partitionlets, producers, and ids that it does not contain."""

from headrace.log.index import NO_PRODUCER, ControlPlace, Place, Summary
from headrace.log.table import Table


class Filling:
    """A table of contiguous frames of 100 bytes each."""

    def __init__(self, start: int = 0) -> None:
        self.table = Table(start)

    def batch(
        self,
        partitionlet: int,
        first: int,
        last: int,
        *,
        timestamp: int = 0,
        epoch: int = 1,
        producer: int = NO_PRODUCER,
        producer_epoch: int = 0,
        sequence: int = 0,
    ) -> None:
        packed = (producer_epoch << 32 | sequence) if producer != NO_PRODUCER else -1
        self.table.add_batch(partitionlet, first, last, timestamp, self.table.end, 100, epoch, producer, packed)

    def control(self, partitionlet: int, type: int = 2) -> None:
        self.table.add_control(partitionlet=partitionlet, place=self.table.end, length=100, type=type)


def test_a_partitionlet_is_summed_up_over_its_frames() -> None:
    filling = Filling(1000)
    filling.batch(7, 0, 9, timestamp=50)
    filling.batch(8, 100, 100, timestamp=99)
    filling.batch(7, 10, 14, timestamp=20)
    table = filling.table
    assert (table.start, table.end) == (1000, 1300)
    assert table.summary(7) == Summary(7, 0, 14, 50, 200)
    assert table.summary(8) == Summary(8, 100, 100, 99, 100)
    assert table.summary(9) is None
    assert [each.partitionlet for each in table.summaries()] == [7, 8]
    assert not table.has_one_partitionlet()
    assert table.last_of(7) == (14, 1)
    assert table.last_of(9) is None


def test_places_begin_with_the_frame_that_holds_the_offset() -> None:
    filling = Filling()
    for first in (0, 10, 20):
        filling.batch(7, first, first + 4)
    places = [Place(0, 4, 0, 0, 100), Place(10, 14, 0, 100, 100), Place(20, 24, 0, 200, 100)]
    assert list(filling.table.places(7, 0)) == places
    assert list(filling.table.places(7, 12)) == places[1:]
    assert list(filling.table.places(7, 15)) == places[2:], "an offset in a gap goes on at the next frame"
    assert list(filling.table.places(7, 25)) == []
    assert list(filling.table.places(8, 0)) == []


def test_each_epoch_begins_at_its_first_offset() -> None:
    filling = Filling()
    for first, epoch in ((0, 1), (10, 1), (20, 3), (30, 3), (40, 4)):
        filling.batch(7, first, first + 9, epoch=epoch)
    assert list(filling.table.epochs(7)) == [(1, 0), (3, 20), (4, 40)]
    assert filling.table.epochs(8) == ()


def test_a_producers_last_five_batches_are_known_in_offset_order() -> None:
    filling = Filling()
    for row in range(7):
        filling.batch(7, row * 10, row * 10 + 9, producer=500, producer_epoch=2, sequence=row * 10, timestamp=row)
    filling.batch(7, 70, 70)
    filling.batch(7, 71, 72, producer=501, sequence=0)
    found = filling.table.producers(7)
    assert [(each.producer, each.base_offset) for each in found] == [
        *((500, offset) for offset in (20, 30, 40, 50, 60)),
        (501, 71),
    ]
    assert (found[0].epoch, found[0].base_sequence, found[0].last_sequence, found[0].timestamp) == (2, 20, 29, 2)


def test_sequences_of_tokens_number_batches() -> None:
    filling = Filling()
    filling.batch(7, 0, 9, producer=-5, sequence=3)
    (token,) = filling.table.producers(7)
    assert (token.producer, token.base_sequence, token.last_sequence) == (-5, 3, 3)


def test_a_partitionlet_with_control_frames_alone_is_known_and_has_no_offsets() -> None:
    filling = Filling()
    filling.control(7, type=4)
    filling.batch(8, 0, 0)
    filling.control(7, type=5)
    assert filling.table.partitionlets() == [7, 8]
    assert filling.table.summary(7) == Summary(7, -1, -1, -1, 0)
    assert filling.table.controls(7) == [ControlPlace(0, 100, 4), ControlPlace(200, 100, 5)]
    assert filling.table.controls(8) == []
    assert filling.table.controls_by_partitionlet() == {7: [ControlPlace(0, 100, 4), ControlPlace(200, 100, 5)]}
    assert filling.table.all_controls() == [(0, 100), (200, 100)]
    assert filling.table.has_one_partitionlet(), "control frames are no data"


def test_what_lacks_to_its_length_is_gap_frames() -> None:
    filling = Filling()
    filling.batch(7, 0, 0)
    filling.table.add_gap(place=100, length=400)
    filling.control(7)
    assert filling.table.end == 600
    assert filling.table.known_bytes() == 200


def test_an_entry_is_the_same_for_one_frame_as_for_many() -> None:
    filling = Filling()
    filling.batch(7, 5, 9, timestamp=3, epoch=2)
    summary, places, epochs, producers = filling.table.entry(7)
    assert tuple(summary) == (7, 5, 9, 3, 100)
    assert [tuple(each) for each in places] == [(5, 9, 3, 0, 100)]
    assert (list(epochs), list(producers)) == ([(2, 5)], [])
    filling.batch(7, 10, 12, timestamp=1, epoch=4)
    summary, places, epochs, producers = filling.table.entry(7)
    assert tuple(summary) == (7, 5, 12, 3, 200)
    assert [tuple(each) for each in places] == [(5, 9, 3, 0, 100), (10, 12, 1, 100, 100)]
    assert (list(epochs), list(producers)) == ([(2, 5), (4, 10)], [])
    assert filling.table.entry(8) == ((8, -1, -1, -1, 0), (), (), ())

"""Ids of partitionlets, and homes that are always distinct."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.ids import HOMES, Home, StreamNumber, partitionlet_id, serial_of, stream_of

SERIALS = st.integers(0, 2**40 - 1)
STREAMS = st.integers(1, 2**23 - 1).map(StreamNumber)


@given(STREAMS, SERIALS)
def test_a_partitionlets_id_names_its_stream_and_serial(stream: StreamNumber, serial: int) -> None:
    made = partitionlet_id(stream=stream, serial=serial)
    assert (stream_of(made), serial_of(made)) == (stream, serial)
    assert 0 < made < 2**63, "it is a signed word of the index"


@given(STREAMS, SERIALS, STREAMS, SERIALS)
def test_order_by_id_is_order_by_stream(one: StreamNumber, first: int, other: StreamNumber, second: int) -> None:
    ids = partitionlet_id(stream=one, serial=first), partitionlet_id(stream=other, serial=second)
    assert (ids[0] < ids[1]) == ((one, first) < (other, second))


def test_a_home_that_is_given_away_is_higher() -> None:
    home = Home(5, "north")
    assert home.given_to("south") == Home(6, "south")
    assert home.given_to("south") > home


@given(st.integers(0, 2**20 - 1))
def test_a_home_that_is_taken_by_force_is_higher_than_any_that_was_given_away_unheard(given_away: int) -> None:
    home = Home(0, "north").taken_by("east")
    assert home.taken_by("south").counter > home.counter + given_away


def test_homes_that_two_take_and_give_to_the_same_third_are_not_the_same() -> None:
    home = Home(1, "north")
    mine, theirs = home.taken_by("south").given_to("west"), home.taken_by("east").given_to("west")
    assert mine.cluster == theirs.cluster
    assert mine != theirs


@pytest.mark.parametrize("times", [1, 1000])
def test_counters_stay_below_the_largest_that_others_may_tell(times: int) -> None:
    home = Home(0, "north")
    for _ in range(times):
        home = home.taken_by("south")
    assert home.counter < HOMES

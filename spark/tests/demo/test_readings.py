import math

from hypothesis import given
from hypothesis import strategies as st

from headrace_spark.demo.readings import STEP, Reading, decode, device_name, device_of, encode, on_grid, topic_of

values = st.floats(min_value=-(2.0**30), max_value=2.0**30)


@given(time=st.integers(0, 2**45), sensor=st.text(min_size=1), value=values, sequence=st.integers(1, 2**40))
def test_a_reading_comes_back_as_it_was_sent(time: int, sensor: str, value: float, sequence: int) -> None:
    reading = Reading(time, sensor, on_grid(value), sequence)
    assert decode(encode(reading)) == reading


@given(st.lists(values, min_size=1, max_size=200), st.randoms())
def test_sums_of_values_on_the_grid_are_the_same_in_any_order(raw: list[float], random: object) -> None:
    some = [on_grid(value) for value in raw]
    other = list(some)
    random.shuffle(other)  # type: ignore[attr-defined]
    assert sum(some) == sum(other) == math.fsum(some)


@given(values)
def test_the_grid_moves_a_value_by_half_a_step_at_most(value: float) -> None:
    assert abs(on_grid(value) - value) <= STEP / 2


def test_a_device_is_found_in_its_topics_name() -> None:
    assert topic_of("core-0") == "/factory/sensors:core-0"
    assert device_of(topic_of("core-0")) == "core-0"


@given(st.text())
def test_any_name_becomes_one_that_a_topic_may_have(text: str) -> None:
    name = device_name(text)
    assert name
    assert all(character.isascii() and (character.isalnum() or character in "-_") for character in name)

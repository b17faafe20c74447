import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from headrace.cli.top_rates import Rates, Shown
from headrace.cli.top_screen import PANELS, Looks, screen, shares

from .test_top_rates import group, sample, status

STYLES = re.compile(r"\x1b\[\d*m")


def shown(**fields: Any) -> Shown:
    rates = Rates()
    rates.take(sample(0, {1: status(1_000), 2: status(1_000)}, **fields))
    return rates.take(sample(2, {1: status(3_000, 20), 2: status(3_000, 90)}, **fields))


def drawn(what: Shown, looks: Looks | None = None, *, width: int = 200, height: int = 40, note: str = "") -> list[str]:
    return STYLES.sub("", screen(what, looks or Looks(), width=width, height=height, note=note)).split("\n")


def pressed(keys: str) -> Looks:
    looks = Looks()
    for key in keys:
        looks.press(key)
    return looks


def test_all_panels_that_have_something_are_drawn() -> None:
    events = [[{"at_ms": 0, "kind": "lost", "container": 4, "reason": "node 2 is down"}]]
    lines = drawn(shown(groups=[group("g", 7)], events=events))
    heads = [line.split()[0] for line in lines if line and not line.startswith(" ")]
    assert heads == ["cluster", "redundancy", "all", "nodes", "groups", "events", "q"]
    text = "\n".join(lines)
    assert "req/s 55" in text
    assert "node 2 is down" in text
    assert re.search(r"^ +2 +up .* 25\.0 +1\.0 MiB +45 ", text, re.MULTILINE)


def test_what_a_cluster_says_of_a_silence_is_drawn_in_place_of_redundancy() -> None:
    assert drawn(shown(), note="no answer")[1] == "no answer"


@given(st.integers(1, 250), st.integers(1, 60), st.integers(0, 40), st.text(alphabet="ab日\x1b\n\u202e😀", max_size=30))
def test_nothing_is_wider_or_higher_than_the_terminal(width: int, height: int, groups: int, name: str) -> None:
    told = shown(groups=[group(f"{name}{number}", number) for number in range(groups)])
    lines = drawn(told, width=width, height=height)
    assert len(lines) == height
    assert all(cell_len(line) <= width for line in lines)
    assert not any(hidden in line for line in lines for hidden in "\x1b\u202e")


@given(st.dictionaries(st.sampled_from(list(PANELS)), st.integers(2, 100)), st.integers(0, 100))
def test_room_is_shared_and_none_is_left_while_somebody_wants_it(wanted: dict[str, int], height: int) -> None:
    given_ = shares(wanted, height)
    assert all(0 <= given_[name] <= size for name, size in wanted.items())
    assert sum(given_.values()) == min(height, sum(wanted.values()))


def test_a_panel_with_more_rows_than_room_says_how_many_there_are() -> None:
    lines = drawn(shown(groups=[group(f"g{number:02}", number) for number in range(50)]), height=20)
    assert any(line.startswith("groups (50)") for line in lines)


def test_s_sorts_by_the_next_column_and_r_turns_it_round() -> None:
    told = shown(groups=[group("a", 1), group("b", 3), group("c", 2)])
    assert [each["group"] for each in Looks().rows("groups", told)] == ["b", "c", "a"]
    looks = pressed("\t\t\t")
    assert looks.focus == "groups"
    looks.press("r")
    assert [each["group"] for each in looks.rows("groups", told)] == ["a", "c", "b"]
    assert any("lag^" in line for line in drawn(told, looks))
    for _ in range(3):  # by lag/s, unsorted, by group
        looks.press("s")
    assert [each["group"] for each in looks.rows("groups", told)] == ["c", "b", "a"]
    looks.press("r")
    assert any("groupv" in line for line in drawn(told, looks))


def test_tab_goes_round() -> None:
    assert pressed("\t" * len(PANELS)).focus == "nodes"


@pytest.mark.parametrize(("keys", "is_over"), [("q", True), ("Q", True), ("x\n7", False), ("", False)])
def test_q_ends_it(keys: str, is_over: bool) -> None:
    assert pressed(keys).is_over is is_over

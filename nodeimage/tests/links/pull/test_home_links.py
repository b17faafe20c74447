"""Which link forwards writes to a copy's home."""

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.ids import Home, StreamNumber
from headrace.catalog.rows import PAUSED
from headrace.links.pull.home_links import HomeLinks

NUMBER = StreamNumber(3)
NORTH = Home(1, "north")


def link(name: str = "l", *, cluster: str = "north", topics: tuple[str, ...] = ("*",), **fields: Any) -> Any:
    config = SimpleNamespace(
        source_cluster=cluster,
        source=["n1:9092", "n2:9092", "n3:9092", "n4:9092"],
        topics=list(topics),
        forward_writes=fields.pop("forward_writes", True),
    )
    return SimpleNamespace(name=name, config=config, state=fields.pop("state", "running"))


def topic(name: str = "t", *, home: Home | None = NORTH, number: int = NUMBER) -> Any:
    return SimpleNamespace(name=name, home=home, stream_number=number)


def known(*links: Any) -> HomeLinks:
    made = HomeLinks()
    made.looked_up([(each, NUMBER) for each in links])
    return made


def test_a_write_to_a_copy_goes_by_the_link_that_leads_to_its_home() -> None:
    east, north = link("e", cluster="east"), link("n")
    assert known(east, north).forwarding_link(topic()) is north
    assert known(east).forwarding_link(topic()) is None


@pytest.mark.parametrize("other", [{"home": None}, {"home": Home(1, "west")}, {"number": 4}, {"name": "other"}])
def test_what_is_at_home_here_or_elsewhere_or_not_copied_is_not_passed_on(other: dict[str, Any]) -> None:
    assert known(link(topics=("t*",))).forwarding_link(topic(**other)) is None


def test_a_link_that_is_paused_or_does_not_forward_passes_nothing_on() -> None:
    assert known(link(state=PAUSED)).forwarding_link(topic()) is None
    assert known(link(forward_writes=False)).forwarding_link(topic()) is None


def test_a_link_that_does_not_name_its_cluster_leads_to_the_one_that_its_source_told() -> None:
    links = known(link(cluster=""))
    assert links.forwarding_link(topic()) is None
    source: Any = SimpleNamespace(source_cluster="north")
    links.began("l", source)
    assert links.forwarding_link(topic()) is not None
    links.ended("l")
    links.ended("l")
    assert links.forwarding_link(topic()) is None


def test_homes_are_known_by_a_few_addresses_once_the_links_were_looked_up() -> None:
    links = HomeLinks()
    assert not links.is_known
    links.looked_up([(link(), NUMBER), (link("m", cluster=""), NUMBER)])
    assert links.is_known
    assert links.addresses.of("north") == "n1:9092, n2:9092, n3:9092"
    links.looked_up([])
    assert links.forwarding_link(topic()) is None

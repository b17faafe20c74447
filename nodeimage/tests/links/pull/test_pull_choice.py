from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from headrace.links.pull.pull_choice import TROUBLE_S, Candidate, choose


def name_of(links: Sequence[Candidate], *, home: str = "home", now: float) -> str | None:
    chosen = choose(links, home=home, now=now)
    return None if chosen is None else chosen.name


def test_the_home_itself_pulls_before_all_others() -> None:
    links = [Candidate("a", "east"), Candidate("b", "home"), Candidate("c", "west")]
    assert name_of(links, now=0) == "b"


def test_without_a_link_to_the_home_the_first_by_name_pulls() -> None:
    links = [Candidate("b", "east"), Candidate("c", "west"), Candidate("a", "north")]
    assert name_of(links, now=0) == "a"


def test_a_link_in_trouble_keeps_its_topics_for_a_while_and_then_another_takes_them() -> None:
    links = [Candidate("a", "home", trouble_since=100.0), Candidate("b", "west")]
    assert name_of(links, now=100.0 + TROUBLE_S - 0.1) == "a"
    assert name_of(links, now=100.0 + TROUBLE_S) == "b"


def test_where_all_are_in_trouble_the_choice_is_as_if_none_were() -> None:
    links = [Candidate("b", "west", trouble_since=0.0), Candidate("a", "home", trouble_since=0.0)]
    assert name_of(links, now=1000.0) == "a"


def test_of_no_link_none_pulls() -> None:
    assert name_of([], now=0) is None


CANDIDATES = st.lists(
    st.builds(
        Candidate,
        st.sampled_from("abcdefgh"),
        st.sampled_from(["home", "east", "west", ""]),
        st.none() | st.floats(0, 100),
    ),
    unique_by=lambda each: each.name,
    min_size=1,
)


@given(CANDIDATES, st.floats(0, 200), st.randoms(use_true_random=False))
def test_all_nodes_choose_the_same_whatever_the_order(links: list[Candidate], now: float, order) -> None:  # type: ignore[no-untyped-def]
    chosen = name_of(links, now=now)
    order.shuffle(links)
    assert name_of(links, now=now) == chosen
    assert chosen in {link.name for link in links}


def test_a_mesh_of_four_pulls_each_record_once_per_cluster() -> None:
    clusters = ["one", "two", "three", "four"]
    for home in clusters:
        for own in clusters:
            if own != home:
                links = [Candidate(f"from-{other}", other) for other in clusters if other != own]
                assert name_of(links, home=home, now=0) == f"from-{home}"

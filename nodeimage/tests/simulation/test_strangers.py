"""Papers decide which hosts connect to which, by the nodes' own handshake; and a handshake that admits strangers is
found.
"""

import random
from collections.abc import Sequence

import pytest

from headrace.peer import handshake
from simulation import cluster
from simulation.cluster import STRANGERS, run
from simulation.faults import draw_strangers
from simulation.strangers import Strangers, knock


def kinds(seed: int) -> set[str]:
    return {each.kind for each in draw_strangers(random.Random(seed + STRANGERS), begin=2.5, length=10.0)}


def first(*wanted: str) -> int:
    """The first seed whose run has one of these faults."""
    return next(seed for seed in range(10_000) if kinds(seed).intersection(wanted))


def test_while_all_are_in_order_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "ServerHandshake", None)
    assert Strangers().why_apart(1, 2) == ""


def test_who_is_not_in_order_meets_nobody() -> None:
    strangers = Strangers()
    papers = strangers.of(2)
    assert strangers.why_apart(1, 2) == ""
    papers.wrong += 1
    assert "another secret" in strangers.why_apart(1, 2)
    assert "another secret" in strangers.why_apart(2, 1)
    assert strangers.why_apart(1, 3) == ""
    assert strangers.why_apart(0, 2) == ""  # a client, which presents something else
    papers.wrong -= 1
    papers.stale += 1
    assert "certificate" in strangers.why_apart(2, 3)
    papers.stale -= 1
    assert strangers.why_apart(2, 3) == ""


def test_a_stranger_gets_nowhere_as_it_is() -> None:
    papers = Strangers().of(1)
    assert knock(papers.identity(1), papers.identity(2)) == ""


def test_some_runs_have_strangers_and_most_have_none() -> None:
    found = [kinds(seed) for seed in range(400)]
    assert 30 < sum(map(bool, found)) < 90
    assert set().union(*found) == {"wrong secret", "stale certificate", "secret changes", "stranger"}


def test_a_handshake_that_believes_everything_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake.hmac, "compare_digest", lambda *_: True)
    assert "let in" in run(first("stranger")).problem


def test_a_proof_that_fits_every_channel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    made = handshake._proof
    monkeypatch.setattr(handshake, "_proof", lambda *given: made(*given[:-1], b"any"))
    assert "a relay" in run(first("stranger")).problem


def test_a_former_secret_that_is_not_taken_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    fitting = handshake._fitting

    def newest_alone(known: Sequence[str], *rest: object) -> str | None:
        return fitting(known[:1], *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(handshake, "_fitting", newest_alone)
    assert "does not know node" in run(first("secret changes")).problem


def test_the_same_seed_is_the_same_run_with_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = first("wrong secret")
    with_them = run(seed)
    assert with_them.digest == run(seed).digest
    assert not with_them.problem
    monkeypatch.setattr(cluster, "draw_strangers", lambda *_, **__: [])
    assert run(seed).digest != with_them.digest

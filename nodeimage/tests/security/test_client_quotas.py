"""Limits: which one applies, who shares it, and how long a client above it waits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.security import client_quotas
from headrace.security.client_quotas import (
    Entity,
    Key,
    Quotas,
    QuotaTable,
    Rate,
    address_of,
    entity_of,
    entity_text,
)

ORDER = [
    Entity("alice", "app"),
    Entity("alice", ""),
    Entity("alice"),
    Entity("", "app"),
    Entity("", ""),
    Entity(""),
    Entity(None, "app"),
    Entity(None, ""),
]
"""The limits by precedence; the first that exists applies (Kafka's ClientQuotaManager)."""


@pytest.mark.parametrize("first", range(len(ORDER)))
def test_the_first_limit_in_kafkas_order_counts(first: int) -> None:
    table = QuotaTable((entity, Key.PRODUCE, float(at)) for at, entity in enumerate(ORDER) if at >= first)
    found = table.limit(Key.PRODUCE, user="alice", client_id="app")
    assert found is not None
    assert found.value == first
    assert table.limit(Key.CONSUME, user="alice", client_id="app") is None


@pytest.mark.parametrize(
    ("entity", "shares"),
    [
        (Entity("", ""), []),
        (Entity(""), [("alice", "other")]),
        (Entity(None, ""), [("bob", "app")]),
        (Entity("alice"), [("alice", "other")]),
        (Entity("alice", "app"), []),
    ],
)
def test_who_shares_a_limit_shares_its_count(entity: Entity, shares: list[tuple[str, str]]) -> None:
    quotas = Quotas(QuotaTable([(entity, Key.PRODUCE, 100.0)]))
    assert quotas.used(Key.PRODUCE, 10_000, user="alice", client_id="app", now=0.0) > 0
    waits = [
        (user, client_id)
        for user, client_id in (("alice", "other"), ("bob", "app"), ("bob", "other"))
        if quotas.used(Key.PRODUCE, 1, user=user, client_id=client_id, now=0.0)
    ]
    assert waits == shares


def test_a_rate_up_to_the_limit_is_not_held_up_and_one_above_it_is_until_it_has_fallen() -> None:
    rate = Rate()
    for second in range(60):
        rate.add(100, float(second))
        assert rate.throttle_s(110.0, float(second)) == 0, "at most a tenth too much is counted, as Kafka does"
    rate = Rate()
    rate.add(2000, 0.0)
    wait = rate.throttle_s(100.0, 0.0)
    assert wait == pytest.approx(10.0), "2,000 bytes count as of 10 s: 200 a second, twice the limit"
    assert rate.throttle_s(100.0, wait - 0.01) > 0
    assert rate.throttle_s(100.0, 20.0) == 0
    assert rate.throttle_s(100.0, 11.0) == 0, "what is older than all windows counts no more"


def quotas_of(mutations: float) -> Quotas:
    """Quotas with one limit, on alice's changes of topics."""
    return Quotas(QuotaTable([(Entity("alice"), Key.MUTATIONS, mutations)]))


def test_no_wait_is_longer_than_all_windows_and_a_limit_of_nothing_is_one() -> None:
    rate = Rate()
    rate.add(1e12, 0.0)
    assert rate.throttle_s(1.0, 0.0) == 11.0
    assert rate.throttle_s(0.0, 0.0) == 11.0
    assert quotas_of(0.0).mutated(5, user="alice", client_id="a", now=0.0) == 11.0
    assert quotas_of(1.0).mutated(10**12, user="alice", client_id="a", now=0.0) == 11.0


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 5)), min_size=1, max_size=60), st.floats(1, 2000))
def test_who_waits_as_told_stays_at_the_limit_in_the_long_run(steps: list[tuple[float, float]], limit: float) -> None:
    """Each step uses at most what the limit allows in 5 s."""
    rate, now, total, wait = Rate(), 0.0, 0.0, 0.0
    for pause, seconds in steps:
        amount = seconds * limit
        now += max(pause, wait)
        rate.add(amount, now)
        total += amount
        wait = rate.throttle_s(limit, now)
    assert total <= limit * (now + wait + 11 + 5) * 1.000001


def test_a_bucket_takes_a_burst_and_then_what_comes_in() -> None:
    quotas = quotas_of(5.0)

    def wait(partitions: int, now: float) -> float:
        return quotas.mutated(partitions, user="alice", client_id="a", now=now)

    assert wait(55, 0.0) == 0, "11 s of 5"
    assert wait(10, 0.0) == pytest.approx(2.0)
    assert wait(5, 2.0) == pytest.approx(1.0), "it was empty, and went below"
    assert wait(55, 1000.0) == 0, "no more than a burst is saved"
    assert wait(1, 1000.0) > 0


def test_mutations_and_connections_have_buckets_of_their_own() -> None:
    limits = [(Entity("alice"), Key.MUTATIONS, 1.0), (Entity(ip=""), Key.CONNECTIONS, 1.0)]
    quotas = Quotas(QuotaTable([*limits, (Entity(ip="10.0.0.1"), Key.CONNECTIONS, 100.0)]))
    assert quotas.mutated(11, user="alice", client_id="a", now=0.0) == 0
    assert quotas.mutated(1, user="alice", client_id="b", now=0.0) == 1.0, "of the user, whatever the client"
    assert quotas.mutated(10_000, user="bob", client_id="a", now=0.0) == 0
    assert [quotas.connected("10.0.0.2", now=0.0) > 0 for _ in range(12)] == [False] * 11 + [True]
    assert quotas.connected("10.0.0.3", now=0.0) == 0, "each address has its own"
    assert not any(quotas.connected("10.0.0.1", now=0.0) for _ in range(1000))


def test_other_limits_hold_at_once_and_counts_go_on() -> None:
    quotas = Quotas(QuotaTable([(Entity("alice"), Key.PRODUCE, 1e6)]))
    assert quotas.used(Key.PRODUCE, 5000, user="alice", client_id="a", now=0.0) == 0
    quotas.replace(QuotaTable([(Entity("alice"), Key.PRODUCE, 100.0)]))
    assert quotas.used(Key.PRODUCE, 0, user="alice", client_id="a", now=0.0) > 0
    quotas.replace(QuotaTable([]))
    assert quotas.used(Key.PRODUCE, 1e9, user="alice", client_id="a", now=0.0) == 0


def test_counts_are_bounded_and_those_in_use_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_quotas, "_MAX_COUNTS", 3)
    quotas = Quotas(QuotaTable([(Entity("", ""), Key.PRODUCE, 100.0)]))
    for number in range(50):
        quotas.used(Key.PRODUCE, 5000, user="alice", client_id=f"c{number}", now=0.0)
        assert quotas.used(Key.PRODUCE, 1, user="alice", client_id="c0", now=0.0) > 0
        assert len(quotas._rates) <= 3


def test_long_client_ids_are_told_apart_and_cost_no_more_than_short_ones() -> None:
    """Each client id is kept for a while, and a client may send another one of 32 KiB in each request."""
    long = "x" * 30_000
    table = QuotaTable([(Entity(None, ""), Key.PRODUCE, 10.0), (Entity(None, long), Key.PRODUCE, 5.0)])
    quotas = Quotas(table)
    own = table.limit(Key.PRODUCE, user="alice", client_id=long)
    assert own is not None
    assert own.value == 5.0, "a limit of its own counts, however long its name is"
    assert quotas.used(Key.PRODUCE, 1_000, user="alice", client_id=f"{long}1", now=0.0) > 0
    assert quotas.used(Key.PRODUCE, 1, user="alice", client_id=f"{long}2", now=0.0) == 0
    kept = [*(each[2] for each in table._found), *(each[2] for each in quotas._rates if each[2] is not None)]
    assert max(map(len, kept)) <= 300


def test_entities_are_stored_as_one_text_each() -> None:
    assert entity_text({"user": "alice", "client-id": None}) == entity_text({"client-id": None, "user": "alice"})
    assert entity_of(entity_text({"user": "al\u00efce", "client-id": None})) == Entity("al\u00efce", "")
    assert entity_of(entity_text({"ip": None})) == Entity(ip="")
    for wrong in ({}, {"group": "g"}, {"user": ""}, {"ip": "::1", "user": "u"}):
        with pytest.raises(ValueError, match="user"):
            entity_text(wrong)


def test_a_flood_of_connections_keeps_the_queue_no_longer_than_all_windows() -> None:
    quotas = Quotas(QuotaTable([(Entity(ip=""), Key.CONNECTIONS, 10.0)]))
    waits = [quotas.connected("10.0.0.2", now=0.0) for _ in range(10_000)]
    assert max(waits) == 11.0
    assert sum(wait < 11 for wait in waits) < 10 * 22, "a burst, and those whose turn comes"
    assert quotas.connected("10.0.0.2", now=1.0) < 11, "what was closed was not counted"
    assert quotas.connected("10.0.0.2", now=25.0) == 0


def test_an_address_has_one_form() -> None:
    assert address_of("::ffff:10.0.0.1") == address_of("10.0.0.1") == "10.0.0.1"
    assert address_of("fe80::0001%eth0") == "fe80::1"
    with pytest.raises(ValueError, match="IPv4 or IPv6"):
        address_of("host")

"""An authority's generations: what is trusted, and what signs, at each step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.security.certificate_authority import DAY_S, CertificateRefused, not_after
from headrace_operator.builders.authorities import Generations, Terms, created, decoded, encoded, read, secret, step

TERMS = Terms(days=100, renewal_days=10, overlap_s=600.0)
NOW = 1_900_000_000.0
META = {"name": "c-cluster-ca", "namespace": "ns"}


def stepped(found: Generations, *, forced: bool = False, now: float = NOW) -> tuple[Generations, str]:
    return step("c", found, TERMS, forced=forced, now=now)


def test_a_secret_holds_all_of_it() -> None:
    first = created("c", TERMS, now=NOW)
    begun, _ = stepped(first, forced=True)
    used, _ = stepped(begun, now=NOW + 600)
    for each in (first, begun, used):
        assert read(secret(each, metadata=META)) == each


def test_an_authority_stays_until_some_days_before_its_end() -> None:
    first = created("c", TERMS, now=NOW)
    assert stepped(first, now=NOW + 89 * DAY_S) == (first, "")
    begun, done = stepped(first, now=NOW + 90 * DAY_S)
    assert begun.next is not None
    assert done == "generation 2 is created and trusted, and will be used in 600 s"


def test_a_new_one_is_trusted_then_used_then_the_former_is_dropped() -> None:
    first = created("c", TERMS, now=NOW)
    begun, _ = stepped(first, forced=True)
    assert begun.current == first.current
    assert begun.next is not None
    assert begun.trusted == first.current.certificate + begun.next.certificate
    assert stepped(begun, forced=True, now=NOW + 599) == (begun, "")
    used, done = stepped(begun, now=NOW + 600)
    assert (used.current, used.generation, used.next) == (begun.next, 2, None)
    assert used.trusted == used.current.certificate + first.current.certificate
    assert "still trusted" in done
    assert stepped(used, forced=True, now=NOW + 1199) == (used, "")
    alone, done = stepped(used, now=NOW + 1200)
    assert (alone.trusted, done) == (used.current.certificate, "only generation 2 is trusted")
    assert not alone.turns


def test_one_that_has_expired_is_replaced_at_once() -> None:
    first = created("c", TERMS, now=NOW)
    late = NOW + 101 * DAY_S
    after, _ = stepped(first, now=late)
    assert (after.generation, after.turns) == (2, False)
    assert not_after(after.current.certificate) > late
    begun, _ = stepped(first, forced=True)
    used, _ = stepped(begun, now=late)
    assert used.current == begun.next
    assert not used.former


def test_what_is_no_authority_is_refused() -> None:
    made = secret(created("c", TERMS, now=NOW), metadata=META)
    for name, value in (("ca.key", "x"), ("ca.crt", ""), ("next.crt", "x")):
        with pytest.raises(CertificateRefused):
            read({**made, "data": {**made["data"], **encoded({name: value})}})
    with pytest.raises(CertificateRefused, match="not text"):
        read({**made, "data": {**made["data"], "ca.crt": "/w=="}})
    assert decoded({"data": {"a": "/w==", "b": "eA=="}}) == {"b": "x"}


def test_no_key_is_shown() -> None:
    assert "PRIVATE" not in repr(created("c", TERMS, now=NOW))


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=12))
def test_nobody_meets_an_authority_that_he_has_had_no_time_to_hear_of(walk: list[tuple[int, bool]]) -> None:
    """In any order of events: an authority that signs was trusted for the overlap before, and one that is dropped has
    not signed for as long.
    """
    now, found = NOW, created("c", TERMS, now=NOW)
    trusted_since = {found.current.certificate: now - TERMS.overlap_s}
    signed_until: dict[str, float] = {}
    for minutes, forced in walk:
        now += minutes * 60
        before = found
        found, _ = step("c", found, TERMS, forced=forced and not found.turns, now=now)
        certificates = [found.current.certificate, found.former, found.next.certificate if found.next else ""]
        for each in filter(None, certificates):
            trusted_since.setdefault(each, now)
        assert now - trusted_since[found.current.certificate] >= TERMS.overlap_s
        if found.current != before.current:
            signed_until[before.current.certificate] = now
        if before.former and not found.former:
            assert now - signed_until[before.former] >= TERMS.overlap_s

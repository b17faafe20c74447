"""When a certificate is renewed, and faults of user-provided certificates."""

import pytest

from headrace.security.certificate_authority import DAY_S, CertificateRefused, KeyPair, not_after
from headrace_operator.builders.authorities import Generations, Terms, created
from headrace_operator.builders.certificates import GivenFault, given_fault, host_name, issued, pair_fault, why_anew

TERMS = Terms(days=100, renewal_days=10, overlap_s=600.0)
NOW = 1_900_000_000.0
AUTHORITY = created("c", TERMS, now=NOW)
HOSTS = ["*.c-nodes.ns.svc", "10.0.0.1"]


def made(
    present: KeyPair | None = None,
    *,
    authority: Generations = AUTHORITY,
    hosts: list[str] = HOSTS,
    forced: bool = False,
    now: float = NOW,
) -> KeyPair:
    return issued(present, authority, "c", TERMS, hosts=hosts, client=True, forced=forced, now=now)


def test_a_certificate_stays_as_long_as_it_does() -> None:
    first = made()
    assert made(first) == first
    assert made(first, hosts=HOSTS[:1]) == first  # a worker was removed
    assert made(first, hosts=[*HOSTS, "10.0.0.2"]) != first
    assert made(first, forced=True) != first
    assert made(first, authority=created("c", TERMS, now=NOW)) != first


@pytest.mark.parametrize(
    ("pair", "why"),
    [
        (KeyPair("x", "y"), "it is not PEM"),
        (KeyPair(made().certificate, made().key), "it does not match its key"),
        (issued(None, AUTHORITY, "d", TERMS, hosts=HOSTS, client=True, now=NOW), "it has another subject"),
    ],
)
def test_what_is_no_certificate_of_ours_is_made_anew(pair: KeyPair, why: str) -> None:
    assert why_anew(pair, AUTHORITY, "c", HOSTS, TERMS, now=NOW) == why


def test_a_certificate_is_made_anew_before_its_end_if_that_makes_it_last_longer() -> None:
    short = Terms(days=30, renewal_days=10, overlap_s=600.0)
    first = issued(None, AUTHORITY, "c", short, client=True, now=NOW)
    assert why_anew(first, AUTHORITY, "c", [], short, now=NOW + 19 * DAY_S) == ""
    assert why_anew(first, AUTHORITY, "c", [], short, now=NOW + 21 * DAY_S) == "it expires soon"
    # The authority itself expires: a certificate that it signs would expire with it, and be renewed at each reconcile.
    as_long_as_it = made()
    assert not_after(as_long_as_it.certificate) <= not_after(AUTHORITY.current.certificate)
    assert why_anew(as_long_as_it, AUTHORITY, "c", HOSTS, TERMS, now=NOW + 95 * DAY_S) == ""


def test_a_certificate_of_somebody_else_is_looked_at() -> None:
    pair = made()
    assert given_fault(pair, now=NOW) is None
    for later, fault, text in (
        (87, GivenFault.EXPIRES, "it expires on 20"),
        (101, GivenFault.EXPIRED, "it has expired on 20"),
    ):
        found = given_fault(pair, now=NOW + later * DAY_S)
        assert found is not None
        assert found[0] is fault
        assert found[1].startswith(text)
    unfit = given_fault(KeyPair(pair.certificate, made().key), now=NOW)
    assert unfit == (GivenFault.UNFIT, "the key tls.key does not belong to the certificate tls.crt")
    assert pair_fault(KeyPair("", pair.key)) == "tls.crt is not a certificate in PEM"
    assert pair_fault(KeyPair(pair.certificate, "")) == "tls.key is not a key in PEM without a password"


def test_names_that_cannot_stand_in_a_certificate_are_refused() -> None:
    with pytest.raises(CertificateRefused):
        made(hosts=["ünï"])


def test_hosts_are_as_certificates_have_them() -> None:
    assert [host_name(each) for each in ("[2001:DB8::0:1]", "10.0.0.1", "Kafka.Example.COM")] == [
        "2001:db8::1",
        "10.0.0.1",
        "kafka.example.com",
    ]

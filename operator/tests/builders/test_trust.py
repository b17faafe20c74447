"""User-provided authorities: what is copied of them, and what is kept."""

from typing import Any

import msgspec
import pytest

from headrace.security.certificate_authority import Authority, CertificateRefused
from headrace_operator.builders.trust import authorities_in, entries, is_nobody, last_end, nobody, references
from headrace_operator.specs import ClusterSpec

NOW = 1_700_000_000.0
DAY_S = 86_400.0
GIVEN = Authority.create("company", days=10, now=NOW)


def spec(**listener: Any) -> ClusterSpec:
    more = {"name": "more", "port": 9300, **listener}
    return msgspec.convert({"security": {"enabled": True}, "listeners": {"additional": [more]}}, ClusterSpec)


def test_certificates_alone_are_copied() -> None:
    other = Authority.create("another", days=20, now=NOW)
    text = f"of our company: \u00fc\n{GIVEN.pair.certificate}{GIVEN.pair.key}\n{other.pair.certificate}"
    assert authorities_in(text) == GIVEN.pair.certificate + other.pair.certificate
    assert last_end(authorities_in(text)) == NOW + 20 * DAY_S


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no PEM",
        GIVEN.pair.key,
        GIVEN.issue("alice", days=1, now=NOW, client=True).certificate,
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
    ],
)
def test_what_is_no_authority_is_refused_without_a_word_of_it(text: str) -> None:
    with pytest.raises(CertificateRefused) as refused:
        authorities_in(text)
    assert str(refused.value) in ("holds no certificate in PEM", "holds no certificate of an authority")


def test_given_authorities_count_in_place_of_the_clusters_own_or_beside_them() -> None:
    reference = {"secretRef": {"name": "company"}}
    (found,) = references(spec(protocol="SSL", clientCa=reference))
    assert found.where == "listener more, clientCa: Secret company, entry ca.crt"
    given = {found.entry: "given "}
    alone = entries(spec(protocol="SSL", clientCa=reference), given, own="own ")
    assert alone == {"given-ca-more.crt": "given ", "clients-ca-more.crt": "given "}
    both = entries(spec(protocol="SSL", clientCa={**reference, "includeClusterCa": True}), given, own="own ")
    assert both["clients-ca-more.crt"] == "given own "


def test_nothing_is_looked_for_that_no_listener_asks_of_its_clients() -> None:
    assert not list(references(spec()))
    assert not list(references(spec(protocol="SASL_SSL", clientCa={"secretRef": {"name": "company"}})))
    assert entries(spec(), {}, own="own") == {}


def test_the_issuers_authorities_are_kept_as_they_are() -> None:
    oauth = {"jwksUrl": "https://i/k", "issuer": "i", "audience": ["a"], "jwksCa": {"configMapRef": {"name": "cas"}}}
    asked = spec(mechanisms=["OAUTHBEARER"], oauth=oauth)
    (found,) = references(asked)
    assert (found.entry, found.where) == (
        *("jwks-ca-more.crt", "listener more, oauth.jwksCa: ConfigMap cas, entry ca.crt"),
    )
    assert entries(asked, {found.entry: "given"}, own="own") == {"jwks-ca-more.crt": "given"}


def test_an_authority_of_nobody_can_be_used_by_nodes_and_is_known_again() -> None:
    made = nobody(now=NOW)
    assert authorities_in(made) == made
    assert is_nobody(made)
    assert not is_nobody(GIVEN.pair.certificate)

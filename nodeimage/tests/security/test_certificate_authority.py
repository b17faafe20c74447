"""OpenSSL accepts our own authority's certificates for their purposes, and for no others."""

import ssl
import time
from pathlib import Path

import pytest

from headrace.security.certificate_authority import DAY_S, Authority, CertificateRefused, KeyPair, not_after

NOW = time.time()


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.create("headrace test", days=30, now=NOW)


def context(folder: Path, pair: KeyPair | None, trusted: str, *, server: bool) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.load_verify_locations(cadata=trusted)
    if server:
        made.verify_mode = ssl.CERT_REQUIRED
    if pair is not None:
        path = folder / f"{server}.pem"
        path.write_text(pair.certificate + pair.key)
        made.load_cert_chain(path)
    return made


def shake(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> ssl.SSLObject:
    """Run both sides of a handshake in memory; the server's side. Raises SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(3):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
    ends[1].getpeercert()  # raises unless the handshake is done
    return ends[1]


def test_what_it_has_issued_is_known_by_names_key_and_signature(authority: Authority) -> None:
    hosts = ["localhost", "127.0.0.1", "::1"]
    pair = authority.issue("node-1", days=10, now=NOW, hosts=hosts)
    other = authority.issue("node-1", days=10, now=NOW, hosts=hosts)
    assert authority.has_issued(pair, hosts=reversed(hosts))
    assert not authority.has_issued(pair, hosts=hosts[:2])
    assert not authority.has_issued(KeyPair(pair.certificate, other.key), hosts=hosts)
    assert not authority.has_issued(KeyPair("", pair.key), hosts=hosts)
    assert not Authority.create("headrace test", days=30, now=NOW).has_issued(pair, hosts=hosts)


@pytest.mark.parametrize("host", ["node-1.example", "10.1.2.3", "fd00::1"])
def test_a_server_and_a_client_know_each_other(authority: Authority, tmp_path: Path, host: str) -> None:
    server = authority.issue("node-1", days=10, now=NOW, hosts=[host], client=False)
    client = authority.issue("alice", days=10, now=NOW)
    done = shake(
        context(tmp_path, server, authority.certificate, server=True),
        context(tmp_path, client, authority.certificate, server=False),
        host,
    )
    told = done.getpeercert()
    assert told is not None
    assert told["subject"] == ((("commonName", "alice"),),)


def test_a_client_is_no_server_nor_the_reverse_and_another_host_is_refused(
    authority: Authority, tmp_path: Path
) -> None:
    trusted = authority.certificate
    server = authority.issue("node-1", days=10, now=NOW, hosts=["a.example"], client=False)
    client = authority.issue("alice", days=10, now=NOW)
    both = authority.issue("node-2", days=10, now=NOW, hosts=["a.example"])
    cases = [(client, client, "a.example"), (server, server, "a.example"), (server, client, "b.example")]
    for its, ours, host in cases:
        with pytest.raises(ssl.SSLError):
            shake(context(tmp_path, its, trusted, server=True), context(tmp_path, ours, trusted, server=False), host)
    shake(context(tmp_path, both, trusted, server=True), context(tmp_path, both, trusted, server=False), "a.example")


def test_another_authority_is_not_trusted_though_it_has_the_same_name(authority: Authority, tmp_path: Path) -> None:
    other = Authority.create("headrace test", days=30, now=NOW)
    server = other.issue("node-1", days=10, now=NOW, hosts=["a.example"])
    with pytest.raises(ssl.SSLError):
        shake(
            context(tmp_path, server, other.certificate, server=True),
            context(tmp_path, None, authority.certificate, server=False),
            "a.example",
        )


def test_an_authority_is_made_again_of_its_pair(authority: Authority) -> None:
    again = Authority.of(authority.pair)
    assert again.certificate == authority.certificate
    assert again.not_after == pytest.approx(NOW + 30 * DAY_S, abs=1)
    leaf = authority.issue("alice", days=10, now=NOW)
    with pytest.raises(CertificateRefused, match="not an authority"):
        Authority.of(leaf)
    with pytest.raises(CertificateRefused, match="does not belong"):
        Authority.of(KeyPair(authority.certificate, leaf.key))
    with pytest.raises(CertificateRefused, match="not PEM"):
        Authority.of(KeyPair("x", "y"))


def test_a_certificate_ends_with_its_authority(authority: Authority) -> None:
    leaf = authority.issue("alice", days=365, now=NOW)
    assert not_after(leaf.certificate) <= authority.not_after
    assert not_after(authority.issue("bob", days=7, now=NOW).certificate) == pytest.approx(NOW + 7 * DAY_S, abs=1)
    with pytest.raises(CertificateRefused, match="not PEM"):
        not_after("nothing")


@pytest.mark.parametrize("name", ["", "x" * 65, "a\nb"])
def test_a_name_that_cannot_be_is_refused(authority: Authority, name: str) -> None:
    with pytest.raises(CertificateRefused, match="common name"):
        authority.issue(name, days=1, now=NOW)


def test_no_key_is_in_a_repr(authority: Authority) -> None:
    assert "PRIVATE" not in repr(authority.pair)
    assert "PRIVATE" not in repr(authority)

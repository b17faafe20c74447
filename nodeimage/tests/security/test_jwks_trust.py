"""Which authorities TLS to an issuer's server trusts while their file changes."""

import shutil
from pathlib import Path

import pytest

from headrace.security.certificate_authority import Authority
from headrace.security.jwks_trust import JwksTrust
from headrace.security.tls_server import MAX_BYTES, TlsRefused
from kit.certificates import Certificates

NOW = 1_700_000_000.0


@pytest.fixture
def file(tmp_path: Path, certificates: Certificates) -> Path:
    return Path(shutil.copy(certificates.path("ca.pem"), tmp_path / "issuer-ca.pem"))


def subjects(trust: JwksTrust) -> str:
    return str([each["subject"] for each in trust.context.get_ca_certs()])


def test_what_changes_is_used_and_nothing_that_was_before(file: Path) -> None:
    trust = JwksTrust(file)
    first = trust.context
    assert not trust.look()
    assert trust.context is first
    file.write_text(Authority.create("another", days=10, now=NOW).pair.certificate)
    assert trust.look()
    assert "another" in subjects(trust)
    assert len(trust.context.get_ca_certs()) == 1
    assert not trust.look()


@pytest.mark.parametrize("content", [b"", b"\n", b"no PEM", b"\xff", b"x" * (MAX_BYTES + 1), None])
def test_what_cannot_be_used_leaves_what_was_and_is_never_the_machines_trust(file: Path, content: bytes | None) -> None:
    trust = JwksTrust(file)
    sound, before = file.read_bytes(), trust.context
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    for _ in range(2):
        assert not trust.look()
        assert trust.context is before
        assert str(file) in trust.fault
    with pytest.raises(TlsRefused, match=r"oauth\.jwks_ca: "):
        JwksTrust(file)
    file.write_bytes(sound)
    assert not trust.look()
    assert trust.fault == ""


def test_a_certificate_that_is_no_authority_is_refused(file: Path, certificates: Certificates) -> None:
    shutil.copy(certificates.path("server.pem"), file)
    with pytest.raises(TlsRefused, match="no certificate of an authority"):
        JwksTrust(file)

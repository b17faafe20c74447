"""A listener's TLS: what it refuses, and what stays in use when files change."""

import shutil
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path

import pytest

from headrace.security.tls_server import MAX_BYTES, ClientAuth, ServerTls, TlsFiles, TlsRefused
from kit.certificates import Certificates

DAY_S = 86_400


@pytest.fixture
def files(tmp_path: Path, certificates: Certificates) -> TlsFiles:
    for name in ("server.pem", "server.key", "ca.pem"):
        shutil.copy(certificates.path(name), tmp_path / name)
    return TlsFiles(tmp_path / "server.pem", tmp_path / "server.key", tmp_path / "ca.pem", ClientAuth.REQUIRED)


def put(files: TlsFiles, certificates: Certificates, name: str) -> None:
    shutil.copy(certificates.path(f"{name}.pem"), files.certificate)
    shutil.copy(certificates.path(f"{name}.key"), files.key)


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[str | None, dict[str, object]]:
    """Connect over loopback: the TLS version, and the subject that the client saw. Raises the client's error."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            taken, _ = listening.accept()
            taken.settimeout(10)
            try:
                with server.wrap_socket(taken, server_side=True) as wrapped:
                    wrapped.sendall(b"!")
            except OSError:
                taken.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with (
                socket.create_connection(listening.getsockname(), 10) as plain,
                client.wrap_socket(plain, server_hostname="localhost") as wrapped,
            ):
                if wrapped.recv(1) != b"!":  # with TLS 1.3 a refused certificate shows at the first read
                    raise ConnectionError("refused")
                return wrapped.version(), dict(wrapped.getpeercert() or {})
        finally:
            thread.join()


def trusting(certificates: Certificates, *, ca: str = "ca.pem", own: str = "") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certificates.path(ca))
    context.check_hostname = False
    if own:
        context.load_cert_chain(certificates.path(f"{own}.pem"), certificates.path(f"{own}.key"))
    return context


def test_clients_with_a_certificate_of_the_authority_are_let_in_and_no_others(
    files: TlsFiles, certificates: Certificates
) -> None:
    tls = ServerTls(files, now=time.time())
    assert handshake(tls.context, trusting(certificates, own="client"))[0] == "TLSv1.3"
    with pytest.raises(OSError):  # noqa: PT011  # which one depends on when the client reads
        handshake(tls.context, trusting(certificates))
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tls.context, trusting(certificates, ca="other-ca.pem", own="client"))
    assert 0 < tls.not_after - time.time() <= DAY_S


def test_an_old_tls_is_refused(files: TlsFiles, certificates: Certificates) -> None:
    tls = ServerTls(TlsFiles(files.certificate, files.key), now=time.time())
    old = trusting(certificates)
    old.minimum_version = ssl.TLSVersion.TLSv1_2
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert handshake(tls.context, old)[0] == "TLSv1.2"
    assert tls.context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert tls.context.options & ssl.OP_NO_RENEGOTIATION


def test_new_files_make_a_new_context_once(files: TlsFiles, certificates: Certificates) -> None:
    tls = ServerTls(files, now=time.time())
    before = tls.context
    assert not tls.look(now=time.time())
    put(files, certificates, "stranger")
    assert tls.look(now=time.time())
    assert tls.context is not before
    _, seen = handshake(tls.context, trusting(certificates, own="client"))
    assert seen["subject"] == ((("commonName", "elsewhere"),),)
    assert not tls.look(now=time.time())


def test_trust_that_is_taken_back_is_gone(files: TlsFiles, certificates: Certificates) -> None:
    tls = ServerTls(files, now=time.time())
    assert files.client_ca is not None
    shutil.copy(certificates.path("other-ca.pem"), files.client_ca)
    assert tls.look(now=time.time())
    with pytest.raises(OSError):  # noqa: PT011
        handshake(tls.context, trusting(certificates, own="client"))


def test_a_pair_that_does_not_fit_keeps_the_old_one_until_it_does(files: TlsFiles, certificates: Certificates) -> None:
    tls = ServerTls(files, now=time.time())
    before = tls.context
    shutil.copy(certificates.path("stranger.pem"), files.certificate)
    for _ in range(3):
        assert not tls.look(now=time.time())
        assert "does not belong to the certificate" in tls.fault
        assert tls.context is before
    shutil.copy(certificates.path("stranger.key"), files.key)
    assert tls.look(now=time.time())
    assert tls.fault == ""
    files.key.unlink()
    assert not tls.look(now=time.time())
    assert "cannot be read" in tls.fault
    shutil.copy(certificates.path("stranger.key"), files.key)
    assert not tls.look(now=time.time())
    assert tls.fault == "", "what is in use is there again"


def refusal(files: TlsFiles, *, now: float) -> str:
    with pytest.raises(TlsRefused) as refused:
        ServerTls(files, now=now)
    return str(refused.value)


def test_what_no_listener_can_use_is_refused_by_name(files: TlsFiles, certificates: Certificates) -> None:
    now = time.time()
    assert "has expired" in refusal(files, now=now + 2 * DAY_S)
    assert "not valid yet" in refusal(files, now=now - 2 * DAY_S)
    files.key.write_text("no key")
    assert str(files.key) in refusal(files, now=now)
    shutil.copy(certificates.path("client.key"), files.key)
    assert "does not belong" in refusal(files, now=now)
    command = ["openssl", "ec", "-aes256", "-passout", "pass:secret", "-in", certificates.path("server.key")]
    subprocess.run([*command, "-out", str(files.key)], check=True, capture_output=True, timeout=30)
    assert "has a password" in refusal(files, now=now)
    assert "secret" not in refusal(files, now=now)
    shutil.copy(certificates.path("server.key"), files.key)
    assert files.client_ca is not None
    for content in (b"", b"no authority", b"\xff\xfe"):
        files.client_ca.write_bytes(content)
        assert str(files.client_ca) in refusal(files, now=now)
    files.client_ca.write_bytes(b" " * (MAX_BYTES + 1))
    assert "more than" in refusal(files, now=now)
    shutil.copy(certificates.path("ca.pem"), files.client_ca)
    files.certificate.write_text("")
    assert "no certificate in PEM" in refusal(files, now=now)
    files.certificate.unlink()
    assert "cannot be read" in refusal(files, now=now)


def test_certificates_of_clients_without_an_authority_for_them_are_refused(files: TlsFiles) -> None:
    for wanted in (ClientAuth.REQUESTED, ClientAuth.REQUIRED):
        with pytest.raises(TlsRefused, match="no authority"):
            TlsFiles(files.certificate, files.key, None, wanted)


def test_a_client_that_is_only_asked_for_a_certificate_may_come_without(
    files: TlsFiles, certificates: Certificates
) -> None:
    asked = TlsFiles(files.certificate, files.key, files.client_ca, ClientAuth.REQUESTED)
    tls = ServerTls(asked, now=time.time())
    for own in ("", "client"):
        assert handshake(tls.context, trusting(certificates, own=own))[0] == "TLSv1.3"

"""TLS between nodes: which files are accepted, and what a connection's proofs are bound to."""

import datetime as dt
import ssl
import time
from pathlib import Path

import pytest
from cryptography.x509 import ObjectIdentifier
from cryptography.x509.oid import ExtendedKeyUsageOID

from headrace.base.errors import HeadraceError
from headrace.security.peer_tls import NotBound, PeerTls, channel_binding, reason_of
from headrace.security.tls_server import TlsRefused
from kit.node_certificates import Authority, put, trust

AUTHORITY, OTHER = Authority(), Authority("other")


def read(folder: Path) -> PeerTls:
    return PeerTls(folder, now=time.time())


def connect(client: ssl.SSLContext, server: ssl.SSLContext) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Both ends of a connection, after the handshake."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    connecting = client.wrap_bio(to_client, to_server)
    connected = server.wrap_bio(to_server, to_client, server_side=True)
    for end in (connecting, connected, connecting, connected):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            pass
    return connecting, connected


def test_both_ends_of_a_connection_have_the_same_binding_and_no_other_has_it(tmp_path: Path) -> None:
    one, other = read(AUTHORITY.node(tmp_path / "1")), read(AUTHORITY.node(tmp_path / "2"))
    found = []
    for client, server in ((one, other), (one, other), (other, one), (one, one)):
        connecting, connected = connect(client.connecting, server.context)
        assert connecting.version() == "TLSv1.3"
        assert channel_binding(connecting) == channel_binding(connected)
        found.append(channel_binding(connecting))
    assert len(set(found)) == len(found)


def test_whoever_passes_on_what_two_nodes_say_has_other_bindings_than_they(tmp_path: Path) -> None:
    """Even if it has a certificate and a key that all nodes share."""
    shared = read(AUTHORITY.node(tmp_path / "shared"))
    client, to_client = connect(shared.connecting, shared.context)
    to_server, server = connect(shared.connecting, shared.context)
    assert channel_binding(client) == channel_binding(to_client)
    assert channel_binding(client) != channel_binding(server)
    assert channel_binding(to_server) == channel_binding(server)


def test_a_connection_without_the_tls_of_nodes_has_no_binding(tmp_path: Path) -> None:
    with pytest.raises(NotBound):
        channel_binding(None)
    node = read(AUTHORITY.node(tmp_path / "1"))
    usual = ssl.create_default_context(cafile=str(tmp_path / "1" / "ca.crt"))
    usual.check_hostname = False
    usual.load_cert_chain(tmp_path / "1" / "tls.crt", tmp_path / "1" / "tls.key")
    connecting, _ = connect(usual, node.context)
    with pytest.raises(NotBound):
        channel_binding(connecting)


def test_tls_1_2_is_refused(tmp_path: Path) -> None:
    node = read(AUTHORITY.node(tmp_path / "1"))
    node.connecting.minimum_version = ssl.TLSVersion.TLSv1_2
    node.connecting.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError, match=r"UNSUPPORTED_PROTOCOL|unsupported protocol"):
        connect(node.connecting, node.context)


@pytest.mark.parametrize("usage", [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
def test_a_certificate_for_one_purpose_is_refused(tmp_path: Path, usage: ObjectIdentifier) -> None:
    folder = AUTHORITY.node(tmp_path / "1", usage=[usage])
    with pytest.raises(TlsRefused, match=r"unsuitable certificate purpose.*for servers and for clients"):
        read(folder)


def test_a_certificate_that_other_nodes_would_refuse_is_refused_here(tmp_path: Path) -> None:
    folder = AUTHORITY.node(tmp_path / "1")
    trust(folder, OTHER)
    with pytest.raises(TlsRefused, match=r"other nodes would refuse the certificate in .*tls\.crt.*ca\.crt"):
        read(folder)
    with pytest.raises(TlsRefused, match="has expired; put a new one there"):
        read(AUTHORITY.node(tmp_path / "2", left=dt.timedelta(seconds=-1)))
    (folder / "ca.crt").unlink()
    with pytest.raises(TlsRefused, match=r"ca\.crt cannot be read"):
        read(folder)


def test_an_authority_changes_by_way_of_both(tmp_path: Path) -> None:
    one, other = AUTHORITY.node(tmp_path / "1"), AUTHORITY.node(tmp_path / "2")
    nodes = [read(one), read(other)]

    def meet() -> None:
        for client, server in (nodes, nodes[::-1]):
            assert channel_binding(connect(client.connecting, server.context)[0])

    for step in (
        lambda folder: trust(folder, AUTHORITY, OTHER),
        lambda folder: OTHER.node(folder, trusted=[AUTHORITY]),
        lambda folder: trust(folder, OTHER),
    ):
        for folder, node in zip((one, other), nodes, strict=True):
            step(folder)
            assert node.look(now=time.time())
            meet()
    old = read(AUTHORITY.node(tmp_path / "3"))
    for client, server in ((old, nodes[0]), (nodes[0], old)):
        with pytest.raises(ssl.SSLCertVerificationError):
            connect(client.connecting, server.context)


def test_what_is_no_use_leaves_in_use_what_was(tmp_path: Path) -> None:
    folder = AUTHORITY.node(tmp_path / "1")
    node = read(folder)
    before = node.loaded
    put(folder / "tls.crt", (AUTHORITY.node(tmp_path / "2") / "tls.crt").read_bytes())
    assert not node.look(now=time.time())
    assert "does not belong to the certificate" in node.fault
    assert node.loaded is before
    put(folder / "tls.key", (tmp_path / "2" / "tls.key").read_bytes())
    assert node.look(now=time.time())
    assert node.fault == ""
    assert (node.loaded.context is before.context, node.connecting is before.connecting) == (False, False)


def test_a_certificate_that_is_valid_later_is_used_then(tmp_path: Path) -> None:
    folder = AUTHORITY.node(tmp_path / "1")
    node = read(folder)
    AUTHORITY.node(folder)
    begins = time.time() - 10 * 86_400
    assert not node.look(now=begins - 100)
    assert "not valid yet" in node.fault
    assert node.look(now=time.time())


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number"), "TLS failed"),
        (ConnectionResetError(), "it may not use TLS"),
        (HeadraceError("x"), ""),
        (None, ""),
    ],
)
def test_why_there_is_no_tls_is_said_in_words(error: BaseException | None, said: str) -> None:
    assert said in reason_of(error)

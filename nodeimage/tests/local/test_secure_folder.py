"""A secure folder: its contents, that it is its owner's only, and that whatever is missing is recreated."""

import ssl
import stat
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from msgspec import structs

from headrace.base.errors import FolderRefused, HeadraceError
from headrace.base.levels import Level
from headrace.base.properties import parse_properties
from headrace.local import secure_folder
from headrace.local.folder import (
    ClusterFile,
    NodeProcess,
    client_properties_path,
    open_folder,
    start_lock,
    write_cluster_file,
)
from headrace.local.secure_folder import DAY_S, ensure, make_secure, renew, secured, write_client_files
from headrace.security import listener_config
from headrace.security.certificate_authority import not_after
from headrace.security.client_security import of_security, security_of
from headrace.security.tls_server import ServerTls
from headrace.store import records
from headrace.store.features import get_features
from headrace.store.records import FEATURES_KEY
from headrace.store.sqlite import SqliteStore

NOW = 1_800_000_000.0
NAMES = ("node-1", "node-2")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two nodes that have never run."""
    path = open_folder(tmp_path / "d")
    for name in NAMES:
        (path / name).mkdir()
        (path / name / "node.json").write_text("{}")
    return path


def made(folder: Path, hosts: Sequence[str] = (), *, now: float = NOW) -> list[str]:
    make_secure(folder, hosts)
    said = ensure(folder, NAMES, now=now)
    write_client_files(folder, "127.0.0.1:9092,127.0.0.1:9093")
    return said


def files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "node.json"
    }


def check_whole(folder: Path, *, now: float = NOW) -> None:
    """Use the files as nodes do at their start, and clients."""
    security = security_of(of_security(parse_properties(client_properties_path(folder).read_text())))
    trusting = security.context()
    assert trusting is not None
    assert trusting.get_ca_certs()
    for name in NAMES:
        node = folder / name
        (listener,) = listener_config.parse((node / "listeners.toml").read_text(), folder=node)
        assert listener.is_main
        assert listener.tls is not None
        ServerTls(listener.tls, now=now)
        peer = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        peer.load_cert_chain(node / "peer-tls" / "tls.crt", node / "peer-tls" / "tls.key")
        peer.load_verify_locations(node / "peer-tls" / "ca.crt")


def test_a_folder_has_what_nodes_and_clients_need_and_others_cannot_read_it(folder: Path) -> None:
    folder.chmod(0o755)
    said = made(folder)
    assert len(said) == 7, "two authorities, a user, two certificates a node"
    check_whole(folder)
    for path in (folder, folder / "security", folder / "node-1" / "listener", folder / "node-2" / "peer-tls"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    for name in files(folder):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600, name
    before = files(folder)
    assert made(folder) == []
    assert files(folder) == before


def test_clients_of_both_families_find_their_names(folder: Path) -> None:
    made(folder)
    java = parse_properties(client_properties_path(folder).read_text())
    librdkafka = parse_properties(secure_folder.librdkafka_properties_path(folder).read_text())
    assert java["bootstrap.servers"] == librdkafka["bootstrap.servers"] == "127.0.0.1:9092,127.0.0.1:9093"
    assert java["ssl.truststore.location"] == librdkafka["ssl.ca.location"] == str(folder / "security" / "ca.crt")
    password = (folder / "security" / "admin.password").read_text().strip()
    assert f'username="admin" password="{password}"' in java["sasl.jaas.config"]
    assert librdkafka["sasl.password"] == password
    assert not [name for name in librdkafka if name.startswith(("ssl.truststore", "sasl.jaas"))]


MADE = (
    "security/authority.pem",
    "security/ca.crt",
    "security/peer-authority.pem",
    "security/admin.password",
    "security/admin.toml",
    "client.properties",
    "librdkafka.properties",
    "node-1/listeners.toml",
    "node-1/listener/tls.crt",
    "node-1/listener/tls.key",
    "node-2/peer-tls/tls.crt",
    "node-2/peer-tls/tls.key",
    "node-2/peer-tls/ca.crt",
)


@pytest.mark.parametrize("name", MADE)
def test_what_a_crash_left_out_or_a_disk_has_spoilt_is_made_again(folder: Path, name: str) -> None:
    made(folder)
    (folder / name).unlink()
    made(folder)
    check_whole(folder)
    if name != "security/admin.password":
        (folder / name).write_bytes(b"\xff spoilt")
        made(folder)
        check_whole(folder)


def test_a_key_of_another_certificate_is_replaced_with_it(folder: Path) -> None:
    made(folder)
    keys = [folder / name / "listener" / "tls.key" for name in NAMES]
    keys[0].write_text(keys[1].read_text())
    assert len(made(folder)) == 1
    check_whole(folder)


def test_a_certificate_names_the_hosts_that_are_said_and_keeps_them(folder: Path) -> None:
    made(folder, ["factory.example", "10.0.0.7"])
    before = files(folder)
    assert made(folder) == []
    found = secured(folder)
    assert found is not None
    assert found.hosts == ("factory.example", "10.0.0.7")
    assert len(made(folder, ["other.example"])) == 2
    after = files(folder)
    assert {name for name in before if before[name] != after[name]} == {
        "security/secure.json",
        *(f"{name}/listener/tls.{kind}" for name in NAMES for kind in ("crt", "key")),
    }


def test_certificates_are_renewed_before_they_end_and_their_authorities_stay(folder: Path) -> None:
    made(folder)
    write_cluster_file(folder, ClusterFile(nodes=(NodeProcess(name="node-1", port=9092, pid=0, created=0.0),)))
    before = files(folder)
    assert renew(folder, now=NOW + 300 * DAY_S) == []
    assert files(folder) == {**before, "cluster.json": (folder / "cluster.json").read_text()}
    later = NOW + 336 * DAY_S
    assert len(renew(folder, now=later)) == 4
    check_whole(folder, now=later)
    assert not_after((folder / "node-1" / "listener" / "tls.crt").read_text()) > later + 300 * DAY_S
    assert files(folder)["security/ca.crt"] == before["security/ca.crt"]
    assert renew(folder, now=later) == []


def test_an_authority_that_ends_is_followed_by_another_and_trusted_beside_it(folder: Path) -> None:
    made(folder)
    former = (folder / "security" / "ca.crt").read_text()
    later = NOW + 19 * 365 * DAY_S
    assert len(made(folder, now=later)) == 6
    trusted = (folder / "security" / "ca.crt").read_text()
    assert trusted.endswith(former)
    assert trusted.count("BEGIN CERTIFICATE") == 2
    assert (folder / "node-1" / "peer-tls" / "ca.crt").read_text().count("BEGIN CERTIFICATE") == 2
    assert made(folder, now=later) == []
    (folder / "security" / "authority.pem").unlink()  # the key was stolen
    made(folder, now=later)
    assert (folder / "security" / "ca.crt").read_text().count("BEGIN CERTIFICATE") == 1


def test_files_follow_a_password_that_is_changed(folder: Path) -> None:
    made(folder)
    write_cluster_file(folder, ClusterFile(nodes=(NodeProcess(name="node-1", port=9092, pid=0, created=0.0),)))
    (folder / "security" / "admin.password").write_text("an0ther password\n")
    assert renew(folder, now=NOW) == []
    assert 'password="an0ther password"' in client_properties_path(folder).read_text()
    with start_lock(folder):
        (folder / "security" / "admin.password").write_text("third\n")
        with pytest.raises(FolderRefused, match="another headrace is starting or stopping"):
            renew(folder, now=NOW)


def test_another_user_renews_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(folder)
    write_cluster_file(folder, ClusterFile(nodes=(NodeProcess(name="node-1", port=9092, pid=0, created=0.0),)))
    before = files(folder)
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    assert renew(folder, now=NOW + 336 * DAY_S) == []
    assert files(folder) == before


def test_nodes_of_a_folder_that_is_not_secure_are_told_nothing(folder: Path) -> None:
    assert secured(folder) is None
    assert secure_folder.node_options(folder, "node-1") == []
    assert renew(folder, now=NOW) == []
    make_secure(folder, ())
    options = secure_folder.node_options(folder, "node-1")
    assert "--secure" in options, "from the first moment on"
    assert options[-2:] == ["--peer-tls", str(folder / "node-1" / "peer-tls")]
    (folder / "peer-tls").mkdir()
    assert "--peer-tls" not in secure_folder.node_options(folder, "node-1"), "that of all nodes is theirs"


def test_what_cannot_be_secure_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FolderRefused, match="cannot be written in clients' files"):
        make_secure(open_folder(tmp_path / "back\\slash"), ())
    with pytest.raises(HeadraceError, match="is no name or address of a host"):
        secure_folder.check_hosts(["a b"])
    secure_folder.check_hosts(["factory.example", "fd00::7"])
    with pytest.raises(HeadraceError, match="fd00::7 comes first, and the nodes listen at IPv4"):
        secure_folder.check_hosts(["fd00::7"])
    made(folder)
    (folder / "security" / "secure.json").write_text("{")
    with pytest.raises(FolderRefused, match=r"secure\.json is damaged"):
        secure_folder.node_options(folder, "node-1")


def test_a_cluster_of_an_older_level_has_to_be_raised_first(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "store")) as store:
        records.ensure_cluster(store)
        secure_folder.check_level(store)
        features = structs.replace(get_features(store), level=int(Level.FENCED))
        records.change(store, FEATURES_KEY, type(features), lambda _: features)
        with pytest.raises(FolderRefused, match=r"level is 1, and security needs 2: .*`headrace features upgrade`"):
            secure_folder.check_level(store)

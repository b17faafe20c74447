"""What a secure embedded cluster has in its folder (`headrace up --secure`): authorities, certificates, passwords.

    DIR/security/                   for its owner only, as all that follows
        secure.json                 marks the folder as secure: written before anything else
        authority.pem, ca.crt       signs the certificates of the nodes' listeners; clients trust ca.crt
        peer-authority.pem,         the same for certificates that nodes show each other
        peer-ca.crt
        admin.password              password of the user `admin`; the files below are derived from it
        admin.toml                  the same for nodes (`--bootstrap-admin`)
    DIR/client.properties           properties for Java clients and Headrace's own command line
    DIR/librdkafka.properties       the same for librdkafka, which refuses Java's property names
    DIR/node-1/listeners.toml       the listener of `--port`, with SASL_SSL
    DIR/node-1/listener/            its tls.crt, tls.key
    DIR/node-1/peer-tls/            tls.crt, tls.key, ca.crt; unused if DIR/peer-tls exists

`ensure` creates whatever is missing, does not match or expires soon, at each start and, by `renew`, while the cluster
runs: nodes look at their files every ten seconds. The next call repairs what a crash leaves; a cluster whose folder
was made secure is never started without security. Everything here blocks.
"""

import os
import re
import secrets
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from headrace.base.errors import FolderRefused, HeadraceError
from headrace.base.levels import Level
from headrace.base.properties import property_line
from headrace.local.folder import client_properties_path, node_folders, read_cluster_file, start_lock
from headrace.security import secret_files
from headrace.store.features import get_features
from headrace.store.protocol import ClusterStore

if TYPE_CHECKING:
    from headrace.security.certificate_authority import Authority

ADMIN: Final = "admin"
MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
DAY_S: Final = 86_400
AUTHORITY_DAYS: Final = 7_300
CERTIFICATE_DAYS: Final = 365
RENEWED_DAYS: Final = 30
"""A certificate is renewed when fewer days than this are left."""
AUTHORITY_RENEWED_DAYS: Final = CERTIFICATE_DAYS + RENEWED_DAYS
"""An authority is renewed when fewer days than this are left, so that none of its certificates outlives it."""
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_HOST: Final = re.compile(r"[A-Za-z0-9._:-]{1,253}")


class SecureFile(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of `secure.json`."""

    hosts: tuple[str, ...] = ()
    """Names and addresses by which clients elsewhere reach the nodes; clients receive the first."""
    renew_at: float = 0.0
    """When something in the folder has to be renewed, in seconds since 1970."""


_files = msgspec.json.Decoder(SecureFile)


def security_folder(folder: Path) -> Path:
    """The folder of authorities and passwords."""
    return folder / "security"


def librdkafka_properties_path(folder: Path) -> Path:
    """The client properties for librdkafka, such as kcat's `-F`."""
    return folder / "librdkafka.properties"


def secured(folder: Path) -> SecureFile | None:
    """The folder's security settings; None: it is not secure. Raises FolderRefused if they cannot be read."""
    path = security_folder(folder) / "secure.json"
    try:
        return _files.decode(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise FolderRefused(f"{path} cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise FolderRefused(
            f"{path} is damaged ({error}): `headrace up --secure` makes another once it is gone"
        ) from error


def check_hosts(hosts: Sequence[str]) -> None:
    """Raise HeadraceError unless each is a host's name or address, and the first can be given to clients."""
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise HeadraceError(f"--host {host!r} is no name or address of a host")
    if hosts and ":" in hosts[0]:
        raise HeadraceError(
            f"--host {hosts[0]} comes first, and the nodes listen at IPv4: put a name or such an address first"
        )


def check_level(store: ClusterStore) -> None:
    """Raise FolderRefused if the cluster's feature level has to be raised first, which requires starting it without
    security."""
    level = get_features(store).level
    if level < Level.SECURED:
        raise FolderRefused(
            f"the cluster's feature level is {level}, and security needs {int(Level.SECURED)}: start it without "
            "--secure, run `headrace features upgrade`, stop it, and start it with --secure"
        )


def make_secure(folder: Path, hosts: Sequence[str]) -> None:
    """Make the folder secure from now on, whatever happens next; `hosts`: empty keeps the present ones."""
    present = secured(folder)
    if not str(folder).isprintable() or "\\" in str(folder):
        raise FolderRefused(
            f"{folder} cannot be written in clients' files: a secure cluster needs a folder with another name"
        )
    try:
        folder.chmod(0o700)  # the cluster store contains a secret too
        security_folder(folder).mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise FolderRefused(f"{folder} cannot be restricted to its owner: {error.strerror}") from error
    if present is None or hosts:
        _write_secure_file(folder, SecureFile(hosts=tuple(hosts)))


def ensure(folder: Path, names: Sequence[str], *, now: float) -> list[str]:
    """Create what is missing for these nodes and the folder; returns a line for each thing that was created.

    Raises FolderRefused.
    """
    present = secured(folder)
    assert present is not None, "make_secure comes before"
    try:
        made, until = _ensured(folder, names, present.hosts, now)
        renew_at = until - RENEWED_DAYS * DAY_S
        if renew_at != present.renew_at:
            _write_secure_file(folder, msgspec.structs.replace(present, renew_at=renew_at))
    except OSError as error:
        raise FolderRefused(f"{error.filename} cannot be written: {error.strerror}") from error
    return made


def renew(folder: Path, *, now: float) -> list[str]:
    """Call `ensure` for all nodes of the folder if a renewal is due or the password has changed; otherwise do
    nothing."""
    present = secured(folder)
    cluster = read_cluster_file(folder)
    if present is None or cluster is None or (now < present.renew_at and _follows_password(folder)):
        return []
    if security_folder(folder).stat().st_uid != os.geteuid():  # the nodes could not read another user's files
        return []
    with start_lock(folder):
        made = ensure(folder, node_folders(folder), now=now)
        write_client_files(folder, cluster.bootstrap)
    return made


def node_options(folder: Path, name: str) -> list[str]:
    """Further arguments for a node of the folder."""
    if secured(folder) is None:
        return []
    node = folder / name
    options = ["--secure", "--listeners", str(node / "listeners.toml")]
    options += ["--bootstrap-admin", str(security_folder(folder) / "admin.toml")]
    return options if (folder / "peer-tls").is_dir() else [*options, "--peer-tls", str(node / "peer-tls")]


def write_client_files(folder: Path, bootstrap: str) -> None:
    """Write the clients' property files for a cluster at these addresses. Raises FolderRefused."""
    authority = str(security_folder(folder) / "ca.crt")
    try:
        password = secret_files.read_password(_password_path(folder))
        common = {
            "bootstrap.servers": bootstrap,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISMS[0],
        }
        librdkafka = {"sasl.username": ADMIN, "sasl.password": password, "ssl.ca.location": authority}
        java = {
            "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="{ADMIN}" password="{_in_quotes(password)}";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": authority,
        }
        librdkafka_lines = "".join(f"{name}={value}\n" for name, value in (common | librdkafka).items())
        _keep(librdkafka_properties_path(folder), _HEAD + librdkafka_lines)
        _keep(
            client_properties_path(folder),
            f"{_HEAD}{_lines(common)}# by librdkafka's names\n{_lines(librdkafka)}# by Java's\n{_lines(java)}",
        )
    except OSError as error:
        raise FolderRefused(f"{error.filename} cannot be written: {error.strerror}") from error


_HEAD: Final = "# Written by `headrace up`, which rewrites it when its contents change.\n"


def _ensured(folder: Path, names: Sequence[str], hosts: Sequence[str], now: float) -> tuple[list[str], float]:
    """Lines about what was created, and the first time at which something expires. An authority counts as expiring
    CERTIFICATE_DAYS early, since its certificates must not outlive it."""
    security = security_folder(folder)
    made: list[str] = []
    security.chmod(0o700)
    authority, ends, trusted = _authority(security / "authority.pem", security / "ca.crt", "Headrace", now, made)
    peers, peers_end, peers_trusted = _authority(
        security / "peer-authority.pem", security / "peer-ca.crt", "Headrace nodes", now, made
    )
    _keep(security / "ca.crt", trusted)
    _keep(security / "peer-ca.crt", peers_trusted)
    until = min(ends, peers_end) - (AUTHORITY_RENEWED_DAYS - RENEWED_DAYS) * DAY_S
    _ensure_admin(folder, made)
    for name in names:
        node = folder / name
        for part in (node / "listener", node / "peer-tls"):
            part.mkdir(mode=0o700, exist_ok=True)
        until = min(
            until,
            _certificate(authority, node / "listener", name, _names(hosts), now, made, of_peer=False),
            _certificate(peers, node / "peer-tls", name, [name], now, made, of_peer=True),
        )
        _keep(node / "peer-tls" / "ca.crt", peers_trusted)
        _keep(node / "listeners.toml", LISTENERS)
    return made, until


LISTENERS: Final = f"""# Written by `headrace up`, which rewrites it at each start. Names of topics without a path
# are of /default here; for another `default_stream` see "Listeners" in docs/security.md.
[[listener]]
name = "secure"
main = true
protocol = "SASL_SSL"
mechanisms = {list(MECHANISMS)}
certificate = "listener/tls.crt"
key = "listener/tls.key"
""".replace("'", '"')


def _authority(path: Path, trusted: Path, name: str, now: float, made: list[str]) -> "tuple[Authority, float, str]":
    """The authority that signs, when it expires, and the certificates to trust: for a while the former authority's
    too."""
    from headrace.security.certificate_authority import Authority, CertificateRefused, KeyPair

    before = _read(path)
    with suppress(CertificateRefused):
        authority = Authority.of(KeyPair(before, before))
        if authority.not_after - now > AUTHORITY_RENEWED_DAYS * DAY_S:
            others = _read(trusted)
            known = authority.certificate
            return authority, authority.not_after, others if others.startswith(known) else known
    authority = Authority.create(name, days=AUTHORITY_DAYS, now=now)
    secret_files.write(path, authority.pair.certificate + authority.pair.key)
    made.append(f"made an authority for certificates: {path}")
    former = re.match(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\n", _read(trusted), re.DOTALL)
    return authority, authority.not_after, authority.certificate + (former[0] if former and before else "")


def _certificate(
    authority: "Authority", folder: Path, name: str, hosts: Sequence[str], now: float, made: list[str], *, of_peer: bool
) -> float:
    """When the certificate in the folder expires. Keeps the existing one if it is valid long enough; otherwise issues a
    new one."""
    from headrace.security.certificate_authority import CertificateRefused, KeyPair, not_after

    certificate, key = folder / "tls.crt", folder / "tls.key"
    present = KeyPair(_read(certificate), _read(key))
    with suppress(CertificateRefused):
        ends = not_after(present.certificate)
        if ends - now > RENEWED_DAYS * DAY_S and authority.has_issued(present, hosts=hosts):
            return ends
    issued = authority.issue(name, days=CERTIFICATE_DAYS, now=now, hosts=hosts, client=of_peer)
    secret_files.write(key, issued.key)
    secret_files.write(certificate, issued.certificate)
    made.append(f"made a certificate: {certificate}")
    return not_after(issued.certificate)


def _names(hosts: Sequence[str]) -> list[str]:
    """The names in a listener's certificate."""
    own = socket.gethostname()
    return list(dict.fromkeys([*LOOPBACK, *([own] if _HOST.fullmatch(own) else []), *hosts]))


def _ensure_admin(folder: Path, made: list[str]) -> None:
    path = _password_path(folder)
    if not path.exists():
        secret_files.write(path, secrets.token_urlsafe(24) + "\n")
        made.append(f"made the user {ADMIN}: the password is in {path}")
    _keep(_admin_path(folder), _admin_text(secret_files.read_password(path)))


def _follows_password(folder: Path) -> bool:
    return _read(_admin_path(folder)) == _admin_text(_read(_password_path(folder)).rstrip("\r\n"))


def _password_path(folder: Path) -> Path:
    return security_folder(folder) / "admin.password"


def _admin_path(folder: Path) -> Path:
    return security_folder(folder) / "admin.toml"


def _admin_text(password: str) -> str:
    return f'user = "{ADMIN}"\npassword = "{_in_quotes(password)}"\n'


def _in_quotes(password: str) -> str:
    """The password escaped for TOML and for Java's login configuration."""
    return password.replace("\\", "\\\\").replace('"', '\\"')


def _lines(properties: dict[str, str]) -> str:
    return "".join(property_line(name, value) for name, value in properties.items())


def _write_secure_file(folder: Path, content: SecureFile) -> None:
    text = msgspec.json.format(msgspec.json.encode(content), indent=2).decode()
    try:
        secret_files.write(security_folder(folder) / "secure.json", text)
    except OSError as error:
        raise FolderRefused(f"{security_folder(folder)} cannot be written: {error.strerror}") from error


def _keep(path: Path, text: str) -> None:
    """Make the file contain this text, readable by its owner only."""
    if _read(path) != text or secret_files.may_be_read_by_others(path):
        secret_files.write(path, text)


def _read(path: Path) -> str:
    """The file's text; "" if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""

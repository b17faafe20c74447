"""Certificates for the tests, created by the OpenSSL command: authorities, a server on loopback, clients."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Certificates:
    """PEM files in one folder."""

    folder: Path

    def text(self, name: str) -> str:
        """The content of `ca.pem`, `other-ca.pem`, `server.pem`, `server.key`, and likewise `renewed` (the server's
        next), `stranger`, `client` (alice) and `intruder` (alice too, according to the other authority).
        """
        return (self.folder / name).read_text()

    def path(self, name: str) -> str:
        return str(self.folder / name)


def make(folder: Path) -> Certificates:
    """Create all of them, valid for a day."""
    for authority in ("ca", "other-ca"):
        _run(
            folder,
            *_REQUEST,
            "-x509",
            "-subj",
            f"/CN={authority}",
            "-keyout",
            f"{authority}.key",
            "-out",
            f"{authority}.pem",
        )
    for name, who, ca in (
        ("server", "localhost", "ca"),
        ("renewed", "localhost", "ca"),
        ("stranger", "elsewhere", "ca"),
        ("client", "alice", "ca"),
        ("intruder", "alice", "other-ca"),
    ):
        names = "DNS:localhost,IP:127.0.0.1" if who == "localhost" else f"DNS:{who}"
        (folder / f"{name}.ext").write_text(f"subjectAltName={names}\n")
        _run(folder, *_REQUEST, "-subj", f"/CN={who}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        signed_by = ("-CA", f"{ca}.pem", "-CAkey", f"{ca}.key", "-CAcreateserial", "-days", "1")
        _run(folder, "x509", "-req", "-in", f"{name}.csr", *signed_by, "-extfile", f"{name}.ext", "-out", f"{name}.pem")
    return Certificates(folder)


_REQUEST = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1")


def _run(folder: Path, *command: str) -> None:
    done = subprocess.run(["openssl", *command], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """See `Certificates.text`."""
    return make(tmp_path_factory.mktemp("certificates"))

"""A cluster's own authority, and folders (`--peer-tls`) of nodes with its certificates, good and bad ones."""

import datetime as dt
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

BOTH = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
DAY = dt.timedelta(days=1)


class Authority:
    """An authority that signs nodes."""

    def __init__(self, name: str = "cluster") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        self.certificate = (
            _begun(self._name, self._name, self._key, DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    def node(
        self,
        folder: Path,
        name: str = "node",
        *,
        left: dt.timedelta = 30 * DAY,
        usage: Sequence[x509.ObjectIdentifier] = BOTH,
        trusted: Sequence["Authority"] = (),
    ) -> Path:
        """Put a certificate and its key into a folder; `left`: its validity from now on; `trusted`: authorities in
        addition to this one.
        """
        folder.mkdir(exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        made = (
            _begun(_name(name), self._name, key, left)
            .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        put(folder / "tls.crt", made.public_bytes(Encoding.PEM))
        put(folder / "tls.key", key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        trust(folder, self, *trusted)
        return folder


def trust(folder: Path, *authorities: Authority) -> None:
    """Have a node trust only these authorities."""
    put(folder / "ca.crt", b"".join(each.certificate.public_bytes(Encoding.PEM) for each in authorities))


def put(path: Path, content: bytes) -> None:
    """Replace a file as a whole."""
    path.with_suffix(".new").write_bytes(content)
    os.replace(path.with_suffix(".new"), path)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, left: dt.timedelta
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 10 * DAY)
        .not_valid_after(now + left)
    )

"""TLS listeners for a node of a test: its file, and its certificates, to be replaced at will."""

import os
import shutil
from pathlib import Path
from typing import Any

from kit.certificates import Certificates
from kit.own_ports import HOST, own_port

RULES = "RULE:^CN=([a-z]+)$/$1/"


class TlsListeners:
    """`secure` asks no client for a certificate, `mutual` requires one of the authority."""

    def __init__(self, folder: Path, certificates: Certificates, rules: str = RULES) -> None:
        self.folder = folder
        self.certificates = certificates
        self.secure, self.mutual = own_port(), own_port()
        self.file = folder / "listeners.toml"
        for name in ("server", "ca"):
            self.put(name)
        one = 'protocol = "SSL"\ncertificate = "server.pem"\nkey = "server.key"\n'
        asking = f'client_ca = "ca.pem"\nclient_auth = "required"\nprincipal_mapping_rules = \'{rules}\'\n'
        self.file.write_text(
            f'[[listener]]\nname = "secure"\nport = {self.secure}\n{one}'
            f'[[listener]]\nname = "mutual"\nport = {self.mutual}\n{one}{asking}'
        )

    def put(self, name: str, *, into: str = "", kinds: tuple[str, ...] = (".pem", ".key")) -> None:
        """Replace a certificate and its key."""
        for kind in kinds:
            new = self.folder / f"{into or name}{kind}.new"
            shutil.copy(self.certificates.path(f"{name}{kind}"), new)
            os.replace(new, self.folder / f"{into or name}{kind}")

    def librdkafka(self, *, own: str = "", listener: str = "", ca: str = "ca.pem") -> dict[str, Any]:
        """Properties of a client with the certificate `own`."""
        mutual = listener == "mutual" if listener else bool(own)
        found = {
            "bootstrap.servers": f"{HOST}:{self.mutual if mutual else self.secure}",
            "security.protocol": "SSL",
            "ssl.ca.location": self.certificates.path(ca),
        }
        if own:
            found["ssl.certificate.location"] = self.certificates.path(f"{own}.pem")
            found["ssl.key.location"] = self.certificates.path(f"{own}.key")
        return found

    def kafka_python(self, *, own: str = "") -> dict[str, Any]:
        """The same for kafka-python."""
        told = self.librdkafka(own=own)
        found = {
            "bootstrap_servers": told["bootstrap.servers"],
            "security_protocol": "SSL",
            "ssl_cafile": told["ssl.ca.location"],
        }
        if own:
            found["ssl_certfile"] = told["ssl.certificate.location"]
            found["ssl_keyfile"] = told["ssl.key.location"]
        return found

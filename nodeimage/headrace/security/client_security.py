"""How a client authenticates to a cluster, and which authorities it trusts: parses client properties into a checked
`Security`. For links, the command line and Spark.

Names are those of Kafka's clients, both of librdkafka (`sasl.username`, `ssl.ca.pem`) and of Java (`sasl.jaas.config`,
`ssl.truststore.certificates`, `ssl.truststore.location`). Certificates and keys are PEM; the default is to trust the
machine's certificate authorities and to check the host's name. No secret appears in a repr, a log line or an error.
"""

import os
import re
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from headrace.base.errors import Code, KafkaError
from headrace.security.scram_common import HASHES

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = ("PLAIN", *HASHES)
MAX_PEM: Final = 1 << 20
"""The maximum number of bytes of one property's value."""

_FIELDS: Final[Mapping[str, str]] = {
    "security.protocol": "protocol",
    "sasl.mechanism": "mechanism",
    "sasl.mechanisms": "mechanism",
    "sasl.username": "username",
    "sasl.password": "password",
    "sasl.jaas.config": "jaas",
    "ssl.endpoint.identification.algorithm": "identification",
    "ssl.ca.pem": "ca_pem",
    "ssl.truststore.certificates": "ca_pem",
    "ssl.ca.location": "ca_file",
    "ssl.truststore.location": "ca_file",
    "ssl.certificate.pem": "certificate_pem",
    "ssl.keystore.certificate.chain": "certificate_pem",
    "ssl.certificate.location": "certificate_file",
    "ssl.keystore.location": "store_file",
    "ssl.key.pem": "key_pem",
    "ssl.keystore.key": "key_pem",
    "ssl.key.location": "key_file",
    "ssl.key.password": "key_password",
    "ssl.truststore.type": "truststore_type",
    "ssl.keystore.type": "keystore_type",
}
_PEM_BLOCK: Final = re.compile(
    r"-----BEGIN (?P<kind>[A-Z0-9 ]{1,40})-----(?P<text>[A-Za-z0-9+/=\s]*)-----END (?P=kind)-----"
)
"""Matches a PEM block without headers (a key that is encrypted in OpenSSL's own format has headers)."""
_PEM_LINE: Final = 64
_JAVA_STORES: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce", b"\x30\x82", b"\x30\x83")
"""First bytes of files of the types JKS, JCEKS and PKCS12."""
_JAAS_OPTION = re.compile(r"""(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))""")
_JAAS_MODULES: Final = ("PlainLoginModule", "ScramLoginModule")


@dataclass(frozen=True, slots=True)
class Security:
    """Checked properties. Created by `security_of`."""

    tls: bool = False
    mechanism: str | None = None
    """The SASL mechanism; None: no SASL."""
    username: str = ""
    password: str = field(default="", repr=False)
    check_host: bool = True
    ca_pem: str = field(default="", repr=False)
    ca_file: str = ""
    certificate_pem: str = field(default="", repr=False)
    certificate_file: str = ""
    key_pem: str = field(default="", repr=False)
    key_file: str = ""
    key_password: str = field(default="", repr=False)

    @property
    def protocol(self) -> str:
        """The security protocol, by Kafka's name."""
        if self.mechanism is not None:
            return "SASL_SSL" if self.tls else "SASL_PLAINTEXT"
        return "SSL" if self.tls else "PLAINTEXT"

    def context(self) -> ssl.SSLContext | None:
        """[blocking] The TLS context; None without TLS. Raises KafkaError INVALID_CONFIG, which names the property."""
        if not self.tls:
            return None
        context = _trusting(self)
        context.check_hostname = self.check_host
        if self.certificate_pem:
            with _as_file(self.certificate_pem + "\n" + self.key_pem) as path:
                _load_certificate(context, "ssl.certificate.pem and ssl.key.pem", path, None, self.key_password)
        elif self.certificate_file:
            _refuse_java_store(self.certificate_file, "keystore")
            names = "ssl.certificate.location and ssl.key.location"
            _load_certificate(context, names, self.certificate_file, self.key_file or None, self.key_password)
        return context


def of_security(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties that concern security: a client's file holds others too, such as `bootstrap.servers` and
    `acks`."""
    return {name: value for name, value in properties.items() if name.startswith(("security.", "sasl.", "ssl."))}


def files_named(properties: Mapping[str, str]) -> list[str]:
    """The properties that name a file on the machine where they are used."""
    return sorted(name for name in properties if _FIELDS.get(name, "").endswith("_file"))


def security_of(properties: Mapping[str, str]) -> Security:
    """The security that client properties describe; without any property, PLAINTEXT.

    Raises KafkaError INVALID_CONFIG, also for an unknown property: a misspelt one must not be ignored.
    """
    given: dict[str, str] = {}
    for name, value in properties.items():
        if name not in _FIELDS:
            raise _wrong(f"{name} is not a security property of clients; known are: {', '.join(sorted(_FIELDS))}")
        if not isinstance(value, str) or len(value) > MAX_PEM:
            raise _wrong(f"{name} is not a string of at most {MAX_PEM} characters")
        if given.setdefault(_FIELDS[name], value) != value:
            raise _wrong(f"{name} is given twice, by two of its names")
    return _checked({name: in_lines(value) if name.endswith("_pem") else value for name, value in given.items()})


def in_lines(pem: str) -> str:
    """PEM with line ends, as OpenSSL needs it, from PEM in one line: in property files white space or `\\n` may take
    their place (KIP-651)."""
    return _PEM_BLOCK.sub(_in_lines, pem.replace("\\n", "\n").replace("\\r", ""))


def _in_lines(block: re.Match[str]) -> str:
    kind, text = block["kind"], "".join(block["text"].split())
    lines = [text[at : at + _PEM_LINE] for at in range(0, len(text), _PEM_LINE)]
    return "\n".join(["", f"-----BEGIN {kind}-----", *lines, f"-----END {kind}-----", ""])


def librdkafka_properties(security: Security) -> dict[str, str]:
    """The properties in librdkafka's names. They contain the secrets, so do not show them."""
    found = {"security.protocol": security.protocol}
    if security.mechanism is not None:
        found |= {
            "sasl.mechanism": security.mechanism,
            "sasl.username": security.username,
            "sasl.password": security.password,
        }
    if security.tls:
        found["ssl.endpoint.identification.algorithm"] = "https" if security.check_host else "none"
        optional = {
            "ssl.ca.location": security.ca_file,
            "ssl.ca.pem": security.ca_pem,
            "ssl.certificate.location": security.certificate_file,
            "ssl.certificate.pem": security.certificate_pem,
            "ssl.key.location": security.key_file or security.certificate_file,
            "ssl.key.pem": security.key_pem,
            "ssl.key.password": security.key_password,
        }
        found |= {name: value for name, value in optional.items() if value}
    return found


def _checked(given: dict[str, str]) -> Security:
    protocol = given.pop("protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise _wrong(f"security.protocol is one of {', '.join(PROTOCOLS)}")
    for store in ("truststore", "keystore"):
        if given.pop(f"{store}_type", "PEM").upper() != "PEM":
            raise _wrong(f"ssl.{store}.type can only be PEM here: {_how_to_convert(store, 'FILE')}")
    tls, sasl = protocol.endswith("SSL"), protocol.startswith("SASL")
    identification = given.pop("identification", "https").lower()
    if identification not in ("https", "", "none"):
        raise _wrong("ssl.endpoint.identification.algorithm is https, or empty for no check of the host's name")
    mechanism = given.pop("mechanism", None)
    _add_jaas(given)
    idle = sorted({name for name, kept in _FIELDS.items() if kept in given and _is_idle(name, tls=tls, sasl=sasl)})
    if idle:
        raise _wrong(f"{', '.join(idle)} cannot be used with security.protocol {protocol}")
    if sasl:
        mechanism = (mechanism or "").upper()
        if mechanism not in MECHANISMS:
            raise _wrong(f"sasl.mechanism is one of {', '.join(MECHANISMS)}")
        if not given.get("username") or "password" not in given:
            raise _wrong(f"{mechanism} needs sasl.username and sasl.password")
        if "\0" in given["username"] + given["password"]:
            raise _wrong("sasl.username and sasl.password cannot contain the character NUL")
    elif mechanism is not None:
        raise _wrong(f"sasl.mechanism cannot be used with security.protocol {protocol}")
    if (store := given.pop("store_file", "")) and given.setdefault("certificate_file", store) != store:
        raise _wrong("ssl.keystore.location and ssl.certificate.location: give one of them")
    _check_pairs(given)
    return Security(tls=tls, mechanism=mechanism, check_host=identification == "https", **given)


def _is_idle(name: str, *, tls: bool, sasl: bool) -> bool:
    return (name.startswith("ssl.") and not tls) or (name.startswith("sasl.") and not sasl)


def _check_pairs(given: Mapping[str, str]) -> None:
    for kept in ("ca", "certificate", "key"):
        if f"{kept}_pem" in given and f"{kept}_file" in given:
            raise _wrong(f"ssl.{kept}.pem and ssl.{kept}.location: give one of them")
    if "certificate_pem" in given and "key_pem" not in given:
        raise _wrong("ssl.certificate.pem needs ssl.key.pem")
    if ("key_pem" in given and "certificate_pem" not in given) or (
        "key_file" in given and "certificate_file" not in given
    ):
        raise _wrong("a key needs its certificate: ssl.certificate.pem, or ssl.certificate.location")


def _add_jaas(given: dict[str, str]) -> None:
    """Move user name and password out of Java's `sasl.jaas.config`."""
    jaas = given.pop("jaas", None)
    if jaas is None:
        return
    if not any(module in jaas for module in _JAAS_MODULES):
        raise _wrong(f"sasl.jaas.config is read for {' and '.join(_JAAS_MODULES)} only")
    for name, double, single, bare in _JAAS_OPTION.findall(jaas):
        if name in ("username", "password"):
            value = re.sub(r"\\(.)", r"\1", double or single) or bare
            if given.setdefault(name, value) != value:
                raise _wrong(f"sasl.jaas.config and sasl.{name} contradict each other")


def _how_to_convert(store: str, path: str) -> str:
    """The commands that convert a Java key store to PEM."""
    if store == "truststore":
        return f"`keytool -list -rfc -keystore {path} > ca.pem` converts a trust store to PEM"
    return (
        f"`keytool -importkeystore -srckeystore {path} -destkeystore client.p12 -deststoretype PKCS12` and "
        "`openssl pkcs12 -in client.p12 -nodes -out client.pem` convert a key store to PEM"
    )


def _refuse_java_store(path: str, store: str) -> None:
    """Raise KafkaError INVALID_CONFIG if a file is a Java key store instead of PEM."""
    try:
        with Path(path).open("rb") as file:
            head = file.read(4)
    except (OSError, ValueError):
        return  # the caller that opens the file reports the error
    if head.startswith(_JAVA_STORES):
        name = "ssl.ca.location or ssl.truststore.location" if store == "truststore" else "ssl.keystore.location"
        raise _wrong(f"{name}: {path} is not PEM but a Java key store: {_how_to_convert(store, path)}")


def _trusting(security: Security) -> ssl.SSLContext:
    if security.ca_file:
        _refuse_java_store(security.ca_file, "truststore")
    try:
        return ssl.create_default_context(cafile=security.ca_file or None, cadata=security.ca_pem or None)
    except (ssl.SSLError, OSError, ValueError) as error:
        name = "ssl.ca.location" if security.ca_file else "ssl.ca.pem"
        raise _wrong(f"{name} cannot be used: {_reason(error)}") from None


def _load_certificate(context: ssl.SSLContext, names: str, certificate: str, key: str | None, password: str) -> None:
    try:
        # With a password, even an empty one, OpenSSL never asks the terminal for one.
        context.load_cert_chain(certificate, key, password=lambda: password)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise _wrong(f"{names} cannot be used: {_reason(error)}; is ssl.key.password right?") from None


@contextmanager
def _as_file(text: str) -> Iterator[str]:
    """The path of a file with `text`, which OpenSSL needs; in memory if the system supports it."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("pem", os.MFD_CLOEXEC)
        try:
            with os.fdopen(os.dup(descriptor), "w") as file:
                file.write(text)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.TemporaryDirectory() as folder:  # accessible to this user only
        path = Path(folder, "pem")
        path.write_text(text)
        yield str(path)


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return str(error.reason or "it is not PEM")
    return str(error.strerror) if isinstance(error, OSError) and error.strerror else "it is not PEM"


def _wrong(message: str) -> KafkaError:
    return KafkaError(Code.INVALID_CONFIG, message)

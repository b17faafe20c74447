"""The content of a StreamUser's Secret: all that a client needs, in the form that each kind of client reads. Pure.

    bootstrap, user      the bootstrap address, and the user's name
    password             with a password
    user.crt, user.key   the user's certificate, with TLS; user.pem has both, in Java's form
    ca.crt               the authorities that clients trust
    client.properties    librdkafka's property names, which Headrace's own clients use too
    java.properties      the Java clients' property names, in a cluster with security
    sasl.jaas.config     with a password: the value of the Java clients' property of that name

The properties name files below FOLDER, where StreamJobs mount the Secret.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace.security.certificate_authority import KeyPair
from headrace_operator.builders.listeners import Port

FOLDER: Final = "/etc/headrace/user"
MIN_PASSWORD: Final = 8
MAX_PASSWORD: Final = 256
"""The maximum number of characters of a password (headrace.admin.users)."""
_MODULES: Final = {"PLAIN": "plain.PlainLoginModule"}


@dataclass(frozen=True, slots=True)
class Entry:
    """What a client needs to connect as a user."""

    user: str
    bootstrap: str
    port: Port | None
    """The listener to connect to; None for a cluster without security."""
    mechanism: str = ""
    """"" if the user does not authenticate by password."""
    password: str = field(default="", repr=False)
    certificate: KeyPair | None = None
    ca: str = ""


def mechanism_of(port: Port, asked: str) -> str:
    """Return the mechanism for passwords at a listener: the requested one if the listener has it, else the listener's
    first; "" if it accepts no passwords.
    """
    takes = [each for each in port.mechanisms if each != "OAUTHBEARER"]
    return asked if asked in takes else (takes[0] if takes else "")


def password_fault(password: str, user: str) -> str:
    """Return why a password is not allowed, without the password in the text; "" if it is allowed."""
    if not MIN_PASSWORD <= len(password) <= MAX_PASSWORD:
        return f"it has {len(password)} characters; {MIN_PASSWORD} to {MAX_PASSWORD} are allowed"
    if not password.isprintable() or password != password.strip():
        return "it has an unprintable character, or begins or ends with a blank"
    return "it is the user's name" if password.casefold() == user.casefold() else ""


def values(entry: Entry) -> dict[str, str]:
    """Return the Secret's entries."""
    librdkafka = {"bootstrap.servers": entry.bootstrap, **_librdkafka(entry), "client.id": entry.user}
    found = {
        "bootstrap": entry.bootstrap,
        "user": entry.user,
        "client.properties": "".join(f"{name}={value}\n" for name, value in librdkafka.items()),
    }
    if entry.port is not None:
        java = {"bootstrap.servers": entry.bootstrap, **_java(entry), "client.id": entry.user}
        found["java.properties"] = "".join(f"{name}={_escaped(value)}\n" for name, value in java.items())
    if entry.mechanism:
        found |= {"password": entry.password, "sasl.jaas.config": _jaas(entry)}
    if entry.certificate is not None:
        pair = entry.certificate
        found |= {"user.crt": pair.certificate, "user.key": pair.key, "user.pem": pair.key + pair.certificate}
    if entry.ca:
        found["ca.crt"] = entry.ca
    return found


def _librdkafka(entry: Entry) -> Mapping[str, str]:
    if entry.port is None:
        return {"security.protocol": "PLAINTEXT"}
    found = {"security.protocol": entry.port.protocol}
    if entry.port.has_sasl and entry.mechanism:
        found |= {
            "sasl.mechanism": entry.mechanism,
            "sasl.username": entry.user,
            "sasl.password": entry.password,
        }
    if entry.port.has_tls:
        if entry.ca:
            found["ssl.ca.location"] = f"{FOLDER}/ca.crt"
        if entry.certificate is not None:
            found["ssl.certificate.location"] = f"{FOLDER}/user.crt"
            found["ssl.key.location"] = f"{FOLDER}/user.key"
    return found


def _java(entry: Entry) -> Mapping[str, str]:
    assert entry.port is not None
    found = {"security.protocol": entry.port.protocol}
    if entry.port.has_sasl and entry.mechanism:
        found |= {"sasl.mechanism": entry.mechanism, "sasl.jaas.config": _jaas(entry)}
    if entry.port.has_tls:
        if entry.ca:
            found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": f"{FOLDER}/ca.crt"}
        if entry.certificate is not None:
            found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": f"{FOLDER}/user.pem"}
    return found


def _jaas(entry: Entry) -> str:
    module = _MODULES.get(entry.mechanism, "scram.ScramLoginModule")
    user, password = (each.replace("\\", "\\\\").replace('"', '\\"') for each in (entry.user, entry.password))
    return f'org.apache.kafka.common.security.{module} required username="{user}" password="{password}";'


def _escaped(value: str) -> str:
    """Return a value as a line of a Java .properties file holds it: in ASCII, other characters escaped."""
    text = value.replace("\\", "\\\\")
    utf16 = (text[at : at + 1].encode("utf-16-be") for at in range(len(text)))
    return "".join(_character(each) for each in utf16)


def _character(utf16: bytes) -> str:
    units = [int.from_bytes(utf16[at : at + 2], "big") for at in range(0, len(utf16), 2)]
    return "".join(chr(unit) if unit < 127 else f"\\u{unit:04x}" for unit in units)

"""A node's further listeners, as configured in its file (`--listeners`, TOML). No I/O.

    [[listener]]
    name = "secure"
    port = 9093
    main = true                         instead of `port`: the listener of `--port`, which then is not a plain one
    protocol = "SASL_SSL"               PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL (Kafka's `security.protocol`)
    default_stream = "/sensors"         the stream of topics that its clients name without a path; /default if absent
    certificate = "tls.crt"             PEM: the server's, then those between it and its authority
    key = "tls.key"                     PEM, without a password
    client_ca = "ca.crt"                PEM: the authorities of clients' certificates
    client_auth = "required"            none, requested or required (`ssl.client.auth`)
    principal_mapping_rules = "DEFAULT" `ssl.principal.mapping.rules`; only with SSL: SASL identifies clients itself

`listener_sasl` has the keys of a listener with SASL.
Paths are relative to the file's folder. Anything unknown is refused: a listener with a misspelt key would be less
closed than its author believes.
"""

import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from headrace.base.errors import Code, HeadraceError
from headrace.security import principal_mapping
from headrace.security.listener_sasl import KEYS as _OF_SASL
from headrace.security.listener_sasl import SaslConfig, SaslFault, parse_sasl
from headrace.security.listener_sasl import shown as _shown
from headrace.security.principal_mapping import MappingFault, PrincipalMapping
from headrace.security.tls_server import ClientAuth, TlsFiles

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,63}")
_PORTS: Final = range(1, 1 << 16)
_REQUIRED: Final = ("name", "protocol")
_PLACE: Final = ("port", "main")
_OF_TLS: Final = ("certificate", "key", "client_ca", "client_auth", "principal_mapping_rules")
_OF_CLIENTS: Final = ("client_ca", "principal_mapping_rules")
_KEYS: Final = ("name", *_PLACE, "protocol", "default_stream", *_OF_TLS, *_OF_SASL)


class ListenerProtocol(StrEnum):
    """The protocol at a listener's port."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        """Whether the protocol includes TLS."""
        return self in (ListenerProtocol.SSL, ListenerProtocol.SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        """Whether clients authenticate by SASL."""
        return self in (ListenerProtocol.SASL_PLAINTEXT, ListenerProtocol.SASL_SSL)


class ListenersRefused(HeadraceError):
    """The listeners cannot be served as they are configured."""

    code = Code.INVALID_CONFIG


@dataclass(frozen=True, slots=True)
class ListenerConfig:
    """One listener. `mapping`: maps a client's certificate to its user."""

    name: str
    port: int
    """0: the port of `--port`."""
    protocol: ListenerProtocol
    tls: TlsFiles | None
    """None: without TLS."""
    mapping: PrincipalMapping
    sasl: SaslConfig | None = None
    """None: without SASL."""
    default_stream: str | None = None
    """The text in the file; the catalog's naming rules say whether it is a stream's path. None: absent."""

    @property
    def is_main(self) -> bool:
        """Whether this listener replaces the plain listener of `--port`."""
        return self.port == 0

    @property
    def lets_anybody_in(self) -> bool:
        """Whether the listener admits clients that have proved nothing."""
        if self.sasl is not None:
            return False
        return self.tls is None or self.tls.client_auth is not ClientAuth.REQUIRED


def parse(text: str, *, folder: Path, taken: Collection[str] = ()) -> tuple[ListenerConfig, ...]:
    """The listeners that a file in `folder` describes, in its order. `taken`: names of the node's other listeners.

    Raises ListenersRefused, which names the listener and the key, with advice.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ListenersRefused(f"it is not TOML: {error}") from None
    if unknown := [name for name in document if name != "listener"]:
        raise ListenersRefused(f"{_shown(unknown[0])} is not known; a listener begins with [[listener]]")
    tables = document.get("listener")
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise ListenersRefused("it contains no listener; one begins with [[listener]]")
    found: list[ListenerConfig] = []
    for number, table in enumerate(tables, 1):
        listener = _listener(table, number, folder)
        if listener.name in taken or listener.name in [each.name for each in found]:
            raise ListenersRefused(f"listener {listener.name}: another listener has this name; choose another name")
        same = next((each.name for each in found if each.port == listener.port), None)
        if same is not None and listener.is_main:
            raise _fault(listener.name, "main", f"is set, but listener {same} is main already; only one can be")
        if same is not None:
            raise _fault(listener.name, "port", f"{listener.port} is that of listener {same} too; choose another")
        found.append(listener)
    return tuple(found)


def _listener(table: Mapping[str, Any], number: int, folder: Path) -> ListenerConfig:
    name = table.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        what = "is missing" if name is None else f"is {_shown(name)}"
        raise ListenersRefused(
            f"listener {number} of the file: name {what}; it has 1 to 63 of the characters A-Z, a-z, 0-9, _ and -"
        )
    for key in table:
        if key not in _KEYS:
            raise _fault(name, _shown(key), f"is not known; known are {', '.join(_KEYS)}")
    for key in _REQUIRED:
        if key not in table:
            raise _fault(name, key, "is missing; set it")
    port, protocol = _port(table, name), _protocol(table, name)
    if not protocol.has_tls:
        for key in _OF_TLS:
            if key in table:
                with_tls = ListenerProtocol.SASL_SSL if protocol.has_sasl else ListenerProtocol.SSL
                raise _fault(name, key, f'needs TLS, but the protocol is {protocol}; set protocol = "{with_tls}"')
    if not protocol.has_sasl:
        for key in _OF_SASL:
            if key in table:
                with_sasl = ListenerProtocol.SASL_SSL if protocol.has_tls else ListenerProtocol.SASL_PLAINTEXT
                raise _fault(name, key, f'needs SASL, but the protocol is {protocol}; set protocol = "{with_sasl}"')
    elif "principal_mapping_rules" in table:
        raise _fault(name, "principal_mapping_rules", f"is set, but with {protocol} SASL determines who a client is")
    return ListenerConfig(
        name,
        port,
        protocol,
        _tls(table, name, folder) if protocol.has_tls else None,
        _mapping(table, name),
        _sasl(table, name, folder) if protocol.has_sasl else None,
        _text(table, name, "default_stream") if "default_stream" in table else None,
    )


def _port(table: Mapping[str, Any], name: str) -> int:
    """The port; 0 for the main listener."""
    main = table.get("main", False)
    if not isinstance(main, bool):
        raise _fault(name, "main", f"is {_shown(main)}; it must be true or false")
    if main:
        if "port" in table:
            raise _fault(
                name,
                "port",
                "is set together with main = true: the main listener's port is that of --port; leave one of the two "
                "out",
            )
        return 0
    if "port" not in table:
        raise _fault(name, "port", "is missing; set it")
    port = table["port"]
    if type(port) is not int or port not in _PORTS:
        raise _fault(name, "port", f"is {_shown(port)}; it must be a number from {_PORTS[0]} to {_PORTS[-1]}")
    return port


def _protocol(table: Mapping[str, Any], name: str) -> ListenerProtocol:
    value = _text(table, name, "protocol")
    try:
        return ListenerProtocol(value)
    except ValueError:
        known = ", ".join(ListenerProtocol)
        raise _fault(name, "protocol", f"is {_shown(value)}; it must be one of {known}") from None


def _sasl(table: Mapping[str, Any], name: str, folder: Path) -> SaslConfig:
    try:
        return parse_sasl(table, folder)
    except SaslFault as error:
        raise ListenersRefused(f"listener {name}: {error}") from None


def _tls(table: Mapping[str, Any], name: str, folder: Path) -> TlsFiles:
    for key, what in (("certificate", "the file of its certificate"), ("key", "the file of the certificate's key")):
        if key not in table:
            raise _fault(name, key, f"is missing; a listener with protocol {table['protocol']} needs {what}")
    auth = _text(table, name, "client_auth") if "client_auth" in table else ClientAuth.NONE
    if auth not in tuple(ClientAuth):
        raise _fault(name, "client_auth", f"is {_shown(auth)}; it must be one of {', '.join(ClientAuth)}")
    wanted = ClientAuth(auth)
    if wanted is ClientAuth.NONE:
        for key in _OF_CLIENTS:
            if key in table:
                raise _fault(
                    name, key, 'is set, but no client is asked for a certificate; set client_auth = "required"'
                )
    elif "client_ca" not in table:
        raise _fault(name, "client_ca", f"is missing; with client_auth {wanted} it is the file of clients' authorities")

    def path(key: str) -> Path:
        name_of_file = _text(table, name, key)
        if not name_of_file or "\0" in name_of_file:
            raise _fault(name, key, f"is {_shown(name_of_file)}, which is not a file name")
        return folder / name_of_file

    client_ca = path("client_ca") if "client_ca" in table else None
    return TlsFiles(path("certificate"), path("key"), client_ca, wanted)


def _mapping(table: Mapping[str, Any], name: str) -> PrincipalMapping:
    if "principal_mapping_rules" not in table:
        return _DEFAULT
    try:
        return principal_mapping.parse(_text(table, name, "principal_mapping_rules"))
    except MappingFault as error:
        raise ListenersRefused(f"listener {name}: principal_mapping_rules: {error}") from None


_DEFAULT: Final = principal_mapping.parse(principal_mapping.DEFAULT)


def _text(table: Mapping[str, Any], name: str, key: str) -> str:
    value = table[key]
    if not isinstance(value, str):
        raise _fault(name, key, f'is {_shown(value)}; it must be text in "quotes"')
    return value


def _fault(name: str, key: str, fault: str) -> ListenersRefused:
    return ListenersRefused(f"listener {name}: {key} {fault}")

"""Which cluster a command talks to, and as whom: from the command line, the environment, contexts and folders.

For each setting, the first of these sources that has it counts:

1. options of the command line: --bootstrap or --data, --config or --context, --user, --password-file, --tls-ca;
2. the environment: HEADRACE_CONFIG, HEADRACE_CONTEXT, HEADRACE_BOOTSTRAP, HEADRACE_DATA;
3. the context in use (`headrace context use`);
4. the embedded cluster that runs in the data folder, with the `client.properties` that `headrace up --secure` made.

Settings from 3 and 4, which the user did not name, apply only to their own cluster: a password from there goes to no
other address.
"""

import functools
import os
import re
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from headrace.base.errors import HeadraceError
from headrace.base.properties import parse_properties
from headrace.cli.client_options import ClientOptions, client_options
from headrace.cli.context_file import Context, read_contexts
from headrace.cli.output import is_terminal, note
from headrace.kafka_client.blocking_client import Access
from headrace.local import secure_folder
from headrace.local.folder import ClusterNotRunning, client_properties_path, default_folder, expanded
from headrace.local.hints import quoted
from headrace.security import secret_files
from headrace.security.client_security import Security, of_security, security_of

CONFIG_VARIABLE: Final = "HEADRACE_CONFIG"
CONTEXT_VARIABLE: Final = "HEADRACE_CONTEXT"
DEFAULT_PORT: Final = 9092
DEFAULT_MECHANISM: Final = "SCRAM-SHA-512"
_SECRETS: Final = ("sasl.password", "sasl.jaas.config", "ssl.key.pem", "ssl.keystore.key", "ssl.key.password")
_KEY_FILES: Final = ("ssl.key.location", "ssl.keystore.location")
_AUTHORITIES: Final = (
    *("ssl.ca.location", "ssl.ca.pem"),
    *("ssl.truststore.location", "ssl.truststore.certificates", "ssl.truststore.type"),
)
_LOGIN: Final = ("sasl.username", "sasl.password", "sasl.jaas.config")


@dataclass(frozen=True, slots=True)
class Target:
    """A cluster, and the identity to use there."""

    addresses: str
    """`host:port,host:port`"""
    access: Access
    folder: Path | None = None
    """The data folder, if this is the embedded cluster that runs in it. Only then is a node of the folder a node of
    this cluster: both may have a node 1.
    """

    def at(self, addresses: str) -> "Target":
        """A target with other addresses of the same cluster."""
        return replace(self, addresses=addresses)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings in a properties file, or in a context."""

    source: str
    """Where the settings come from, for messages."""
    addresses: str = ""
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The security properties."""


NOTHING: Final = Settings("the command line")


def plain(addresses: str) -> Target:
    """A target without TLS and without a login."""
    return Target(addresses, Access(Security()))


def find_target(bootstrap: str | None, folder: Path | None) -> Target:
    """The target of the command. Raises HeadraceError, whose one line gives advice."""
    options = client_options()
    asked = _asked_for(options)
    default = bootstrap is None and folder is None
    named = None if options.data_given else bootstrap
    in_use = _in_use() if asked is None and (default or named) else None
    embedded = None
    if asked is not None and asked.addresses and not (options.bootstrap_given or options.data_given):
        addresses, settings = asked.addresses, asked
    elif in_use is not None and in_use.addresses and default:
        addresses, settings = in_use.addresses, in_use
    elif named:
        addresses, settings = named, asked or _own_settings(named, in_use, folder)
    else:
        embedded = expanded(folder or default_folder())
        addresses, settings = _of_embedded(embedded), asked or of_folder(embedded)
    for address in addresses.split(","):
        split_address(address)
    return Target(addresses, access_of(settings, options), embedded)


def access_of(settings: Settings, options: ClientOptions) -> Access:
    """The access that the settings describe, overridden by the command line. Raises HeadraceError."""
    properties = _with_options(settings.properties, options)
    try:
        return Access(security_of(properties))
    except HeadraceError as error:
        raise HeadraceError(f"{settings.source}: {error}") from None


def of_file(path: Path) -> Settings:
    """The settings in a file of client properties. Raises HeadraceError."""
    path = expanded(path)
    text = secret_files.read_text(path)
    try:
        found = parse_properties(text)
    except HeadraceError as error:
        raise HeadraceError(f"{path}: {error}") from None
    properties = of_security(found)
    if any(properties.get(name) for name in _SECRETS):
        _warn_of_readers(path)
    for name in _KEY_FILES:
        if properties.get(name):
            _warn_of_readers(Path(properties[name]))
    return Settings(str(path), found.get("bootstrap.servers", ""), properties)


def of_context(name: str, context: Context) -> Settings:
    """The settings of a context. Raises HeadraceError."""
    found = of_file(Path(context.config)) if context.config else NOTHING
    return Settings(f"context {name}", context.bootstrap or found.addresses, found.properties)


def of_folder(folder: Path) -> Settings:
    """The settings in an embedded cluster's folder; empty if it is not secure. Raises HeadraceError."""
    path = client_properties_path(folder)
    if not path.exists():
        return NOTHING
    with suppress(HeadraceError):  # a failed renewal shows when a certificate expires
        secure_folder.renew(folder, now=time.time())
    return of_file(path)


def split_address(address: str) -> tuple[str, int]:
    """`host`, `host:port` or `[v6]:port` as (host, port)."""
    text = address.strip()
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(DEFAULT_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not re.fullmatch(r"0*[0-9]{1,5}", port) or not 0 < int(port) < 65_536 or not _is_host(host):
        raise HeadraceError(f"{address!r} is not an address: write HOST:PORT")
    return host, int(port)


def _asked_for(options: ClientOptions) -> Settings | None:
    """The settings that the user named: on the command line, otherwise in the environment; None: none."""
    if options.config is not None and options.context_name is not None:
        raise HeadraceError("--config and --context exclude each other")
    if options.config is not None:
        return of_file(options.config)
    if options.context_name is not None:
        if options.data_given:
            raise HeadraceError("--context and --data exclude each other")
        return of_context(options.context_name, read_contexts().get(options.context_name))
    if config := os.environ.get(CONFIG_VARIABLE):
        return of_file(Path(config))
    if name := os.environ.get(CONTEXT_VARIABLE):
        return of_context(name, read_contexts().get(name))
    return None


def _in_use() -> Settings | None:
    contexts = read_contexts()
    return of_context(contexts.current, contexts.get(contexts.current)) if contexts.current else None


def _own_settings(bootstrap: str, in_use: Settings | None, folder: Path | None) -> Settings:
    """The settings of the context in use or the data folder, if the addresses are its own."""
    wanted = set(map(_known_address, bootstrap.split(",")))
    if in_use is not None and wanted & set(map(_known_address, in_use.addresses.split(","))):
        return in_use
    try:
        found = of_folder(expanded(folder or default_folder()))
    except HeadraceError:
        return NOTHING  # the folder may belong to another user
    return found if wanted & set(map(_known_address, found.addresses.split(","))) else NOTHING


def _known_address(address: str) -> tuple[str, int] | None:
    try:
        return split_address(address)
    except HeadraceError:
        return None if not address else ("", hash(address))


def _of_embedded(folder: Path) -> str:
    from headrace.local.cluster import running_cluster

    cluster = running_cluster(folder)
    if cluster is None:
        raise ClusterNotRunning(
            f"no cluster runs in {folder}: start one with `headrace up`, or name one with --bootstrap or --data"
        )
    return cluster.bootstrap


def _with_options(properties: Mapping[str, str], options: ClientOptions) -> dict[str, str]:
    found = dict(properties)
    protocol = found.get("security.protocol", "").upper()
    if options.tls_ca is not None:
        found = {name: value for name, value in found.items() if name not in _AUTHORITIES}
        found["ssl.ca.location"] = str(expanded(options.tls_ca))
        protocol = "SASL_SSL" if protocol.startswith("SASL") else "SSL"
    if options.user is not None:
        found = {name: value for name, value in found.items() if name not in _LOGIN}
        found["sasl.username"] = options.user
        found["sasl.password"] = _password(options)
        if "sasl.mechanisms" not in found:
            found.setdefault("sasl.mechanism", DEFAULT_MECHANISM)
        # A password is sent in clear only if a file explicitly says so.
        protocol = "SASL_PLAINTEXT" if protocol in ("PLAINTEXT", "SASL_PLAINTEXT") else "SASL_SSL"
    elif options.password_file is not None:
        raise HeadraceError("--password-file is for --user NAME: say whose password it is")
    if protocol:
        found["security.protocol"] = protocol
    return found


def _password(options: ClientOptions) -> str:
    if options.password_file is not None:
        path = expanded(options.password_file)
        password = secret_files.read_password(path)
        _warn_of_readers(path)
        return password
    if not is_terminal(sys.stdin):
        raise HeadraceError(f"--user {options.user} needs --password-file FILE where there is no terminal to ask on")
    return _asked_password(options.user or "")


@functools.cache
def _asked_password(user: str) -> str:
    """Ask for a password; only once, even for a command that connects twice."""
    from getpass import getpass

    return getpass(f"password of {user}: ")


@functools.cache
def _warn_of_readers(path: Path) -> None:
    if secret_files.may_be_read_by_others(path):
        note(f"warning: {path} holds a secret and may be read by others: `chmod 600 {quoted(path)}`")


def _is_host(host: str) -> bool:
    """Whether the resolver accepts the name."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return host.isprintable() and " " not in host

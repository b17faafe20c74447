"""Checks of a link's configuration, with error messages that say what to write instead; sealing of its credentials.

Only what can be checked without the source is checked here. The running link finds out whether the source answers and
has the stream. Credentials are stored sealed with the cluster's secret, so that neither the catalog's log nor a copy of
it reveals them; the names of the properties are shown, their values never.
"""

import base64
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from headrace.base.addresses import parse_addresses
from headrace.base.errors import Code, KafkaError
from headrace.catalog.link_config import LinkConfig
from headrace.catalog.names import MAX_LENGTH, check_stream
from headrace.security.client_security import security_of

__all__ = ["BOTH", "PULL", "check_link_name", "checked_config", "credential_names", "is_kafka", "seal", "unseal"]

PULL, BOTH = "pull", "both"
MAX_PATTERNS: Final = 100
MAX_NAME: Final = 100
MIN_THROTTLE: Final = 1024
"""Lowest throttle in bytes a second: below this a link would not move one batch in a minute."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PATTERN = re.compile(r"[A-Za-z0-9._*?\[\]!-]+")
_NONCE_BYTES: Final = 12
_SEALED: Final = b"\x01"
"""First byte of sealed credentials: version 1, AES-256-GCM with the nonce first."""
_properties = msgspec.msgpack.Decoder(dict[str, str])


def check_link_name(name: str) -> None:
    """Check that `name` can name a link. Raises KafkaError INVALID_CONFIG."""
    if not _NAME.fullmatch(name) or len(name) > MAX_NAME:
        raise _wrong(f"{name[:100]!r} names no link; it has up to {MAX_NAME} letters, digits, '.', '_' and '-'")


def checked_config(config: LinkConfig, *, stream: str) -> LinkConfig:
    """`config`, checked and normalized, of a link into `stream`. Raises KafkaError whose message says what to write."""
    check_stream(stream)
    if is_kafka(config):
        if config.direction != PULL:
            raise _wrong("an Apache Kafka cluster has no links, so direction can be pull only")
    else:
        try:
            check_stream(config.source_stream)
        except KafkaError as error:
            raise _wrong(f"the source's stream: {error}") from None
    source = [str(each) for each in parse_addresses(config.source)]
    if config.direction not in (PULL, BOTH):
        raise _wrong(f"direction is {config.direction[:40]!r}; it can be {PULL} or {BOTH}")
    bootstrap = [str(each) for each in parse_addresses(config.bootstrap)] if config.bootstrap else []
    if config.direction == BOTH and not bootstrap:
        raise _wrong(
            "direction both creates a link at the source that pulls from here; name with --reach the addresses of this"
            " cluster that the source can reach"
        )
    if config.throttle < 0 or 0 < config.throttle < MIN_THROTTLE:
        raise _wrong(f"throttle is {config.throttle} bytes a second; use 0 for none, or at least {MIN_THROTTLE}")
    return msgspec.structs.replace(config, source=source, bootstrap=bootstrap, topics=checked_patterns(config.topics))


def is_kafka(config: LinkConfig) -> bool:
    """Whether the source is an Apache Kafka cluster: it has no streams, so the link names none."""
    return not config.source_stream


def checked_patterns(patterns: Sequence[str]) -> list[str]:
    """The patterns of topic names without duplicates, in the order given. Raises KafkaError INVALID_CONFIG."""
    if not 0 < len(patterns) <= MAX_PATTERNS:
        raise _wrong(f"{len(patterns)} patterns of topics; give 1 to {MAX_PATTERNS}, '*' for all")
    for pattern in patterns:
        if not _PATTERN.fullmatch(pattern) or len(pattern) > MAX_LENGTH:
            raise _wrong(f"{pattern[:100]!r} is not a pattern of topics: write names, with * and ? as wildcards")
    return list(dict.fromkeys(patterns))


# --- credentials


def seal(credentials: Mapping[str, str], secret: str) -> bytes:
    """Seal client properties for storage. Raises KafkaError INVALID_CONFIG for properties that a link cannot use."""
    if not credentials:
        return b""
    security_of(credentials)
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # saves links without credentials 8 MB

    nonce = os.urandom(_NONCE_BYTES)
    clear = msgspec.msgpack.encode(dict(credentials))
    return _SEALED + nonce + AESGCM(_key(secret)).encrypt(nonce, clear, _SEALED)


def unseal(sealed: bytes, secret: str) -> dict[str, str]:
    """The sealed client properties. Raises KafkaError if they were sealed with another secret."""
    if not sealed:
        return {}
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce, rest = sealed[1 : 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :]
    try:
        if sealed[:1] != _SEALED:
            raise InvalidTag
        clear = AESGCM(_key(secret)).decrypt(nonce, rest, _SEALED)
    except (InvalidTag, ValueError):
        raise _wrong(
            "the credentials were sealed with another secret than this cluster's; give them again with"
            " `headrace link alter --credentials`"
        ) from None
    return _properties.decode(clear)


def credential_names(sealed: bytes, secret: str) -> list[str]:
    """The names of the properties in the credentials, without their values."""
    try:
        return sorted(unseal(sealed, secret))
    except KafkaError:
        return ["(sealed with another secret)"]


def _key(secret: str) -> bytes:
    return hashlib.sha256(b"headrace link credentials\0" + secret.encode()).digest()


def short_name(source: Sequence[str], source_stream: str) -> str:
    """A default name for a link, made from its source's first host and stream."""
    host = source[0].rpartition(":")[0].strip("[]") if source else ""
    digest = base64.b32encode(hashlib.sha256(repr((sorted(source), source_stream)).encode()).digest())[:4].decode()
    words = re.sub(r"[^A-Za-z0-9-]+", "-", f"{host}{source_stream}").strip("-")[:60]
    return f"{words or 'link'}-{digest.lower()}"


def _wrong(message: str) -> KafkaError:
    return KafkaError(Code.INVALID_CONFIG, message)

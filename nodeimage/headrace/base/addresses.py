"""Parses and checks addresses as people write them, `host:port`, and tells which of them share a limit."""

import ipaddress
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from headrace.base.errors import Code, KafkaError

MAX_ADDRESSES: Final = 64
"""The most addresses in one bootstrap list."""
_KEPT_NETWORKS: Final = 2048


class Address(NamedTuple):
    """The address of a Kafka server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_addresses(texts: Sequence[str]) -> list[Address]:
    """The addresses of a bootstrap list, each `host:port` or `[ipv6]:port`; a text may contain several, with commas.

    Raises KafkaError INVALID_CONFIG for no address, too many addresses, or an invalid one.
    """
    found = [parse_address(part) for text in texts for part in text.split(",") if part.strip()]
    if not 0 < len(found) <= MAX_ADDRESSES:
        raise KafkaError(Code.INVALID_CONFIG, f"{len(found)} addresses; give 1 to {MAX_ADDRESSES}, as host:port")
    return list(dict.fromkeys(found))


def parse_address(text: str) -> Address:
    """The address that `text` contains. Raises KafkaError INVALID_CONFIG."""
    host, _, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    bare_ipv6 = ":" in host and not text.strip().startswith("[")
    if not host or bare_ipv6 or not port.isascii() or not port.isdigit() or not 0 < int(port[:6]) < 1 << 16:
        raise KafkaError(Code.INVALID_CONFIG, f"{text[:100]!r} is not an address; give host:port")
    return Address(host, int(port))


@lru_cache(_KEPT_NETWORKS)
def network(host: str) -> str:
    """The part of an address without a port that shares a limit: an IPv4 address, the /64 network of an IPv6 address,
    of which one host may have all addresses, or, if it is neither, the text itself."""
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))

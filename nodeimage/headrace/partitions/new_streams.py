"""How a stream is made for a client: whose it is, and which paths are the cluster's own. Pure.

While security is on a new stream is its creator's alone, but for the permissions that he gives to others at once. While
it is off a stream gets the expressions that are given, and no others: it is as open as all are.
"""

from collections.abc import Mapping
from typing import Final

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import Millis
from headrace.catalog.names import check_stream
from headrace.catalog.policy import StreamPolicy
from headrace.catalog.streams import CreateOwnedStream, CreateStream
from headrace.security.access_rules import Permission, owned_by

RESERVED: Final = "/system"
"""Streams at this path and below are made by the cluster itself, but for PROBE."""
PROBE: Final = "/system/probe"
"""Made by whoever probes the cluster's nodes (`headrace probe`), and may make streams there."""


def new_stream(
    path: str,
    policy: StreamPolicy,
    *,
    access: Mapping[Permission, str],
    owner: str | None,
    now: Millis,
) -> CreateStream | CreateOwnedStream:
    """The command that makes a stream. `access`: expressions that were read; `owner`: the user who makes it, None while
    security is off. Raises KafkaError for a path that no client's stream can have."""
    check_new_path(path)
    given = access if owner is None else {**owned_by(owner), **access}
    if not given:
        return CreateStream(path=path, policy=policy, now=now)
    return CreateOwnedStream(
        path=path, policy=policy, access=[(str(each), text) for each, text in sorted(given.items())], now=now
    )


def check_new_path(path: str) -> None:
    """Raises KafkaError for a path that no client's stream can have."""
    check_stream(path)
    if path != PROBE and (path == RESERVED or path.startswith(f"{RESERVED}/")):
        raise KafkaError(
            Code.POLICY_VIOLATION, f"{path} is no path for a stream of yours: paths under {RESERVED} are the cluster's"
        )

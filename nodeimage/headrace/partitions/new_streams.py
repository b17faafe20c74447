"""Creation of a stream for a client: the access expressions that it gets, and the paths that are reserved. Pure.

While security is on a new stream belongs to its creator alone, apart from the permissions that he grants to others in
the same call. While security is off a stream gets the given expressions and no others, and is as open as all others.
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
"""The path at and below which only the cluster itself creates streams, except PROBE."""
PROBE: Final = "/system/probe"
"""The stream of `headrace probe`, which clients may create although its path is reserved."""


def new_stream(
    path: str,
    policy: StreamPolicy,
    *,
    access: Mapping[Permission, str],
    owner: str | None,
    now: Millis,
) -> CreateStream | CreateOwnedStream:
    """The command that creates a stream. `access`: expressions that have been parsed; `owner`: the user who creates the
    stream, None while security is off. Raises KafkaError for a path that is illegal or reserved."""
    check_new_path(path)
    given = access if owner is None else {**owned_by(owner), **access}
    if not given:
        return CreateStream(path=path, policy=policy, now=now)
    return CreateOwnedStream(
        path=path, policy=policy, access=[(str(each), text) for each, text in sorted(given.items())], now=now
    )


def check_new_path(path: str) -> None:
    """Raise KafkaError for a path that is illegal, or reserved for the cluster itself."""
    check_stream(path)
    if path != PROBE and (path == RESERVED or path.startswith(f"{RESERVED}/")):
        raise KafkaError(Code.POLICY_VIOLATION, f"{path} is reserved: streams under {RESERVED} are the cluster's")

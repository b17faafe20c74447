"""Protocols for a connection and for the reply to a request, as used by APIs that answer with a codec of their own.

Being protocols, they can be implemented without a socket, for example by the simulator. This module is not compiled, so
that compiled code accepts any object with a protocol's members, whatever its class.
"""

from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from headrace.metrics.requests import Timed
from headrace.partitions.caller import Caller
from headrace.partitions.refusals import Refusals
from headrace.security.principals import Principal
from headrace.wire.primitives import Buffer

Grants = dict[str | bytes, tuple[int, Principal]]
"""Topics on which the client may perform an operation, by the name or id that it used: the rules and the principal that
allow it."""


class Session(Caller, Protocol):
    """A client's connection (connection.Connection)."""

    refusals: Refusals | None

    @property
    def number(self) -> int: ...

    @property
    def write_grants(self) -> Grants: ...

    def park(self, coroutine: Coroutine[Any, Any, None], *, finish: bool = False) -> None: ...

    def throttle(self, seconds: float) -> None: ...


class Reply(Protocol):
    """Where the answer to a request goes (connection.Slot)."""

    throttle_ms: int

    @property
    def timed(self) -> Timed | None: ...

    @property
    def peer(self) -> str: ...

    @property
    def is_followed(self) -> bool: ...

    def answer(self, body: Sequence[Buffer], *, header_version: int | None = None) -> None: ...

    def failed(self, code: int) -> None: ...

    def complete_without_answer(self) -> None: ...

    def lose(self) -> None: ...

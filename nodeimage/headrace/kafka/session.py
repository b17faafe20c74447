"""A connection and the place of an answer, as those see them who answer by themselves: protocols.

They are what is passed in, so that whoever has no socket, such as the simulator, can ask all the same. Not compiled: of
compiled code only what a protocol names is called, whatever the object is.
"""

from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from headrace.metrics.requests import Timed
from headrace.partitions.caller import Caller
from headrace.partitions.refusals import Refusals
from headrace.security.principals import Principal
from headrace.wire.primitives import Buffer

Grants = dict[str | bytes, tuple[int, Principal]]
"""Topics, as the client names them, with which it may do something: under which rules, and as whom."""


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

    def no_answer(self) -> None: ...

    def lose(self) -> None: ...

"""What a module declares of each API that it answers: key, versions, and what answers.

`dispatch` puts the declarations of all modules together into the one table, by which requests are answered and which
ApiVersions tells. Most APIs are an `Api`; those that have a codec of their own, or answer at once, are a `RawApi`.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.kafka.connection import Connection, Slot
from headrace.wire.api_keys import ApiKey, Versions
from headrace.wire.header import RequestHeader

Handler = Callable[[Any, Connection], Awaitable[Mapping[str, object]]]
"""Answers a decoded request of a connection with fields for `wire.generic_codec.encode_response`."""

Start = Callable[[Connection, RequestHeader, memoryview, Slot], None]
"""Starts to answer a request, whose body is as it came; may park the connection. Raises `HeadraceError` where the
connection must end."""


@dataclass(frozen=True, slots=True)
class Api:
    """An API that `wire.generic_codec` reads and writes. Its connection starts nothing else before it is answered."""

    key: ApiKey
    versions: Versions
    handler: Handler
    has_long_answers: bool = False
    """A short request may have a long answer, which is encoded beside the loop."""


@dataclass(frozen=True, slots=True)
class RawApi:
    """An API that starts by itself, from the request's bytes."""

    key: ApiKey
    versions: Versions
    start: Start
    answers_other_versions: bool = False
    """`start` is given requests of versions that are not in `versions` too."""

"""What answers the requests of an API that has no codec of its own."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from headrace.kafka.connection import Connection

Handler = Callable[[Any, Connection], Awaitable[Mapping[str, object]]]
"""Answers a decoded request of a connection with fields for `wire.generic_codec.encode_response`."""

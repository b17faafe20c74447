"""What all of Headrace's own admin calls are made of: parameters that are checked, and a function that answers."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.kafka.connection import Connection

if TYPE_CHECKING:
    from headrace.kafka.dispatch import Broker


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A method's parameters."""


class NoParams(Params, frozen=True):
    """None."""


Run = Callable[["Broker", Any], Awaitable[object]]
Methods = Mapping[str, tuple[type[Params], Run]]
"""By name: what a method takes, and what runs it."""
SessionMethods = Mapping[str, tuple[type[Params], Callable[["Broker", Any, Connection], Awaitable[object]]]]
"""Those whose answer differs with who asks: by which listener it came."""

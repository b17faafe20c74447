"""What all of Headrace's own admin calls are made of: parameters that are checked, and a function that answers."""

from collections.abc import Awaitable, Callable, Mapping

import msgspec


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A method's parameters."""


class NoParams(Params, frozen=True):
    """None."""


Run = Callable[..., Awaitable[object]]
"""Answers a call, given its parameters, of the method's own type."""
Methods = Mapping[str, tuple[type[Params], Run]]
"""By name: what a method takes, and what runs it."""
SessionMethods = Methods
"""Those whose answer differs with who asks: their `Run` is given the `Caller`, too."""

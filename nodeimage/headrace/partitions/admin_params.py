"""What all of Headrace's own admin calls are made of: parameters that are checked, a right, a function that answers."""

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

import msgspec

from headrace.partitions.admin_rights import Right


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A method's parameters."""


class NoParams(Params, frozen=True):
    """None."""


Run = Callable[..., Awaitable[object]]
"""Answers a call, given its parameters, of the method's own type; and the `Caller`, where the method wants it."""


class Method(NamedTuple):
    """A method: what it takes, what runs it, and what it asks of its caller."""

    params: type[Params]
    run: Run
    right: Right
    of_caller: bool = False
    """The answer differs with who asks, so that `run` is given the `Caller`, too."""
    is_traced: bool = True
    """Calls of it have spans; no: links ask it over and over."""


Methods = Mapping[str, Method]
"""By name."""

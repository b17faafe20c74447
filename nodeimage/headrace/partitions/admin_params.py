"""The parts of a method of Headrace's own admin API: checked parameters, a right, and a function that answers."""

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

import msgspec

from headrace.partitions.admin_rights import Right


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base class of the parameters of an admin method."""


class NoParams(Params, frozen=True):
    """The parameters of a method that takes none."""


Run = Callable[..., Awaitable[object]]
"""Answers a call. It takes parameters of the method's own type, and the `Caller` if the method sets `of_caller`."""


class Method(NamedTuple):
    """An admin method: its parameters, the function that runs it, and the right that its caller needs."""

    params: type[Params]
    run: Run
    right: Right
    of_caller: bool = False
    """Whether the answer depends on the caller, so that `run` takes the `Caller`, too."""
    is_traced: bool = True
    """Whether calls of the method have spans; false for methods that links call all the time."""


Methods = Mapping[str, Method]
"""Admin methods by name."""

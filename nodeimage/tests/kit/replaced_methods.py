"""Replaces a method of one object on its class, since objects of a compiled class cannot have their own."""

from typing import Any

import pytest


def replace_method(patched: pytest.MonkeyPatch, target: object, name: str, replacement: Any) -> None:
    """Have interpreted code call `replacement`, which gets no `self`, instead of the method of `target` only."""
    kind = type(target)
    former = getattr(kind, name)

    def called(self: object, *args: Any, **more: Any) -> Any:
        return replacement(*args, **more) if self is target else former(self, *args, **more)

    patched.setattr(kind, name, called)

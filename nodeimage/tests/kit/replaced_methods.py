"""A method of one object is replaced on its class: a compiled class takes none on its objects."""

from typing import Any

import pytest


def replace_method(patched: pytest.MonkeyPatch, target: object, name: str, replacement: Any) -> None:
    """Have interpreted code call `replacement`, which gets no `self`, for the method of `target` alone."""
    kind = type(target)
    former = getattr(kind, name)

    def called(self: object, *args: Any, **more: Any) -> Any:
        return replacement(*args, **more) if self is target else former(self, *args, **more)

    patched.setattr(kind, name, called)

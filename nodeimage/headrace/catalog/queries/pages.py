"""Sizes of pages."""

from typing import Final

from headrace.catalog.absence import NEVER

PAGE: Final = 1000


def most(limit: int) -> int:
    """`limit`, of which -1 is none."""
    return NEVER if limit < 0 else limit

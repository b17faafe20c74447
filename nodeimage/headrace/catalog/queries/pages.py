"""Page sizes of queries."""

from typing import Final

from headrace.catalog.absence import NEVER

PAGE: Final = 1000
"""Default number of rows of a page."""


def most(limit: int) -> int:
    """`limit` as a number to compare with; a negative one means no limit."""
    return NEVER if limit < 0 else limit

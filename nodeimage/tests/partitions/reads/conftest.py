"""A log whose records are read."""

from kit.written_log import options, writing

__all__ = ["options", "writing"]

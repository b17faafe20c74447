"""A log with records to read."""

from kit.written_log import options, writing

__all__ = ["options", "writing"]

"""The log of a node's or the operator's process: its destination, form and limits.

structlog writes structured events as logfmt, one line each. The standard library's loggers (asyncio's, aiohttp's,
kopf's) write through structlog too, from level warning on, so that the same limits apply (`log_limits`).

A full disk loses lines, but breaks nothing.
"""

import asyncio
import contextlib
import io
import logging
from collections.abc import AsyncIterator
from typing import Any, Final, TextIO, cast

import structlog

from headrace.base.log_limits import CAUSE_EVERY_S, SITE, LogLimits

__all__ = ["Lossy", "log_to", "telling"]

MAX_OF_A_LINE: Final = 16 * 1024
"""The most characters of one line. A traceback has some 3,000; a name sent by a client may have megabytes."""
_CONTROL: Final = {code: f"\\x{code:02x}" for code in [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029]}
"""Escapes of characters that would end a line or move a terminal's cursor, since clients choose parts of log lines."""
_FIRST: Final = ("timestamp", "level", "event", "suppressed", "suppressed_of_all")


class Lossy(io.TextIOBase):
    """A stream for the log that ignores errors: if the disk is full, lines are lost, and nothing else happens."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes `text`, if that is possible."""
        with contextlib.suppress(OSError):
            return self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flushes the buffer, if that is possible."""
        with contextlib.suppress(OSError):
            self._stream.flush()


class _Foreign(logging.Handler):
    """Writes records of the standard library's loggers as structured events.

    The text of such a record may contain anything (asyncio's has the repr of a task), so the limit applies to the line
    of source that wrote the record.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a record. Errors are reported as the standard library does."""
        try:
            level = logging.getLevelName(record.levelno).lower()
            write = getattr(structlog.get_logger(), level, structlog.get_logger().warning)
            site = (record.name, record.pathname.rpartition("/")[2], record.lineno)
            write(record.getMessage(), logger=record.name, exc_info=record.exc_info, **{SITE: site})
        except Exception:
            self.handleError(record)


def log_to(stream: TextIO, limits: LogLimits) -> None:
    """Makes the whole process log to `stream` from now on."""
    structlog.configure(
        processors=[
            limits,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.LogfmtRenderer(key_order=_FIRST, drop_missing=True),
            _cut,
        ],
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, Lossy(stream))),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(handlers=[_Foreign()], level=logging.WARNING, force=True)


@contextlib.asynccontextmanager
async def telling(limits: LogLimits) -> AsyncIterator[None]:
    """Within this context, reports every few seconds the floods of lines that are over; at the end, all floods."""

    async def tell() -> None:
        while True:
            await asyncio.sleep(CAUSE_EVERY_S)
            limits.tell()

    task = asyncio.create_task(tell(), name="log-limits")
    try:
        yield
    finally:
        task.cancel()
        limits.tell(ends=True)


def _cut(_logger: Any, _level: str, line: Any) -> str:
    text = str(line)
    length = len(text)
    if length > MAX_OF_A_LINE:
        text = f"{text[:MAX_OF_A_LINE]} ... {length} characters"
    return text if text.isprintable() else text.translate(_CONTROL)

"""Where the log of a process goes, in which form, and within which bounds: the node's and the operator's.

Structured events by structlog, as logfmt, a line each. The standard library's loggers (asyncio's, aiohttp's, kopf's)
write through the same, from level warning on, so that the same bounds hold (`log_limits`).

A disk that is full loses lines, and breaks nothing.
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

MOST_OF_A_LINE: Final = 16 * 1024
"""Characters. A traceback is some 3,000; a name that a client sends may be megabytes."""
_CONTROL: Final = {code: f"\\x{code:02x}" for code in [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029]}
"""What would end a line, or move a terminal's cursor: clients choose parts of what is logged."""
_FIRST: Final = ("timestamp", "level", "event", "suppressed", "suppressed_of_all")


class Lossy(io.TextIOBase):
    """A stream for the log: where the disk that it goes to is full, lines are lost, and nothing else."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write what can be written."""
        with contextlib.suppress(OSError):
            return self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Write out what is buffered, or drop it."""
        with contextlib.suppress(OSError):
            self._stream.flush()


class _Foreign(logging.Handler):
    """Records of the standard library's loggers, as structured events.

    The text of such a record may hold anything (asyncio's holds the repr of a task), so what is bounded together is
    the line of source that wrote it.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Write it. What cannot be written is told as logging tells it."""
        try:
            level = logging.getLevelName(record.levelno).lower()
            write = getattr(structlog.get_logger(), level, structlog.get_logger().warning)
            site = (record.name, record.pathname.rpartition("/")[2], record.lineno)
            write(record.getMessage(), logger=record.name, exc_info=record.exc_info, **{SITE: site})
        except Exception:
            self.handleError(record)


def log_to(stream: TextIO, limits: LogLimits) -> None:
    """Have the whole process log to `stream`, from now on."""
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
    """Meanwhile, floods of lines that have ended are told; at the end, all that was left out."""

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
    if length > MOST_OF_A_LINE:
        text = f"{text[:MOST_OF_A_LINE]} ... {length} characters"
    return text if text.isprintable() else text.translate(_CONTROL)

"""The log of a process: its form and limits, and its behaviour when the disk fails."""

import asyncio
import contextlib
import io
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from headrace.base import log_limits
from headrace.base.log_limits import CAUSE_BURST, EVENT_BURST, LogLimits
from headrace.base.log_output import MAX_OF_A_LINE, Lossy, log_to, telling


def test_a_log_on_a_full_disk_loses_lines_and_breaks_nothing() -> None:
    full = Path("/dev/full").open("w", buffering=1)  # noqa: SIM115  # closing it fails, too
    lossy = Lossy(full)
    with pytest.raises(OSError, match="No space left"):
        full.write("a line\n")
    for _ in range(3):
        assert lossy.write("a line\n") == len("a line\n")
        lossy.flush()
    with contextlib.suppress(OSError):
        full.close()


@pytest.fixture
def output() -> Iterator[io.StringIO]:
    config = structlog.get_config()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield io.StringIO()
    structlog.configure(**config)
    root.handlers[:] = handlers
    root.setLevel(level)


def test_the_standard_librarys_loggers_are_bounded_by_the_place_that_writes(output: io.StringIO) -> None:
    log_to(output, LogLimits(clock=lambda: 0.0))
    for number in range(5_000):
        logging.getLogger("asyncio").error("Task %r\nfailed", number)
    logging.getLogger("asyncio").error("another place")
    logging.getLogger("asyncio").info("too low")
    lines = output.getvalue().splitlines()
    assert len(lines) == EVENT_BURST + 1
    assert 'event="Task 0\\nfailed" logger=asyncio' in lines[0]
    assert "level=error" in lines[0]
    assert "_site" not in lines[0]


def test_tracebacks_are_bounded_with_their_lines(output: io.StringIO) -> None:
    log_to(output, LogLimits(clock=lambda: 0.0))
    for number in range(1_000):
        try:
            raise ValueError(number)
        except ValueError:
            structlog.get_logger().exception("request failed", peer=f"10.0.0.9:{number}")
    assert output.getvalue().count("Traceback") == CAUSE_BURST


def test_a_line_is_one_line_of_bounded_length_whatever_a_client_calls_itself(output: io.StringIO) -> None:
    log_to(output, LogLimits(clock=lambda: 0.0))
    structlog.get_logger().warning("connection closed", client="a\r\nb\x1b[2J\u2028c\x00" + "x" * 1_000_000)
    (line,) = output.getvalue().splitlines()
    assert "\x1b" not in line
    assert "a\\x0d\\nb\\x1b[2J" in line
    assert len(line) < MAX_OF_A_LINE + 100


async def test_what_was_left_out_is_told_when_the_process_ends(output: io.StringIO) -> None:
    limits = LogLimits()
    log_to(output, limits)
    async with telling(limits):
        for _ in range(100):
            structlog.get_logger().warning("connection closed", peer="10.0.0.9:1")
        await asyncio.sleep(0)
    last = output.getvalue().splitlines()[-1]
    assert f'event="{log_limits.LEFT_OUT}" suppressed=90 lines_of="connection closed" peer=10.0.0.9' in last

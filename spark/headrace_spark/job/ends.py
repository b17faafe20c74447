"""How a job's driver ends: its exit codes, and the one line that says why.

The line is written to stderr and to the container's termination message, where the operator and `kubectl describe` find
it. Pure except for `tell`. A line holds only an error's own text; no error of this package holds credentials.
"""

import json
import os
import re
import sys
from bisect import bisect_right
from collections.abc import Mapping
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

TERMINATION: Final = "/dev/termination-log"
LONGEST: Final = 600
TERMINATION_BYTES: Final = 4096
"""How many bytes of a termination message Kubernetes keeps."""

_OURS: Final = re.compile(r"headrace_spark\.(?:errors|job\.ends)\.\w+: (.+)")
_RAISED: Final = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning)\w*: .+", re.MULTILINE)
_QUERY: Final = re.compile(r"^\[STREAM_FAILED\] Query \[[^\]]*\] terminated with exception: ")
_CALLED: Final = re.compile(r"^An error occurred while calling \S+\n: ")
"""The text that py4j writes before Java's own line."""
_TAIL: Final = re.compile(r"\s*SQLSTATE: \w+.*$")


class End(IntEnum):
    """Exit codes. A Kubernetes Job gives up at WRONG, and retries the others."""

    DONE = 0
    FAILED = 1
    """The job ran and failed; it continues from its checkpoint."""
    WRONG = 2
    """The job itself is wrong: its SQL, its application, its options. A retry cannot succeed."""
    ABSENT = 3
    """A stream, a topic, a permission or the cluster is still missing after the wait."""
    STOPPED = 143
    """Ended by SIGTERM: not DONE, so that the run is not taken for finished."""


class JobError(Exception):
    """Ends the driver. The message is one line."""

    def __init__(self, end: End, message: str) -> None:
        super().__init__(message)
        self.end = end


def one_line(error: BaseException | str) -> str:
    """Return the essential line of an error: this package's own line if there is one inside, else the innermost Python
    error, else the first line, without Spark's wrapping.
    """
    text = str(error).strip()
    ours = _OURS.findall(text)
    if ours:
        return _short(ours[-1])
    if "Traceback (most recent call last)" in text:
        raised = _RAISED.findall(text)
        if raised:
            return _short(raised[-1])
    text = _CALLED.sub("", text)
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    return _short(_QUERY.sub("", first))


def end_of(error: BaseException) -> End:
    """Return the exit code with which an error ends the driver."""
    from pyspark.errors import AnalysisException, ParseException

    from headrace_spark.errors import BadOption

    match error:
        case JobError(end=end):
            return end
        case AnalysisException() | ParseException() | BadOption() | SyntaxError() | ImportError():
            return End.WRONG
        case _:
            return End.FAILED


def tell(end: End, why: str, figures: Mapping[str, Any]) -> None:
    """Write how the driver ended: a line on stderr and JSON as the container's termination message, if it has one."""
    if why:
        print(f"headrace: {why}", file=sys.stderr, flush=True)
    with suppress(OSError):  # outside a container nobody reads it
        Path(os.environ.get("HEADRACE_TERMINATION", TERMINATION)).write_bytes(last_word(end, why, figures))


def last_word(end: End, why: str, figures: Mapping[str, Any]) -> bytes:
    """Return the termination message: JSON of at most TERMINATION_BYTES, since Kubernetes would cut it anywhere. The
    largest figures are left out if all take more than half of that, and the failure is cut to the rest.
    """
    shown = {name: value for name, value in figures.items() if name not in ("end", "failure")}
    while len(_encoded(shown)) > TERMINATION_BYTES // 2:
        del shown[max(shown, key=lambda name: len(_encoded(shown[name])))]

    def with_failure(text: str) -> bytes:
        return _encoded({**shown, "end": end.name.lower(), "failure": text})

    failure = "" if end is End.DONE else why
    whole = with_failure(failure)
    if len(whole) <= TERMINATION_BYTES:
        return whole
    starts = range(len(failure))
    fitting = bisect_right(starts, TERMINATION_BYTES, key=lambda kept: len(with_failure(f"{failure[:kept]}…")))
    return with_failure(f"{failure[: fitting - 1]}…")


def _encoded(value: Any) -> bytes:
    """Return JSON in UTF-8. Bytes of file names that are no text become question marks."""
    return json.dumps(value, ensure_ascii=False).encode(errors="replace")


def _short(line: str) -> str:
    line = _TAIL.sub("", line.strip())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"

"""The press: a machine of the factory that idles, and works hard on the order "work SECONDS".

Its work is real: it loads one core with hashing and holds 64 MiB. So the load spike that Spark is to flag is measured
like everything else, not invented.
"""

import hashlib
import queue
import time
from collections.abc import Callable
from typing import Final

from headrace_spark.demo.reports import Orders, PressReport, say

HELD_BYTES: Final = 64 << 20
IDLE_STEP_S: Final = 0.2


def main() -> None:
    """Execute orders until their end."""
    work: queue.SimpleQueue[float] = queue.SimpleQueue()
    orders = Orders(lambda words: work.put(float(words[1])) if words[:1] == ["work"] else None)
    say(PressReport())
    while not orders.ended:
        try:
            seconds = work.get(timeout=IDLE_STEP_S)
        except queue.Empty:
            continue
        began = time.time_ns() // 1_000_000
        say(PressReport(began))
        burn(seconds, stopping=lambda: orders.ended)
        say(PressReport(began, time.time_ns() // 1_000_000))


def burn(seconds: float, *, stopping: Callable[[], bool]) -> None:
    """Keep one core busy for `seconds`, or until `stopping()`."""
    held = bytearray(HELD_BYTES)
    until = time.monotonic() + seconds
    while time.monotonic() < until and not stopping():
        held[:32] = hashlib.sha256(held[: 4 << 20]).digest()


if __name__ == "__main__":
    main()

"""Retries with growing pauses until the allowed time is over."""

import random
import time
from typing import NoReturn

from headrace_spark.errors import BrokerError, SourceError, Unreachable, code_name

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 1.0


class Retry:
    """The time that one piece of work may take without progress."""

    def __init__(self, timeout_s: float, *, what: str) -> None:
        self._timeout_s = timeout_s
        self._what = what
        self.progressed()

    def progressed(self) -> None:
        """Restart the time, as the work has made progress."""
        self._until = time.monotonic() + self._timeout_s
        self._pause_s = FIRST_PAUSE_S

    def pause(self, reason: Exception | int) -> None:
        """Wait before the next try; `reason` is the error, or the Kafka error code, of the last one.

        Raises Unreachable or BrokerError once the time is over.
        """
        if time.monotonic() + self._pause_s > self._until:
            self._give_up(reason)
        time.sleep(self._pause_s * random.uniform(0.5, 1.0))
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def _give_up(self, reason: Exception | int) -> NoReturn:
        tried = f"cannot {self._what}, tried for {self._timeout_s:g} s"
        if isinstance(reason, int):
            raise BrokerError(reason, f"{tried}: the node answers {code_name(reason)}")
        if isinstance(reason, SourceError):
            raise reason
        raise Unreachable(f"{tried}: {reason}; check the option bootstrap and that the cluster runs") from reason

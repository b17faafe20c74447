"""How long a node's disk and its followers take. Pure."""

from headrace.metrics.histogram import Histogram


class LogTimes:
    """Of all logs of a node; the loop thread's own."""

    __slots__ = ("commit", "sync")

    def __init__(self) -> None:
        self.sync = Histogram()
        """From the start of a sync cycle's write until it is synced, in the thread that writes."""
        self.commit = Histogram()
        """From the start of a leader's sync cycle until every replica in sync has it; only where there are others."""

    def __repr__(self) -> str:
        return "LogTimes()"

"""The durations of syncs and commits on a node. Pure."""

from headrace.metrics.histogram import Histogram


class LogTimes:
    """The durations for all logs of a node. For the loop thread only."""

    __slots__ = ("commit", "sync")

    def __init__(self) -> None:
        self.sync = Histogram()
        """From the start of a sync cycle's write until it is synced, measured in the thread that writes."""
        self.commit = Histogram()
        """From the start of a leader's sync cycle until all in-sync replicas have it; only if there are followers."""

    def __repr__(self) -> str:
        return "LogTimes()"

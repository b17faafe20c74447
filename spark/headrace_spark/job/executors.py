"""Requests executors from Spark and returns them, as autoscaling decides, and counts the running ones.

autoscale.py decides. Spark's scheduler maintains the requested number: on Kubernetes it creates pods, replaces lost
ones, and deletes returned ones. A restarted driver begins with `min` executors, and scales up again by the lag.
"""

import logging
import threading
import time
from typing import TYPE_CHECKING, Final

from headrace_spark.job.autoscale import Autoscale, ScaleState, decide
from headrace_spark.job.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

EVERY_S: Final = 5.0


class Executors:
    """The executors of one session, checked in a separate thread until it is stopped."""

    def __init__(
        self, spark: "SparkSession", progress: Progress, asked: Autoscale | None, *, every_s: float = EVERY_S
    ) -> None:
        self._context = spark.sparkContext._jsc.sc()  # Spark's Scala side, by py4j
        self._empty = spark.sparkContext._jvm.PythonUtils.toScalaMap({})  # type: ignore[union-attr]
        self._progress = progress
        self._asked = asked
        self._every_s = every_s
        self._stop = threading.Event()
        self._state = None if asked is None else ScaleState(asked.min, time.monotonic())
        self._thread = threading.Thread(target=self._run, name="executors", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Make the thread stop."""
        self._stop.set()

    def live(self) -> list[str]:
        """Return the ids of running executors, oldest first, without the driver."""
        ids = self._context.getExecutorIds()
        return sorted((ids.apply(number) for number in range(ids.size())), key=lambda one: (len(one), one))

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            try:
                self._look()
            except Exception as error:  # any error of py4j, if the session ends meanwhile
                if not self._stop.is_set():
                    log.warning("the number of executors cannot be read at present: %s", error)

    def _look(self) -> None:
        live = self.live()
        self._progress.executors = len(live)
        if self._asked is None or self._state is None:
            return
        before, lag_s = self._state, float(self._progress.status()["lag_s"])
        self._state = decide(before, self._asked, lag_s=lag_s, live=len(live), now=time.monotonic())
        self._progress.wanted_executors = self._state.executors
        if self._state.executors != before.executors:
            log.warning("executors: %d to %d, lag %.0f s", before.executors, self._state.executors, lag_s)
            self._scale(self._state.executors, live)

    def _scale(self, wanted: int, live: list[str]) -> None:
        for surplus in live[wanted:]:
            self._context.killExecutor(surplus)
        self._context.requestTotalExecutors(wanted, 0, self._empty)

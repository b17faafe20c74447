"""Asks Spark for executors and gives them back, as autoscaling decides, and counts those that are there.

The decision is autoscale.py's. Spark's scheduler keeps the number that was asked for: on Kubernetes it makes pods until
they are there, makes lost ones anew, and deletes those that are given back. A driver that starts again starts with
`min`, so what it had grown to is found again by the lag.
"""

import logging
import threading
import time
from typing import TYPE_CHECKING, Final

from headrace_spark.job.autoscale import Autoscale, Standing, decide
from headrace_spark.job.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

EVERY_S: Final = 5.0


class Executors:
    """Of one session, looked at in a thread of its own until it is stopped."""

    def __init__(
        self, spark: "SparkSession", progress: Progress, asked: Autoscale | None, *, every_s: float = EVERY_S
    ) -> None:
        self._context = spark.sparkContext._jsc.sc()  # Spark's Scala side, by py4j
        self._empty = spark.sparkContext._jvm.PythonUtils.toScalaMap({})  # type: ignore[union-attr]
        self._progress = progress
        self._asked = asked
        self._every_s = every_s
        self._stop = threading.Event()
        self._standing = None if asked is None else Standing(asked.min, time.monotonic())
        self._thread = threading.Thread(target=self._run, name="executors", daemon=True)

    def start(self) -> None:
        """Look from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stop.set()

    def live(self) -> list[str]:
        """The ids of the executors that are there, oldest first; without the driver."""
        ids = self._context.getExecutorIds()
        return sorted((ids.apply(number) for number in range(ids.size())), key=lambda one: (len(one), one))

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            try:
                self._look()
            except Exception as error:  # py4j's, in any form, when the session ends meanwhile
                if not self._stop.is_set():
                    log.warning("the executors are not known at present: %s", error)

    def _look(self) -> None:
        live = self.live()
        self._progress.executors = len(live)
        if self._asked is None or self._standing is None:
            return
        before, lag_s = self._standing, float(self._progress.status()["lag_s"])
        self._standing = decide(before, self._asked, lag_s=lag_s, live=len(live), now=time.monotonic())
        self._progress.wanted_executors = self._standing.executors
        if self._standing.executors != before.executors:
            log.warning("executors: %d to %d, lag %.0f s", before.executors, self._standing.executors, lag_s)
            self._have(self._standing.executors, live)

    def _have(self, wanted: int, live: list[str]) -> None:
        for surplus in live[wanted:]:
            self._context.killExecutor(surplus)
        self._context.requestTotalExecutors(wanted, 0, self._empty)

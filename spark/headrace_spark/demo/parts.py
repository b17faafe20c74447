"""The demo's running parts together: started, shown while the story waits, and asked for their reports.

While the story waits, the board is drawn, and a part that ends without being asked to ends the wait.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from headrace_spark.demo.check import PRESS
from headrace_spark.demo.children import Child, end_all, session_members
from headrace_spark.demo.cluster import Cluster
from headrace_spark.demo.places import Unsound
from headrace_spark.demo.reports import Alarm, FeedReport, LiveReport, PressReport, SparkReport, StateReport
from headrace_spark.demo.screen import SHOWN_ALARMS, Board, Screen

POLL_S: Final = 0.1
STOP_S: Final = 3.0
"""Seconds for processes that still run when the story is interrupted; at its regular end all have exited already."""
SPIKE_PERCENT: Final = 5.0
"""CPU percentage below which a flagged window of the press is not its load spike."""


class Parts:
    """The processes of one run, besides its cluster."""

    def __init__(self, screen: Screen, cluster: Cluster, *, logs: Path) -> None:
        self._screen = screen
        self._cluster = cluster
        self._logs = logs
        self._children: dict[str, Child] = {}
        self._sessions: list[int] = []
        self._alarms: list[Alarm] = []
        self._alarmed = 0
        self._announced = False
        self._fed_since = 0.0

    def __getitem__(self, name: str) -> Child:
        return self._children[name]

    def start(self, name: str, module: str, **arguments: str | Path) -> None:
        """Start a part; a former process of the same name is forgotten."""
        self._children.pop(name, None)
        child = self._children[name] = Child(name, module, arguments, logs=self._logs)
        self._sessions.append(child.pid)

    def stop(self) -> list[int]:
        """End every process; return the ids of those that are left nevertheless."""
        end_all(list(self._children.values()), grace_s=STOP_S)
        return [pid for session in self._sessions for pid in session_members(session)]

    def watch_process(self, name: str, pid: int) -> None:
        """Make the feed report this process's telemetry."""
        self._children["feed"].order("watch", name, pid)

    # --- waiting ---

    def fed_s(self) -> float:
        """Return for how many seconds readings have been sent."""
        return time.monotonic() - self._fed_since if self._fed_since else 0.0

    def look(self, act: str) -> None:
        """Check that all parts run, and show them."""
        for child in self._children.values():
            child.check()
        self._note_alarms()
        if not self._fed_since and self.feed().sent:
            self._fed_since = time.monotonic()
        self._screen.show(
            Board(
                act=act, nodes=tuple(node in self._cluster.pids for node in self._cluster.ports),
                feed=self._part("feed", FeedReport),
                live=self._part("live", LiveReport), state=self._part("state", StateReport),
                spark=self._part("spark", SparkReport), alarms=tuple(self._alarms),
            )
        )  # fmt: skip

    def _note_alarms(self) -> None:
        """Collect the live consumer's new alarms, and announce the first one of the press."""
        live, press = self.live(), self.press()
        if live.alarms == self._alarmed:
            return
        self._alarmed = live.alarms
        self._alarms = [*self._alarms, *live.latest_alarms][-SHOWN_ALARMS:]
        if not press.began or self._announced:
            return
        for alarm in live.latest_alarms:
            if (alarm.device, alarm.sensor) == PRESS and alarm.mean > SPIKE_PERCENT:
                self._announced = True
                after = time.time() - press.began / 1000
                self._screen.alarm(alarm, f"flagged by Spark {after:.1f} s after it began")
                return

    def wait_until(self, done: Callable[[], bool], act: str, *, patience_s: float) -> None:
        """Show the parts until `done()`. Raises Unsound after `patience_s`."""
        deadline = time.monotonic() + patience_s
        while not done():
            if time.monotonic() > deadline:
                raise Unsound(f"{act}: not done after {patience_s:.0f} s")
            self.look(act)
            time.sleep(POLL_S)

    def pass_time(self, seconds: float, act: str) -> None:
        """Show the parts for `seconds`."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.look(act)
            time.sleep(POLL_S)

    def busy(self, work: Callable[[], None], act: str, *, also: Callable[[], object] = lambda: None) -> None:
        """Show the parts, and call `also`, while `work` runs in a thread; its exception is raised here."""
        failure: list[BaseException] = []

        def run() -> None:
            try:
                work()
            except BaseException as error:
                failure.append(error)

        thread = threading.Thread(target=run, name=act)
        thread.start()
        try:
            while thread.is_alive():
                self.look(act)
                also()
                thread.join(POLL_S)
        finally:
            thread.join()  # otherwise it might start a process that nobody stops
        if failure:
            raise failure[0]

    # --- reports ---

    def _part(self, name: str, kind: type[Any]) -> Any:
        child = self._children.get(name)
        report = child.report if child is not None else None
        return report if isinstance(report, kind) else None

    def feed(self) -> FeedReport:
        """Return the newest report of the feed; an empty one if there is none yet."""
        return self._part("feed", FeedReport) or FeedReport(0, 0, 0, 0, 0, 0.0, 0, 0)

    def live(self) -> LiveReport:
        """Like `feed`, of the live consumer."""
        return self._part("live", LiveReport) or LiveReport(0, 0, 0, 0.0, 0.0, 0.0, 0, (), (), 0.0, 0.0)

    def state(self) -> StateReport:
        """Like `feed`, of the state consumer."""
        return self._part("state", StateReport) or StateReport(0, 0, 0, 0)

    def spark(self) -> SparkReport:
        """Like `feed`, of Spark."""
        return self._part("spark", SparkReport) or SparkReport("starting")

    def press(self) -> PressReport:
        """Like `feed`, of the press."""
        return self._part("press", PressReport) or PressReport()

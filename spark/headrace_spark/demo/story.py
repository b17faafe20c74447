"""The story of the demo, scene by scene: who starts when, what happens to them, what must hold at the end.

Responsible for the order of things, and for leaving no process behind, however it ends. What the parts do is theirs.
"""

import json
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headrace_spark.demo import check, outcome, plot
from headrace_spark.demo.children import Child, ProcessEnded, end_all, session_members
from headrace_spark.demo.interrupts import as_interrupt, unbroken
from headrace_spark.demo.ledger import Expected, WindowKey, expect, read_ledger
from headrace_spark.demo.node import CommandFailed, Node
from headrace_spark.demo.pipeline import WATERMARK_MS, WINDOW_MS
from headrace_spark.demo.places import Places, Unsound, shown
from headrace_spark.demo.readings import INSIGHTS_STREAM, SENSORS_STREAM, WINDOWS_TOPIC
from headrace_spark.demo.reports import Alarm, FeedReport, LiveReport, PressReport, SparkReport, StateReport
from headrace_spark.demo.screen import SHOWN_ALARMS, Board, Screen
from headrace_spark.session import find_java

POLL_S: Final = 0.1
SPARK_PATIENCE_S: Final = 180.0
CATCH_UP_S: Final = 120.0
CURSORS_S: Final = 15.0
STOP_S: Final = 3.0
"""For processes that still run when the story is cut short; at its end all have gone by themselves."""
TTL: Final = "1h"
SPIKE_PERCENT: Final = 5.0
"""Less CPU than that is not the press at work."""


@dataclass(frozen=True, slots=True)
class Times:
    """How long the parts of the story take, in seconds of feeding."""

    before_spike_s: float = 24.0
    spike_s: float = 8.0
    before_restart_s: float = 8.0
    after_restart_s: float = 16.0


QUICK: Final = Times(before_spike_s=13.0, spike_s=5.0, before_restart_s=2.0, after_restart_s=5.0)


class Story:
    """One run."""

    def __init__(self, places: Places, screen: Screen, *, times: Times, kill: bool) -> None:
        self._places = places
        self._screen = screen
        self._times = times
        self._kill = kill
        self._node = Node(places.data, screen.command)
        self._children: dict[str, Child] = {}
        self._sessions: list[int] = []
        self._alarms: list[Alarm] = []
        self._alarmed = 0
        self._told = False
        self._down_ms = (0, 0)
        self._steady: LiveReport | None = None
        self._fed_since = 0.0

    def run(self) -> int:
        """The exit code: 0 where every check holds, 1 where not, 130 where it was interrupted."""
        screen = self._screen
        try:
            find_java()
            with self._places.alone(), as_interrupt(signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                return self._tell()
        except ProcessEnded as error:
            screen.failure(str(error))
            screen.log_lines(error.log)
        except (CommandFailed, Unsound, OSError) as error:
            screen.failure(str(error))
        except KeyboardInterrupt:
            screen.failure("interrupted: everything that was started has been stopped")
            return 130
        return 1

    def _tell(self) -> int:
        try:
            self._start_node()
            self._start_parts()
            self._spike()
            self._restart()
            expected = self._end_feed()
            checks = self._collect(expected)
        finally:
            with unbroken():
                left = self._stop()
        checks.append(check.check_gone(left))
        return self._conclude(checks)

    # --- scenes ---

    def _start_node(self) -> None:
        screen = self._screen
        screen.headline(
            "Headrace demo: a factory's sensors, and the factory is this machine",
            "Real readings of its cores, memory, disks, network and processes, ten times a second; nothing is made up.",
        )
        screen.scene(1, "A storage node, and a stream with a time to live")
        Node(self._places.data, lambda _: None).stop_all()  # a demo that was killed may have left one
        self._places.clear()
        self._node.up()
        for stream, ttl in ((SENSORS_STREAM, TTL), (INSIGHTS_STREAM, "7d")):
            self._node.run("stream", "create", stream, "--ttl", ttl)
        self._node.run("topic", "create", f"{INSIGHTS_STREAM}:{WINDOWS_TOPIC}")
        screen.note(f"Kafka clients find it at {self._node.bootstrap}; topics come into being on first use.")

    def _start_parts(self) -> None:
        screen, places = self._screen, self._places
        screen.scene(2, "One producer, three consumers with different needs")
        screen.note("feed    stock confluent-kafka, idempotent: one topic per device, keyed by sensor, time, sequence")
        screen.note("live    the newest values, and how long they took from the sensor to the screen")
        screen.note("state   each sensor's current state in SQLite, exactly once")
        screen.note("spark   Structured Streaming: statistics and anomaly flags, to a topic and to Parquet")
        bootstrap = self._node.bootstrap
        self._start(
            "spark", "pipeline", bootstrap=bootstrap, parquet=places.windows,
            checkpoint=places.scratch / "checkpoint", scratch=places.scratch,
        )  # fmt: skip
        self._start("press", "press")
        self._start("live", "live", bootstrap=bootstrap)
        self._start("state", "state", bootstrap=bootstrap, database=places.database)
        self._start("feed", "feed", bootstrap=bootstrap, ledger=places.ledger)
        for name in ("spark", "press", "live", "state", "feed"):
            self._watch_process(name, self._children[name].pid)
        self._watch_process("node", self._node.pid)
        self._await(lambda: bool(self._spark().jvm_pid), "Spark starts", patience_s=SPARK_PATIENCE_S)
        self._watch_process("spark-java", self._spark().jvm_pid)
        self._await(lambda: self._spark().batch >= 0, "Spark makes its first batch", patience_s=SPARK_PATIENCE_S)
        self._pass(self._times.before_spike_s - self._fed_s(), "all parts run; Spark learns what is usual")

    def _spike(self) -> None:
        self._screen.clear()
        self._screen.scene(3, f"The press works for {self._times.spike_s:.0f} s")
        self._screen.note("A process of the demo burns a core, really: Spark is to notice.")
        self._children["press"].order("work", self._times.spike_s)
        self._await(lambda: self._press().ended > 0, "the press burns a core", patience_s=self._times.spike_s + 30)
        self._pass(self._times.before_restart_s, "the press idles again")

    def _restart(self) -> None:
        screen = self._screen
        screen.clear()
        before = (self._live(), self._state(), self._spark())
        self._steady = self._live()
        screen.scene(4, "The node goes away and comes back, and so does the process that keeps the database")
        began = time.time_ns() // 1_000_000
        screen.command(f"kill -9 {self._children['state'].pid}  (the state consumer)")
        self._children["state"].kill()
        self._busy(self._node.kill if self._kill else self._node.down, "the node goes away")
        self._busy(self._node.up, "the node is down: readings wait in the producer")
        self._down_ms = (began, time.time_ns() // 1_000_000)
        self._watch_process("node", self._node.pid)
        self._start("state", "state", bootstrap=self._node.bootstrap, database=self._places.database, again=True)
        self._watch_process("state", self._children["state"].pid)
        live, state, spark = before
        self._await(
            lambda: self._live().readings > live.readings and self._state().readings > state.readings
            and self._spark().readings > spark.readings,
            "the node is back: every consumer goes on from its cursor", patience_s=CATCH_UP_S,
        )  # fmt: skip
        resumed = self._state().resumed
        screen.clear()
        screen.note(
            f"Away for {(self._down_ms[1] - self._down_ms[0]) / 1000:.1f} s; the database went on after the "
            f"{resumed:,} readings that it held, and all read on."
        )
        self._pass(self._times.after_restart_s, "all parts run")

    def _end_feed(self) -> Expected:
        screen = self._screen
        screen.clear()
        screen.scene(5, "The feed ends; everything is checked against what the producer recorded")
        feed = self._children["feed"]
        feed.ask_to_go()
        self._await(lambda: not feed.running, "the producer waits for its last acknowledgements", patience_s=90)
        feed.wait(0)
        return expect(read_ledger(self._places.ledger), window_ms=WINDOW_MS)

    def _collect(self, expected: Expected) -> list[check.Check]:
        """Let the consumers come to the end, stop them, and compare."""
        due = expected.closed_windows(window_ms=WINDOW_MS, watermark_ms=WATERMARK_MS)
        with suppress(Unsound):  # what is missing then, the checks say
            self._await(
                lambda: self._live().readings >= expected.readings and self._state().readings >= expected.readings
                and self._spark().readings >= expected.readings and self._spark().windows >= len(due),
                "the consumers read to the end", patience_s=CATCH_UP_S,
            )  # fmt: skip
        lags = self._final_lags()
        for name in ("live", "state", "spark", "press"):
            self._children[name].ask_to_go()
        for name in ("live", "state", "spark", "press"):
            child = self._children[name]
            self._await(lambda child=child: not child.running, f"{name} stops", patience_s=30)  # type: ignore[misc]
            child.wait(0)
        self._screen.clear()
        bootstrap = self._node.bootstrap
        windows = outcome.read_windows(self._places.windows)
        topic = outcome.read_window_topic(bootstrap, f"{INSIGHTS_STREAM}:{WINDOWS_TOPIC}")
        checks = [
            check.check_feed(self._feed(), expected),
            check.check_topics(expected, outcome.topic_ends(bootstrap)),
            check.check_live(self._live(), expected, steady=self._steady or self._live()),
            check.check_state(outcome.read_state(self._places.database), expected),
            check.check_spark_input(self._spark(), expected),
            check.check_windows(windows.by_key, due, repeated=windows.repeated),
            check.check_window_topic(topic, windows.by_key),
            check.check_cursors(lags),
            check.check_spike(windows.by_key, self._press(), window_ms=WINDOW_MS),
        ]  # fmt: skip
        self._draw(windows.by_key, expected)
        return checks

    def _conclude(self, checks: list[check.Check]) -> int:
        screen, places = self._screen, self._places
        screen.clear()
        for one in checks:
            screen.verdict(one)
        good = all(one.ok for one in checks)
        places.verdict.write_text(json.dumps([one._asdict() for one in checks], indent=2, ensure_ascii=False) + "\n")
        screen.scene(6, "Results")
        for path, what in (
            (places.picture, "the plot: the load spike, Spark's flags, the restart"),
            (places.windows, "Spark's windows with their statistics and flags"),
            (places.database, "the current state: tables sensors and cursors"),
            (places.ledger, "what the producer recorded as acknowledged"),
            (places.verdict, "these checks"),
            (places.data, "the node's data: `headrace up --data` serves it again"),
            (places.logs, "the processes' logs"),
        ):
            screen.place(shown(path), what)
        wrong = sum(not one.ok for one in checks)
        said = "Nothing was lost, nothing doubled." if good else f"{wrong} of {len(checks)} checks failed."
        screen.note(f"\n  {said} {screen.elapsed_s:.0f} s.")
        return 0 if good else 1

    # --- parts ---

    def _start(self, name: str, module: str, *, again: bool = False, **arguments: str | Path) -> None:
        if again:
            self._children.pop(name, None)
        child = Child(name, module, arguments, logs=self._places.logs)
        self._children[name] = child
        self._sessions.append(child.pid)

    def _stop(self) -> list[int]:
        """End every process; the ids of those that are left all the same."""
        self._screen.clear()
        end_all(list(self._children.values()), grace_s=STOP_S)
        node = self._node.stop_all()
        left = [pid for session in self._sessions for pid in session_members(session)]
        return left if node is None else [*left, node]

    def _watch_process(self, name: str, pid: int) -> None:
        self._children["feed"].order("watch", name, pid)

    def _final_lags(self) -> dict[str, int]:
        """How far each group's cursors stay behind, once all are at the end or time is up."""
        deadline = time.monotonic() + CURSORS_S
        while True:
            self._look("the cursors are committed")
            lags = {one["group"]: one["lag"] for one in self._node.ask("groups", "list") if one["partitions"]}
            if not any(lags.values()) or time.monotonic() > deadline:
                return lags

    def _draw(self, windows: dict[WindowKey, check.FlaggedWindow], expected: Expected) -> None:
        press = self._press()
        plot.draw(
            self._places.picture, windows, window_ms=WINDOW_MS,
            marks=plot.Marks((press.began, press.ended), self._down_ms),
            title=f"{expected.readings:,} real readings of {len(expected.sensors)} sensors, "
            f"{sum(window.anomaly for window in windows.values()):,} of {len(windows):,} windows flagged",
        )  # fmt: skip

    # --- waiting ---

    def _fed_s(self) -> float:
        """For how many seconds readings have come."""
        return time.monotonic() - self._fed_since if self._fed_since else 0.0

    def _look(self, act: str) -> None:
        """Check that all parts run, and show them."""
        for child in self._children.values():
            child.check()
        self._note_alarms()
        if not self._fed_since and self._feed().sent:
            self._fed_since = time.monotonic()
        self._screen.show(
            Board(
                act=act, node_up=bool(self._node.pid), feed=self._part("feed", FeedReport),
                live=self._part("live", LiveReport), state=self._part("state", StateReport),
                spark=self._part("spark", SparkReport), alarms=tuple(self._alarms),
            )
        )  # fmt: skip

    def _note_alarms(self) -> None:
        """Take the live consumer's new alarms in, and tell of the first that is the press's."""
        live, press = self._live(), self._press()
        if live.alarms == self._alarmed:
            return
        self._alarmed = live.alarms
        self._alarms = [*self._alarms, *live.latest_alarms][-SHOWN_ALARMS:]
        if not press.began or self._told:
            return
        for alarm in live.latest_alarms:
            if (alarm.device, alarm.sensor) == check.PRESS and alarm.mean > SPIKE_PERCENT:
                self._told = True
                after = time.time() - press.began / 1000
                self._screen.alarm(alarm, f"flagged by Spark {after:.1f} s after it began")
                return

    def _await(self, done: Callable[[], bool], act: str, *, patience_s: float) -> None:
        """Show the parts until `done()`. Raises Unsound after `patience_s`."""
        deadline = time.monotonic() + patience_s
        while not done():
            if time.monotonic() > deadline:
                raise Unsound(f"{act}: not done after {patience_s:.0f} s")
            self._look(act)
            time.sleep(POLL_S)

    def _pass(self, seconds: float, act: str) -> None:
        """Show the parts for so long."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._look(act)
            time.sleep(POLL_S)

    def _busy(self, work: Callable[[], None], act: str) -> None:
        """Show the parts while `work` runs in a thread; its exception is raised here."""
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
                self._look(act)
                thread.join(POLL_S)
        finally:
            thread.join()  # else it might start what nobody stops
        if failure:
            raise failure[0]

    # --- reports ---

    def _part(self, name: str, kind: type[Any]) -> Any:
        child = self._children.get(name)
        report = child.report if child is not None else None
        return report if isinstance(report, kind) else None

    def _feed(self) -> FeedReport:
        return self._part("feed", FeedReport) or FeedReport(0, 0, 0, 0, 0, 0.0, 0, 0)

    def _live(self) -> LiveReport:
        return self._part("live", LiveReport) or LiveReport(0, 0, 0, 0.0, 0.0, 0.0, 0, (), (), 0.0, 0.0)

    def _state(self) -> StateReport:
        return self._part("state", StateReport) or StateReport(0, 0, 0, 0)

    def _spark(self) -> SparkReport:
        return self._part("spark", SparkReport) or SparkReport("starting")

    def _press(self) -> PressReport:
        return self._part("press", PressReport) or PressReport()

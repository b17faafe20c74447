"""The demo's story, scene by scene: what is started when, what fails, and what must hold at the end.

Defines the order of events, and ensures that no process is left behind, however the story ends.
"""

import json
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaException

from headrace_spark.demo import check, failover, outcome, plot
from headrace_spark.demo.children import ProcessEnded
from headrace_spark.demo.cluster import NODES, Cluster, CommandFailed
from headrace_spark.demo.failover import ClusterProbe, Failover
from headrace_spark.demo.interrupts import as_interrupt, unbroken
from headrace_spark.demo.ledger import Expected, WindowKey, expect, read_ledger
from headrace_spark.demo.parts import Parts
from headrace_spark.demo.pipeline import WATERMARK_MS, WINDOW_MS
from headrace_spark.demo.places import Places, Unsound, shown
from headrace_spark.demo.readings import INSIGHTS_STREAM, SENSORS_STREAM, WINDOWS_TOPIC
from headrace_spark.demo.reports import LiveReport
from headrace_spark.demo.screen import Screen
from headrace_spark.session import find_java

SPARK_PATIENCE_S: Final = 180.0
CATCH_UP_S: Final = 120.0
CURSORS_S: Final = 15.0
TAKEN_OVER_S: Final = 30.0
WHOLE_S: Final = 60.0
TTL: Final = "1h"


@dataclass(frozen=True, slots=True)
class Times:
    """How long the parts of the story take, in seconds."""

    before_spike_s: float = 24.0
    spike_s: float = 8.0
    before_kill_s: float = 8.0
    without_node_s: float = 6.0
    after_return_s: float = 12.0


QUICK: Final = Times(before_spike_s=13.0, spike_s=5.0, before_kill_s=2.0, without_node_s=1.0, after_return_s=4.0)


class Story:
    """One run of the story."""

    def __init__(self, places: Places, screen: Screen, *, times: Times) -> None:
        self._places = places
        self._screen = screen
        self._times = times
        self._cluster = Cluster(places.data, screen.command)
        self._parts = Parts(screen, self._cluster, logs=places.logs)
        self._probe = ClusterProbe(lambda: self._cluster.addresses)
        self._busiest = (0, 0)
        self._down_ms = (0, 0)
        self._steady: LiveReport | None = None

    def run(self) -> int:
        """Run the story; return the exit code: 0 if every check holds, 1 if not, 130 if it was interrupted."""
        screen = self._screen
        try:
            find_java()
            with self._places.alone(), as_interrupt(signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                return self._tell()
        except ProcessEnded as error:
            screen.failure(str(error))
            screen.log_lines(error.log)
        except (CommandFailed, Unsound, KafkaException, OSError) as error:
            screen.failure(str(error))
        except KeyboardInterrupt:
            screen.failure("interrupted: everything that was started has been stopped")
            return 130
        return 1

    def _tell(self) -> int:
        try:
            self._start_cluster()
            self._start_parts()
            self._spike()
            killed = self._kill()
            self._bring_back(killed)
            expected = self._end_feed()
            checks = self._collect(expected, killed)
        finally:
            with unbroken():
                left = self._stop()
        checks.append(check.check_gone(left))
        return self._conclude(checks)

    # --- scenes ---

    def _start_cluster(self) -> None:
        screen = self._screen
        screen.headline(
            "Headrace demo: a factory's sensors, and the factory is this machine",
            "Real readings of its cores, memory, disks, network and processes, ten times a second; nothing is made up.",
        )
        screen.scene(1, f"{NODES} storage nodes, every record on each of them, and a stream with a time to live")
        Cluster(self._places.data, lambda _: None).stop_all()  # a killed demo may have left a cluster
        self._places.clear()
        self._cluster.up()
        for stream, ttl in ((SENSORS_STREAM, TTL), (INSIGHTS_STREAM, "7d")):
            self._cluster.run("stream", "create", stream, "--ttl", ttl)
        self._cluster.run("topic", "create", f"{INSIGHTS_STREAM}:{WINDOWS_TOPIC}")
        screen.note(f"Kafka clients find it at {self._cluster.bootstrap}.")
        self._cluster.last_metrics()  # nodes start to collect groups' metrics when they are first asked
        screen.note(f"Until the end its nodes serve their metrics at {' '.join(self._cluster.metrics.values())}.")
        screen.note("Topics come into being on first use.")

    def _start_parts(self) -> None:
        screen, places, parts = self._screen, self._places, self._parts
        screen.scene(2, "One producer, three consumers with different needs")
        screen.note("feed    stock confluent-kafka, idempotent: one topic per device, keyed by sensor, time, sequence")
        screen.note("live    the newest values, and how long they took from the sensor to the screen")
        screen.note("state   each sensor's current state in SQLite, exactly once")
        screen.note("spark   Structured Streaming: statistics and anomaly flags, to a topic and to Parquet")
        bootstrap = self._cluster.bootstrap
        parts.start(
            "spark", "pipeline", bootstrap=bootstrap, parquet=places.windows,
            checkpoint=places.scratch / "checkpoint", scratch=places.scratch,
        )  # fmt: skip
        parts.start("press", "press")
        parts.start("live", "live", bootstrap=bootstrap)
        parts.start("state", "state", bootstrap=bootstrap, database=places.database)
        parts.start("feed", "feed", bootstrap=bootstrap, ledger=places.ledger)
        for name in ("spark", "press", "live", "state", "feed"):
            parts.watch_process(name, parts[name].pid)
        for node, pid in self._cluster.pids.items():
            parts.watch_process(f"node-{node}", pid)
        parts.wait_until(lambda: bool(parts.spark().jvm_pid), "Spark starts", patience_s=SPARK_PATIENCE_S)
        parts.watch_process("spark-java", parts.spark().jvm_pid)
        parts.wait_until(lambda: parts.spark().batch >= 0, "Spark makes its first batch", patience_s=SPARK_PATIENCE_S)
        parts.pass_time(self._times.before_spike_s - parts.fed_s(), "all parts run; Spark learns what is usual")

    def _spike(self) -> None:
        parts = self._parts
        self._screen.clear()
        self._screen.scene(3, f"The press works for {self._times.spike_s:.0f} s")
        self._screen.note("A process of the demo burns a core, really: Spark is to notice.")
        parts["press"].order("work", self._times.spike_s)
        parts.wait_until(lambda: parts.press().ended > 0, "the press burns a core", patience_s=self._times.spike_s + 30)
        written = self._probe.written()
        parts.pass_time(self._times.before_kill_s, "the press idles again")
        self._busiest = failover.busiest(written, self._probe.written())

    def _kill(self) -> Failover:
        """Kill the node that leads the busiest container, and see which nodes lead its containers afterwards."""
        screen, parts = self._screen, self._parts
        screen.clear()
        self._steady = live = parts.live()
        state, spark = parts.state(), parts.spark()
        screen.scene(4, "A node is killed, and so is the process that keeps the database")
        container, grown = self._busiest
        before = self._probe.look()
        node = next((each.leader for each in before.containers if each.container == container), 0) if before else 0
        if before is None or node not in self._cluster.pids:
            raise Unsound(f"no node knows the leader of container {container}")
        rate = grown / self._times.before_kill_s / 1024
        screen.note(f"Container {container} gets most of the writes, {rate:,.0f} KiB/s; node {node} leads it.")
        parts["feed"].order("mark")
        screen.command(f"kill -9 {parts['state'].pid}  (the state consumer)")
        parts["state"].kill()
        screen.command(f"kill -9 {self._cluster.pids[node]}  (node {node})")
        self._down_ms = (time.time_ns() // 1_000_000, 0)
        killed = Failover(node, before, killed_at=time.monotonic())
        self._cluster.kill(node)
        parts.wait_until(lambda: self._see(killed).taken_over, f"node {node} is dead", patience_s=TAKEN_OVER_S)
        screen.clear()
        taken = failover.summary(killed.new_leaders.values())
        screen.note(f"{taken}: {killed.took_over_s:.1f} s after the kill.")
        parts.start("state", "state", bootstrap=self._cluster.bootstrap, database=self._places.database)
        parts.watch_process("state", parts["state"].pid)
        sent = parts.feed().sent
        parts.wait_until(
            lambda: parts.feed().acknowledged >= sent and parts.live().readings > live.readings
            and parts.state().readings > state.readings and parts.spark().readings > spark.readings,
            "two nodes continue, and so does every consumer, from its committed offset", patience_s=CATCH_UP_S,
        )  # fmt: skip
        screen.clear()
        screen.note(f"The slowest acknowledgement took {parts.feed().slowest_s:.1f} s; no send has failed.")
        screen.note(
            f"The database continued after the {parts.state().resumed:,} readings that it held, and all read on."
        )
        parts.pass_time(self._times.without_node_s, "two nodes carry everything")
        return killed

    def _bring_back(self, killed: Failover) -> None:
        """Start the dead node again, and wait until every container has all of its replicas."""
        screen, parts = self._screen, self._parts
        screen.clear()
        killed.starts_again(time.monotonic())
        parts.busy(
            lambda: self._cluster.start(killed.node), f"node {killed.node} comes back", also=lambda: self._see(killed)
        )
        self._down_ms = (self._down_ms[0], time.time_ns() // 1_000_000)
        self._cluster.last_metrics()
        parts.watch_process(f"node-{killed.node}", self._cluster.pids[killed.node])
        with suppress(Unsound):  # a check reports it
            parts.wait_until(
                lambda: self._see(killed).whole_at is not None, f"node {killed.node} catches up", patience_s=WHOLE_S
            )
        screen.clear()
        if killed.whole_s is not None:
            screen.note(
                f"Redundancy is restored {killed.whole_s:.1f} s after the start: {killed.containers} containers on "
                f"{NODES} nodes each, all in sync."
            )
        parts.pass_time(self._times.after_return_s, "all parts run")

    def _see(self, killed: Failover) -> Failover:
        look = self._probe.look()
        if look is not None:
            killed.see(look)
        return killed

    def _end_feed(self) -> Expected:
        screen, parts = self._screen, self._parts
        screen.clear()
        screen.scene(5, "The feed ends; everything is checked against what the producer recorded")
        feed = parts["feed"]
        feed.ask_to_go()
        parts.wait_until(lambda: not feed.running, "the producer waits for its last acknowledgements", patience_s=90)
        feed.wait(0)
        return expect(read_ledger(self._places.ledger), window_ms=WINDOW_MS)

    def _collect(self, expected: Expected, killed: Failover) -> list[check.Check]:
        """Let the consumers read to the end, stop them, and compare."""
        parts = self._parts
        due = expected.closed_windows(window_ms=WINDOW_MS, watermark_ms=WATERMARK_MS)
        with suppress(Unsound):  # the checks report what is missing
            parts.wait_until(
                lambda: parts.live().readings >= expected.readings and parts.state().readings >= expected.readings
                and parts.spark().readings >= expected.readings and parts.spark().windows >= len(due),
                "the consumers read to the end", patience_s=CATCH_UP_S,
            )  # fmt: skip
        lags = self._final_lags()
        self._places.metrics.write_text(self._cluster.last_metrics())
        for name in ("live", "state", "spark", "press"):
            parts[name].ask_to_go()
        for name in ("live", "state", "spark", "press"):
            child = parts[name]
            parts.wait_until(lambda child=child: not child.running, f"{name} stops", patience_s=30)  # type: ignore[misc]
            child.wait(0)
        self._screen.clear()
        bootstrap = self._cluster.bootstrap
        windows = outcome.read_windows(self._places.windows)
        topic = outcome.read_window_topic(bootstrap, f"{INSIGHTS_STREAM}:{WINDOWS_TOPIC}")
        checks = [
            check.check_feed(parts.feed(), expected),
            check.check_topics(expected, outcome.topic_ends(bootstrap)),
            check.check_live(parts.live(), expected, steady=self._steady or parts.live()),
            check.check_state(outcome.read_state(self._places.database), expected),
            check.check_spark_input(parts.spark(), expected),
            check.check_windows(windows.by_key, due, repeated=windows.repeated),
            check.check_window_topic(topic, windows.by_key),
            check.check_cursors(lags),
            check.check_spike(windows.by_key, parts.press(), window_ms=WINDOW_MS),
            check.check_failover(killed, parts.feed()),
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
            (places.picture, "the plot: the load spike, Spark's flags, the dead node"),
            (places.windows, "Spark's windows with their statistics and flags"),
            (places.database, "the current state: tables sensors and cursors"),
            (places.ledger, "what the producer recorded as acknowledged"),
            (places.verdict, "these checks"),
            (places.metrics, "the nodes' metrics, once all was read"),
            (places.data, "the nodes' data: `headrace up --data` serves it again"),
            (places.logs, "the processes' logs"),
        ):
            screen.place(shown(path), what)
        wrong = sum(not one.ok for one in checks)
        said = "Nothing was lost, nothing doubled." if good else f"{wrong} of {len(checks)} checks failed."
        screen.note(f"\n{said} {screen.elapsed_s:.0f} s.")
        screen.note(
            f"Metrics: {shown(places.metrics)}; `headrace up --data {shown(places.data)} --output json` starts the "
            "nodes again, and prints where each serves its own."
        )
        return 0 if good else 1

    # --- parts ---

    def _stop(self) -> list[int]:
        """End every process; return the ids of those that are left nevertheless."""
        self._screen.clear()
        return [*self._parts.stop(), *self._cluster.stop_all()]

    def _final_lags(self) -> dict[str, int]:
        """Return each group's lag by committed offsets, once all are at the end or time is up."""
        deadline = time.monotonic() + CURSORS_S
        while True:
            self._parts.look("the cursors are committed")
            lags = {one["group"]: one["lag"] for one in self._cluster.ask("groups", "list") if one["partitions"]}
            if not any(lags.values()) or time.monotonic() > deadline:
                return lags

    def _draw(self, windows: dict[WindowKey, check.FlaggedWindow], expected: Expected) -> None:
        press = self._parts.press()
        plot.draw(
            self._places.picture, windows, window_ms=WINDOW_MS,
            marks=plot.Marks((press.began, press.ended), self._down_ms),
            title=f"{expected.readings:,} real readings of {len(expected.sensors)} sensors, "
            f"{sum(window.anomaly for window in windows.values()):,} of {len(windows):,} windows flagged",
        )  # fmt: skip

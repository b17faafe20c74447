"""Limits of the log: by cause, by event, in memory, and the counts of suppressed lines."""

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from headrace.base import log_limits
from headrace.base.log_limits import (
    AUDIT,
    CAUSE_BURST,
    CAUSE_EVERY_S,
    EVENT_BURST,
    EVENT_EVERY_S,
    LogLimits,
    network_of,
)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Log:
    """The lines that pass a limiter."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.limits = LogLimits(clock=self.clock)
        self.lines: list[dict[str, Any]] = []

    def write(self, event: str, *, level: str = "warning", **given: Any) -> bool:
        try:
            self.lines.append(dict(self.limits(None, level, {"event": event, **given})))
        except structlog.DropEvent:
            return False
        return True


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    made = Log()
    config = structlog.get_config()
    structlog.configure(processors=[made.limits, _drop_into(made.lines)], cache_logger_on_first_use=False)
    yield made
    structlog.configure(**config)


def _drop_into(lines: list[dict[str, Any]]) -> Any:
    def note(_logger: Any, level: str, event: Any) -> Any:
        lines.append({**event, "level": level})
        raise structlog.DropEvent

    return note


def test_one_client_has_a_burst_and_then_a_line_in_some_seconds_with_the_count(log: Log) -> None:
    for port in range(118_000):
        log.write("connection closed", peer=f"10.0.0.9:{port % 60_000}", client=f"c{port}", reason=f"garbage {port}")
        log.clock.now += 40 / 118_000
    most = CAUSE_BURST + 40 / CAUSE_EVERY_S + 1
    assert CAUSE_BURST < len(log.lines) <= most
    left_out = sum(line.get("suppressed", 0) for line in log.lines)
    log.limits.tell(ends=True)
    assert left_out + log.lines[-1]["suppressed"] + len(log.lines) - 1 == 118_000  # no line is missing from the counts


def test_one_clients_flood_takes_nobody_elses_lines_and_no_other_events(log: Log) -> None:
    for port in range(10_000):
        log.write("connection closed", peer=f"10.0.0.9:{port}")
    assert log.write("connection closed", peer="10.0.0.10:1")
    assert log.write("request failed", peer="10.0.0.9:1")


def test_many_addresses_are_bounded_by_event_and_in_memory(log: Log) -> None:
    for number in range(50_000):
        log.write("connection closed", peer=f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}:9")
    assert len(log.lines) == EVENT_BURST
    assert len(log.limits._causes) == log_limits.MAX_CAUSES
    log.clock.now += EVENT_EVERY_S
    assert log.write("connection closed", peer="192.168.0.1:9")
    assert log.lines[-1]["suppressed_of_all"] == 50_000 - EVENT_BURST


def test_what_goes_from_memory_stays_in_the_counts(log: Log) -> None:
    for number, _ in itertools.product(range(log_limits.MAX_CAUSES + 500), range(CAUSE_BURST + 1)):
        log.write("connection closed", peer=f"10.0.{number >> 8}.{number & 255}:9")
    log.limits.tell(ends=True)
    told = [line for line in log.lines if line["event"] == log_limits.LEFT_OUT]
    written = len(log.lines) - len(told)
    counted = sum(line.get("suppressed", 0) + line.get("suppressed_of_all", 0) for line in log.lines)
    assert written + counted == (log_limits.MAX_CAUSES + 500) * (CAUSE_BURST + 1)
    assert len(told) <= log_limits.MAX_TOLD + 1


def test_lines_that_name_no_cause_are_bounded_by_event(log: Log) -> None:
    for number in range(5_000):
        log.write("rebalance", level="info", group=f"g{number}")
    assert len(log.lines) == EVENT_BURST
    log.clock.now += EVENT_EVERY_S
    assert log.write("rebalance", group="g")
    assert log.lines[-1]["suppressed"] == 5_000 - EVENT_BURST


def test_events_without_end_share_a_bucket_when_there_are_too_many(log: Log) -> None:
    for number in range(100_000):
        log.write(f"event {number}", peer="10.0.0.9:1")
    assert len(log.lines) <= log_limits.MAX_EVENTS + EVENT_BURST
    assert len(log.limits._events) <= log_limits.MAX_EVENTS + 1


def test_what_a_peer_says_of_itself_gives_it_no_more_lines(log: Log) -> None:
    for number in range(1_000):
        log.write("peer session ended", peer=f"10.0.0.9:{number}", node=number)
    assert len(log.lines) == CAUSE_BURST


def test_changes_of_state_are_bounded_by_container(log: Log) -> None:
    for container, _ in itertools.product(range(5), range(CAUSE_BURST)):
        assert log.write("leads", level="info", container=container)
    assert not log.write("leads", level="info", container=1)


def test_what_ends_the_process_is_always_written(log: Log) -> None:
    assert all(log.write("the disk failed", level="critical") for _ in range(2 * EVENT_BURST))


def test_lines_of_the_audit_have_bounds_of_their_own(log: Log) -> None:
    assert all(log.write(AUDIT, level="info", kind="topic") for _ in range(2 * EVENT_BURST))


def test_the_end_of_a_flood_is_told_once_by_cause_after_a_quiet_time(log: Log) -> None:
    for _ in range(1_000):
        log.write("connection closed", peer="10.0.0.9:1")
    log.limits.tell()
    assert len(log.lines) == CAUSE_BURST  # the flood may continue
    log.clock.now += log_limits.QUIET_S
    log.limits.tell()
    log.limits.tell()
    assert log.lines[CAUSE_BURST:] == [
        {
            "event": log_limits.LEFT_OUT,
            "lines_of": "connection closed",
            "suppressed": 1_000 - CAUSE_BURST,
            "peer": "10.0.0.9",
            "level": "warning",
        }
    ]


def test_many_floods_that_end_are_summed_up(log: Log) -> None:
    for host, _ in itertools.product(range(15), range(CAUSE_BURST + 5)):
        log.write("connection closed", peer=f"10.0.0.{host}:1")
    log.lines.clear()
    log.limits.tell(ends=True)
    assert len(log.lines) == log_limits.MAX_TOLD + 1
    assert sum(line["suppressed"] for line in log.lines) == 15 * 5


@pytest.mark.parametrize(
    ("peer", "network"),
    [
        ("10.0.0.9:4711", "10.0.0.9"),
        ("2001:db8:1:2:aaaa::1:4711", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:bbbb::2:4711", "2001:db8:1:2::/64"),
        ("[2001:db8:1:2::3]:4711", "2001:db8:1:2::/64"),
        ("::ffff:10.0.0.9:4711", "10.0.0.9"),
        ("fe80::1%eth0:4711", "fe80::/64"),
        ("?", "?"),
        ("None", "None"),
        ("kafka.example:9092", "kafka.example"),
    ],
)
def test_a_peers_port_does_not_count_nor_do_addresses_of_its_own_network(peer: str, network: str) -> None:
    assert network_of(peer) == network


def test_threads_share_the_bounds(log: Log) -> None:
    def flood() -> None:
        for _ in range(2_000):
            log.write("connection closed", peer="10.0.0.9:1")

    threads = [threading.Thread(target=flood) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    written = len(log.lines)
    log.limits.tell(ends=True)
    assert written == CAUSE_BURST
    assert log.lines[-1]["suppressed"] == 4 * 2_000 - CAUSE_BURST

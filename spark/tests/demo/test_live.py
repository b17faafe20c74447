from hypothesis import given
from hypothesis import strategies as st

from headrace_spark.demo.live import Latencies, LiveView, Window
from headrace_spark.demo.readings import Reading


def reading(sequence: int, value: float = 1.0, sensor: str = "busy") -> Reading:
    return Reading(1_000 * sequence, sensor, value, sequence)


def test_the_newest_value_of_a_devices_first_sensor_is_shown() -> None:
    view = LiveView()
    view.take("core-0", reading(1, 5.0), now_ms=1_010)
    view.take("core-0", reading(1, 9.0, "user"), now_ms=1_010)
    view.take("core-0", reading(2, 6.0), now_ms=2_010)
    (newest,) = view.report().newest
    assert (newest.device, newest.sensor, newest.value, newest.readings) == ("core-0", "busy", 6.0, 3)
    assert newest.trend == (5.0, 6.0)


def test_repeated_readings_count_once_and_gaps_are_counted() -> None:
    view = LiveView()
    for sequence in (1, 2, 2, 1, 5):
        view.take("core-0", reading(sequence), now_ms=0)
    report = view.report()
    assert (report.readings, report.repeated, report.missing) == (3, 2, 2)


def test_alarms_are_told_once() -> None:
    view = LiveView()
    view.take_window(Window("press", "cpu", "2026-01-01T00:00:00Z", 90.0, 1.0, 50.0, True))
    view.take_window(Window("press", "cpu", "2026-01-01T00:00:02Z", 1.0, 1.0, 0.0, False))
    first, second = view.report(), view.report()
    assert [alarm.mean for alarm in first.latest_alarms] == [90.0]
    assert (second.alarms, second.latest_alarms) == (1, ())


def test_the_longest_pause_is_remembered() -> None:
    view = LiveView()
    for now in (10.0, 10.5, 13.0, 13.1):
        view.tick(now)
    assert view.report().longest_gap_s == 2.5


@given(st.lists(st.integers(0, 5_000), min_size=1), st.floats(0.01, 1.0))
def test_a_quantile_is_the_smallest_latency_that_so_many_readings_do_not_exceed(some: list[int], share: float) -> None:
    latencies = Latencies()
    for one in some:
        latencies.add(one)
    found = latencies.quantile(share)
    assert found in some
    assert sum(one <= found for one in some) >= share * len(some) - 1e-6
    assert sum(one < found for one in some) < share * len(some) + 1e-6

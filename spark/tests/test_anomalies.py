"""The detector: silent on usual values, and it flags the labelled failure of a real machine."""

import csv
import json
import random
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_spark.anomalies import Detection, Past, Quality, alarms_of, judge, quality

NAB = Path(__file__).parents[3] / "shared" / "data" / "nab"
MACHINE = "realKnownCause/machine_temperature_system_failure.csv"


def flags(values: list[float], detection: Detection) -> list[bool]:
    past, found = Past(), []
    for value in values:
        judgement, past = judge(value, past, detection)
        found.append(judgement.anomaly)
    return found


def test_a_steady_sensor_is_quiet() -> None:
    noise = random.Random(5)
    assert not any(flags([20 + noise.gauss(0, 0.5) for _ in range(500)], Detection()))


def test_a_lasting_step_is_flagged_and_a_single_spike_is_not() -> None:
    noise = random.Random(6)
    calm = [50 + noise.gauss(0, 1) for _ in range(60)]
    assert not any(flags([*calm, 90.0, *calm], Detection()))
    found = flags([*calm, *[90.0] * 5], Detection())
    assert found == [False] * 62 + [True] * 3


def test_a_new_level_becomes_usual() -> None:
    found = flags([10.0] * 50 + [20.0] * 60, Detection())
    assert any(found[50:80])
    assert not any(found[80:])


def test_nothing_is_flagged_while_warming_up() -> None:
    assert not any(flags([0.0, 1000.0] * 10, Detection()))


@given(st.lists(st.floats(-1e9, 1e9), max_size=120))
def test_the_past_stays_bounded_and_judging_goes_on_from_it(values: list[float]) -> None:
    detection = Detection(history=10, warm_up=5, persistence=2)
    whole = flags(values, detection)
    past, again = Past(), []
    for value in values:
        past = Past(tuple(past.means), past.high)
        judgement, past = judge(value, past, detection)
        again.append(judgement.anomaly)
        assert len(past.means) <= 10
    assert again == whole


def test_alarms_close_together_are_one() -> None:
    day = datetime(2014, 1, 1)
    hours = [(day + timedelta(hours=n), day + timedelta(hours=n + 1)) for n in (0, 1, 3, 9)]
    assert alarms_of(hours, gap_s=7200) == [(hours[0][0], hours[2][1]), hours[3]]


def test_quality_counts_touching_windows() -> None:
    day = datetime(2014, 1, 1)
    span = [(day + timedelta(hours=n), day + timedelta(hours=n + 2)) for n in range(0, 40, 4)]
    found = quality([span[0], span[5]], [span[0], span[9]])
    assert found == Quality(alarms=2, true_alarms=1, labelled=2, found=1)
    assert (found.precision, found.recall) == (0.5, 0.5)


def machine_labels() -> list[tuple[datetime, datetime]]:
    windows = json.loads((NAB / "labels" / "combined_windows.json").read_text())[MACHINE]
    return [(datetime.fromisoformat(start), datetime.fromisoformat(end)) for start, end in windows]


@pytest.mark.skipif(not NAB.is_dir(), reason=f"the recordings are not at {NAB}")
def test_the_failure_of_the_machine_is_flagged_with_few_false_alarms() -> None:
    step = timedelta(hours=4)
    sums: dict[datetime, list[float]] = {}
    with (NAB / "data" / MACHINE).open() as file:
        for row in csv.DictReader(file):
            at = datetime.fromisoformat(row["timestamp"])
            sums.setdefault(at - (at - datetime(1970, 1, 1)) % step, []).append(float(row["value"]))
    starts = sorted(sums)
    found = flags([sum(sums[start]) / len(sums[start]) for start in starts], Detection())
    flagged = [(start, start + step) for start, hit in zip(starts, found, strict=True) if hit]
    alarms, labels = alarms_of(flagged, gap_s=12 * 3600), machine_labels()
    assert quality(alarms, labels[-1:]).found == 1, "the failure of 8 February 2014"
    measured = quality(alarms, labels)
    assert measured.precision >= 0.75
    assert measured.recall >= 0.75

import os
import subprocess
import sys

import pytest

from headrace_spark.demo.readings import STEP
from headrace_spark.demo.telemetry import Machine, Rates


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_counter_becomes_a_rate_per_second() -> None:
    clock = Clock()
    rates = Rates(clock)
    assert rates.of("disk", {"writes": 100}) == []
    clock.now = 0.5
    assert rates.of("disk", {"writes": 150}) == [("writes", 100.0)]


def test_a_counter_that_falls_back_starts_anew() -> None:
    clock = Clock()
    rates = Rates(clock)
    rates.of("process", {"writes": 100})
    clock.now = 1.0
    assert rates.of("process", {"writes": 10}) == []
    clock.now = 2.0
    assert rates.of("process", {"writes": 15}) == [("writes", 5.0)]


def test_a_forgotten_device_starts_anew() -> None:
    clock = Clock()
    rates = Rates(clock)
    rates.of("a", {"x": 1})
    rates.of("b", {"x": 1})
    rates.forget("a")
    clock.now = 1.0
    assert rates.of("a", {"x": 2}) == []
    assert rates.of("b", {"x": 2}) == [("x", 1.0)]


def test_the_machine_tells_of_its_cores_its_memory_and_what_is_watched() -> None:
    machine = Machine()
    machine.watch("test", os.getpid())
    list(machine.sample())
    samples = {sample.device: dict(sample.values) for sample in machine.sample()}
    assert "busy_percent" in samples["core-0"]
    assert 0 < samples["memory"]["used_percent"] <= 100
    assert samples["demo-test"]["resident_mib"] > 1
    assert "user_seconds_per_s" in samples["demo-test"]
    assert sum(map(len, samples.values())) > 50
    assert all(value % STEP == 0 for values in samples.values() for value in values.values())


def test_a_watched_process_that_ends_is_forgotten() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    machine = Machine()
    machine.watch("child", child.pid)
    assert "demo-child" in {sample.device for sample in machine.sample()}
    child.communicate()
    assert "demo-child" not in {sample.device for sample in machine.sample()}


@pytest.mark.parametrize("pid", [2**22 + 1])
def test_a_process_that_is_not_there_cannot_be_watched(pid: int) -> None:
    machine = Machine()
    machine.watch("nobody", pid)
    assert "demo-nobody" not in {sample.device for sample in machine.sample()}

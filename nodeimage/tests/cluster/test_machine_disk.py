"""Times in which the machine's disk stood still."""

import threading
import time

import pytest

from kit import machine_disk as module
from kit.machine_disk import MachineDisk, overlap


@pytest.mark.parametrize(
    ("since", "until", "seconds"), [(0, 1, 0), (0, 3, 1), (2.5, 3, 0.5), (0, 100, 7), (5, 12, 2), (20, 30, 0)]
)
def test_only_what_lies_in_the_time_that_is_asked_for_counts(since: float, until: float, seconds: float) -> None:
    assert overlap([(2, 5), (10, 14)], since, until) == seconds


def test_a_sync_counts_while_it_is_under_way_and_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLOW_S", 0.2)
    hangs = threading.Event()
    monkeypatch.setattr(module.os, "fdatasync", lambda _fd: hangs.wait(10))
    disk, began = MachineDisk(), time.monotonic()
    disk.start()
    time.sleep(0.4)
    assert 0.3 < disk.stood_still(began, time.monotonic()) < 5
    hangs.set()
    time.sleep(0.1)
    held = disk.stood_still(began, time.monotonic())
    assert 0.3 < held < 5
    time.sleep(0.3)
    assert disk.stood_still(began, time.monotonic()) == pytest.approx(held, abs=0.05)

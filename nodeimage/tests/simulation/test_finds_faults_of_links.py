"""Runs of several clusters find the faults that they should find: faults planted in links soon fail some seed."""

import tempfile
from collections.abc import Callable
from itertools import count, islice
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from headrace.base.ids import Home, LeaderEpoch, Offset
from headrace.links.failover.home_apply import HomeApplier
from headrace.links.pull import fetch_plan
from headrace.links.source.source import TopicPartition, Wanted
from headrace.partitions.home_check import HomeCheck
from simulation.linked import World, run_linked

Planted = Callable[[], Any]


def applies_home_without_a_cut() -> Any:
    """Diverged records stay where they are."""
    return mock.patch.object(HomeApplier, "_divergence", return_value=None)


def cuts_what_it_did_not_set_aside() -> Any:
    """Records that only a former home had are lost."""

    async def planted(*_: Any) -> None:
        pass

    return mock.patch.object(HomeApplier, "_quarantine_records", planted)


def takes_writes_wherever_it_is() -> Any:
    """A copy accepts writes, and so does a home that was given away."""
    return mock.patch.object(HomeCheck, "refusal", return_value=None)


def makes_the_same_home_twice() -> Any:
    """Two clusters each took a topic by force and gave it to the same third one: both gifts are the same home."""

    def planted(home: Home, cluster: str) -> Home:
        return Home(home.counter + 2 - home.counter % 2, cluster)

    return mock.patch.object(Home, "taken_by", planted)


def asks_for_one_offset_too_far() -> Any:
    """A record is left out: offsets missing at a source count as contiguous."""

    def planted(at: TopicPartition, offset: Offset, epoch: LeaderEpoch, max_bytes: int) -> Wanted:
        return Wanted(at, Offset(offset + 1), epoch, max_bytes)

    return mock.patch.object(fetch_plan, "Wanted", planted)


def has(kind: str, seed: int) -> bool:
    """Whether a seed's run has such a fault between clusters."""
    with tempfile.TemporaryDirectory() as folder:
        return any(kind in fault.kind for fault in World(seed, Path(folder), kept_lines=1).faults)


@pytest.mark.parametrize(
    ("planted", "kind", "first"),
    [
        (applies_home_without_a_cut, "force", 1),
        (cuts_what_it_did_not_set_aside, "force", 11),
        (takes_writes_wherever_it_is, "move", 2),
        (makes_the_same_home_twice, "give twice", 73),
        (asks_for_one_offset_too_far, "", 0),
    ],
)
def test_a_fault_planted_in_links_is_found(planted: Planted, kind: str, first: int) -> None:
    for seed in islice(filter(lambda seed: has(kind, seed), count(first)), 10):
        with planted():
            if run_linked(seed, kept_lines=1).problem:
                return
    raise AssertionError("10 seeds did not notice it")

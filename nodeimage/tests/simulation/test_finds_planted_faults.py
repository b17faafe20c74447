"""The simulator finds what it is there to find: faults that are planted in the code fail some seed soon."""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from msgspec import structs

from headrace.container import feed, replica_folder
from headrace.container.follower import Follower
from headrace.container.history import History
from headrace.container.local_replica import LocalReplica
from headrace.container.replica import Member, Primary
from headrace.container.replica_folder import ReplicaFile
from headrace.container.replicas import Replicas
from headrace.ids import Position
from headrace.log import frames
from headrace.peer.messages import Acked
from simulation.cluster import run

Planted = Callable[[], Any]


def commits_without_one_follower() -> Any:
    commit = Primary._commit

    def planted(primary: Primary) -> bool:
        kept = primary._waited_for
        primary._waited_for = kept[:-1]
        try:
            return commit(primary)
        finally:
            primary._waited_for = kept

    return mock.patch.object(Primary, "_commit", planted)


def acknowledges_before_it_wrote() -> Any:
    def planted(follower: Follower) -> None:
        if follower._following and follower._session is not None:
            follower._session.send(Acked(position=follower.log.end, epoch=follower.epoch))

    return mock.patch.object(Follower, "_acknowledge", planted)


def finds_the_match_point_by_position_alone() -> Any:
    """KIP-101: what a follower has in common with the primary is not told by where it ends."""

    def planted(_mine: History, my_end: int, _theirs: History, their_end: int) -> Position:
        return Position(min(my_end, their_end))

    return mock.patch.object(feed, "match_point", planted)


def goes_on_in_the_epoch_of_its_last_run() -> Any:
    return mock.patch.object(LocalReplica, "led", property(lambda replica: 0))


def commits_by_the_proposed_set_alone() -> Any:
    """Invariant 3: a put that timed out may never land, and then the old set holds."""

    def planted(primary: Primary) -> frozenset[Member]:
        return primary._confirmed if primary._proposed is None else primary._proposed

    return mock.patch.object(Primary, "waits_for", property(planted))


def makes_every_folder_with_the_same_format() -> Any:
    """Invariant 5: a folder that was lost and made again is another replica."""
    prepare = replica_folder.prepare

    def planted(folder: Path, *, unmarked: str = "") -> ReplicaFile:
        number = int(folder.parent.name.removeprefix("node-"))
        return structs.replace(prepare(folder, unmarked=unmarked), format=str(uuid.UUID(int=number)))

    return mock.patch.object(replica_folder, "prepare", planted)


def takes_frames_as_they_are() -> Any:
    """Whoever reads a damaged replica is given what it holds, and so is a scrub."""
    return mock.patch.object(frames, "frame_fault", return_value=None)


def leaves_damage_where_it_is() -> Any:
    """Invariant 14: what cannot be read is fetched anew from those who have it."""
    return mock.patch.object(Replicas, "damaged", return_value=None)


@pytest.mark.parametrize(
    ("planted", "seeds"),
    [
        (commits_without_one_follower, 40),
        (acknowledges_before_it_wrote, 40),
        (finds_the_match_point_by_position_alone, 40),
        (goes_on_in_the_epoch_of_its_last_run, 40),
        (commits_by_the_proposed_set_alone, 40),
        (makes_every_folder_with_the_same_format, 40),
        (takes_frames_as_they_are, 40),
        (leaves_damage_where_it_is, 40),
    ],
)
def test_a_planted_fault_is_found(planted: Planted, seeds: int) -> None:
    for seed in range(seeds):
        with planted():
            outcome = run(seed, kept_lines=1)
        if outcome.problem:
            return
    pytest.fail(f"{seeds} seeds did not notice it")

"""How a replica is opened at a start, depending on how it was kept before."""

from pathlib import Path

import pytest
from msgspec import structs

from headrace.base.ids import ContainerId
from headrace.container import replica_folder
from headrace.container.replica_folder import ReplicaFile
from headrace.container.replica_opening import open_folder
from headrace.log.container_log import LogOptions

SYNCED = LogOptions(chunk_bytes=1 << 20)
UNSYNCED = LogOptions(chunk_bytes=1 << 20, fsync=False)


def run(folder: Path, options: LogOptions, *, replaceable: bool = False) -> ReplicaFile:
    """A process incarnation that is killed; returns what its replica was."""
    opened = open_folder(ContainerId(7), folder, options, replaceable=replaceable)
    opened.log.close()
    return opened.state


def start_the_machine_again(folder: Path) -> None:
    state = replica_folder.read(folder)
    assert state is not None
    if state.boot:
        replica_folder.write(folder, structs.replace(state, boot="another start of the machine"))


@pytest.mark.parametrize("options", [SYNCED, UNSYNCED])
def test_what_was_not_synced_is_another_incarnation_after_a_power_cut_however_it_is_kept_now(
    tmp_path: Path, options: LogOptions
) -> None:
    """Invariants 5, 14."""
    before = run(tmp_path / "7", UNSYNCED)
    start_the_machine_again(tmp_path / "7")
    assert run(tmp_path / "7", options).format != before.format


def test_a_power_cut_while_what_was_not_synced_is_open_to_be_synced_makes_another_incarnation(tmp_path: Path) -> None:
    before = run(tmp_path / "7", UNSYNCED)
    assert run(tmp_path / "7", SYNCED).format == before.format, "the machine went on"
    start_the_machine_again(tmp_path / "7")
    assert run(tmp_path / "7", SYNCED).format != before.format


def test_what_is_synced_stays_the_same_over_a_power_cut(tmp_path: Path) -> None:
    before = run(tmp_path / "7", SYNCED)
    start_the_machine_again(tmp_path / "7")
    assert run(tmp_path / "7", SYNCED) == before


def test_a_replica_in_the_place_of_a_damaged_one_is_another_incarnation_after_a_power_cut_too(tmp_path: Path) -> None:
    run(tmp_path / "7", UNSYNCED)
    (tmp_path / "7" / "replica.json").write_text("{")
    anew = run(tmp_path / "7", UNSYNCED, replaceable=True)
    start_the_machine_again(tmp_path / "7")
    assert run(tmp_path / "7", UNSYNCED).format != anew.format

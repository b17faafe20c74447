"""Nothing is written that has no feature level: each kind and each field that level 0 has not stands here with its own.

A field that an older version does not know is left out there, and gone when that version writes the record again. So it
belongs to a level, unless it does no harm that it is missing: then it is of level 0, and the reason stands beside it.
"""

import json
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from headrace.base.levels import NEWEST, Level
from headrace.catalog.commands import COMMANDS
from kit.written_fields import written_fields

LEVEL_0: Final[dict[str, list[str]]] = json.loads(Path(__file__).with_name("level-0.json").read_bytes())
"""As commit 523cdbc has it. It never changes."""


class Added(NamedTuple):
    """Fields of a kind, new ones at its end. `level`: from which on they are written."""

    kind: str
    fields: tuple[str, ...]
    level: Level


ADDED: Final = (
    Added("catalog.commands.RaiseLevel", ("level",), Level.FENCED),
    Added("catalog.commands.ForgetDeleted", (), Level.FENCED),
    Added("catalog.commands.ExpireSomeCursors", ("before", "after"), Level.FENCED),
    Added("catalog.commands.PutUser", ("name", "groups", "now", "create"), Level.SECURED),
    Added("catalog.commands.DeleteUser", ("name",), Level.SECURED),
    Added(
        "catalog.commands.Credential",
        ("user", "mechanism", "salt", "stored_key", "server_key", "iterations"),
        Level.SECURED,
    ),
    Added("catalog.commands.AlterCredentials", ("deletions", "upserts", "now", "only_existing"), Level.SECURED),
    Added("catalog.commands.AccessItem", ("kind", "object", "permission", "expression", "topic_id"), Level.SECURED),
    Added("catalog.commands.SetAccess", ("items", "now", "expected"), Level.SECURED),
    Added("catalog.commands.SecureCluster", ("on",), Level.SECURED),
    Added("catalog.commands.Quota", ("entity", "key", "value"), Level.SECURED),
    Added("catalog.commands.AlterQuotas", ("items",), Level.SECURED),
    Added("catalog.commands.CreateOwnedStream", ("path", "policy", "access", "now"), Level.SECURED),
    # Who does not hear it takes the node for one of level 0, which is what it is there for.
    Added("peer.messages.ProbeAnswer", ("fenced",), Level.ORIGINAL),
    # Sent while the cluster's secret changes, which it does from SECURED on. Who does not know it looks at `proof`.
    Added("peer.messages.Challenge", ("former_proof",), Level.ORIGINAL),
    # Of a node that does not know it nobody hears that its tables are damaged: it looks for no damage, either.
    Added("peer.reports.NodeLoad", ("catalog_damage",), Level.ORIGINAL),
    # Who does not know these tells of all its replicas at once, and is told of all.
    Added("peer.messages.Probe", ("since", "begun"), Level.ORIGINAL),
    Added("peer.messages.ProbeAnswer", ("counter", "begun", "more", "anew", "gone"), Level.ORIGINAL),
    # Of a node that does not tell it, who changes a rule hears that it has not applied it yet.
    Added("peer.reports.NodeLoad", ("applied",), Level.ORIGINAL),
    # Who does not know it tells whom it heard within 2 s, without trying them first.
    Added("peer.messages.Probe", ("doubted",), Level.ORIGINAL),
    # Who does not know these knows of no store that was set back.
    Added("peer.messages.Unrecorded", ("seen",), Level.ORIGINAL),
    Added("peer.messages.UnrecordedFound", ("set_back", "counters"), Level.ORIGINAL),
    # Who does not know it checks what it checked before.
    Added("peer.messages.RangeRead", ("crc",), Level.ORIGINAL),
    Added("peer.messages.TimeFound", ("crc",), Level.ORIGINAL),
    # Who does not know these checks the snapshot's pages, as it did.
    Added("peer.messages.SnapshotPart", ("crc",), Level.ORIGINAL),
    Added("peer.messages.SnapshotPiece", ("crc",), Level.ORIGINAL),
    # Said only to nodes whose version of the peer protocol has them.
    Added("peer.messages.PairUp", ("node",), Level.ORIGINAL),
    Added("peer.messages.PairBeat", ("sent_at", "taken", "astir"), Level.ORIGINAL),
    Added("peer.messages.PairAnswer", ("sent_at", "rests", "stirs", "count", "digest"), Level.ORIGINAL),
    Added("peer.messages.Resting", ("number", "container", "epoch", "format", "position"), Level.ORIGINAL),
    # A controller that does not know it leaves the container where it is, as it did.
    Added("peer.reports.ReplicaState", ("cramped",), Level.ORIGINAL),
    # One that does not know these appoints by an old copy of the store, as it did.
    Added("peer.reports.ReplicaState", ("change", "recovered"), Level.ORIGINAL),
    Added("peer.messages.ReadMarks", (), Level.FENCED),
    Added("peer.messages.TableMarks", ("marks",), Level.FENCED),
    Added("store.record_types.ContainerRecord", ("changes",), Level.FENCED),
    # What these are to DeletedContainers, which is as it was; and what an older version leaves alone: it takes a node
    # that has lost its record for one that was removed.
    Added("store.record_types.Gone", ("ranges",), Level.ORIGINAL),
    Added("store.record_types.RemovedNodes", ("ranges",), Level.ORIGINAL),
    # Dropped by an older version, it is published again, or the node counts as of level 0.
    Added("store.record_types.NodeRecord", ("supports",), Level.ORIGINAL),
    Added("store.record_types.SupportedLevels", ("run", "oldest", "newest"), Level.ORIGINAL),
    # A key that older versions do not look at.
    Added(
        "store.record_types.FeaturesRecord",
        ("level", "raising", "wanted", "most", "wait_s", "able_since", "epoch"),
        Level.ORIGINAL,
    ),
)


def test_every_field_that_is_written_has_a_level() -> None:
    expected = {kind: list(fields) for kind, fields in LEVEL_0.items()}
    for added in ADDED:
        expected.setdefault(added.kind, []).extend(added.fields)
    assert written_fields() == dict(sorted(expected.items()))


def test_a_command_is_guarded_by_the_level_that_it_has() -> None:
    commands = (each for each in ADDED if each.kind.rpartition(".")[2] in COMMANDS)
    added = {each.kind.rpartition(".")[2]: each.level for each in commands}
    assert {name: command.since for name, command in COMMANDS.items() if command.since} == added


@pytest.mark.parametrize("added", ADDED, ids=lambda each: each.kind)
def test_no_level_is_beyond_the_newest(added: Added) -> None:
    """But for commands, which are refused before their level, and what these alone are made of."""
    assert added.level <= NEWEST or added.kind.startswith("catalog.commands.")

import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.base.ids import ContainerId, Epoch, NodeId
from headrace.container.lost_record import FoundReplica, decode_found, encode_found, recovered_record
from headrace.local.founding import ensure_nodes, opened_store
from headrace.local.store_recovery import NotRecovered, recover_store
from headrace.store import records
from headrace.store.records import ContainerRecord


def record(*, leader: int, epoch: int, in_sync: tuple[int, ...], **fields: object) -> ContainerRecord:
    return ContainerRecord(
        container_id=ContainerId(5),
        kind="data",
        leader=NodeId(leader),
        epoch=Epoch(epoch),
        in_sync=tuple((NodeId(node), uuid.UUID(int=node)) for node in in_sync),
        replicas=(NodeId(1), NodeId(2), NodeId(3)),
        **{"wanted": 3, "min_in_sync": 2} | fields,  # type: ignore[arg-type]
    )


def found(node: int, known: ContainerRecord, *, last_epoch: int, end: int, seen: int | None = None) -> FoundReplica:
    return FoundReplica(
        node=NodeId(node),
        format=uuid.UUID(int=node),
        seen=Epoch(known.epoch if seen is None else seen),
        record=known,
        last_epoch=Epoch(last_epoch),
        end=end,
    )


def in_sync(recovered: ContainerRecord) -> list[int]:
    return [node for node, _ in recovered.in_sync]


def test_another_node_hears_of_replicas_as_it_was_told() -> None:
    known = record(leader=1, epoch=7, in_sync=(1, 2, 3))
    replica = replace(found(1, known, last_epoch=6, end=900), folder=Path("/data/node-0/containers/5"))
    assert decode_found(encode_found([replica])) == [replica]


def test_the_replica_that_is_ahead_leads_above_all_epochs_that_were_seen() -> None:
    known = record(leader=1, epoch=7, in_sync=(1, 2, 3))
    recovered = recovered_record(
        [
            found(1, known, last_epoch=6, end=900),
            found(2, known, last_epoch=7, end=300, seen=9),
            found(3, known, last_epoch=7, end=200),
        ]
    )
    assert (recovered.leader, recovered.epoch, in_sync(recovered)) == (2, 10, [2])
    assert recovered.replicas == (1, 2, 3)


def test_those_that_hold_the_same_are_in_sync_and_the_former_leader_goes_on() -> None:
    known = record(leader=3, epoch=7, in_sync=(1, 2, 3))
    recovered = recovered_record([found(node, known, last_epoch=7, end=300) for node in (1, 2, 3)])
    assert (recovered.leader, in_sync(recovered)) == (3, [1, 2, 3])


def test_a_record_that_is_out_of_date_has_no_say() -> None:
    old = record(leader=1, epoch=3, in_sync=(1, 2), volume="v", state="open")
    new = record(leader=2, epoch=5, in_sync=(2,), volume="v", state="closed", min_in_sync=1)
    recovered = recovered_record([found(1, old, last_epoch=3, end=100), found(2, new, last_epoch=5, end=150)])
    assert (recovered.leader, recovered.epoch, recovered.state, recovered.min_in_sync) == (2, 6, "closed", 1)
    assert recovered.replicas == (1, 2), "a node without a replica has to be given one again"


def test_a_folder_without_nodes_or_without_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotRecovered, match="--data"):
        recover_store(tmp_path)
    ensure_nodes(tmp_path, 2)
    with pytest.raises(NotRecovered, match="catalog"):
        recover_store(tmp_path)
    with opened_store(tmp_path) as store:
        assert len(records.nodes(store)) == 2, "the store is left as it was"

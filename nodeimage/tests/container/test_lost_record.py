"""A container's record, recovered from its replicas' folders after the store continued from an old copy of itself."""

import uuid

from msgspec import structs

from headrace.base.ids import ContainerId, Epoch, NodeId
from headrace.container.lost_record import FoundReplica, ahead, missing_nodes, recovered_record
from headrace.store.container_records import descends_from, stamped
from headrace.store.lineage import is_given_up
from headrace.store.records import ContainerRecord

FORMATS = {NodeId(number): uuid.UUID(int=number) for number in (1, 2, 3)}
MADE = stamped(
    ContainerRecord(
        ContainerId(7),
        "data",
        NodeId(1),
        Epoch(1),
        tuple(FORMATS.items()),
        tuple(FORMATS),
        min_in_sync=2,
        wanted=3,
    ),
    traced=True,
)


def changed(record: ContainerRecord, *, leader: int, epoch: int, in_sync: tuple[int, ...]) -> ContainerRecord:
    pairs = tuple((NodeId(node), FORMATS[NodeId(node)]) for node in in_sync)
    wanted = structs.replace(record, leader=NodeId(leader), epoch=Epoch(epoch), in_sync=pairs)
    return stamped(wanted, traced=True)


def found(node: int, record: ContainerRecord, *, last_epoch: int, end: int) -> FoundReplica:
    return FoundReplica(
        node=NodeId(node),
        format=FORMATS[NodeId(node)],
        seen=record.epoch,
        record=record,
        last_epoch=Epoch(last_epoch),
        end=end,
    )


def test_who_led_by_an_old_copy_of_the_store_is_not_ahead_of_those_who_stand_still() -> None:
    shrunk = changed(MADE, leader=1, epoch=1, in_sync=(1, 2))
    by_the_copy = changed(MADE, leader=3, epoch=2, in_sync=(1, 3))
    replicas = [
        found(1, shrunk, last_epoch=1, end=1000),
        found(2, shrunk, last_epoch=1, end=1000),
        found(3, by_the_copy, last_epoch=2, end=20),
    ]
    assert ahead(replicas).end == 1000
    record = recovered_record(replicas)
    assert (record.leader, record.epoch) == (1, 3)
    assert [node for node, _ in record.in_sync] == [1, 2]
    assert set(record.replicas) == {1, 2, 3}
    assert all(descends_from(record, each.record) for each in replicas)
    given_up = [is_given_up(record.changes, each.record.changes) for each in replicas]
    assert given_up == [False, False, True], "its history does not tell its frames from those of others"


def test_where_neither_line_has_committed_anything_the_one_with_most_copies_is_kept() -> None:
    """Each set has a member that followed the other line."""
    newest = changed(MADE, leader=1, epoch=2, in_sync=(1, 2, 3))
    by_the_copy = changed(MADE, leader=3, epoch=2, in_sync=(1, 2, 3))
    record = recovered_record(
        [
            found(1, newest, last_epoch=2, end=1000),
            found(2, newest, last_epoch=2, end=1000),
            found(3, by_the_copy, last_epoch=2, end=1200),
        ]
    )
    assert [node for node, _ in record.in_sync] == [1, 2]


def test_nodes_that_were_in_sync_by_the_newest_record_and_are_not_found_are_named() -> None:
    handed_over = changed(MADE, leader=3, epoch=2, in_sync=(2, 3))
    replicas = [found(1, MADE, last_epoch=1, end=1000), found(3, handed_over, last_epoch=2, end=900)]
    assert missing_nodes(replicas) == {2}
    assert missing_nodes(replicas[:1]) == {2, 3}


def test_with_nobody_who_knows_better_the_latest_epoch_is_ahead() -> None:
    handed_over = changed(MADE, leader=3, epoch=2, in_sync=(2, 3))
    replicas = [found(1, MADE, last_epoch=1, end=1000), found(3, handed_over, last_epoch=2, end=900)]
    assert ahead(replicas).node == 3
    assert recovered_record(replicas).leader == 3

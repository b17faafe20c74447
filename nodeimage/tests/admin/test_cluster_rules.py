"""The rules for an operator's requests, as tables: no node runs."""

import uuid
from typing import Any

import pytest
from msgspec import structs

from headrace.admin import cluster_rules as rules
from headrace.base.errors import KafkaError
from headrace.base.ids import ContainerId, Epoch, NodeId, Position
from headrace.partitions import placement
from headrace.peer.reports import ReplicaState
from headrace.store.container_records import stamped
from headrace.store.records import ContainerRecord, NodeRecord, VolumeRecord

FORMATS = {number: uuid.UUID(int=number) for number in range(1, 10)}


def node(number: int, **fields: Any) -> NodeRecord:
    return NodeRecord(NodeId(number), FORMATS[number], uuid.UUID(int=99), "127.0.0.1", 9_000 + number, **fields)


def nodes(*each: NodeRecord) -> dict[NodeId, NodeRecord]:
    return {one.node_id: one for one in each}


def container(number: int, leader: int, *in_sync: int, replicas: tuple[int, ...] = (), **fields: Any) -> Any:
    return ContainerRecord(
        container_id=ContainerId(number),
        kind="data",
        leader=NodeId(leader),
        epoch=Epoch(4),
        in_sync=tuple((NodeId(each), FORMATS[each]) for each in in_sync),
        replicas=tuple(NodeId(each) for each in replicas or in_sync),
        **{"wanted": 3, "min_in_sync": 2} | fields,
    )


def replica(number: int, node: int, *, end: int = 100, last_epoch: int = 4, epoch: int = 4) -> ReplicaState:
    return ReplicaState(
        container=ContainerId(number),
        role="follower",
        epoch=Epoch(epoch),
        last_epoch=Epoch(last_epoch),
        end=Position(end),
        committed=Position(min(end, 90)),
        format=str(FORMATS[node]),
    )


class TestVolumes:
    three = VolumeRecord("v", replicas=3, min_in_sync=2)

    @pytest.mark.parametrize(
        ("volume", "hosts", "says"),
        [
            (VolumeRecord("v", 3, 2), ("a", "b", "c"), None),
            (VolumeRecord("v", 3, 2), ("a", "a", "a"), None),
            (VolumeRecord("v", 3, 2, spread="required"), ("a", "b", "c"), None),
            (VolumeRecord("v", 3, 2, spread="required"), ("a", "b", "b"), "there are 2 hosts"),
            (VolumeRecord("v", 3, 2, spread="required"), ("", "", ""), None),
            (VolumeRecord("v", 3, 2), ("a",), "there is 1 node"),
            (VolumeRecord("v", 3, 1), ("a",), None),
        ],
    )
    def test_one_that_asks_for_more_than_there_is_is_refused(
        self, volume: VolumeRecord, hosts: tuple[str, ...], says: str | None
    ) -> None:
        there = [node(number, failure_host=host) for number, host in enumerate(hosts, start=1)]
        fault = placement.volume_fault(volume, there)
        assert (fault is None) == (says is None)
        assert (says or "") in (fault or "")

    def test_only_nodes_of_its_zones_with_its_labels_count(self) -> None:
        there = [
            node(1, zone="a", labels={"disk": "ssd"}),
            node(2, zone="b", labels={"disk": "ssd"}),
            node(3, zone="a"),
        ]
        assert placement.places(VolumeRecord("v", zones=("a",)), there) == 2
        assert placement.places(VolumeRecord("v", zones=("a", "b"), labels={"disk": "ssd"}), there) == 2
        fault = placement.volume_fault(VolumeRecord("v", 2, 2, zones=("a",), labels={"disk": "ssd"}), there)
        assert fault is not None
        assert "1 node in zone a with disk=ssd" in fault

    def test_nodes_that_are_drained_do_not_count(self) -> None:
        assert placement.volume_fault(self.three, [node(1), node(2, draining=True)]) is not None

    def test_fewer_replicas_than_asked_for_are_a_warning_where_the_minimum_is_kept(self) -> None:
        warning = placement.volume_warning(self.three, [node(1), node(2)])
        assert warning is not None
        assert "it has 2" in warning
        assert placement.volume_warning(self.three, [node(1), node(2), node(3)]) is None
        assert "1 replica, and there are 0 nodes" in str(placement.volume_warning(VolumeRecord("v"), []))


class TestDrains:
    @staticmethod
    def fault(there: dict[NodeId, NodeRecord], *volumes: VolumeRecord, alive: set[int] | None = None) -> str | None:
        living = {NodeId(each) for each in alive} if alive is not None else set(there)
        return rules.drain_fault(NodeId(1), nodes=there, alive=living, volumes=volumes)

    def test_one_that_leaves_the_minimum_is_allowed(self) -> None:
        assert self.fault(nodes(node(1), node(2), node(3)), VolumeRecord("v", 3, 2)) is None

    def test_one_that_breaks_the_minimum_is_refused_with_the_ways_out(self) -> None:
        fault = self.fault(nodes(node(1), node(2)), VolumeRecord("v", 3, 2))
        assert fault is not None
        assert "node add" in fault
        assert "volume alter v --min-in-sync 1" in fault

    def test_dead_and_drained_nodes_do_not_stay(self) -> None:
        there = nodes(node(1), node(2), node(3), node(4, draining=True))
        assert self.fault(there, VolumeRecord("v", 3, 2)) is None
        assert self.fault(there, VolumeRecord("v", 3, 2), alive={1, 2, 4}) is not None

    def test_the_last_node_stays(self) -> None:
        assert "no other node" in (self.fault(nodes(node(1)), VolumeRecord("v")) or "")

    def test_a_volume_of_other_nodes_is_no_hindrance(self) -> None:
        there = nodes(node(1, zone="a"), node(2, zone="b"), node(3, zone="b"))
        assert self.fault(there, VolumeRecord("v", 2, 2, zones=("b",))) is None
        assert self.fault(there, VolumeRecord("v", 1, 1, zones=("a",))) is not None

    def test_a_volume_that_is_broken_already_is_no_hindrance(self) -> None:
        assert self.fault(nodes(node(1), node(2)), VolumeRecord("v", 2, 2, zones=("nowhere",))) is None

    def test_fewer_replicas_are_warned_of(self) -> None:
        there = nodes(node(1), node(2), node(3))
        (warning,) = rules.drain_warnings(
            NodeId(1), nodes=there, alive=set(there), volumes=[VolumeRecord("v", 3, 2), VolumeRecord("w", 2)]
        )
        assert "'v'" in warning


class TestRemovals:
    there = nodes(node(1), node(2, draining=True))

    def fault(self, number: int, *containers: ContainerRecord, force: bool = False) -> str | None:
        return rules.removal_fault(NodeId(number), nodes=self.there, containers=containers, force=force)

    def test_an_empty_node_may_go(self) -> None:
        assert self.fault(2, container(5, 1, 1)) is None
        assert self.fault(2, container(5, 2, 2, state="deleted")) is None

    def test_one_with_replicas_is_refused_and_says_which_have_no_other(self) -> None:
        fault = self.fault(1, container(5, 1, 1, 2), container(6, 1, 1), container(7, 2, 2))
        assert fault is not None
        assert "not drained: it has 2 replicas" in fault
        assert "the only one in sync of container 6" in fault
        assert "headrace node drain 1" in fault
        assert "is being drained" in (self.fault(2, container(7, 2, 2)) or "")

    def test_force_gives_replicas_up(self) -> None:
        assert self.fault(1, container(6, 1, 1), force=True) is None

    def test_the_last_node_is_never_removed(self) -> None:
        only = nodes(node(1))
        assert rules.removal_fault(NodeId(1), nodes=only, containers=[], force=True) is not None


class TestRedundancy:
    there = nodes(node(1), node(2), node(3))

    def lacks(self, record: ContainerRecord, **held: ReplicaState) -> list[rules.Lack]:
        """The lacks of one container. `n1=replica(...)`: node 1 answers, and has this replica."""
        told = {NodeId(int(name[1:])): {state.container: state} for name, state in held.items()}
        return rules.lacks([record], nodes=self.there, replicas=told)

    def test_nothing_lacks_where_all_wanted_replicas_are_in_sync_and_answer(self) -> None:
        record = container(5, 1, 1, 2, 3)
        assert self.lacks(record, n1=replica(5, 1), n2=replica(5, 2), n3=replica(5, 3)) == []

    def test_a_dead_member_of_the_in_sync_set_is_missed_though_the_record_has_it(self) -> None:
        (lack,) = self.lacks(container(5, 1, 1, 2, 3), n1=replica(5, 1), n2=replica(5, 2))
        assert (lack.in_sync, lack.wanted) == (2, 3)
        assert lack.reason == "node 3 does not answer"

    def test_a_replica_that_catches_up_says_how_far_it_is_behind(self) -> None:
        record = container(5, 1, 1, 2, replicas=(1, 2, 3))
        (lack,) = self.lacks(record, n1=replica(5, 1), n2=replica(5, 2), n3=replica(5, 3, end=30))
        assert lack.reason == "node 3 catches up"
        assert lack.behind_bytes == 70

    def test_a_container_whose_leader_died_says_so(self) -> None:
        (lack,) = self.lacks(container(5, 1, 1, 2, 3), n2=replica(5, 2), n3=replica(5, 3))
        assert "node 1, its primary," in lack.reason
        assert lack.behind_bytes is None

    def test_a_container_of_which_nobody_in_sync_is_left_waits(self) -> None:
        (lack,) = self.lacks(container(5, 1, 1, 2, replicas=(1, 2, 3)), n3=replica(5, 3))
        assert "nodes 1, 2" in lack.reason
        assert "recover-unclean" in lack.reason

    def test_a_member_that_answers_without_the_replica_that_was_in_sync_is_none(self) -> None:
        other = ReplicaState(
            ContainerId(5), "none", Epoch(0), Epoch(0), Position(0), Position(0), format=str(FORMATS[9])
        )
        (lack,) = self.lacks(container(5, 2, 1, 2, 3), n1=other, n2=replica(5, 2), n3=replica(5, 3))
        assert (lack.in_sync, lack.reason) == (2, "node 1 lost its replica")
        (lack,) = self.lacks(container(5, 1, 1, replicas=(1, 2)), n1=other, n2=replica(5, 2))
        assert (lack.in_sync, "to return: node 1 lost its replica;" in lack.reason) == (0, True)

    def test_members_that_were_removed_are_told_from_those_that_are_down(self) -> None:
        (lack,) = rules.lacks([container(5, 1, 1)], nodes=nodes(node(1), node(2)), replicas={})
        assert "only in-sync replica to return: node 1 does not answer;" in lack.reason
        (lack,) = rules.lacks([container(5, 1, 1)], nodes=nodes(node(2)), replicas={})
        assert "to return: node 1 was removed;" in lack.reason

    def test_too_few_nodes_are_a_reason(self) -> None:
        told = {NodeId(1): {ContainerId(5): replica(5, 1)}}
        (lack,) = rules.lacks([container(5, 1, 1)], nodes=nodes(node(1)), replicas=told)
        assert lack.reason == "there is 1 node that may have replicas, but its volume asks for 3"


class TestUncleanRecovery:
    """Invariant 15."""

    record = container(5, 1, 1, replicas=(1, 2, 3))
    nodes = frozenset({NodeId(1), NodeId(2), NodeId(3), NodeId(4)})

    def test_of_the_replicas_that_are_left_the_one_with_most_leads(self) -> None:
        answers = {NodeId(2): replica(5, 2, end=500, last_epoch=3), NodeId(3): replica(5, 3, end=40, epoch=6)}
        candidate = rules.unclean_candidate(self.record, answers, nodes=self.nodes)
        assert candidate.node == 3
        assert candidate.record.leader == 3
        assert candidate.record.in_sync == ((NodeId(3), FORMATS[3]),)
        assert candidate.record.epoch == 7, "above all that anybody has seen"
        assert candidate.record.recovered == 1
        assert candidate.record.recovered_epoch == candidate.record.epoch
        assert "node 1" in candidate.loss
        assert rules.unclean_candidate(self.record, answers, nodes=self.nodes, asked=NodeId(2)).node == 2

    def test_a_container_that_can_be_led_cleanly_is_refused(self) -> None:
        with pytest.raises(KafkaError, match="node 1 is in sync"):
            rules.unclean_candidate(self.record, {NodeId(1): replica(5, 1), NodeId(2): replica(5, 2)}, nodes=self.nodes)

    def test_a_member_that_lost_its_disk_is_no_member(self) -> None:
        other = ReplicaState(
            ContainerId(5), "none", Epoch(0), Epoch(0), Position(0), Position(0), format=str(FORMATS[9])
        )
        assert (
            rules.unclean_candidate(self.record, {NodeId(1): other, NodeId(2): replica(5, 2)}, nodes=self.nodes).node
            == 2
        )

    def test_where_no_replica_is_left_there_is_nobody_to_choose(self) -> None:
        with pytest.raises(KafkaError, match="nodes 1, 2, 3"):
            rules.unclean_candidate(self.record, {}, nodes=self.nodes)
        with pytest.raises(KafkaError, match="node 4 has no replica"):
            rules.unclean_candidate(self.record, {NodeId(2): replica(5, 2)}, nodes=self.nodes, asked=NodeId(4))

    def test_of_nodes_that_were_removed_none_is_to_be_started(self) -> None:
        with pytest.raises(KafkaError, match="start one of node 3"):
            rules.unclean_candidate(self.record, {}, nodes={NodeId(3), NodeId(4)})
        with pytest.raises(KafkaError, match="their nodes were removed"):
            rules.unclean_candidate(self.record, {}, nodes={NodeId(4)})

    def test_a_deleted_container_stays_deleted(self) -> None:
        with pytest.raises(KafkaError, match="deleted"):
            rules.unclean_candidate(container(5, 1, 1, state="deleted"), {NodeId(2): replica(5, 2)}, nodes=self.nodes)


def test_containers_of_which_somebody_knows_a_newer_record_are_told_with_who_does() -> None:
    """The cluster store was set back to an old copy."""
    old, same = stamped(container(5, 1, 1, 2, 3), traced=True), stamped(container(6, 1, 1, 2, 3), traced=True)
    newer = stamped(old, traced=True)
    replicas = {
        NodeId(each): {
            ContainerId(5): structs.replace(replica(5, each), change=newer.changes[-1]),
            ContainerId(6): structs.replace(replica(6, each), change=same.changes[-1]),
        }
        for each in (1, 2)
    }
    replicas[NodeId(3)] = {ContainerId(5): structs.replace(replica(5, 3), change=old.changes[-1])}
    replicas[NodeId(4)] = {ContainerId(5): replica(5, 4)}  # from before changes had ids
    assert rules.nodes_ahead_of_records([old, same], replicas=replicas) == {5: [1, 2]}
    assert rules.nodes_ahead_of_records([newer, same], replicas=replicas) == {}
    given_up = structs.replace(old, recovered=1)
    assert rules.nodes_ahead_of_records([given_up], replicas=replicas) == {}

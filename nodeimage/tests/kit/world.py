"""A cluster as the controller sees it, built by hand: nodes that answer or not, containers, and a manual clock."""

import dataclasses
import uuid
from collections.abc import Iterable
from typing import Any

from msgspec import structs

from headrace.base.ids import ContainerId, Epoch, NodeId, Position
from headrace.control.changes import Change, CreateContainer, PutContainer, Roll, Wait
from headrace.control.observations import Condition, Observed, ProbeResult, Settings
from headrace.control.plan import conditions, plan
from headrace.peer.messages import ProbeAnswer
from headrace.peer.reports import NodeLoad, ReplicaState
from headrace.store.records import ContainerRecord, NodeRecord, VolumeRecord


def replica_format(node: int, container: int) -> uuid.UUID:
    return uuid.UUID(int=node * 1000 + container)


class World:
    """Node 1 is the controller's. `now` starts long after it took the lease."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.own = NodeId(1)
        self.lease_since = 0.0
        self.started_at = 0.0
        self.counted_from = 0.0
        self.fell_at = float("-inf")
        self.first_nodes = 1
        self.nodes: dict[NodeId, NodeRecord] = {}
        self.containers: dict[ContainerId, ContainerRecord] = {}
        self.versions: dict[ContainerId, int] = {}
        self.volumes = {"default": VolumeRecord("default")}
        self.probes: dict[NodeId, ProbeResult] = {}
        self.since: dict[Condition, float] = {}
        self.creating: frozenset[tuple[str, NodeId, str]] = frozenset()
        self.loads: dict[NodeId, NodeLoad] = {}
        self.settings = Settings()
        self.says_heard: set[NodeId] = set()
        """The nodes for which a test has set whom they hear; all others hear every node that answers."""
        self.filling = False
        """Whether writes continue all the time, so that followers with full disks make no progress."""
        self.deaf = False
        """Whether followers that their leader does not hear make no progress either."""

    # --- making it

    def node(self, *numbers: int, **fields: Any) -> None:
        for number in numbers:
            node = NodeId(number)
            record = NodeRecord(node, uuid.UUID(int=number), uuid.UUID(int=number), "127.0.0.1", 9092, f"host {number}")
            self.nodes[node] = structs.replace(record, **fields)
            self.hears(number)

    def volume(self, replicas: int, least: int = 1, **fields: Any) -> None:
        self.volumes["default"] = VolumeRecord("default", replicas, least, **fields)

    def container(
        self,
        number: int,
        replicas: Iterable[int],
        *,
        in_sync: Iterable[int] | None = None,
        kind: str = "data",
        state: str = "open",
        epoch: int = 5,
    ) -> ContainerRecord:
        """A container led by the first of its replicas, wanted as the volume says. All nodes have everything that they
        should have.
        """
        members = tuple(NodeId(each) for each in replicas)
        volume = self.volumes["default"]
        container = ContainerId(number)
        self.containers[container] = ContainerRecord(
            container_id=container,
            kind=kind,
            leader=members[0],
            epoch=Epoch(epoch),
            in_sync=tuple((NodeId(node), replica_format(node, number)) for node in in_sync or members),
            replicas=members,
            state=state,
            min_in_sync=volume.min_in_sync,
            wanted=volume.replicas,
        )
        self.versions[container] = 100 + number
        for node in members:
            self.replica(node, number)
        return self.containers[container]

    def replica(self, node: int, container: int, **fields: Any) -> None:
        """A node's report of its replica: at first, everything is as the container's record says."""
        result = self.probes[NodeId(node)]
        assert result.answer is not None
        record = self.containers[ContainerId(container)]
        told = ReplicaState(
            container=record.container_id,
            role="primary" if record.leader == node else "follower",
            epoch=record.epoch,
            last_epoch=record.epoch,
            end=Position(1000),
            committed=Position(1000),
            format=str(replica_format(node, container)),
        )
        others = [each for each in result.answer.replicas if each.container != container]
        self.says(node, replicas=[*others, structs.replace(told, **fields)])

    def has_no_replica(self, node: int, container: int) -> None:
        result = self.probes[NodeId(node)]
        if result.answer is not None:
            kept = [each for each in result.answer.replicas if each.container != container]
            self.probes[NodeId(node)] = dataclasses.replace(
                result, answer=structs.replace(result.answer, replicas=kept)
            )

    def says(self, node: int, **fields: Any) -> None:
        if "heard" in fields:
            self.says_heard.add(NodeId(node))
        result = self.probes[NodeId(node)]
        assert result.answer is not None
        self.probes[NodeId(node)] = ProbeResult(structs.replace(result.answer, **fields), result.heard_at)

    # --- how nodes are

    def hears(self, number: int) -> None:
        node = NodeId(number)
        known = self.probes.get(node)
        answer = ProbeAnswer(
            node=node, run=self.nodes[node].run, replicas=[], load=NodeLoad(), reaches_store=True, ready=True
        )
        self.probes[node] = ProbeResult((known and known.answer) or answer, self.now)

    def silent(self, *numbers: int, for_s: float = 60) -> None:
        """A node has been silent for so long; the first unanswered probe was sent a second later, or half way."""
        for number in numbers:
            answer = self.probes[NodeId(number)].answer
            heard = self.now - for_s
            self.probes[NodeId(number)] = ProbeResult(answer, heard, heard + min(1, for_s / 2))

    def refused(self, *numbers: int, for_s: float = 0, witnessed: bool = True) -> None:
        """`witnessed`: the other nodes have been asked whether they hear these."""
        for number in numbers:
            answer = self.probes[NodeId(number)].answer
            since = self.now - for_s
            self.probes[NodeId(number)] = ProbeResult(answer, since - 1, since, refused_twice=True)
            if not witnessed:
                self.probes[NodeId(number)] = dataclasses.replace(self.probes[NodeId(number)], refused_at=since)

    def asked(self, *numbers: int) -> None:
        """Have these nodes just answered a probe."""
        for number in numbers:
            self.probes[NodeId(number)] = dataclasses.replace(self.probes[NodeId(number)], asked_at=self.now)

    def mark(self, number: int, **fields: Any) -> None:
        self.nodes[NodeId(number)] = structs.replace(self.nodes[NodeId(number)], **fields)

    # --- what comes of it

    def observed(self) -> Observed:
        probes = {
            node: dataclasses.replace(
                result,
                answer=structs.replace(result.answer, load=self.loads.get(node, NodeLoad()), heard=self.heard_by(node))
                if result.answer
                else None,
            )
            for node, result in self.probes.items()
        }
        return Observed(
            own=self.own,
            nodes=dict(self.nodes),
            containers=dict(self.containers),
            versions=dict(self.versions),
            volumes=dict(self.volumes),
            probes=probes,
            first_nodes=self.first_nodes,
            lease_since=self.lease_since,
            started_at=self.started_at,
            counted_from=self.counted_from,
            fell_at=self.fell_at,
            since=dict(self.since),
            creating=self.creating,
            settings=self.settings,
        )

    def plan(self) -> list[Change]:
        """The present plan, with conditions that began when they were first seen."""
        observed = self.observed()
        self.since = {each: self.since.get(each, self.now) for each in conditions(observed, self.now)}
        return plan(self.observed(), self.now)

    def pass_time(self, seconds: float) -> None:
        """Nodes that answered continue to answer."""
        self.now += seconds
        for node, result in self.probes.items():
            if result.silent_since is None and result.answer is not None:
                self.probes[node] = ProbeResult(result.answer, self.now)

    def put(self) -> dict[int, ContainerRecord]:
        """The records that the plan puts, by id."""
        return {each.record.container_id: each.record for each in self.plan() if isinstance(each, PutContainer)}

    def created(self) -> list[tuple[str, tuple[int, ...]]]:
        return [(each.kind, each.members) for each in self.plan() if isinstance(each, CreateContainer)]

    def waits(self) -> dict[int, str]:
        return {each.container: each.reason for each in self.plan() if isinstance(each, Wait)}

    def apply(self, changes: Iterable[Change]) -> None:
        """Carry changes out at once: nodes obey, new replicas stay behind until `catch_up`."""
        for change in changes:
            match change:
                case PutContainer(record=record, version=version):
                    container = record.container_id
                    assert version == self.versions[container]
                    gone = set(self.containers[container].replicas) - set(record.replicas)
                    added = set(record.replicas) - set(self.containers[container].replicas)
                    self.containers[container] = record
                    self.versions[container] += 1000
                    for node in gone & self.probes.keys():
                        self.has_no_replica(node, container)
                    for node in set(record.replicas) & self.probes.keys():
                        if self.observed().is_alive(node, self.now):
                            self.replica(node, container, **({"end": Position(0)} if node in added else {}))
                case CreateContainer(kind=kind, members=members):
                    number = 1 if kind == "catalog" else max([1, *self.containers]) + 1
                    self.container(number, members, kind=kind)
                case Roll() | Wait():
                    pass

    def let_go(self) -> None:
        """Leaders remove dead followers, as they do in reality."""
        for container, record in self.containers.items():
            alive = [pair for pair in record.in_sync if self.observed().is_alive(pair[0], self.now)]
            if len(alive) >= record.min_in_sync:
                self.containers[container] = structs.replace(record, in_sync=tuple(alive))
                self.versions[container] += 1

    def catch_up(self) -> None:
        """Every living replica gets in sync, as its leader would arrange; but see `filling` and `deaf`."""
        for container, record in self.containers.items():
            alive = [node for node in record.replicas if self.observed().is_alive(node, self.now)]
            if record.leader not in alive:
                continue
            able = [node for node in alive if node == record.leader or self._gets_on(node, record.leader)]
            stalled = len(able) < record.min_in_sync
            lasting = (self.filling or self.deaf) and not stalled
            kept = [pair for pair in record.in_sync if pair[0] in able or not lasting]
            added = [node for node in able if node not in dict(kept)]
            pairs = (*kept, *((node, replica_format(node, container)) for node in added))
            if pairs != record.in_sync:
                self.containers[container] = structs.replace(record, in_sync=pairs)
                self.versions[container] += 1
            for node in alive:
                self.replica(
                    node,
                    container,
                    stalled=stalled and len(able) < len(alive) and node == record.leader,
                    end=Position(1000 if node in able else 900),
                )

    def heard_by(self, node: NodeId) -> list[NodeId]:
        answer = self.probes[node].answer
        if answer is None or node in self.says_heard:
            return [] if answer is None else answer.heard
        answers = {
            each for each, result in self.probes.items() if result.answer is not None and not result.silent_since
        }
        return [each for each in self.nodes if each != node and each in answers]

    def _gets_on(self, node: NodeId, leader: NodeId) -> bool:
        return not (self.filling and self.nodes[node].full) and not (self.deaf and node not in self.heard_by(leader))

    def converge(self, rounds: int = 40) -> None:
        """Plan, apply and catch up until nothing is left to do."""
        for _ in range(rounds):
            changes = [each for each in self.plan() if not isinstance(each, Wait)]
            if not changes:
                return
            self.apply(changes)
            self.catch_up()
            self.pass_time(1)
        raise AssertionError(f"still changing after {rounds} rounds: {self.plan()}")

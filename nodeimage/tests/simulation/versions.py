"""Runs in which nodes change their version: from level 0 to this version, some back again, until the level is raised.

All nodes run this version's code; some simulate an older one (simulation.old_version).
"""

import random
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from headrace.base.levels import NEWEST
from headrace.store.protocol import ClusterStore
from headrace.store.records import CLUSTER_KEY, FEATURES_KEY, NODE_PREFIX, ClusterRecord, FeaturesRecord, NodeRecord
from simulation.faults import Fault

if TYPE_CHECKING:
    from simulation.cluster import Cluster

WAIT_S = 1.5
"""Virtual seconds before the level is raised automatically."""
VARIED = ("upgrade", "downgrade", "upgrade all", "raise level", "raise level")
RAISED_S = 60.0
"""Virtual seconds within which the level has to be raised when all nodes run this version, and all is well."""
LATE_S = 1.0
"""Virtual seconds for which a controller that begins to raise the level may not have seen a new registration."""


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions at the beginning of a run: the numbers of the nodes with the older one, and the later changes."""

    old: frozenset[int]
    faults: tuple[Fault, ...]
    keeps_unknown: bool
    """Whether the store keeps fields that an older version does not know."""


def draw_versions(chance: random.Random, *, nodes: int, begin: float, length: float) -> Versions | None:
    """The versions of a run; some runs have them. All nodes are old at first, or a new one has already joined."""
    if chance.random() < 0.75:
        return None
    old = frozenset(range(1, nodes + 1)) - ({chance.randint(1, nodes)} if chance.random() < 0.3 else set())
    kinds = ["upgrade"] * (nodes - 1) + chance.choices(VARIED, k=chance.randint(1, 5))
    faults = [
        Fault(begin + chance.random() * length, kind, chance.choice((0.05, 0.5, 2.0)), chance.random())
        for kind in kinds
    ]
    return Versions(old, tuple(faults), keeps_unknown=chance.random() < 0.5)


def found_of_level_0(store: ClusterStore, random_bits: int) -> None:
    """The cluster's record as created by an older version, with a short wait before the level is raised."""
    cluster = ClusterRecord("c" * 22, random_bits, secret="0" * 32)
    store.put(CLUSTER_KEY, msgspec.json.encode(cluster), None)
    store.put(FEATURES_KEY, msgspec.json.encode(FeaturesRecord(wait_s=WAIT_S)), None)


class VersionChecks:
    """The level never falls. It is about to be raised only when no node has an older version, which could not restart,
    and is raised only when every node refuses older versions.
    """

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        self.old_runs: set[uuid.UUID] = set()
        self._old_since: dict[uuid.UUID, float] = {}
        """When runs of an older version registered."""

    def registers(self, after: bytes) -> None:
        """A node's new record is about to be stored."""
        run = msgspec.json.decode(after, type=NodeRecord).run
        if run in self.old_runs:
            self._old_since.setdefault(run, self._cluster.loop.now)

    def put(self, before: bytes | None, after: bytes) -> None:
        """A new record of the features is about to be stored."""
        new = msgspec.json.decode(after, type=FeaturesRecord)
        old = FeaturesRecord() if before is None else msgspec.json.decode(before, type=FeaturesRecord)
        self._cluster.trace(f"store: feature level {new.level}, raising {new.raising}")
        if new.level < old.level or new.epoch < old.epoch:
            self._cluster.checks.fail(f"the feature level falls: from {old} to {new}")
        if before is not None and new.required > old.required and not self._cluster.store.lands_late:
            self._check_able(new.required)
        if before is None or new.level == old.level:
            return
        registered = {
            msgspec.json.decode(each.value, type=NodeRecord).node_id for each in self._cluster.store.list(NODE_PREFIX)
        }
        for node in self._cluster.nodes:
            if node.node_id in registered and node.fenced < new.level:
                self._cluster.checks.fail(f"level {new.level} is there, and node {node.number} lets older versions in")
            if node.node_id in registered and node.is_up and node.is_old:
                self._cluster.checks.fail(f"level {new.level} is there, and node {node.number} is of an older version")

    def _check_able(self, level: int) -> None:
        for each in self._cluster.store.list(NODE_PREFIX):
            record = msgspec.json.decode(each.value, type=NodeRecord)
            since = self._old_since.get(record.run, self._cluster.loop.now)
            if self._cluster.loop.now - since > LATE_S:
                self._cluster.checks.fail(
                    f"level {level} is about to be there, and node id {record.node_id} has been of an older version "
                    f"since {since:.3f} s"
                )

    def missing(self) -> str:
        """Why the level is not as it should be in the end."""
        found = self._cluster.store.get(FEATURES_KEY)
        level = 0 if found is None else msgspec.json.decode(found.value, type=FeaturesRecord).level
        return "" if level == NEWEST else f"the feature level is {level}, though all nodes support {NEWEST:d}"

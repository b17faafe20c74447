"""What the controller knows when it plans, and what it concludes about each node. No I/O, no clock.

Times are seconds of the controller's own monotonic clock.

    ALIVE    answers probes
    DOUBT    does not answer just now, or has not yet: nothing is taken from it and nothing given to it
    DEAD     refused twice, silent for 2 s, or no longer registered

A node that is silent here or refuses connections, but that a living node has just heard, is in doubt and not dead: this
node itself may be cut off, by a network fault or a firewall. If a node refuses connections, some other nodes are asked
first (`witnesses`). A node that this process has never heard is in doubt for the first seconds of the process, since
all nodes may have started together.
"""

from bisect import bisect
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from headrace.base.ids import ContainerId, NodeId
from headrace.control.container_states import DELETED
from headrace.control.inventory import Inventory, NodeState
from headrace.peer.messages import ProbeAnswer
from headrace.peer.reports import NodeLoad, ReplicaState
from headrace.store.records import ContainerRecord, NodeRecord, VolumeRecord

WITNESSES: Final = 5
"""The maximum number of nodes asked about a node that refuses connections."""
DEFAULT_VOLUME = "default"
"""Name of the volume that always exists."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Bounds of the plan, and times in seconds."""

    doubt_s: float = 0.5
    """A node is in doubt while a probe has not been answered for this long."""
    silence_s: float = 2.0
    """A node is dead after this long without an answer."""
    gather_s: float = 5.0
    """The first containers wait this long for more nodes, and a new process waits this long for nodes that it has never
    heard."""
    rebuild_after_s: float = 600.0
    """The replicas of a node that has been dead for this long are rebuilt elsewhere."""
    idle_s: float = 10.0
    """A leader that answers but does not lead for this long is replaced."""
    apart_s: float = 1.0
    """If the catalog's leader does not hear a living node for this long, a node that hears more becomes leader."""
    witness_s: float = 0.5
    """Other nodes have this long to report whether they hear a node that refuses connections."""
    openless_s: float = 3.0
    """A node that leads only closed containers has this long to create its next open one itself."""
    back_s: float = 12.0
    """A node that came back must be up this long before it leads again. librdkafka waits up to 10 s between two
    attempts to connect to a node that was down (reconnect.backoff.max.ms), so its clients would not reach a new leader
    there sooner."""
    return_s: float = 30.0
    """A node that came back has this long to catch up with an open container before it gets a new one."""
    forget_after_s: float = 600.0
    """The record of a deleted container is kept this long."""
    set_back_s: float = 2.0
    """A node must know a newer record than the store for this long before the store counts as restored to an old copy;
    views lag for a moment."""
    rebuilds_at_once: int = 8
    """The maximum number of closed containers that are copied at the same time."""


class Life(Enum):
    """The state of a node, as far as this node can tell."""

    ALIVE = "alive"
    DOUBT = "in doubt"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The results of probes of one process incarnation of a node."""

    answer: ProbeAnswer | None = None
    """The last answer."""
    heard_at: float | None = None
    """When the last answer arrived."""
    silent_since: float | None = None
    """When the first unanswered probe after the last answer was sent."""
    refused_twice: bool = False
    """The node's host, or a firewall, refused the connection twice in a row."""
    refused_at: float = float("-inf")
    """When the connection was refused for the second time."""
    asked_at: float = float("-inf")
    """When the probe that got the last answer was sent."""
    partly: bool = False
    """Not all of the node's replicas are known yet: a replica that is not known may still exist."""
    told_at: float | None = None
    """When the last complete report of the node's replicas arrived. None: at `heard_at`."""


Condition = tuple[str, int, str]
"""Something that matters only if it lasts: a name, the container or node, and a detail."""


def up(node: NodeId) -> Condition:
    """The node can take roles."""
    return "up", node, ""


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that a plan is based on."""

    own: NodeId
    """The controller's node."""
    nodes: Mapping[NodeId, NodeRecord]
    containers: Mapping[ContainerId, ContainerRecord]
    versions: Mapping[ContainerId, int]
    volumes: Mapping[str, VolumeRecord]
    probes: Mapping[NodeId, ProbeResult]
    """Results for the registered process incarnations."""
    first_nodes: int = 1
    lease_since: float = 0.0
    started_at: float = float("-inf")
    """When this process started."""
    counted_from: float = float("-inf")
    """When this process continued after its last suspension. Silence counts only from then on, because answers may have
    been waiting to be read."""
    since: Mapping[Condition, float] = field(default_factory=dict)
    """When each current condition began."""
    creating: frozenset[tuple[str, NodeId, str]] = frozenset()
    """(kind, leader, volume) of containers that are being created."""
    fell_at: float = float("-inf")
    """When this node saw that the cluster store was restored to an old copy. If the replicas of a container have not
    been heard of since, its record may not be the newest."""
    settings: Settings = Settings()
    kept: Inventory | None = None
    """An inventory of `containers`, `versions` and the probed replicas, updated by `find_at_rest` and otherwise
    constant while this object is in use. None: an inventory is created, and all containers are examined."""
    inventory: Inventory = field(init=False, repr=False)
    _replaced: frozenset[NodeId] = field(init=False, repr=False)
    """Nodes whose disk is gone: a newer node runs in their place."""
    _lives: dict[float, dict[NodeId, Life]] = field(init=False, repr=False, default_factory=dict)
    """Node states already determined, by time."""
    _heard: dict[NodeId, frozenset[NodeId]] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        told = (
            (node, each)
            for node, result in self.probes.items()
            if result.answer is not None
            for each in result.answer.replicas
        )
        inventory = Inventory.of(self.containers, self.versions, told) if self.kept is None else self.kept
        object.__setattr__(self, "inventory", inventory)
        newest = {node.slot: node.node_id for node in sorted(self.nodes.values(), key=lambda each: each.node_id)}
        older = {node.node_id for node in self.nodes.values() if node.slot and newest[node.slot] != node.node_id}
        object.__setattr__(self, "_replaced", frozenset(older))

    # --- which containers are examined

    def find_at_rest(self, now: float) -> Iterator[None]:
        """Have the inventory determine, in steps, which containers are at rest."""
        return self.inventory.find_at_rest({node: self._node_state(node, now) for node in self.nodes}, self.volumes)

    def active_containers(self) -> Iterable[ContainerId]:
        """Return the containers that a plan examines: no other container would get a change or a condition."""
        if self.kept is None:
            return (key for key, each in self.containers.items() if each.state != DELETED)
        return self.inventory.active_containers()

    def _node_state(self, node: NodeId, now: float) -> NodeState:
        registered = self.nodes[node]
        leads = self.is_alive(node, now) and not (registered.stopping or registered.draining or self.is_stuck(node))
        heard = self.fell_at == float("-inf") or self._is_heard_since(node, self.fell_at)
        return NodeState(leads=leads, stays=not self.is_gone(node, now), heard=heard)

    # --- containers and replicas

    def know_better(self, container: ContainerId) -> Collection[NodeId]:
        """Return the nodes that know a change of a container's record that the store does not have.

        Either the store was restored to an old copy, or this node's view of it lags for a moment. While there are such
        nodes, nothing is decided for the container.
        """
        return self.inventory.know_better(container)

    def unheard_since_fall(self, record: ContainerRecord) -> Sequence[NodeId]:
        """Return the nodes with replicas of a container that have not been heard from since the store was restored to
        an old copy.

        Any of them may know a newer record.
        """
        if self.fell_at == float("-inf"):
            return ()
        return [node for node in record.replicas if node in self.nodes and not self._is_heard_since(node, self.fell_at)]

    def _is_heard_since(self, node: NodeId, at: float) -> bool:
        result = self.probes.get(node)
        if result is None or result.heard_at is None or result.partly:
            return False
        return (result.heard_at if result.told_at is None else result.told_at) > at

    def is_told(self, node: NodeId) -> bool:
        """Return whether all of a node's replicas are known: otherwise a replica that is not known may still exist."""
        result = self.probes.get(node)
        return result is not None and result.answer is not None and not result.partly

    # --- nodes

    def life(self, node: NodeId, now: float) -> Life:
        """Return the state of a node."""
        lives = self._lives.get(now)
        if lives is None:
            lives = self._lives[now] = {}
        life = lives.get(node)
        if life is None:
            life = lives[node] = self._find_life(node, now)
        return life

    def _find_life(self, node: NodeId, now: float) -> Life:
        if node not in self.nodes:
            return Life.DEAD
        result = self.probes.get(node)
        if result is None:
            return Life.DOUBT
        silent = 0.0 if result.silent_since is None else now - result.silent_since
        if result.answer is not None and silent < self.settings.doubt_s and not result.refused_twice:
            return Life.ALIVE
        if result.heard_at is None and now < self.started_at + self.settings.gather_s:
            return Life.DOUBT
        if result.refused_twice:
            return Life.DOUBT if self.is_refused_here_alone(node, now) else Life.DEAD
        # A probe that has just been sent proves nothing, however long ago the one before it was answered.
        silent = min(silent, now - self.counted_from)
        unheard = silent if result.heard_at is None else now - result.heard_at
        lost = unheard >= self.settings.silence_s and silent >= self.settings.silence_s / 2
        return Life.DEAD if lost and not self._is_vouched_for(node, now) else Life.DOUBT

    def _is_vouched_for(self, node: NodeId, now: float) -> bool:
        for other, result in self.probes.items():
            if other in (node, self.own) or node not in self.heard_by(other):
                continue
            if result.silent_since is None or now - result.silent_since < self.settings.doubt_s:
                return True
        return False

    def witnesses(self, node: NodeId, now: float) -> Sequence[NodeId]:
        """Return the nodes to ask about a node that refuses connections: some that answer, those that follow it in
        order of ids."""
        answering = sorted(
            other
            for other, result in self.probes.items()
            if other not in (node, self.own)
            and result.answer is not None
            and not result.refused_twice
            and (result.silent_since is None or now - result.silent_since < self.settings.doubt_s)
        )
        after = bisect(answering, node)
        return (answering[after:] + answering[:after])[:WITNESSES]

    def is_refused_here_alone(self, node: NodeId, now: float) -> bool:
        """Return whether a witness that was asked since hears a node that refuses connections here, or has yet to
        report."""
        refused_at = self.probes[node].refused_at
        for other in self.witnesses(node, now):
            result = self.probes[other]
            assert result.answer is not None
            if result.asked_at < refused_at:
                if now - refused_at < self.settings.witness_s:
                    return True
            elif node in result.answer.heard:
                return True
        return False

    def is_alive(self, node: NodeId, now: float) -> bool:
        """Return whether a node answers."""
        return self.life(node, now) is Life.ALIVE

    def takes_roles(self, node: NodeId, now: float) -> bool:
        """Return whether roles and replicas may be given to a node: it is alive, reaches the store, its disk is not
        stuck, and it is not leaving."""
        record = self.nodes.get(node)
        return (
            record is not None
            and not record.draining
            and not record.stopping
            and self.is_alive(node, now)
            and self.reaches_store(node)
            and not self.is_stuck(node)
        )

    def is_steady(self, node: NodeId, now: float) -> bool:
        """Return whether a node has been up for so long that clients that found it down have tried it again."""
        return now - self.since.get(up(node), now) >= self.settings.back_s

    def reaches_store(self, node: NodeId) -> bool:
        """Return whether a node reported that it reaches the cluster store."""
        result = self.probes.get(node)
        return result is not None and result.answer is not None and result.answer.reaches_store

    def is_stuck(self, node: NodeId) -> bool:
        """Return whether a node last reported that its disk hangs; all its replicas are on that disk."""
        return self.inventory.is_stuck(node)

    def is_gone(self, node: NodeId, now: float) -> bool:
        """Return whether a node's replicas are to be rebuilt elsewhere: it was removed, is being drained, was
        replaced by a newer node, or has been dead for long."""
        record = self.nodes.get(node)
        if record is None or record.draining or node in self._replaced:
            return True
        if self.life(node, now) is not Life.DEAD:
            return False
        since = self.probes[node].silent_since
        return since is not None and now - since >= self.settings.rebuild_after_s

    def replica(self, node: NodeId, container: ContainerId) -> ReplicaState | None:
        """Return a replica as last reported by its node."""
        return self.inventory.replica(node, container)

    def heard_by(self, node: NodeId) -> frozenset[NodeId]:
        """Return the nodes that a node hears, as it last reported."""
        heard = self._heard.get(node)
        if heard is None:
            result = self.probes.get(node)
            told = () if result is None or result.answer is None else result.answer.heard
            heard = self._heard[node] = frozenset(told)
        return heard

    def unheard_by(self, node: NodeId, now: float) -> frozenset[NodeId]:
        """Return the other nodes that are not dead but that a node does not hear: the network between them is cut."""
        return frozenset(
            other
            for other in self.nodes.keys() - self.heard_by(node) - {node}
            if self.life(other, now) is not Life.DEAD
            and (result := self.probes.get(other)) is not None  # otherwise it has just been registered
            and result.heard_at is not None
        )

    def loads(self) -> dict[NodeId, NodeLoad]:
        """Return the load that each node reported."""
        return {node: result.answer.load for node, result in self.probes.items() if result.answer is not None}


def cut_off(observed: Observed, now: float) -> str:
    """Return why another node should be the controller, since this one hears too few nodes; "" if there is no reason.

    Only silence counts, and refusals that no other node gets: other refusals mean that a process has ended.
    """
    settings = observed.settings
    heard = {observed.own} | {node for node in observed.nodes if observed.is_alive(node, now)}
    silent: dict[NodeId, float] = {}
    for node, result in observed.probes.items():
        ended = result.refused_twice and observed.life(node, now) is Life.DEAD
        if node in observed.nodes and result.silent_since is not None and not ended and node not in heard:
            began = result.silent_since if result.heard_at is None else result.heard_at
            silent[node] = now - max(began, observed.counted_from)
    lost = [node for node, silence in silent.items() if _is_nearly_dead(observed, node, silence, now)]
    if len(lost) > len(heard):
        return f"hears {len(heard)} nodes, and no longer {len(lost)} that it heard before"
    for node in sorted(heard - {observed.own}):
        theirs = ({node} | observed.heard_by(node)) & (heard | silent.keys())
        # After this time the other node's report is newer than what was heard here.
        deaf_to = [each for each in theirs - heard if silent[each] >= 1.75 * settings.silence_s]
        if deaf_to and len(theirs) > len(heard) and observed.takes_roles(node, now):
            return f"hears {len(heard)} nodes, and node {node} hears {len(theirs)}"
    return ""


def _is_nearly_dead(observed: Observed, node: NodeId, silence: float, now: float) -> bool:
    """Return whether a node will soon count as dead (`Observed.life`); there too, a probe just sent proves nothing."""
    result, silence_s = observed.probes[node], observed.settings.silence_s
    if result.heard_at is None or result.silent_since is None:
        return False
    waited = now - max(result.silent_since, observed.counted_from)
    return silence >= 0.75 * silence_s and waited >= 0.75 * silence_s / 2

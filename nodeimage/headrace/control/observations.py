"""What the controller knows when it plans, and what it concludes from it about each node. No I/O, no clock.

Times are of the controller's own monotonic clock.

    ALIVE    answers probes
    DOUBT    does not just now, or not yet: nothing is taken from it and nothing given to it
    DEAD     refused twice, silent for 2 s, or no longer registered

A node that is silent here, or refuses, but that a living one has just heard, is in doubt and not dead: it may be we who
are cut off, by a network or a firewall. Of one that refuses some others are asked first (`witnesses`). A node that this
process has never heard is in doubt for the first seconds of the process, since all may have started together.
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
DEFAULT_VOLUME = "default"


@dataclass(frozen=True, slots=True)
class Settings:
    """Times of the plan, in seconds, and bounds."""

    doubt_s: float = 0.5
    """A probe that takes longer puts its node in doubt."""
    silence_s: float = 2.0
    gather_s: float = 5.0
    """So long the first containers wait for more nodes, and a new process for nodes that it never heard."""
    rebuild_after_s: float = 600.0
    """A node that has been dead for so long has its replicas rebuilt elsewhere."""
    idle_s: float = 10.0
    """A leader that answers but does not lead for so long is replaced."""
    apart_s: float = 1.0
    """So long the catalog's leader may fail to hear a node that lives; who hears more nodes leads then."""
    witness_s: float = 0.5
    """So long others may take to say whether they hear a node that refuses."""
    openless_s: float = 3.0
    """So long a node that leads closed containers has to make its next open one itself."""
    back_s: float = 12.0
    """So long a node that came back is up before it leads again. librdkafka waits up to 10 s between two attempts to
    connect with a node that was down (reconnect.backoff.max.ms): what was led there sooner would wait as long."""
    return_s: float = 30.0
    """So long a node that came back has to catch up with an open container, before it gets a new one."""
    forget_after_s: float = 600.0
    """So long the record of a deleted container stays."""
    set_back_s: float = 2.0
    """So long a node may know better than the store before that is called set back: views are behind for a moment."""
    rebuilds_at_once: int = 8
    """Closed containers that are copied at a time."""


class Life(Enum):
    """How a node is, as far as we can tell."""

    ALIVE = "alive"
    DOUBT = "in doubt"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What probes of one process incarnation of a node told."""

    answer: ProbeAnswer | None = None
    """The last answer."""
    heard_at: float | None = None
    silent_since: float | None = None
    """When the first probe was sent that has no answer, since the last answer."""
    refused_twice: bool = False
    """Its host, or a firewall, said twice in a row that nobody listens."""
    refused_at: float = float("-inf")
    """When it did so for the second time."""
    asked_at: float = float("-inf")
    """When the last answer was asked for."""
    partly: bool = False
    """Not all of its replicas are known yet: what is not known of may be there."""
    told_at: float | None = None
    """When it had told of all its replicas last. None: whenever it was heard."""


Condition = tuple[str, int, str]
"""Something that matters only when it lasts: what, of which container or node, and a detail."""


def up(node: NodeId) -> Condition:
    """The node takes roles."""
    return "up", node, ""


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that a plan is made of."""

    own: NodeId
    """The controller's node."""
    nodes: Mapping[NodeId, NodeRecord]
    containers: Mapping[ContainerId, ContainerRecord]
    versions: Mapping[ContainerId, int]
    volumes: Mapping[str, VolumeRecord]
    probes: Mapping[NodeId, ProbeResult]
    """Of the runs that are registered."""
    first_nodes: int = 1
    lease_since: float = 0.0
    started_at: float = float("-inf")
    """Of this process."""
    counted_from: float = float("-inf")
    """When this process last stood still. Silence counts from then on only: answers may have waited meanwhile."""
    since: Mapping[Condition, float] = field(default_factory=dict)
    """When each present condition began."""
    creating: frozenset[tuple[str, NodeId, str]] = frozenset()
    """(kind, leader, volume) of containers that are being made."""
    fell_at: float = float("-inf")
    """When this node saw the cluster store set back: of containers whose replicas have not been heard of since, nobody
    knows whether their records are the newest."""
    settings: Settings = Settings()
    kept: Inventory | None = None
    """An inventory of `containers`, `versions` and what probes told, brought up to date by `find_at_rest`, which does
    not change while this is in use. None: one is made, and all containers are looked at."""
    inventory: Inventory = field(init=False, repr=False)
    _replaced: frozenset[NodeId] = field(init=False, repr=False)
    """Nodes whose disk is gone: a newer one runs where they ran."""
    _lives: dict[float, dict[NodeId, Life]] = field(init=False, repr=False, default_factory=dict)
    """As they were found, by time."""
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

    # --- which containers are looked at

    def find_at_rest(self, now: float) -> Iterator[None]:
        """Have the inventory find out which containers are at rest, in steps."""
        return self.inventory.find_at_rest({node: self._node_state(node, now) for node in self.nodes}, self.volumes)

    def astir(self) -> Iterable[ContainerId]:
        """The containers that a plan looks at: none that is left out would have a change or a condition."""
        if self.kept is None:
            return (key for key, each in self.containers.items() if each.state != DELETED)
        return self.inventory.astir()

    def _node_state(self, node: NodeId, now: float) -> NodeState:
        registered = self.nodes[node]
        leads = self.is_alive(node, now) and not (registered.stopping or registered.draining or self.is_stuck(node))
        heard = self.fell_at == float("-inf") or self._is_heard_since(node, self.fell_at)
        return NodeState(leads=leads, stays=not self.is_gone(node, now), heard=heard)

    # --- containers and replicas

    def know_better(self, container: ContainerId) -> Collection[NodeId]:
        """The nodes that know a change of a container's record that the store has not: it was set back, or this node's
        view of it is behind for a moment. As long as there are any, nothing is decided for the container.
        """
        return self.inventory.know_better(container)

    def unheard_since_fall(self, record: ContainerRecord) -> Sequence[NodeId]:
        """The nodes with replicas of a container of which nothing has been heard since the store was set back: any of
        them may know better than the record."""
        if self.fell_at == float("-inf"):
            return ()
        return [node for node in record.replicas if node in self.nodes and not self._is_heard_since(node, self.fell_at)]

    def _is_heard_since(self, node: NodeId, at: float) -> bool:
        result = self.probes.get(node)
        if result is None or result.heard_at is None or result.partly:
            return False
        return (result.heard_at if result.told_at is None else result.told_at) > at

    def is_told(self, node: NodeId) -> bool:
        """Whether all of a node's replicas are known: else one that is not may be there."""
        result = self.probes.get(node)
        return result is not None and result.answer is not None and not result.partly

    # --- nodes

    def life(self, node: NodeId, now: float) -> Life:
        """How a node is."""
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
        """The nodes whose word on one that refuses counts: some that answer, those that follow it in order of ids."""
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
        """Whether a node that refuses is heard by a witness that was asked since, or one has yet to say so."""
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
        """Whether it answers."""
        return self.life(node, now) is Life.ALIVE

    def takes_roles(self, node: NodeId, now: float) -> bool:
        """Whether roles and replicas may be given to it: it lives, reaches the store, its disk writes, and it is not
        about to leave."""
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
        """Whether it has been up for so long that clients which found it down try it again."""
        return now - self.since.get(up(node), now) >= self.settings.back_s

    def reaches_store(self, node: NodeId) -> bool:
        """Whether it said so."""
        result = self.probes.get(node)
        return result is not None and result.answer is not None and result.answer.reaches_store

    def is_stuck(self, node: NodeId) -> bool:
        """Whether its disk hangs, as it told last: all its replicas are on it."""
        return self.inventory.is_stuck(node)

    def is_gone(self, node: NodeId, now: float) -> bool:
        """Whether its replicas are to be rebuilt elsewhere: removed, drained, or dead for long."""
        record = self.nodes.get(node)
        if record is None or record.draining or node in self._replaced:
            return True
        if self.life(node, now) is not Life.DEAD:
            return False
        since = self.probes[node].silent_since
        return since is not None and now - since >= self.settings.rebuild_after_s

    def replica(self, node: NodeId, container: ContainerId) -> ReplicaState | None:
        """A replica, as its node told of it last."""
        return self.inventory.replica(node, container)

    def heard_by(self, node: NodeId) -> frozenset[NodeId]:
        """The nodes that it hears, as it told last."""
        heard = self._heard.get(node)
        if heard is None:
            result = self.probes.get(node)
            told = () if result is None or result.answer is None else result.answer.heard
            heard = self._heard[node] = frozenset(told)
        return heard

    def unheard_by(self, node: NodeId, now: float) -> frozenset[NodeId]:
        """The other nodes that are not dead, and that it does not hear: the way between the two is cut."""
        return frozenset(
            other
            for other in self.nodes.keys() - self.heard_by(node) - {node}
            if self.life(other, now) is not Life.DEAD
            and (result := self.probes.get(other)) is not None  # else it has just been registered
            and result.heard_at is not None
        )

    def loads(self) -> dict[NodeId, NodeLoad]:
        """What each node said it carries."""
        return {node: result.answer.load for node, result in self.probes.items() if result.answer is not None}


def cut_off(observed: Observed, now: float) -> str:
    """Why another node should rather be the controller, as this one hears too little; "": no reason.

    Only silence counts, and refusals that nobody else gets: else they tell of a process that ended.
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
        # By then what the other has heard is newer than what was heard here.
        deaf_to = [each for each in theirs - heard if silent[each] >= 1.75 * settings.silence_s]
        if deaf_to and len(theirs) > len(heard) and observed.takes_roles(node, now):
            return f"hears {len(heard)} nodes, and node {node} hears {len(theirs)}"
    return ""


def _is_nearly_dead(observed: Observed, node: NodeId, silence: float, now: float) -> bool:
    """Somewhat before it counts as dead (`Observed.life`): as there, a probe that has just been sent proves nothing."""
    result, silence_s = observed.probes[node], observed.settings.silence_s
    if result.heard_at is None or result.silent_since is None:
        return False
    waited = now - max(result.silent_since, observed.counted_from)
    return silence >= 0.75 * silence_s and waited >= 0.75 * silence_s / 2

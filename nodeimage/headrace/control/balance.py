"""Which load should move, and where to. Pure.

Runs every few seconds. A node is hot if it carries more than 1.25 times the mean of the nodes, in traffic, requests or
disk use, and more than a floor below which a load does not matter; the cluster's owner can set these numbers
(BalanceRecord). Once a node has been hot for two rounds, one of these is moved:

    a leader       to a member of the in-sync set, if that makes the larger of the two loads smaller
    partitionlets  the hottest of one container are rolled to a container of the coolest node; existing data stay

A node is cold if it carries less than half of the mean: it has just joined, or come back. Once it has been cold for two
rounds, a hot node hands a leader over to it. If none can, because the cold node has no replicas yet, all nodes above
the mean roll some of their partitionlets to it at once, even if they have just done so for another cold node. If that
had no effect, because partitionlets are few and large, or if the node is still cold afterwards, one of these nodes at a
time rolls one partitionlet that makes the two loads more alike. Cold nodes come before moves among hot nodes: after
such a move its nodes would rest for a while, and could give the cold node nothing.

This module decides what share of its writes a container should lose; the container's leader chooses the partitionlets.
After a move its nodes are left alone until the move has taken effect. All moves together have a budget per minute. Cold
nodes that receive from all others have a separate budget of the same number of nodes per minute, so that they need not
wait for other moves. The leaders of closed containers, which only serve reads, are spread evenly by number, within a
third budget.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from headrace.base.ids import ContainerId, NodeId
from headrace.control.candidates import candidates, hand_over
from headrace.control.changes import Change, PutContainer, Roll
from headrace.control.container_states import OPEN
from headrace.control.observations import Observed
from headrace.peer.reports import NodeLoad
from headrace.store.records import BalanceRecord, ContainerRecord

EVERY_S: Final = 3.0
"""Seconds between two rounds."""
UNDER_MEAN: Final = 0.5
"""Fraction of the mean load below which a node is cold."""
ROUNDS: Final = 2
"""Rounds in a row in which a node must be hot or cold before anything is moved."""
ENOUGH_GIVEN: Final = 2
"""Value of `Warmth.given` at which a cold node has received enough: a round in which only some nodes could roll counts
as 1, one in which all could as 2."""
REST_S: Final = 15.0
"""Seconds after a move for which its nodes are left alone; rates are averages over seconds."""
NO_EFFECT_S: Final = 2 * EVERY_S
"""Seconds after a roll to a cold node after which the node need not rest any longer, if no container that it leads is
written to."""
NO_HELP_S: Final = 60.0
"""Seconds for which a cold node is left alone if no other node could help it."""
CLOSED_PER_ROUND: Final = 2
"""The maximum number of leaders of closed containers moved in a round."""
CLOSED_PER_MINUTE: Final = 30
"""The maximum number of leaders of closed containers moved in a minute."""
IMPROVEMENT: Final = 0.9
"""A move must reduce the larger load of its two nodes to less than this fraction of it."""
ROLL_TOLERANCE: Final = 1.3
"""Factor by which what each of several nodes rolls to a cold node may exceed its share, because partitionlets are
indivisible."""
MIN_SHARE: Final = 0.02
"""Smallest fraction of a container's writes that is worth a move."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One kind of load."""

    name: str
    cold: float = float("inf")
    """No node counts as cold while the mean is below this fraction of the floor."""


TRAFFIC: Final = Measure("traffic", 1 / 8)
REQUESTS: Final = Measure("requests", 1 / 10)
DISK: Final = Measure("disk")
DEFAULT_POLICY: Final = BalanceRecord()


@dataclass(frozen=True, slots=True)
class Warmth:
    """What has been done for a cold node."""

    given: int = 0
    """How much all nodes above the mean have rolled to it; `ENOUGH_GIVEN` is enough."""
    at: float = float("-inf")
    """When that was done last."""
    asked: Set[NodeId] = frozenset()
    """Nodes that were asked to roll one large partitionlet to it."""


@dataclass(frozen=True, slots=True)
class BalanceState:
    """What one round passes to the next. Times are seconds of the controller's clock."""

    at: float = float("-inf")
    """When the last round ran."""
    ends: Mapping[ContainerId, tuple[int, int]] = field(default_factory=dict)
    """(epoch, end) of each open container that is led."""
    hot: Mapping[NodeId, int] = field(default_factory=dict)
    """For each hot node, the number of rounds in a row."""
    cold: Mapping[NodeId, int] = field(default_factory=dict)
    """For each cold node, the number of rounds in a row."""
    warmth: Mapping[NodeId, Warmth] = field(default_factory=dict)
    """What has been done for each cold node."""
    moves: tuple[float, ...] = ()
    """Times of the moves in the last minute."""
    warm_moves: tuple[float, ...] = ()
    """Times at which all nodes above the mean rolled to a cold node, in the last minute."""
    closed_moves: tuple[float, ...] = ()
    """Times at which leaders of closed containers were moved, in the last minute."""
    resting: Mapping[NodeId, float] = field(default_factory=dict)
    """Until when each node is left alone."""
    warming: Set[NodeId] = frozenset()
    """Resting nodes that rest only because they roll partitionlets to cold nodes."""


class _Donor(NamedTuple):
    """A node that can roll partitionlets away from its busiest container."""

    node: NodeId
    record: ContainerRecord
    target: ContainerRecord
    carried: float
    """The part of the node's load that is due to this container."""
    why: str


def balance(
    observed: Observed, state: BalanceState, now: float, policy: BalanceRecord = DEFAULT_POLICY
) -> tuple[list[Change], BalanceState]:
    """Return the moves of this round, and the state for the next. No moves before a round is due, or while paused."""
    if policy.paused or now - state.at < EVERY_S:
        return [], state
    return _Round(observed, state, now, policy).make()


class _Round:
    def __init__(self, observed: Observed, state: BalanceState, now: float, policy: BalanceRecord) -> None:
        self._policy = policy
        self._observed = observed
        self._state = state
        self._now = now
        self._full = {key for key, node in observed.nodes.items() if node.full}
        self._loads = {node: load for node, load in observed.loads().items() if observed.takes_roles(node, now)}
        self._opened = [
            record for each in observed.inventory.open_data() if self._may_change(record := observed.containers[each])
        ]
        self._led: defaultdict[NodeId, list[ContainerRecord]] = defaultdict(list)
        """Open containers by leader."""
        for record in self._opened:
            self._led[record.leader].append(record)
        self._ends = self._read_ends()
        self._rates = self._read_rates()
        self._moves = [at for at in state.moves if now - at < 60]
        self._warm_moves = [at for at in state.warm_moves if now - at < 60]
        self._closed_moves = [at for at in state.closed_moves if now - at < 60]
        self._resting = {node: until for node, until in state.resting.items() if until > now}
        self._changes: list[Change] = []
        self._warming = {node for node in state.warming if node in self._resting}

    def make(self) -> tuple[list[Change], BalanceState]:
        hot = {node: self._state.hot.get(node, 0) + 1 for node, _, _ in self._hot()}
        cold = {node: self._state.cold.get(node, 0) + 1 for node, _ in self._cold()}
        warmth = {node: self._state.warmth.get(node, Warmth()) for node in cold}
        to_cool = [(node, measure) for node, measure, _ in self._hot() if hot[node] >= ROUNDS]
        to_warm = [(node, measure) for node, measure in self._cold() if cold[node] >= ROUNDS]
        self._hand_over_from(to_cool, to={node for node, _ in to_warm})
        for node, measure in to_warm:
            if node not in self._resting or self._had_no_effect(node, warmth[node]):
                warm = self._warm if warmth[node].given < ENOUGH_GIVEN else self._warm_again
                warmth[node] = warm(node, measure, warmth[node])
        self._hand_over_from(to_cool, to=self._loads.keys())
        for node, measure in to_cool:
            if self._may_move(node):
                self._roll_away(node, measure)
        closed = {node: self._observed.inventory.closed_led(node) for node in self._loads}
        led = Counter({node: len(containers) for node, containers in closed.items()})
        for _ in range(CLOSED_PER_ROUND):
            self._spread_closed(closed, led)
        return self._changes, replace(
            self._state,
            at=self._now,
            ends=self._ends,
            hot=hot,
            cold=cold,
            warmth=warmth,
            moves=tuple(self._moves),
            warm_moves=tuple(self._warm_moves),
            closed_moves=tuple(self._closed_moves),
            resting=self._resting,
            warming=self._warming,
        )

    def _may_change(self, record: ContainerRecord) -> bool:
        """Return whether the leader of a container may be changed by this module."""
        return (
            record.leader in self._loads
            and not self._observed.know_better(record.container_id)
            and not self._observed.unheard_since_fall(record)
        )

    # --- loads

    def _hot(self) -> list[tuple[NodeId, Measure, float]]:
        """Return (node, its highest measure, its multiple of the mean) for each hot node, hottest first."""
        found: dict[NodeId, tuple[NodeId, Measure, float]] = {}
        for measure in (TRAFFIC, REQUESTS, DISK):
            values = {node: _value(load, measure) for node, load in self._loads.items()}
            mean = _mean(values)
            for node, value in values.items():
                over = value / mean if mean else 0.0
                is_hot = value > self._floor(measure) and over > self._policy.over_mean
                if is_hot and over > found.get(node, (node, measure, 0.0))[2]:
                    found[node] = (node, measure, over)
        return sorted(found.values(), key=lambda each: (-each[2], each[0]))

    def _cold(self) -> list[tuple[NodeId, Measure]]:
        """Return (node, its low measure) for each cold node, without nodes above the mean in the other measure or with
        a full disk."""
        found: dict[NodeId, Measure] = {}
        busy: set[NodeId] = set()
        for measure in (TRAFFIC, REQUESTS):
            values = {node: _value(load, measure) for node, load in self._loads.items()}
            mean = _mean(values)
            if mean >= measure.cold * self._floor(measure):
                found |= {node: measure for node, value in values.items() if value < UNDER_MEAN * mean}
                busy |= {node for node, value in values.items() if value > mean}
        able = found.keys() - busy - self._full
        return [(node, measure) for node, measure in sorted(found.items(), key=lambda each: each[0]) if node in able]

    def _floor(self, measure: Measure) -> float:
        """Return the load below which a node is not hot."""
        policy = self._policy
        floors = {TRAFFIC: policy.traffic_floor, REQUESTS: policy.requests_floor, DISK: policy.disk_floor}
        return float(floors[measure])

    def _read_ends(self) -> dict[ContainerId, tuple[int, int]]:
        ends: dict[ContainerId, tuple[int, int]] = {}
        for record in self._opened:
            replica = self._observed.replica(record.leader, record.container_id)
            if replica is not None and replica.role == "primary":
                ends[record.container_id] = (replica.epoch, replica.end)
        return ends

    def _read_rates(self) -> dict[ContainerId, float]:
        """Return the bytes per second that were written to each container since the last round."""
        rates = {}
        for container, (epoch, end) in self._ends.items():
            before = self._state.ends.get(container)
            if before is not None and before[0] == epoch:
                rates[container] = max(end - before[1], 0) / max(self._now - self._state.at, EVERY_S)
        return rates

    # --- moves

    def _may_move(self, *nodes: NodeId) -> bool:
        return len(self._moves) < self._policy.moves_per_minute and not any(node in self._resting for node in nodes)

    def _values(self, node: NodeId, measure: Measure) -> tuple[dict[NodeId, float], float, str]:
        """Return what each node carries, the mean, and a text that compares `node` with the mean."""
        values = {each: _value(load, measure) for each, load in self._loads.items()}
        mean = _mean(values)
        return values, mean, f"node {node} carries {values[node] / mean:.2f} times the mean {measure.name}"

    def _hand_over_from(self, hot: Sequence[tuple[NodeId, Measure]], *, to: Set[NodeId]) -> None:
        for node, measure in hot:
            if measure is not DISK and self._may_move(node):
                self._hand_over_open(node, measure, to=to)

    def _hand_over_open(self, node: NodeId, measure: Measure, *, to: Set[NodeId]) -> None:
        """Hand over the open container whose move helps most. A node keeps one of each volume, for new partitions."""
        values, _, why = self._values(node, measure)
        led = self._led[node]
        of_volume = Counter(each.volume for each in led)
        written = sum(self._rates.get(each.container_id, 0.0) for each in led)
        best: tuple[float, ContainerRecord, NodeId] | None = None
        for record in led:
            if of_volume[record.volume] < 2 or not written:
                continue
            share = values[node] * self._rates.get(record.container_id, 0.0) / written
            for candidate in (each for each in self._candidates(record) if each in to):
                larger = max(values[node] - share, values[candidate] + share)
                helps = larger < IMPROVEMENT * values[node] and self._may_move(candidate)
                if helps and (best is None or larger < best[0]):
                    best = (larger, record, candidate)
        if best is not None:
            _, record, candidate = best
            reason = f"{why}; node {candidate} leads now"
            moved = hand_over(self._observed, record, candidate, reason, self._now)
            self._changes.append(replace(moved, is_balance=True))
            self._moves.append(self._now)
            self._resting |= dict.fromkeys((node, candidate), self._now + REST_S)

    def _had_no_effect(self, cold: NodeId, warmth: Warmth) -> bool:
        """Return whether rolls to a cold node had no effect: it is still idle."""
        if not warmth.given or self._now - warmth.at < NO_EFFECT_S:
            return False
        return not any(self._rates.get(each.container_id) for each in self._led[cold])

    def _rests(self, donor: NodeId) -> bool:
        """Return whether a node rests for another reason than having rolled to cold nodes."""
        return donor in self._resting and donor not in self._warming

    def _donors(self, cold: NodeId, measure: Measure) -> Iterator[tuple[_Donor, float]]:
        """Return the nodes above the mean that can roll to a cold node, hottest first, each with the load that it
        should give."""
        values, mean, why = self._values(cold, measure)
        over = sum(value - mean for value in values.values() if value > mean)
        for node, value in sorted(values.items(), key=lambda each: (-each[1], each[0])):
            busiest = self._busiest(node, value)
            if value <= mean or busiest is None:
                continue
            record, carried = busiest
            able = self._led[cold] if cold not in self._full else []
            target = next((each for each in able if each.volume == record.volume), None)
            if target is not None:
                share = min(1.0, (mean - values[cold]) / over) * (value - mean)
                yield _Donor(node, record, target, carried, why), max(share, MIN_SHARE * carried)

    def _warm(self, cold: NodeId, measure: Measure, warmth: Warmth) -> Warmth:
        """Roll partitionlets to a cold node from all nodes above the mean.

        The cold node's distance from the mean does not depend on what these nodes have just given to another cold node,
        so they need not have rested from that.
        """
        if len(self._warm_moves) >= self._policy.moves_per_minute:
            return warmth
        values, mean, _ = self._values(cold, measure)
        lacks = mean - values[cold]
        rolled = missed = False
        for donor, share in self._donors(cold, measure):
            if self._rests(donor.node):
                missed = True
            elif lacks > 0 and self._roll(donor, share, ROLL_TOLERANCE * share):
                rolled = True
                self._warming.add(donor.node)
                lacks -= share
        if not rolled:
            return warmth
        self._resting[cold] = self._now + REST_S
        self._warm_moves.append(self._now)
        return replace(warmth, given=warmth.given + (1 if missed else ENOUGH_GIVEN), at=self._now)

    def _warm_again(self, cold: NodeId, measure: Measure, warmth: Warmth) -> Warmth:
        """Roll one partitionlet, if necessary a large one, to a node that is still cold, from a node not asked
        before."""
        values, _, _ = self._values(cold, measure)
        missed = False
        for donor, share in self._donors(cold, measure):
            if donor.node in warmth.asked:
                continue
            if self._rests(donor.node) or not self._may_move():
                missed = True
            elif self._roll(donor, share, IMPROVEMENT * (values[donor.node] - values[cold])):
                self._moves.append(self._now)
                self._warming.discard(donor.node)
                self._resting[cold] = self._now + REST_S
                return replace(warmth, at=self._now, asked=warmth.asked | {donor.node})
        if missed:
            return warmth
        self._resting[cold] = self._now + NO_HELP_S
        return replace(warmth, at=self._now + NO_HELP_S, asked=frozenset())

    def _roll_away(self, node: NodeId, measure: Measure) -> None:
        """Roll partitionlets of a hot node's busiest container to the coolest node."""
        values, mean, why = self._values(node, measure)
        busiest = self._busiest(node, values[node])
        if busiest is None:
            return
        record, carried = busiest
        targets = [
            each for each in self._open_of(record.volume) if values[each.leader] < mean and self._may_move(each.leader)
        ]
        if not targets:
            return
        target = min(targets, key=lambda each: (values[each.leader], each.container_id))
        # The larger of the two loads must become smaller: otherwise a hot partitionlet would wander from node to node.
        most = IMPROVEMENT * values[node] - values[target.leader]
        if self._roll(_Donor(node, record, target, carried, why), (values[node] - mean) / 2, most):
            self._moves.append(self._now)
            self._resting[target.leader] = self._now + REST_S

    def _busiest(self, node: NodeId, value: float) -> tuple[ContainerRecord, float] | None:
        """Return the open container of a node with the highest write rate, and the part of the node's load due
        to it."""
        led = self._led[node]
        rates = {each.container_id: self._rates.get(each.container_id, 0.0) for each in led}
        if not any(rates.values()):
            return None
        busiest = max(led, key=lambda each: (rates[each.container_id], -each.container_id))
        return busiest, value * rates[busiest.container_id] / sum(rates.values())

    def _open_of(self, volume: str) -> list[ContainerRecord]:
        """Return the containers to which partitions may roll: not those led by nodes with full disks, which partitions
        leave."""
        return [each for each in self._opened if each.volume == volume and each.leader not in self._full]

    def _roll(self, donor: _Donor, wanted: float, most: float) -> bool:
        """Move a part of a container's writes to another container, up to `most`; return whether that is worth
        a move."""
        share, limit = min(wanted / donor.carried, 1.0), min(most / donor.carried, 1.0)
        if share < 0.99 * MIN_SHARE:  # tolerates rounding of a share that is exactly the least
            return False
        record, target = donor.record, donor.target
        reason = (
            f"{donor.why}; {share:.0%} of what is written to container {record.container_id} continues in container"
            f" {target.container_id} of node {target.leader}"
        )
        self._changes.append(Roll(donor.node, record.container_id, share, limit, target.container_id, reason))
        self._resting[donor.node] = self._now + REST_S
        return True

    def _spread_closed(self, closed: Mapping[NodeId, Sequence[ContainerId]], led: Counter[NodeId]) -> None:
        """Hand over one leader of a closed container, from a node that leads many of them to one that leads fewer."""
        if len(self._closed_moves) >= CLOSED_PER_MINUTE or not led:
            return
        fewest = min(led[node] for node in self._loads)
        best: tuple[int, ContainerRecord, NodeId] | None = None
        for node in sorted(closed, key=lambda each: (-led[each], each)):
            for container in closed[node]:
                most = 1 if best is None else best[0]
                if led[node] - fewest <= most:
                    break
                record = self._observed.containers[container]
                # A quick check before the candidates are computed, which takes much longer.
                if not any(led[node] - led[each] > most for each, _ in record.in_sync if each in self._loads):
                    continue
                for candidate in self._candidates(record) if self._may_change(record) else ():
                    gap = led[node] - led[candidate]
                    if gap >= 2 and (best is None or gap > best[0]):
                        best = (gap, record, candidate)
        if best is not None:
            gap, record, candidate = best
            more = f"{gap} closed containers more than node {candidate}"
            reason = f"node {record.leader} leads {more}, which leads this one now"
            moved = hand_over(self._observed, record, candidate, reason, self._now)
            self._changes.append(replace(moved, is_balance=True))
            self._closed_moves.append(self._now)
            led[record.leader] -= 1
            led[candidate] += 1

    def _candidates(self, record: ContainerRecord) -> list[NodeId]:
        taken = {each.record.container_id for each in self._changes if isinstance(each, PutContainer)}
        if record.container_id in taken:
            return []
        able = candidates(self._observed, record, lambda _: 0, self._now)
        others = self._loads.keys() - {record.leader} - (self._full if record.state == OPEN else set())
        return [node for node in able if node in others]


def _mean(values: Mapping[NodeId, float]) -> float:
    return sum(values.values()) / len(values) if values else 0.0


def _value(load: NodeLoad, measure: Measure) -> float:
    if measure is TRAFFIC:
        return load.bytes_in_per_s + load.bytes_out_per_s
    return load.requests_per_s if measure is REQUESTS else float(load.disk_used)

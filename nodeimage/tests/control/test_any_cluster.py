"""Whatever a cluster looks like, no plan breaks the controller's guarantees."""

import uuid

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from headrace.base.ids import NodeId, Position
from headrace.control.balance import BalanceState, balance
from headrace.control.changes import Change, CreateContainer, PutContainer
from headrace.control.observations import Life, Observed, ProbeResult
from headrace.peer.reports import NodeLoad
from kit.world import World


@st.composite
def clusters(draw: st.DrawFn) -> World:
    world = World()
    count = draw(st.integers(1, 6))
    replicas = draw(st.integers(1, 4))
    world.volume(replicas, draw(st.integers(1, replicas)), spread=draw(st.sampled_from(["preferred", "required"])))
    nodes = range(1, count + 1)
    for number in nodes:
        world.node(
            number,
            failure_host=draw(st.sampled_from(["", "a", "b", "c"])),
            zone=draw(st.sampled_from(["", "x", "y"])),
            draining=draw(st.integers(0, 4)) == 0,
            stopping=draw(st.integers(0, 6)) == 0,
            full=draw(st.integers(0, 3)) == 0,
        )
        world.loads[NodeId(number)] = NodeLoad(
            bytes_in_per_s=draw(st.sampled_from([0.0, 1e6, 1e8])),
            requests_per_s=draw(st.sampled_from([0.0, 1e4])),
            disk_used=draw(st.sampled_from([0, 10**11])),
            disk_total=10**12,
        )
    for number in range(draw(st.integers(0, 6))):
        members = draw(st.permutations(nodes))[: draw(st.integers(1, count))]
        in_sync = members[: draw(st.integers(1, len(members)))]
        record = world.container(
            number + 1,
            members,
            in_sync=in_sync,
            kind="catalog" if number == 0 else "data",
            state=draw(st.sampled_from(["open", "open", "closed", "deleted"])) if number else "open",
        )
        least = draw(st.integers(1, 4))
        world.containers[record.container_id] = structs.replace(
            record, min_in_sync=least, wanted=draw(st.integers(1, 4))
        )
        for node in members:
            if draw(st.booleans()):
                continue
            world.replica(
                node,
                number + 1,
                end=Position(draw(st.integers(0, 3))),
                last_epoch=draw(st.integers(1, 6)),
                epoch=draw(st.integers(1, 9)),
                stalled=draw(st.booleans()),
                cramped=draw(st.booleans()),
                stuck=draw(st.integers(0, 4)) == 0,
                role=draw(st.sampled_from(["primary", "follower", "none"])),
                **({"format": str(uuid.UUID(int=7))} if draw(st.integers(0, 3)) == 0 else {}),
            )
    for number in nodes:
        world.says(
            number,
            reaches_store=draw(st.integers(0, 4)) > 0,
            heard=[NodeId(node) for node in draw(st.sets(st.sampled_from(list(nodes))))],
        )
        match draw(st.sampled_from(["well", "well", "silent", "refused", "doubt", "never", "removed"])):
            case "silent":
                world.silent(number, for_s=draw(st.sampled_from([2, 5, 700])))
            case "refused":
                world.refused(number, for_s=draw(st.sampled_from([0, 700])))
            case "doubt":
                world.silent(number, for_s=1.2)
            case "never":
                world.probes[NodeId(number)] = ProbeResult()
            case "removed" if number != world.own:
                del world.nodes[NodeId(number)]
                del world.probes[NodeId(number)]
    world.since = {}
    return world


def check(observed: Observed, changes: list[Change], now: float) -> None:
    put = [each.record.container_id for each in changes if isinstance(each, PutContainer)]
    assert len(put) == len(set(put))
    for change in changes:
        assert change.reason
        match change:
            case PutContainer(record=record, version=version):
                before = observed.containers[record.container_id]
                assert version == observed.versions[record.container_id]
                check_record(observed, before, record, now)
            case CreateContainer(members=members):
                assert len(members) == len(set(members)) >= 1
                assert all(observed.takes_roles(node, now) for node in members)


def check_record(observed: Observed, before, record, now: float) -> None:  # type: ignore[no-untyped-def]
    assert record.leader in record.replicas
    assert record.leader in dict(record.in_sync)
    assert set(dict(record.in_sync)) <= set(record.replicas)
    assert set(record.in_sync) <= set(before.in_sync), "only a primary brings members in sync"
    assert len(record.in_sync) >= min(before.min_in_sync, len(before.in_sync)), "never below the minimum"
    assert record.min_in_sync <= max(before.min_in_sync, len(record.in_sync))
    assert (record.state, record.kind, record.volume) == (before.state, before.kind, before.volume)
    if record.leader != before.leader:
        replica = observed.replica(record.leader, record.container_id)
        assert record.epoch > before.epoch
        assert replica is not None
        assert (record.leader, replica.format) in [(node, str(format)) for node, format in before.in_sync]
        assert observed.life(record.leader, now) is Life.ALIVE
        assert observed.life(before.leader, now) is not Life.DOUBT
        if not observed.reaches_store(record.leader) or observed.is_stuck(record.leader):
            others = [
                node for node, _ in before.in_sync if observed.reaches_store(node) and not observed.is_stuck(node)
            ]
            assert not any(
                observed.is_alive(node, now)
                and (found := observed.replica(node, record.container_id)) is not None
                and (node, found.format) in [(member, str(format)) for member, format in before.in_sync]
                for node in others
            )
        assert record.replicas == before.replicas
    else:
        # The only epochs without a new leader are those of a leader that counted as dead and answers after all.
        assert record.epoch >= before.epoch
        gone = set(before.replicas) - set(record.replicas)
        left = [node for node, _ in record.in_sync if observed.is_alive(node, now)]
        assert not gone or left, "the last living replica in sync never leaves"


@settings(max_examples=250, deadline=None)
@given(world=clusters(), later=st.sampled_from([0.0, 5.0, 40.0]))
def test_no_plan_breaks_a_promise(world: World, later: float) -> None:
    check(world.observed(), world.plan(), world.now)
    world.pass_time(later)
    changes = world.plan()
    check(world.observed(), changes, world.now)
    assert changes == world.plan(), "a plan depends on what is observed alone"


@settings(max_examples=80, deadline=None)
@given(world=clusters())
def test_no_balancing_breaks_a_promise(world: World) -> None:
    state = BalanceState()
    for _ in range(4):
        changes, state = balance(world.observed(), state, world.now)
        check(world.observed(), changes, world.now)
        for number, record in world.containers.items():
            replica = world.observed().replica(record.leader, number)
            if replica is not None and record.state == "open":
                world.replica(record.leader, number, end=Position(replica.end + 10**8), format=replica.format)
        world.pass_time(3)


@settings(max_examples=60, deadline=None)
@given(world=clusters(), filling=st.booleans(), deaf=st.booleans())
def test_a_cluster_comes_to_rest(world: World, filling: bool, deaf: bool) -> None:
    """If nodes stay as they are and replicas catch up, changes come to an end, or the container stalls for lack of room
    or because its leader does not hear its followers."""
    world.filling, world.deaf = filling, deaf
    for number, record in world.containers.items():
        for node in record.replicas:
            if node in world.probes and world.probes[node].answer is not None:
                world.replica(node, number)
    if filling or deaf:
        world.catch_up()
    world.converge(rounds=80)
    observed, now = world.observed(), world.now
    for record in world.containers.values():
        if record.state != "deleted" and observed.is_alive(record.leader, now):
            lasting = [node for node in record.replicas if node in observed.nodes and not observed.is_gone(node, now)]
            shut_out = [node for node in lasting if node not in dict(record.in_sync) and observed.nodes[node].full]
            assert len(lasting) <= record.wanted or not shut_out

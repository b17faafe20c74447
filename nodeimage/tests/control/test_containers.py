"""Creation of containers: the first ones when enough nodes are there, then one for each node that leads none."""

from collections.abc import Set as AbstractSet

from msgspec import structs

from headrace.base.ids import ContainerId, Epoch, NodeId
from headrace.control.changes import CreateContainer
from headrace.control.observations import ProbeResult
from headrace.control.plan import _Plan
from headrace.store.records import CATALOG_ID, Room, VolumeRecord
from kit.world import World


def test_a_node_alone_makes_the_catalog_and_its_container_at_once(world: World) -> None:
    world.now = world.lease_since = 1000
    world.node(1)
    assert world.created() == [("catalog", (1,)), ("data", (1,))]


def test_who_does_not_hear_its_followers_gets_no_container_that_would_be_taken_from_it_again(world: World) -> None:
    """A network cut in one direction: containers moved back and forth, and new ones were created endlessly."""
    world.volume(2, 2)
    world.node(1, 2)
    world.says(1, heard=[])
    for number in (1, 2, 3):
        world.container(number, [2, 1], kind="catalog" if number == 1 else "data")
    world.deaf = True
    for _ in range(5):
        assert world.put() == {}
        assert world.created() == []
        world.pass_time(20)
    world.says(1, heard=[NodeId(2)])
    assert [record.leader for record in world.put().values()] == [1]


def test_who_is_new_where_all_disks_are_full_gets_a_container_whatever_its_zone(world: World) -> None:
    world.volume(3, 2)
    for number, zone in ((1, "a"), (2, "a"), (3, "b"), (4, "c"), (5, "d")):
        world.node(number, zone=zone, full=number > 2)
    world.container(1, (3, 4, 5), kind="catalog")
    for number, members in enumerate(((3, 4, 5), (4, 5, 3), (5, 3, 4)), start=2):
        world.container(number, members)
    assert [set(members) for _, members in world.created()] == [{1, 2}, {1, 2}]


def test_who_hears_some_gets_a_container_with_these(world: World) -> None:
    world.volume(3, 2)
    world.node(1, 2, 3, 4, 5)
    world.container(1, (1, 2, 3), kind="catalog")
    for number, members in enumerate(((1, 2, 5), (2, 1, 5), (3, 1, 2), (4, 1, 2)), start=2):
        world.container(number, members)
    world.says(5, heard=[NodeId(1), NodeId(2)])
    ((_, members),) = world.created()
    assert members[0] == 5
    assert set(members) <= {1, 2, 5}


def test_the_first_containers_wait_for_the_first_nodes(world: World) -> None:
    world.now = world.lease_since = 1000
    world.volume(3, 2)
    world.first_nodes = 3
    world.node(1, 2)
    assert world.created() == []
    world.node(3)
    world.probes[NodeId(3)] = ProbeResult()  # registered, but not heard yet
    assert world.created() == []
    world.hears(3)
    assert sorted((kind, members[0], sorted(members)) for kind, members in world.created()) == [
        ("catalog", 1, [1, 2, 3]),
        ("data", 1, [1, 2, 3]),
        ("data", 2, [1, 2, 3]),
        ("data", 3, [1, 2, 3]),
    ]


def test_after_five_seconds_those_that_are_there_are_enough(world: World) -> None:
    world.now = world.lease_since = 1000
    world.volume(3, 2)
    world.first_nodes = 3
    world.node(1)
    world.pass_time(4.9)
    assert world.created() == []
    world.pass_time(0.2)
    assert world.created() == [("catalog", (1,)), ("data", (1,))]
    world.apply(world.plan())
    world.node(2, 3)
    world.converge()
    assert {len(record.in_sync) for record in world.containers.values()} == {3}
    assert {record.leader for record in world.containers.values() if record.kind == "data"} == {1, 2, 3}


def test_nothing_is_made_where_the_store_has_lost_the_record_of_the_catalog(three: World) -> None:
    three.containers.clear()
    assert three.created() == []
    assert "headrace recover-store" in three.waits()[CATALOG_ID]
    three.container(1, (1, 2, 3), kind="catalog")
    assert [kind for kind, _ in three.created()] == ["data"] * 3


def test_replicas_that_were_prepared_and_never_used_are_no_lost_catalog(world: World) -> None:
    world.node(1)
    world.container(1, (1,), kind="catalog")
    world.replica(1, 1, role="none", epoch=Epoch(0))
    world.containers.clear()
    assert world.created() == [("catalog", (1,)), ("data", (1,))]


def test_what_is_being_made_is_not_made_again(world: World) -> None:
    world.node(1)
    world.creating = frozenset({("catalog", NodeId(1), "default"), ("data", NodeId(1), "default")})
    assert world.created() == []


def test_a_new_node_gets_an_open_container_at_once(three: World) -> None:
    three.node(4)
    ((kind, members),) = three.created()
    assert (kind, members[0], len(members)) == ("data", 4, 3)


def test_no_container_is_made_for_a_node_that_leaves_or_does_not_reach_the_store(three: World) -> None:
    three.node(4, draining=True)
    three.node(5, stopping=True)
    three.node(6, 7)
    three.says(6, reaches_store=False)
    three.silent(7)
    assert three.created() == []


def test_no_container_that_could_commit_nothing_is_made_where_there_is_a_catalog(three: World) -> None:
    three.silent(2, 3)
    del three.containers[ContainerId(2)]
    assert three.created() == []


def test_a_volume_says_which_nodes_it_may_use(three: World) -> None:
    three.volumes["default"] = VolumeRecord("default", 3, 2, zones=("a", "b"))
    for number, zone in ((1, "a"), (2, "b"), (3, "a")):
        three.mark(number, zone=zone)
    three.node(4, zone="c")
    three.node(5, zone="b")
    ((_, members),) = three.created()
    assert members[0] == 5
    assert 4 not in members


def test_every_volume_in_use_has_an_open_container_on_each_node(three: World) -> None:
    three.volumes["fast"] = VolumeRecord("fast", 2, 1)
    assert three.created() == []
    record = three.container(9, (1, 2))
    three.containers[record.container_id] = structs.replace(record, volume="fast", wanted=2, min_in_sync=1)
    three.volumes["fast"] = VolumeRecord("fast", 2, 2)
    assert sorted(members[0] for _, members in three.created()) == [2, 3]


def test_a_node_that_came_back_takes_over_one_of_several_when_it_is_in_sync_again(three: World) -> None:
    three.refused(2)
    three.apply(three.plan())
    three.let_go()
    candidate = three.containers[ContainerId(3)].leader
    assert candidate in (1, 3)
    three.hears(2)
    assert three.plan() == []  # node 2 catches up first
    three.pass_time(11)
    assert three.created() == []
    three.catch_up()
    assert three.plan() == []  # clients that have found it down may not try again before
    three.pass_time(2)
    ((container, record),) = three.put().items()
    assert record.leader == 2
    assert three.containers[record.container_id].leader == candidate
    assert container in (2, 3, 4)


def test_a_node_that_does_not_catch_up_gets_a_new_container_in_the_end(three: World) -> None:
    three.refused(2)
    three.apply(three.plan())
    three.let_go()
    three.hears(2)
    assert three.created() == []
    three.pass_time(29)
    assert three.created() == []
    three.pass_time(2)
    assert [members[0] for _, members in three.created()] == [2]


def test_a_node_has_some_seconds_to_make_its_next_container_itself(three: World) -> None:
    three.container(3, (2, 3, 1), state="closed")
    assert three.created() == []
    three.pass_time(2.9)
    assert three.created() == []
    three.pass_time(0.2)
    assert [members[0] for _, members in three.created()] == [2]


def takes_records(world: World) -> list[int]:
    """Return the open data containers whose nodes have room, by id."""
    full = [key for key, node in world.nodes.items() if node.full]
    opened = [each for each in world.containers.values() if each.kind == "data" and each.state == "open"]
    return sorted(each.container_id for each in opened if each.room(full) > Room.NONE)


def test_where_no_container_takes_records_full_nodes_hand_over_to_those_with_room(world: World) -> None:
    """Nodes 1 and 2 lead all that nodes 3 and 4 can commit, and these lead what they cannot commit."""
    world.volume(3, 2)
    world.node(1, 2, 3, 4)
    world.container(1, (3, 1, 4), kind="catalog")
    world.container(2, (1, 3, 4))
    world.container(3, (2, 3, 4))
    world.container(4, (3, 1, 2))
    world.container(5, (4, 1, 2))
    world.mark(1, full=True)
    assert not world.plan(), "partitions go on in what has room"
    world.mark(2, full=True)
    assert not takes_records(world)
    assert {number: each.leader for number, each in world.put().items()} == {2: 4, 3: 3}
    world.converge()
    assert takes_records(world) == [2, 3]
    world.pass_time(60)
    assert not world.plan(), "a full node gets no container while others have room"
    for number in (3, 4):
        world.mark(number, full=True)
    world.pass_time(60)
    assert not world.plan(), "nor when no other has any more"
    for number in (3, 4):
        world.mark(number, full=False)
    for number in (1, 2):
        world.mark(number, full=False)
    world.pass_time(60)
    world.converge()
    assert {each.leader for each in world.containers.values() if each.kind == "data"} == {1, 2, 3, 4}
    assert len(world.containers) == 5


def test_where_none_could_take_records_under_another_leader_one_is_made_that_takes_some(world: World) -> None:
    world.volume(3, 2)
    world.node(1, 2, 3, 4)
    world.container(1, (3, 1, 2), kind="catalog")
    for number, members in enumerate(((1, 2, 3), (2, 1, 4), (3, 1, 2), (4, 1, 2)), start=2):
        world.container(number, members)
    for number in (1, 2):
        world.mark(number, full=True)
    ((kind, members),) = world.created()
    assert (kind, set(members[:2])) == ("data", {3, 4})
    world.creating = frozenset({("data", NodeId(members[0]), "default")})
    assert not world.created()
    world.creating = frozenset()
    world.converge()
    assert takes_records(world) == [6]
    world.mark(3, full=True)
    world.pass_time(60)
    assert not world.plan(), "one node with room commits nothing"


def test_what_a_plan_has_changed_is_not_copied_for_every_open_container(world: World) -> None:
    """With tens of thousands of changed containers each copy takes a millisecond on the loop."""

    class Touched(set[int]):
        copies = 0

        def __sub__(self, other: AbstractSet[int | None]) -> set[int]:
            self.copies += 1
            return super().__sub__(other)

    world.volume(3, 2)
    world.node(1, 2, 3, 4)
    world.container(1, (3, 1, 2), kind="catalog")
    for number, members in enumerate(((1, 2, 3), (2, 1, 4), (3, 1, 2), (4, 1, 2)), start=2):
        world.container(number, members)
    for number in (1, 2):
        world.mark(number, full=True)
    planned = _Plan(world.observed(), world.now)
    planned._touched = touched = Touched()
    changes = [change for step in planned.make() for change in step]
    assert [type(change) for change in changes] == [CreateContainer]
    assert touched.copies == 0


def test_zones_do_not_keep_a_container_from_being_made_where_there_is_room(world: World) -> None:
    world.volume(3, 2)
    for number, zone in ((1, "a"), (2, "a"), (3, "b"), (4, "c")):
        world.node(number, zone=zone, full=number > 2)
    world.container(1, (1, 2, 3), kind="catalog")
    for number, members in enumerate(((1, 3, 4), (2, 3, 4), (3, 4, 1), (4, 3, 2)), start=2):
        world.container(number, members)
    ((_, members),) = world.created()
    assert set(members) == {1, 2}


def test_who_is_dead_gives_no_room_either_and_what_waits_for_it_keeps_nothing_from_being_made(world: World) -> None:
    world.volume(3, 2)
    world.node(1, 2, 3, 4)
    world.container(1, (3, 4, 1), kind="catalog")
    for number, members in enumerate(((1, 2, 3), (2, 1, 4), (3, 1, 2), (4, 1, 2)), start=2):
        world.container(number, members, in_sync=members[:1] if number == 3 else members)
    world.mark(1, full=True)
    assert takes_records(world) == [3, 4, 5]
    assert not world.created()
    world.refused(2)
    assert 3 in world.waits()
    ((_, members),) = world.created()
    assert set(members[:2]) == {3, 4}


def test_a_replica_that_is_being_copied_gives_no_room_yet(world: World) -> None:
    """Partitions were placed in, and bound to, a container that took no records before it was copied."""
    world.volume(3, 2)
    world.node(1, 2, 3, 4)
    for number in (2, 3):
        world.mark(number, full=True)
    world.container(2, (1, 2, 3))
    assert not takes_records(world)
    world.container(2, (1, 2, 3, 4), in_sync=(1, 2, 3))
    assert not takes_records(world)
    world.container(2, (1, 2, 3, 4), in_sync=(1, 4))
    assert takes_records(world) == [2]
    world.container(2, (1, 2, 4), in_sync=(1, 2))
    assert takes_records(world) == [2], "one that was there all the time comes back soon"


def test_how_long_a_full_node_leads_nothing_does_not_count(three: World) -> None:
    three.node(4, full=True)
    three.pass_time(60)
    assert not three.plan()
    assert not [each for each in three.since if each[:2] == ("openless", 4)]
    three.mark(4, full=False)
    three.plan()
    assert [each for each in three.since if each[:2] == ("openless", 4)]


def test_where_all_disks_are_full_everything_stays(three: World) -> None:
    for number in (1, 2, 3):
        three.mark(number, full=True)
    three.pass_time(60)
    assert not three.plan()


def test_a_full_node_hands_over_a_container_that_partitions_cannot_leave(three: World) -> None:
    three.mark(2, full=True)
    assert three.plan() == [], "they go on in the containers of others"
    three.replica(2, 3, cramped=True)
    assert {container: record.leader for container, record in three.put().items()} == {3: 3}
    three.mark(2, full=False)
    assert three.plan() == []
    for number in (1, 2, 3):
        three.mark(number, full=True)
    assert three.plan() == [], "nobody has room"


def test_a_full_node_hands_the_catalog_over_to_one_that_is_steady(three: World) -> None:
    three.mark(1, full=True)
    assert not three.put(), "node 2 may just have come back"
    three.pass_time(12)
    assert {number: each.leader for number, each in three.put().items()} == {1: 2}
    three.says(1, heard=[NodeId(2), NodeId(3)])
    three.says(2, heard=[NodeId(1)])
    three.says(3, heard=[NodeId(1)])
    assert not three.put(), "it would be given back to who hears more"
    three.says(3, heard=[NodeId(1), NodeId(2)])
    assert {number: each.leader for number, each in three.put().items()} == {1: 3}
    three.mark(2, full=True)
    assert not three.put(), "it could commit nothing there either"


def test_full_nodes_lead_where_the_only_open_container_waits_for_a_dead_one(world: World) -> None:
    world.node(1, 2, 3)
    world.container(1, (1,), kind="catalog")
    world.container(2, (3,))
    for number in (1, 2):
        world.mark(number, full=True)
    assert not world.created()
    world.refused(3)
    assert {members for _, members in world.created()} == {(1,), (2,)}


def test_a_volume_whose_containers_all_wait_gets_none_for_that_where_no_disk_is_full(world: World) -> None:
    world.node(1)
    world.container(1, (1,), kind="catalog")
    world.container(2, (1,))
    world.replica(1, 2, format="another")
    assert 2 in world.waits()
    assert not world.created()

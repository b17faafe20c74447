"""A store restored to an old copy: nothing is decided for a container whose newest record it may lack."""

from msgspec import structs

from headrace.base.ids import ContainerId
from headrace.control.changes import Wait
from headrace.store.container_records import stamped
from kit.world import World

C = ContainerId(3)


def knows(world: World, node: int, change: str, **fields: object) -> None:
    """Let the node know that change of container 3's record."""
    world.replica(node, C, change=change, **fields)


def made(world: World) -> str:
    """Container 3's record has a change that all nodes know."""
    world.containers[C] = stamped(world.containers[C], traced=True)
    (change,) = world.containers[C].changes
    for node in world.containers[C].replicas:
        knows(world, node, change)
    return change


def test_nobody_is_appointed_while_somebody_knows_better(three: World) -> None:
    made(three)
    three.refused(2)
    assert three.put()[C].leader != 2
    knows(three, 1, "2-elsewhere")
    assert C not in three.put(), "a view that is behind for a moment"
    three.pass_time(three.settings.set_back_s)
    three.refused(2, for_s=5)
    waits = [each for each in three.plan() if isinstance(each, Wait)]
    assert [each.container for each in waits] == [C]
    assert "was set back: node 1 knows newer changes" in waits[0].reason
    assert "recover-store" in waits[0].reason


def test_it_goes_on_once_the_record_is_back_or_an_operator_gave_it_up(three: World) -> None:
    made(three)
    three.refused(2)
    knows(three, 1, "2-elsewhere")
    assert C not in three.put()
    before = three.containers[C]
    three.containers[C] = structs.replace(before, changes=(*before.changes, "2-elsewhere"))
    assert three.put()[C].leader != 2
    three.containers[C] = structs.replace(before, recovered=1)
    assert three.put()[C].leader != 2


def test_after_a_fall_of_the_store_each_replica_has_to_be_heard_of_once(three: World) -> None:
    made(three)
    three.silent(2, for_s=5)
    assert three.put()[C].leader != 2
    three.fell_at = three.now - 3
    assert C not in three.put()
    reasons = [each.reason for each in three.plan() if isinstance(each, Wait) and each.container == C]
    text = "the cluster store was set back, and node 2, silent since then, may know better: bring it back, or remove it"
    assert reasons == [text]
    three.fell_at = three.now - 7
    assert three.put()[C].leader != 2
    three.fell_at = three.now - 3
    del three.nodes[three.containers[C].leader]
    assert three.put()[C].leader != 2

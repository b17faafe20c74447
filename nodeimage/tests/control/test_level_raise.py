"""When the cluster's feature level is raised."""

import uuid
from dataclasses import replace

import pytest
from msgspec import structs

from headrace.base.ids import Millis, NodeId
from headrace.control.level_raise import BeginRaising, FinishRaising, LevelStep, NoteAble, level_step
from headrace.store.records import FeaturesRecord, SupportedLevels
from kit.world import World

HOUR = FeaturesRecord(wait_s=3600)
AT = Millis(1_800_000_000_000)


def able(world: World, *numbers: int, newest: int = 1) -> None:
    """Nodes whose process incarnations support levels up to `newest`."""
    for number in numbers:
        node = world.nodes[NodeId(number)]
        world.nodes[NodeId(number)] = structs.replace(node, supports=SupportedLevels(node.run, 0, newest))


def step(world: World, features: FeaturesRecord = HOUR, *, time: Millis | None = AT) -> LevelStep | None:
    return level_step(world.observed(), features, now=world.now, time=time)


@pytest.fixture
def three_able(three: World) -> World:
    able(three, 1, 2, 3)
    return three


def test_it_waits_for_the_last_node_and_then_for_its_time(three: World) -> None:
    able(three, 1, 2)
    assert step(three) is None
    able(three, 3)
    assert step(three) == NoteAble(AT)
    waiting = structs.replace(HOUR, able_since=AT)
    assert step(three, waiting, time=Millis(AT + 3_599_999)) is None
    begun = step(three, waiting, time=Millis(AT + 3_600_000))
    assert isinstance(begun, BeginRaising)
    assert begun.level == 1


def test_the_wait_begins_anew_when_something_is_not_well(three_able: World) -> None:
    waiting = structs.replace(HOUR, able_since=AT)
    three_able.container(4, (3, 1, 2), in_sync=(3, 1))
    assert step(three_able, waiting, time=Millis(AT + 3_600_000)) == NoteAble(Millis(0))
    three_able.container(4, (3, 1, 2))
    three_able.silent(2)
    assert step(three_able, waiting, time=Millis(AT + 3_600_000)) == NoteAble(Millis(0))
    assert step(three_able) is None, "it is noted already"


def test_what_was_asked_for_is_not_waited_for(three_able: World) -> None:
    three_able.container(4, (3, 1, 2), in_sync=(3, 1))
    assert step(three_able, structs.replace(HOUR, wanted=1)) == BeginRaising(1, "as it was asked for")


def test_a_hold_keeps_it_down(three_able: World) -> None:
    for held in (structs.replace(HOUR, most=0, wanted=1), structs.replace(HOUR, most=0, wait_s=0)):
        assert step(three_able, held) is None
    assert step(three_able, structs.replace(HOUR, most=0, able_since=AT)) == NoteAble(Millis(0))


def test_without_the_clusters_time_nothing_is_counted(three_able: World) -> None:
    assert step(three_able, time=None) is None
    ahead = structs.replace(HOUR, able_since=Millis(AT + 1))
    assert step(three_able, ahead) == NoteAble(AT), "it was noted by a clock that was off"


def test_the_second_step_waits_until_all_folders_refuse_older_versions(three_able: World) -> None:
    raising = structs.replace(HOUR, raising=1)
    assert step(three_able, raising) is None
    for number in (1, 2, 3):
        assert step(three_able, raising) is None
        result = three_able.probes[NodeId(number)]
        assert result.answer is not None
        three_able.probes[NodeId(number)] = replace(result, answer=structs.replace(result.answer, fenced=1))
    assert step(three_able, raising) == FinishRaising(1)
    three_able.silent(3)
    assert step(three_able, raising) is None, "who is away has said so for another run, perhaps"


def test_another_run_of_a_node_supports_nothing_before_it_says_so(three_able: World) -> None:
    node = three_able.nodes[NodeId(2)]
    three_able.nodes[NodeId(2)] = structs.replace(node, run=uuid.uuid4())
    assert step(three_able) is None

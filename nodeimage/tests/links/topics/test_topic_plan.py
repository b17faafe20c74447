"""What a link does for a topic, case by case."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from headrace.base.ids import Home, Millis, NodeId, StreamNumber
from headrace.catalog.rows import TopicRow
from headrace.links.source.source import SourceTopic
from headrace.links.topics.topic_plan import Plan, gone_at_source, kept_configs, plan, source_problem

ID, OTHER = b"i" * 16, b"o" * 16


def there(
    *,
    name: str = "t",
    topic_id: bytes = ID,
    home: tuple[int, str] = (0, "north"),
    partitions: int = 1,
    configs: Mapping[str, str] | None = None,
) -> SourceTopic:
    return SourceTopic(name, topic_id, partitions, configs or {}, Home(*home), "north", [NodeId(1)] * partitions)


def here(
    *,
    name: str = "t",
    topic_id: bytes = ID,
    home: tuple[int, str] | None = (0, "north"),
    partitions: int = 1,
    configs: Mapping[str, str] | None = None,
    stream: str = "/s",
) -> TopicRow:
    found = None if home is None else Home(*home)
    return TopicRow(1, topic_id, StreamNumber(1), stream, name, partitions, configs or {}, Millis(0), found, "north")


def planned(topic: SourceTopic, *rows: TopicRow, patterns: tuple[str, ...] = ("*",)) -> Plan:
    return plan(
        [topic],
        by_id={row.topic_id: row for row in rows if row.topic_id == topic.topic_id},
        by_name={row.name: row for row in rows if row.name == topic.name},
        patterns=patterns,
        stream="/s",
        own_cluster="south",
    )


def test_a_topic_that_is_not_here_is_made() -> None:
    assert planned(there()).make == [there()]


@pytest.mark.parametrize("name", ["", ".", "a..b", "a/b", "a:b", "\n", "n" * 250])
def test_a_name_that_no_topic_can_have_here_is_refused(name: str) -> None:
    found = planned(there(name=name))
    assert found.make == []
    assert "cannot be used here" in found.refused[name]


def test_what_no_pattern_matches_is_left_alone() -> None:
    assert planned(there(), patterns=("pump-*",)) == Plan()


def test_what_was_set_aside_at_the_source_is_not_copied() -> None:
    assert planned(there(name="t.diverged")) == Plan()


def test_a_copy_that_is_as_at_the_source_is_left_alone() -> None:
    assert planned(there(), here()) == Plan(fine=["t"])


@pytest.mark.parametrize(
    ("row", "word"),
    [
        (here(topic_id=OTHER, home=None), "headrace link adopt"),
        (here(topic_id=OTHER), "deleted and recreated"),
        (here(topic_id=OTHER, home=(0, "east")), "copied here from cluster east"),
        (here(stream="/other"), "already, as /other:t"),
    ],
)
def test_a_clash_is_refused_and_says_what_to_do(row: TopicRow, word: str) -> None:
    found = planned(there(), row)
    assert word in found.refused["t"]
    assert (found.make, found.homes, found.fine) == ([], [], [])


def test_a_topic_that_was_deleted_at_its_home_here_does_not_come_back() -> None:
    assert "deleted here" in planned(there(home=(2, "south"))).refused["t"]


def test_the_higher_home_wins_on_either_side() -> None:
    assert planned(there(home=(1, "north")), here()).homes
    assert planned(there(home=(1, "south")), here()).homes, "an agreed move to this cluster, to be taken up"
    assert planned(there(home=(1, "north")), here(home=(1, "east"))).homes
    assert planned(there(), here(home=(1, "south"))).announce
    assert planned(there(home=(1, "north")), here(home=(1, "south"))).announce
    assert planned(there(), here(home=(1, "east"))).relay
    assert planned(there(home=(0, "south")), here(home=None)) == Plan(fine=["t"]), "it copies from us"


def test_topics_of_one_id_with_another_beginning_are_refused() -> None:
    assert "began in" in planned(there(home=(0, "zenith")), here()).refused["t"]


def test_partitions_follow_and_never_fall() -> None:
    assert [each.topic.partitions for each in planned(there(partitions=3), here()).grow] == [3]
    found = planned(there(), here(partitions=3))
    assert "3 partitions here and 1 at the source" in found.refused["t"]
    assert found.grow == []


def test_configs_follow_but_for_how_long_records_live() -> None:
    source = {"cleanup.policy": "compact", "retention.ms": "1000", "max.message.bytes": "2000"}
    copy = {"retention.ms": "9", "max.message.bytes": "1000", "segment.bytes": "2000000"}
    (change,) = planned(there(configs=source), here(configs=copy)).configure
    assert change.set == {"cleanup.policy": "compact", "max.message.bytes": "2000"}
    assert change.remove == ["segment.bytes"]
    after = {"retention.ms": "9", "max.message.bytes": "2000", "cleanup.policy": "compact"}
    assert planned(there(configs=source), here(configs=after)) == Plan(fine=["t"])


def test_a_topic_whose_configs_the_source_does_not_tell_is_copied_and_keeps_its_own() -> None:
    untold = replace(there(partitions=2), configs=None)
    assert planned(untold).make == [untold]
    found = planned(untold, here(configs={"max.message.bytes": "1000"}))
    assert (found.configure, [each.topic for each in found.grow]) == ([], [untold])
    for each in (planned(untold), found):
        assert "copied without its configs" in each.refused["t"]


def test_configs_that_this_version_does_not_know_are_left_out() -> None:
    assert kept_configs({"new.fangled": "1", "retention.ms": " 5 ", "max.message.bytes": "much"}) == {
        "retention.ms": "5"
    }


def test_of_topics_at_home_here_nothing_follows() -> None:
    ours = here(home=(1, "south"), partitions=2)
    theirs = there(home=(1, "south"), partitions=3, configs={"max.message.bytes": "5"})
    assert planned(theirs, ours) == Plan(fine=["t"], follow=[ours])


def test_what_is_gone_at_its_home_is_said() -> None:
    assert gone_at_source(here(), own_cluster="south", source_cluster="north")
    assert gone_at_source(here(home=(0, "east")), own_cluster="south", source_cluster="north") is None
    assert gone_at_source(here(home=None), own_cluster="south", source_cluster="north") is None


def test_a_source_that_is_the_wrong_one_is_refused() -> None:
    def problem(cluster_id: str, expected: str = "", problem: str | None = None) -> str:
        return str(
            source_problem(cluster_id=cluster_id, expected=expected, own_cluster="south", problem=problem) or "none"
        )

    assert problem("north") == "none"
    assert problem("north", "north") == "none"
    assert "itself" in problem("south")
    assert "was north before" in problem("east", "north")
    assert problem("north", problem="there is no stream /s") == "there is no stream /s"

"""Plans what a link has to do for topics, given their states at the source and here. Pure functions.

A topic has the same id in all clusters. Topics with names ending in `.diverged` are local to each cluster and never
copied. A new plan is made after every change on either side, so a plan only has to be right for the states it saw.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from headrace.base.errors import Code, KafkaError
from headrace.catalog.link_config import matches
from headrace.catalog.names import fault_in
from headrace.catalog.rows import TopicRow
from headrace.links.source.histories import is_behind
from headrace.links.source.source import SourceTopic
from headrace.partitions.home_check import home_of
from headrace.partitions.topic_config_table import DEFINITIONS

__all__ = ["DIVERGED", "Grow", "Plan", "Reconfigure", "kept_configs", "plan"]

DIVERGED: Final = ".diverged"
OWN_RETENTION: Final = frozenset({"retention.ms", "retention.bytes"})
"""Configs that each cluster sets for itself: a copy is created with the source's values, and keeps its own after
that."""
_NO_CONFIGS: Final = (
    "it is copied without its configs, which the source does not show: allow the link's user to"
    " describe them (DESCRIBE_CONFIGS in Kafka)"
)


@dataclass(frozen=True, slots=True)
class Grow:
    """A copy that has fewer partitions than its topic at the source."""

    row: TopicRow
    topic: SourceTopic


@dataclass(frozen=True, slots=True)
class Reconfigure:
    """A copy whose configs differ from those at the source."""

    row: TopicRow
    set: Mapping[str, str]
    remove: Sequence[str]


@dataclass(slots=True)
class Plan:
    """What to do. A topic is in at most one of the lists of work, except that `grow` and `configure` go together, and
    in either `refused` or `fine`."""

    make: list[SourceTopic] = field(default_factory=list)
    grow: list[Grow] = field(default_factory=list)
    configure: list[Reconfigure] = field(default_factory=list)
    homes: list[tuple[TopicRow, SourceTopic]] = field(default_factory=list)
    """Topics whose home at the source is higher, and is applied here."""
    announce: list[TopicRow] = field(default_factory=list)
    """Topics at home in this cluster, whose home the source does not know yet."""
    relay: list[TopicRow] = field(default_factory=list)
    """Topics at home in a third cluster, whose home the source does not know yet; that cluster may announce it
    first."""
    follow: list[TopicRow] = field(default_factory=list)
    """Topics whose home moved here, as the source knows. It is not known whether the source has a link that copies
    them from here."""
    refused: dict[str, str] = field(default_factory=dict)
    """By topic name, what cannot be done, and what to do about it."""
    fine: list[str] = field(default_factory=list)
    """Names of topics without any problem."""


def plan(
    topics: Iterable[SourceTopic],
    *,
    by_id: Mapping[bytes, TopicRow],
    by_name: Mapping[str, TopicRow],
    patterns: Sequence[str],
    stream: str,
    own_cluster: str,
) -> Plan:
    """The plan for these topics of the source. `by_id`, `by_name`: the existing topics of this cluster with these ids,
    or names."""
    found = Plan()
    for topic in topics:
        if not is_copied(topic.name, patterns):
            continue
        refused = _look(found, topic, by_id.get(topic.topic_id), by_name.get(topic.name), stream, own_cluster)
        if refused:
            found.refused[topic.name] = refused
        else:
            found.fine.append(topic.name)
    return found


def is_copied(name: str, patterns: Sequence[str]) -> bool:
    """Whether a link with these patterns copies the topic of that name."""
    return not name.endswith(DIVERGED) and matches(patterns, name)


def _look(
    found: Plan,
    topic: SourceTopic,
    row: TopicRow | None,
    namesake: TopicRow | None,
    stream: str,
    own_cluster: str,
) -> str | None:
    if row is None:
        if namesake is not None:
            return _clash(namesake, topic, own_cluster)
        if topic.home.cluster == own_cluster:
            return "it was deleted here, where its home was; `headrace topic move-home` there gives it another home"
        if reason := fault_in(stream, topic.name):
            return f"its name cannot be used here: {reason}"
        found.make.append(topic)
        return _NO_CONFIGS if topic.configs is None else None
    if row.stream != stream or row.name != topic.name:
        return f"it is here already, as {row.full_name}"
    ours = home_of(row, own_cluster)
    if topic.home > ours:
        if topic.home.counter == 0:
            return f"it began in {topic.origin} there, and in {row.origin or own_cluster} here"
        found.homes.append((row, topic))
        return None
    if is_behind(topic.home, ours):
        if ours.counter > 0:
            (found.announce if ours.cluster == own_cluster else found.relay).append(row)
        return None
    if ours.cluster == own_cluster:
        if ours.counter > 0:
            found.follow.append(row)
        return None
    return _follow(found, topic, row)


def _follow(found: Plan, topic: SourceTopic, row: TopicRow) -> str | None:
    """Plan a copy that agrees with the source on the home; returns a problem to report, or None."""
    if topic.configs is not None and (change := _reconfigured(row, topic.configs)) is not None:
        found.configure.append(change)
    if topic.partitions > row.partitions:
        found.grow.append(Grow(row, topic))
    if topic.partitions < row.partitions:
        return (
            f"it has {row.partitions} partitions here and {topic.partitions} at the source; the last"
            f" {row.partitions - topic.partitions} are kept, but get no records until the source has as many"
        )
    return _NO_CONFIGS if topic.configs is None else None


def _reconfigured(row: TopicRow, configs: Mapping[str, str]) -> Reconfigure | None:
    wanted = kept_configs(configs)
    changed = {
        name: value for name, value in wanted.items() if name not in OWN_RETENTION and row.configs.get(name) != value
    }
    gone = [name for name in row.configs if name not in OWN_RETENTION and name not in wanted]
    return Reconfigure(row, changed, gone) if changed or gone else None


def _clash(row: TopicRow, topic: SourceTopic, own_cluster: str) -> str:
    ours = home_of(row, own_cluster)
    if ours.cluster == own_cluster:
        return (
            "another topic of that name is at home here: `headrace link adopt` sets its records aside and follows"
            " the source's; or leave it out with --topics"
        )
    if ours.cluster == topic.home.cluster:
        return "it was deleted and recreated at the source: delete the old copy here, and the new topic is copied"
    return f"another topic of that name is copied here from cluster {ours.cluster}: one of them needs another stream"


def kept_configs(configs: Mapping[str, str]) -> dict[str, str]:
    """The source's configs that this version knows, in its spelling."""
    kept: dict[str, str] = {}
    for name, value in configs.items():
        definition = DEFINITIONS.get(name)
        if definition is None:
            continue
        try:
            kept[name] = definition.check(value.strip())
        except ValueError:
            continue
    return kept


def gone_at_source(row: TopicRow, *, own_cluster: str, source_cluster: str) -> str | None:
    """The problem to report about a topic here that the source does not list, or None."""
    if home_of(row, own_cluster).cluster != source_cluster:
        return None
    return (
        "it is gone at the source; the copy stays: `headrace topic move-home --force` makes this cluster its home,"
        " `headrace topic delete` deletes it here"
    )


def source_problem(*, cluster_id: str, expected: str, own_cluster: str, problem: str | None) -> KafkaError | None:
    """Why a source cannot be copied from, given its identity; None if it can."""
    if cluster_id == own_cluster:
        return KafkaError(Code.INVALID_CONFIG, "the source is this cluster itself")
    if expected and cluster_id != expected:
        return KafkaError(
            Code.INVALID_CONFIG,
            f"the source is cluster {cluster_id}, and was {expected} before: create another link for the other "
            "cluster, or give addresses of the same one by `headrace link alter --source`",
        )
    return KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION, problem) if problem else None

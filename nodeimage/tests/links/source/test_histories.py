"""Where histories diverge, against a model in which every record says who wrote it and when."""

from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import example, given
from hypothesis import strategies as st

from headrace.base.ids import Home, Offset
from headrace.links.source.histories import divergence, home_at
from headrace.links.source.source import HomeStart


class Record(NamedTuple):
    """A unique record: its writer, and that writer's count."""

    home: Home
    number: int


@dataclass
class Cluster:
    """One cluster's records of one partition."""

    name: str
    home: Home
    history: list[HomeStart] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    quarantined: list[Record] = field(default_factory=list)

    @property
    def end(self) -> Offset:
        return Offset(len(self.records))

    @property
    def accepts(self) -> bool:
        begins = self.history[-1].offset if self.history else 0
        return self.home.cluster == self.name and self.end >= begins


class World:
    """Clusters that write, copy, become home by force, and demote, as links let them."""

    def __init__(self, names: str) -> None:
        first = Home(0, names[0])
        self.clusters = [Cluster(name, first) for name in names]
        self.origin = names[0]
        self.written = 0

    def write(self, at: Cluster) -> None:
        if at.accepts:
            at.records.append(Record(at.home, self.written))
            self.written += 1

    def take_up(self, at: Cluster) -> None:
        """Become home by force, from the own end on. Homes whose records did not arrive here are not in its history."""
        at.home = at.home.taken_by(at.name)
        at.history = [entry for entry in at.history if entry.offset <= at.end]
        at.history.append(HomeStart(*at.home, at.end))

    def demote(self, at: Cluster, to: Cluster) -> None:
        """Become home by agreement, from the old home's end on."""
        if at.accepts and at is not to:
            at.home = at.home.given_to(to.name)
            at.history.append(HomeStart(*at.home, at.end))
            self.meet(to, at)

    def meet(self, at: Cluster, source: Cluster) -> None:
        """Adopt a higher home; records outside its history are quarantined, and they are exactly those not shared."""
        if source.home <= at.home:
            return
        found = divergence(at.history, self.origin, at.end, source.history, self.origin)
        keep = at.end if found is None else found
        shared = 0
        for mine, theirs in zip(at.records, source.records, strict=False):
            if mine != theirs:
                break
            shared += 1
        assert keep >= shared, "records that both have were taken for others"
        assert at.records[shared : min(keep, source.end)] == [], "records that differ were taken for the same"
        at.quarantined += at.records[keep:]
        del at.records[keep:]
        at.home, at.history = source.home, list(source.history)

    def pull(self, at: Cluster, source: Cluster, most: int) -> None:
        self.meet(at, source)
        if source.home == at.home and not at.accepts:
            begin = len(at.records)
            at.records += source.records[begin : begin + most]

    def check(self) -> None:
        by_home: dict[tuple[Home, int], Record] = {}
        histories: dict[Home, list[HomeStart]] = {}
        for cluster in self.clusters:
            assert histories.setdefault(cluster.home, cluster.history) == cluster.history, "of one home there is one"
        for cluster in self.clusters:
            for offset, record in enumerate(cluster.records):
                assert home_at(cluster.history, self.origin, Offset(offset)) == record.home
                # One home, one offset, one record: in every cluster.
                assert by_home.setdefault((record.home, offset), record) == record


steps = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "take_up", "demote", "pull", "pull", "pull"]),
        st.integers(0, 3),
        st.integers(0, 3),
        st.integers(1, 4),
    ),
    max_size=40,
)


@given(steps)
def test_what_is_set_aside_is_what_the_other_history_does_not_have(steps: list[tuple[str, int, int, int]]) -> None:
    world = World("abcd")
    for step, one, two, count in steps:
        first, second = world.clusters[one], world.clusters[two]
        match step:
            case "write":
                for _ in range(count):
                    world.write(first)
            case "take_up":
                world.take_up(first)
            case "demote":
                world.demote(first, second)
            case "pull":
                if first is not second:
                    world.pull(first, second, count)
        world.check()


@given(steps)
def test_when_all_have_met_all_there_is_one_history_and_none_lost(steps: list[tuple[str, int, int, int]]) -> None:
    world = World("abcd")
    for step, one, two, count in steps:
        first, second = world.clusters[one], world.clusters[two]
        if step == "write":
            world.write(first)
        elif step == "take_up":
            world.take_up(first)
        elif first is not second:
            world.pull(first, second, count)
    for _ in world.clusters:
        for at in world.clusters:
            for source in world.clusters:
                if at is not source:
                    world.pull(at, source, 1 << 20)
    assert len({(each.home, tuple(each.history), tuple(each.records)) for each in world.clusters}) == 1
    kept = {record for each in world.clusters for record in each.records + each.quarantined}
    assert len(kept) == world.written


@example(10, 4, 6)
@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20))
def test_a_forced_move_parts_at_its_start(end: int, start: int, further: int) -> None:
    theirs = [HomeStart(1, "b", Offset(start))]
    expected = start if start < end else None
    assert divergence([], "a", Offset(end), theirs, "a") == expected
    later = [*theirs, HomeStart(2, "c", Offset(start + further))]
    assert divergence([], "a", Offset(end), later, "a") == expected
    both = divergence(theirs, "a", Offset(end), later, "a")
    assert both == (start + further if start + further < end else None)


def test_topics_of_different_origin_share_nothing() -> None:
    assert divergence([], "a", Offset(3), [], "b") == 0
    assert divergence([], "a", Offset(0), [], "b") is None

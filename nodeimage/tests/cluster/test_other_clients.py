"""Stock clients beside librdkafka when a node is killed that leads partitions and coordinates their group."""

import time
from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from kit.cluster_clients import CALL_S, at, make_topics, read_back
from kit.cluster_history import History, Outcome, Where, faults_of
from kit.cluster_nodes import POLL_S, Cluster, until
from kit.other_clients import GROUP, AioKafka, Java3, Java4, KafkaPython, Program

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TOPIC = "others"
PARTITIONS = 6
PLACES = [Where(TOPIC, number) for number in range(PARTITIONS)]
GO_ON_S = 30.0
"""A client may wait for what a dead node was asked, and for its turn to ask again."""


@pytest.fixture(
    params=[
        KafkaPython,
        AioKafka,
        pytest.param(Java3, marks=pytest.mark.java),
        pytest.param(Java4, marks=pytest.mark.java),
    ]
)
def program(request: pytest.FixtureRequest, three: Cluster) -> Iterator[Program]:
    """At work: every partition is written to, and both members are given records."""
    make_topics(three, [TOPIC], PARTITIONS)
    each: Program = request.param(three.bootstrap, TOPIC, PARTITIONS, History())
    each.start()
    began = time.monotonic()
    try:
        goes_on(three, each, began)
        until(
            "both members are given records",
            lambda: holds(each, len({read.member for read in each.history.reads}) == 2),
        )
        yield each
    finally:
        each.close()


def holds(program: Program, condition: bool) -> bool:
    """Whether it does; an error ends the waiting."""
    program.look()
    return condition or bool(program.history.errors)


def goes_on(cluster: Cluster, program: Program, since: float) -> None:
    """Every partition acknowledges records that were sent after `since`, and members are given some of them."""
    history = program.history

    def silent() -> tuple[list[Where], list[Where]]:
        """The partitions that are not written to, and those that are not read."""
        new = {write.value for write in list(history.writes) if write.called > since}
        read = {read.where for read in list(history.reads) if read.value in new}
        unwritten = [where for where in PLACES if history.newest.get(where, 0.0) <= since]
        return unwritten, [where for where in PLACES if where not in read]

    deadline = time.monotonic() + GO_ON_S
    while not holds(program, not any(silent())):
        if time.monotonic() > deadline:
            given = Counter((read.member, read.where.partition) for read in list(history.reads))
            pytest.fail(f"silent after {GO_ON_S:.0f} s: {silent()}; given so far: {given}\n{cluster.events()}")
        time.sleep(POLL_S)
    assert not history.errors, history.errors[:5]


def commits_go_on(cluster: Cluster, program: Program, since: float) -> None:
    """The group's committed offsets are beyond records that were sent after `since`."""
    new = [write for write in program.history.writes if write.called > since and write.outcome is Outcome.OK]
    least = {where: min(write.offset for write in new if write.where == where) for where in PLACES}
    asking = Consumer({**at(cluster.bootstrap), "group.id": GROUP})

    def went_on() -> bool:
        places = [TopicPartition(where.topic, where.partition) for where in PLACES]
        committed_offsets = {
            Where(each.topic, each.partition): each.offset for each in asking.committed(places, timeout=CALL_S)
        }
        return holds(program, all(committed_offsets[where] > offset for where, offset in least.items()))

    try:
        until("the members commit what they were given", went_on, timeout_s=GO_ON_S)
    finally:
        asking.close()
    assert not program.history.errors, program.history.errors[:5]


def test_programs_go_on_when_the_node_is_killed_that_leads_and_coordinates(three: Cluster, program: Program) -> None:
    history = program.history
    victim = three.catalog().leader
    led = AdminClient(at(three.bootstrap)).list_topics(TOPIC, timeout=20).topics[TOPIC].partitions
    assert victim in {each.leader for each in led.values()}
    killed = time.monotonic()
    three.kill(three.number_of(victim))
    goes_on(three, program, killed)
    commits_go_on(three, program, killed)
    print(f"went on after {time.monotonic() - killed:.1f} s")
    program.stop_writing()
    final = read_back(three, PLACES)
    wanted = {(where, offset) for where, log in final.items() for offset, _ in log}
    until(
        "members are given all that is there",
        lambda: holds(program, wanted <= {(read.where, read.offset) for read in list(history.reads)}),
    )
    faults = faults_of(history, final)
    if not program.idempotent:  # a record that is sent again may be there again
        faults = [each for each in faults if not each.startswith("duplicate")]
    assert not faults, "\n".join([*faults, three.events()])
    acknowledged = len(history.times)
    print(f"{acknowledged} records acknowledged, {len(history.reads)} given to members")
    assert acknowledged > 100

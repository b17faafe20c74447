"""What the command line reports of links that cannot work, and what becomes of them: nothing is lost."""

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewPartitions

from kit.cluster_clients import at
from kit.cluster_nodes import Cluster, until
from kit.linked_clusters import (
    STREAM,
    Linked,
    await_caught_up,
    await_same,
    call,
    cluster_id,
    ends,
    fill,
    headrace,
    link,
    make,
    records,
    shown,
)
from kit.own_ports import own_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# The command line is slow on a busy machine, since each call is a process.


def refused(cluster: Cluster, *words: str) -> str:
    """The command line's message for a call that fails."""
    said = headrace(cluster, *words)
    assert said.code != 0, said
    assert "Traceback" not in said.error, said.error
    line = " ".join(said.error.split())
    assert 0 < len(line) < 600, line
    return line


def reasons(cluster: Cluster, name: str = "l") -> dict[str, str]:
    """Why a link refuses topics, by topic."""
    return {each["topic"]: each["reason"] for each in shown(cluster, name)["refused"]}


def test_a_source_that_cannot_be_copied_from(linked: Linked) -> None:
    north, south = linked.start("north", "south")
    nowhere = own_port()
    assert f"127.0.0.1:{nowhere}" in refused(south, "link", "create", "--source", f"127.0.0.1:{nowhere}{STREAM}")
    assert "no stream /none" in refused(south, "link", "create", "--source", f"{north.bootstrap}/none")
    assert "itself" in refused(south, "link", "create", "--source", f"{south.bootstrap}{STREAM}")
    linked.cut("north", "south")
    assert "no connection within" in refused(south, "link", "create", "--source", f"{north.bootstrap}{STREAM}")
    linked.ways.heal()
    assert call(south, "link.list") == []
    assert "HOST:PORT/PATH" in refused(south, "link", "create", "--source", STREAM)
    told = refused(south, "link", "create", "--source", f"{north.bootstrap}{STREAM}", "--direction", "both")
    assert "--reach" in told or "bootstrap" in told
    assert "there is no link none" in refused(south, "link", "show", "none").replace("'", "")
    link(south, north)
    assert "there is a link l already" in refused(
        south, "link", "create", "--name", "l", "--source", f"{north.bootstrap}{STREAM}"
    )
    assert "no link" in refused(south, "stream", "move-home", STREAM, "--to", "nobody-knows")
    assert "no topic" in refused(south, "topic", "move-home", f"{STREAM}:none")


def test_topics_that_clash_wait_until_they_are_told_which_side_is_home(linked: Linked) -> None:
    north, south = linked.start("north", "south")
    for cluster in (north, south):
        make(cluster, "both")
        fill(cluster, "both", 50 if cluster is north else 25)
    make(north, "fine")
    fill(north, "fine")
    ours = [records(south, "both", index) for index in range(3)]
    link(south, north)
    await_same(south, north, "fine")
    until("the clash is told", lambda: reasons(south))
    assert "headrace link adopt" in reasons(south)["both"]
    assert [records(south, "both", index) for index in range(3)] == ours
    said = headrace(south, "link", "adopt", "l", "both")
    assert said.code == 0, said
    await_same(south, north, "both")
    aside = [[each.value for each in records(south, "both.diverged", index)] for index in range(3)]
    assert aside == [[each.value for each in part] for part in ours]
    until("nothing is refused", lambda: not reasons(south))


def test_two_links_that_want_one_name_from_different_homes(linked: Linked) -> None:
    north, west, south = linked.start("north", "west", "south")
    for cluster in (north, west):
        make(cluster, "t")
        fill(cluster, "t", 50 if cluster is north else 25)
    link(south, north, "first")
    await_same(south, north, "t")
    link(south, west, "second")
    until("the second one is refused", lambda: reasons(south, "second"))
    assert cluster_id(north) in reasons(south, "second")["t"]
    assert not reasons(south, "first")
    fill(north, "t", 25)
    await_same(south, north, "t")


def test_patterns_partitions_and_topics_that_are_gone(linked: Linked) -> None:
    north, south = linked.start("north", "south")
    make(north, "pump-1")
    make(north, "fan")
    fill(north, "pump-1")
    link(south, north, topics=["pump-*", "valve-*"])
    await_same(south, north, "pump-1")
    until("the pattern is told", lambda: reasons(south))
    assert reasons(south) == {"valve-*": "no topic of the source matches it now"}
    make(north, "valve-7")
    fill(north, "valve-7")
    await_same(south, north, "valve-7")
    until("nothing is refused", lambda: not reasons(south))
    assert ends(south, "fan") == []
    # A copy gets no partitions of its own.
    admin = AdminClient(at(south.bootstrap))
    with pytest.raises(KafkaException) as more:
        admin.create_partitions([NewPartitions("pump-1", 5)])["pump-1"].result(30)
    assert more.value.args[0].code() == KafkaError.POLICY_VIOLATION
    assert cluster_id(north) in str(more.value)
    assert north.bootstrap in str(more.value)
    fill(north, "pump-1")
    await_same(south, north, "pump-1")
    # Deleted at the source: the copy stays.
    assert headrace(north, "topic", "delete", f"{STREAM}:valve-7").code == 0
    until("that is told", lambda: "gone at the source" in reasons(south).get("valve-7", ""))
    assert ends(south, "valve-7") == [50] * 3
    assert headrace(south, "topic", "move-home", f"{STREAM}:valve-7", "--force").code == 0
    fill(south, "valve-7", 25)


def test_a_link_paused_altered_deleted_and_made_again_in_mid_copy(linked: Linked) -> None:
    north, south = linked.start("north", "south")
    make(north, "t")
    fill(north, "t", 200, size=5_000)
    (wanted, *_) = ends(north, "t")
    linked.slow("north", "south", 0.2)
    assert headrace(
        south, "link", "create", "--name", "l", "--source", f"{north.bootstrap}{STREAM}", "--throttle", "20KB"
    ).code == 0  # fmt: skip
    until("some of it has come", lambda: sum(ends(south, "t") or [0]))
    assert headrace(south, "link", "pause", "l").code == 0
    until("it rests", lambda: shown(south)["state"] == "Paused")
    assert sum(ends(south, "t")) < 3 * wanted
    assert headrace(south, "link", "resume", "l").code == 0
    assert headrace(south, "link", "delete", "l").code == 0
    assert "no link" in refused(south, "link", "show", "l")
    linked.ways.heal()
    link(south, north)
    await_same(south, north, "t")
    fill(north, "t")
    await_same(south, north, "t")
    await_caught_up(south)
    assert headrace(south, "link", "alter", "l", "--topics", "other-*").code == 0
    fill(north, "t")
    make(north, "other-1")
    fill(north, "other-1")
    await_same(south, north, "other-1")
    assert ends(south, "t") != ends(north, "t")
    assert headrace(south, "link", "alter", "l", "--topics", "*").code == 0
    await_same(south, north, "t")

"""Java consumer groups: who owns what, what is committed, and who resumes where."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

ASSIGNORS = {
    "range": "org.apache.kafka.clients.consumer.RangeAssignor",
    "roundrobin": "org.apache.kafka.clients.consumer.RoundRobinAssignor",
    "sticky": "org.apache.kafka.clients.consumer.StickyAssignor",
    "cooperative-sticky": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}
QUICK = {"session.timeout.ms": "10000", "heartbeat.interval.ms": "500", "metadata.max.age.ms": "1000"}


class Group:
    """The members of one group that a test starts; those left are stopped after it."""

    def __init__(self, java: Any, name: str, until: Callable[..., Any]) -> None:
        self.java = java
        self.name = name
        self.until = until
        self.running: list[str] = []

    def start(self, member: str, *, topics: list[str], **config: str) -> None:
        self.running.append(member)
        self.java.call(
            "member_start",
            name=f"{self.name}-{member}",
            topics=topics,
            config=QUICK | {"group.id": self.name, "client.id": member} | config,
        )

    def state(self, member: str) -> dict[str, Any]:
        found: dict[str, Any] = self.java.call("member_state", name=f"{self.name}-{member}")
        return found

    def stop(self, member: str) -> dict[str, Any]:
        self.running.remove(member)
        found: dict[str, Any] = self.java.call("member_stop", name=f"{self.name}-{member}")
        return found

    def wait_until_owned(self, **counts: int) -> None:
        """Waits until each named member owns so many partitions."""
        self.until(
            lambda: all(len(self.state(member)["owned"]) == count for member, count in counts.items()),
            f"{counts} partitions owned",
        )


@pytest.fixture
def group(java: Any, unique: str, until: Callable[..., Any]) -> Iterator[Group]:
    made = Group(java, f"group-{unique}", until)
    yield made
    for member in list(made.running):
        made.stop(member)


def produce(java: Any, topic: str, *, partitions: int, each: int, first: int = 0) -> set[str]:
    """`each` records to every partition, all values different; the values."""
    values = {f"{p}/{first + i}" for p in range(partitions) for i in range(each)}
    records = [{"value": value, "partition": int(value.partition("/")[0])} for value in sorted(values)]
    java.call("produce", topic=topic, records=records)
    return values


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_members_share_the_partitions_and_read_each_record_once(
    java: Any, unique: str, group: Group, until: Any, assignor: str
) -> None:
    java.call("create_topic", topic=unique, partitions=4)
    config = {"partition.assignment.strategy": ASSIGNORS[assignor]}
    group.start("a", topics=[unique], **config)
    group.wait_until_owned(a=4)
    group.start("b", topics=[unique], **config)
    group.wait_until_owned(a=2, b=2)
    values = produce(java, unique, partitions=4, each=25)
    until(lambda: sum(len(group.state(member)["records"]) for member in "ab") >= 100, "all records read")
    read = [each["value"] for member in "ab" for each in group.state(member)["records"]]
    assert sorted(read) == sorted(values)
    assert set(group.state("a")["owned"]).isdisjoint(group.state("b")["owned"])

    stopped = group.stop("b")
    assert stopped["error"] is None
    group.wait_until_owned(a=4)
    if assignor == "cooperative-sticky":
        assert group.state("a")["revoked"] == 2, "a cooperative member gives up only what moves"


def test_a_group_resumes_at_its_committed_offsets(java: Any, unique: str, group: Group, until: Any) -> None:
    java.call("create_topic", topic=unique, partitions=2)
    first = produce(java, unique, partitions=2, each=10)
    group.start("a", topics=[unique])
    until(lambda: len(group.state("a")["records"]) == 20, "the first records")
    assert {each["value"] for each in group.stop("a")["records"]} == first
    second = produce(java, unique, partitions=2, each=10, first=10)
    group.start("b", topics=[unique])
    until(lambda: len(group.state("b")["records"]) >= 20, "the records since")
    assert {each["value"] for each in group.stop("b")["records"]} == second
    committed = java.call("group_offsets", group=group.name)
    assert sorted(offset for offset, _ in committed.values()) == [20, 20]


def test_a_static_member_that_returns_disturbs_nobody(java: Any, unique: str, group: Group) -> None:
    java.call("create_topic", topic=unique, partitions=4)
    group.start("a", topics=[unique], **{"group.instance.id": "one"})
    group.wait_until_owned(a=4)
    group.start("b", topics=[unique], **{"group.instance.id": "two"})
    group.wait_until_owned(a=2, b=2)
    before = group.state("a")
    owned = group.state("b")["owned"]
    group.stop("b")
    members = java.call("describe_group", group=group.name)["members"]
    assert sorted(each["instance"] for each in members) == ["one", "two"], "a static member does not leave"
    group.start("b", topics=[unique], **{"group.instance.id": "two"})
    group.wait_until_owned(b=2)
    assert group.state("b")["owned"] == owned
    after = group.state("a")
    assert (after["owned"], after["assigned"]) == (before["owned"], before["assigned"])


def test_the_older_of_two_static_members_of_one_name_is_fenced(
    java: Any, unique: str, group: Group, until: Any
) -> None:
    java.call("create_topic", topic=unique, partitions=1)
    group.start("a", topics=[unique], **{"group.instance.id": "same"})
    group.wait_until_owned(a=1)
    group.start("b", topics=[unique], **{"group.instance.id": "same"})
    group.wait_until_owned(b=1)
    until(lambda: group.state("a")["error"], "the older member's error")
    assert "FencedInstanceId" in group.state("a")["error"]
    assert group.state("b")["error"] is None


def test_a_pattern_finds_topics_made_later(java: Any, unique: str, until: Any) -> None:
    name = f"group-{unique}"
    config = QUICK | {"group.id": name}
    java.call("produce", topic=f"{unique}-1", records=[{"value": "one"}])
    java.call("member_start", name=name, pattern=f".*{unique}-.*", config=config)
    try:
        until(lambda: len(java.call("member_state", name=name)["records"]) == 1, "the first topic's record")
        java.call("produce", topic=f"{unique}-2", records=[{"value": "two"}])
        until(lambda: len(java.call("member_state", name=name)["records"]) == 2, "the second topic's record")
    finally:
        stopped = java.call("member_stop", name=name)
    assert [each["value"] for each in stopped["records"]] == ["one", "two"]
    assert stopped["error"] is None


def test_a_member_of_another_protocol_is_refused(java: Any, unique: str, group: Group, until: Any) -> None:
    java.call("create_topic", topic=unique, partitions=1)
    group.start("a", topics=[unique], **{"partition.assignment.strategy": ASSIGNORS["range"]})
    group.wait_until_owned(a=1)
    group.start("b", topics=[unique], **{"partition.assignment.strategy": ASSIGNORS["roundrobin"]})
    until(lambda: group.state("b")["error"], "the refusal")
    assert "InconsistentGroupProtocol" in group.state("b")["error"]
    assert group.state("a")["error"] is None


def test_admin_sees_a_group_and_its_members(java: Any, unique: str, group: Group, until: Any) -> None:
    java.call("create_topic", topic=unique, partitions=2)
    group.start("a", topics=[unique])
    group.wait_until_owned(a=2)
    until(lambda: java.call("describe_group", group=group.name)["state"] == "Stable", "a stable group")
    found = java.call("describe_group", group=group.name)
    assert found["assignor"] == "range"
    (member,) = found["members"]
    assert (member["client"], member["partitions"]) == ("a", [f"{unique}-0", f"{unique}-1"])
    assert group.name in java.call("list_groups")
    with pytest.raises(Exception, match="GroupNotEmpty"):
        java.call("delete_group", group=group.name)
    group.stop("a")
    until(lambda: java.call("describe_group", group=group.name)["state"] == "Empty", "an empty group")


def test_admin_moves_and_forgets_the_committed_offsets_of_an_empty_group(java: Any, unique: str) -> None:
    name = f"group-{unique}"
    java.call("create_topic", topic=unique, partitions=2)
    produce(java, unique, partitions=2, each=10)
    java.call("set_group_offsets", group=name, topic=unique, offsets={"0": 7, "1": 3})
    assert java.call("group_offsets", group=name) == {f"{unique}-0": [7, "by hand"], f"{unique}-1": [3, "by hand"]}
    read = java.call("read", topic=unique, **{"from": "committed"}, expect=3, config={"group.id": name}, commit=True)
    assert [each["offset"] for each in read] == [7, 8, 9]
    assert java.call("group_offsets", group=name)[f"{unique}-0"] == [10, ""]
    java.call("delete_group_offset", group=name, topic=unique, partition=0)
    assert java.call("group_offsets", group=name) == {f"{unique}-1": [3, "by hand"]}
    java.call("delete_group", group=name)
    assert name not in java.call("list_groups")
    with pytest.raises(Exception, match="GroupIdNotFound"):
        java.call("delete_group", group=name)


@pytest.mark.headrace_only
def test_full_name_and_alias_are_one_topic_within_a_group(
    java: Any, cluster: Any, unique: str, group: Group, until: Any
) -> None:
    stream = cluster.stream()
    full, alias = f"{stream}:{unique}", f"{stream.strip('/').replace('/', '.')}..{unique}"
    java.call("produce", topic=full, records=[{"value": "1"}])
    group.start("a", topics=[full])
    until(lambda: len(group.state("a")["records"]) == 1, "the record by its full name")
    group.stop("a")
    java.call("produce", topic=alias, records=[{"value": "2"}])
    group.start("b", topics=[alias])
    until(lambda: len(group.state("b")["records"]) >= 1, "the record by its alias")
    assert [(each["topic"], each["value"]) for each in group.stop("b")["records"]] == [(alias, "2")]

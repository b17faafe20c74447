"""`headrace topic` on a running node."""

from typing import Any

from kit.commands_on_node import Headrace


def test_topics_are_made_listed_shown_and_deleted(hr: Headrace, cluster: Any) -> None:
    stream = cluster.stream()
    names = [f"{stream}:{name}" for name in ("alpha", "beta", "beta-2")]
    made = hr("topic", "create", *names, "--partitions", "2", "-c", "retention.ms=60000", "-o", "json").json
    assert [each["topic"] for each in made] == names
    assert "exists" in hr("topic", "create", names[0]).refused()
    assert hr("topic", "create", names[0], "--if-not-exists").code == 0
    assert hr("topic", "list", stream).out.splitlines() == names
    assert [topic["name"] for topic in hr("topic", "list", stream, "--prefix", "beta", "-o", "json").json_lines] == [
        "beta",
        "beta-2",
    ]
    shown = hr("topic", "show", names[0], "-o", "json").json
    assert shown["configs"] == {"retention.ms": "60000"}
    assert [partition["end"] for partition in shown["partitions"]] == [0, 0]
    assert "1min" in hr("topic", "show", names[0]).out
    assert hr("topic", "delete", *names[1:]).code == 0
    assert hr("topic", "list", stream).out.splitlines() == names[:1]
    assert names[1] in hr("topic", "delete", names[1]).refused()


def test_a_bad_config_is_refused_by_name(hr: Headrace, cluster: Any) -> None:
    topic = cluster.topic()
    assert "retention.ms" in hr("topic", "create", topic, "-c", "retention.ms=soon").refused()
    assert "NAME=VALUE" in hr("topic", "create", topic, "-c", "retention.ms").refused()

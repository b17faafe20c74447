"""`headrace produce`: which records it sends, and messages about a record that cannot be sent."""

import base64
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.cli import connect
from headrace.cli.connect import NoAnswer, connected
from kit.commands_on_node import Headrace


def test_lines_go_in_and_come_out(hr: Headrace, cluster: Any) -> None:
    topic = cluster.topic()
    sent = hr("produce", topic, "-K", "=", "-H", "from=test", "-o", "json", stdin="k1=one\nk2=two=2\nk1=\r\n").json
    assert (sent["topic"], sent["records"]) == (topic, 3)
    assert hr("consume", topic, "--from-beginning").out.splitlines() == ["one", "two=2", ""]
    assert hr("consume", topic, "--from-beginning", "--with-key", "-n", "2").out == "k1\tone\nk2\ttwo=2\n"
    first = hr("consume", topic, "--from-beginning", "-n", "1", "-o", "json").json
    assert (first["offset"], first["key"], first["value"]) == (0, "k1", "one")
    assert first["headers"] == [{"name": "from", "value": "test"}]


def test_values_on_the_command_line_and_a_fixed_key(hr: Headrace, cluster: Any) -> None:
    topic = cluster.topic()
    assert hr("produce", topic, "-v", "a", "-v", "b", "-k", "key", "--compression", "zstd").code == 0
    records = hr("consume", topic, "--from-beginning", "-o", "json").json_lines
    assert [(record["key"], record["value"]) for record in records] == [("key", "a"), ("key", "b")]


@pytest.mark.parametrize(
    ("arguments", "stdin", "says"),
    [
        (("produce", "/nowhere:topic", "-v", "x"), "", "topic create"),
        (("consume", "/nowhere:topic", "--from-beginning"), "", "topic create"),
        (("produce", "lines", "-K", "="), "k=1\nno key here\n", "line 2"),
        (("produce", "lines", "-p", "7", "-v", "x"), "", "partition 7"),
        (("produce", "lines", "--compression", "zip", "-v", "x"), "", "compression"),
    ],
)
def test_what_cannot_be_sent_or_read_is_one_line(
    hr: Headrace, arguments: tuple[str, ...], stdin: str, says: str
) -> None:
    assert says in hr(*arguments, stdin=stdin).refused()


def test_what_came_before_a_bad_line_is_stored_and_the_error_says_so(hr: Headrace, cluster: Any) -> None:
    topic = cluster.topic()
    said = hr("produce", topic, "-K", "=", stdin="a=1\nb=2\nno key here\nc=3\n").refused()
    assert said == "headrace: line 3 has no '=' between key and value; 2 records are stored"
    assert hr("consume", topic, "--from-beginning").out == "1\n2\n"
    assert hr("produce", topic, "-K", "=", stdin="no key here\n").refused().endswith("; nothing is stored")


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_record_of_more_than_1_mb_goes_in_where_the_topic_takes_it(
    hr: Headrace, cluster: Any, compression: str
) -> None:
    stream, line = cluster.stream(max_message_bytes=4 << 20), "x" * (3 << 20)
    assert hr("produce", f"{stream}:large", "--compression", compression, stdin=f"a\n{line}\nb\n").code == 0
    assert hr("consume", f"{stream}:large", "--from-beginning").out.split() == ["a", line, "b"]


@pytest.mark.parametrize("size", [3 << 20, 97 << 20], ids=["for the topic", "for a request"])
def test_a_record_that_is_too_large_is_named_by_its_line(hr: Headrace, cluster: Any, size: int) -> None:
    topic = cluster.topic()
    said = hr("produce", topic, stdin=f"a\n{'x' * size}\n").refused()
    assert said.startswith("headrace: line 2: ")
    assert "--max-message" in said
    assert said.endswith("; 1 of 2 records are stored" if size < 96 << 20 else "; 1 record is stored")
    assert hr("consume", topic, "--from-beginning").out == "a\n"


def make_copy(hr: Headrace, cluster: Any) -> str:
    """A topic whose home is another cluster."""
    topic = f"{cluster.stream()}:t"
    hr("topic", "create", topic)
    topic_id = hr("topic", "show", topic, "-o", "json").json["topic_id"]
    with connected(cluster.bootstrap, None) as client:
        client.admin(
            "home.cede", {"version": 1, "topic_ids": [base64.urlsafe_b64decode(topic_id + "==")], "to": "far-away"}
        )
    return topic


def test_a_record_for_a_copy_is_told_where_its_home_is(hr: Headrace, cluster: Any) -> None:
    said = hr("produce", make_copy(hr, cluster), "-v", "x").refused()
    assert "its home is cluster far-away" in said
    assert "Policy violation" not in said, "it is told once, and better"


@pytest.mark.parametrize(
    "error",
    [NoAnswer("is the cluster up?"), KafkaError(Code.TOPIC_AUTHORIZATION_FAILED, "not allowed"), KeyboardInterrupt()],
    ids=["no answer", "refused", "interrupted"],
)
def test_a_record_for_a_copy_whose_home_cannot_be_asked_for_is_told_with_what_is_stored(
    hr: Headrace, cluster: Any, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def failed(*_: object, **__: object) -> Any:
        raise error

    topic = make_copy(hr, cluster)
    monkeypatch.setattr(connect, "connected_to", failed)
    said = hr("produce", topic, "-v", "x").refused()
    assert "Policy violation" in said
    assert said.endswith("; nothing is stored")


def test_a_key_has_one_partition_whatever_the_time_of_its_records(hr: Headrace, cluster: Any, tmp_path: Path) -> None:
    stream = cluster.stream(default_partitions=7)
    rows = [f"{seconds},sensor-{sensor},{seconds}" for sensor in range(12) for seconds in (0, 1)]
    (tmp_path / "relative.csv").write_text("\n".join(["time,sensor,value", *rows, ""]))
    hr("replay", str(tmp_path / "relative.csv"), "--stream", stream, "--speed", "max")
    read = hr("consume", f"{stream}:relative", "--from-beginning", "-o", "json").json_lines
    assert len(read) == len(rows)
    assert len({(each["key"], each["partition"]) for each in read}) == 12

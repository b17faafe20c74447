"""`headrace consume`: its output, byte for byte, and where a group continues."""

import base64
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from kit.commands_on_node import Headrace, Process


def test_a_group_reads_each_record_once_and_its_lag_is_shown(hr: Headrace, cluster: Any) -> None:
    topic, group = cluster.topic(), f"group-{cluster.topic()[-8:]}"
    hr("produce", topic, stdin="1\n2\n3\n")
    assert hr("consume", topic, "-g", group, "-n", "2").out == "1\n2\n", "a new group starts at the oldest"
    shown = hr("groups", "show", group, "-o", "json").json
    assert shown["lag"] == 1
    assert hr("consume", topic, "-g", group).out == "3\n"
    assert hr("consume", topic, "-g", group).out == ""
    assert group in hr("groups").out
    assert any(each["group"] == group and each["lag"] == 0 for each in hr("groups", "list", "-o", "json").json)
    assert hr("groups", "delete", group).code == 0
    assert group in hr("groups", "show", group).refused()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_following_ends_cleanly_and_keeps_the_committed_offset(
    hr: Headrace, headrace_process: Process, cluster: Any, how: signal.Signals
) -> None:
    topic = cluster.topic()
    group = topic.rpartition(":")[2]
    hr("produce", topic, stdin="1\n2\n")
    following = headrace_process("consume", topic, "--follow", "-g", group, "--from-beginning", "-b", cluster.bootstrap)
    assert [following.stdout.readline() for _ in range(2)] == ["1\n", "2\n"]
    hr("produce", topic, "-v", "3")
    assert following.stdout.readline() == "3\n"
    following.send_signal(how)
    assert following.wait(timeout=60) == 0
    assert following.stderr.read() == ""
    assert hr("groups", "show", group, "-o", "json").json["lag"] == 0


def test_a_reader_of_our_output_that_goes_away_ends_it_silently(
    hr: Headrace, headrace_process: Process, cluster: Any
) -> None:
    topic = cluster.topic()
    hr("produce", topic, stdin="x" * 1000 + "\n")
    following = headrace_process("consume", topic, "--follow", "--from-beginning", "-b", cluster.bootstrap)
    following.stdout.readline()
    following.stdout.close()
    hr("produce", topic, "-v", "nobody reads this")
    assert following.wait(timeout=60) == 1
    assert following.stderr.read() == ""


def test_any_bytes_come_back_exactly_in_json(hr: Headrace, cluster: Any) -> None:
    topic = cluster.topic()
    arguments = ("--key", "k\udcff", "--header", "a= x ", "--header", "a=\udcfe", "--header", "b==")
    assert hr("produce", topic, "--value", "v\udcff\x1b", *arguments).code == 0
    (record,) = hr("consume", topic, "--from-beginning", "-o", "json").json_lines
    assert base64.b64decode(record["key_base64"]) == b"k\xff"
    assert base64.b64decode(record["value_base64"]) == b"v\xff\x1b"
    assert record["headers"] == [
        {"name": "a", "value": " x "},
        {"name": "a", "value_base64": "/g=="},
        {"name": "b", "value": "="},
    ]


def test_times_around_1970_are_the_records_times_whatever_a_client_takes_0_for(
    hr: Headrace, cluster: Any, tmp_path: Path
) -> None:
    stream = cluster.stream()
    rows = [f"{seconds},{device},{seconds}" for seconds in (-1, 0, 0, 1, 0, 2) for device in "ab"]
    (tmp_path / "relative.csv").write_text("\n".join(["time,device,value", *rows, ""]))
    shown = hr("replay", str(tmp_path / "relative.csv"), "--stream", stream, "--speed", "max", "-o", "json").json
    assert shown["readings"] == len(rows)
    for device in "ab":
        read = hr("consume", f"{stream}:{device}", "--from-beginning", "-o", "json").json_lines
        assert [each["timestamp"] for each in read] == [-1_000, 0, 0, 1_000, 0, 2_000]
        assert [json.loads(each["value"])["value"] for each in read] == [-1, 0, 0, 1, 0, 2]

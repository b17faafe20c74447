"""`headrace replay`: readings become records, in order and at their times."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.topic_names import in_stream
from kit.commands_on_node import NAB, Headrace, Process


def test_real_readings_are_replayed_in_order_with_their_times(hr: Headrace, cluster: Any) -> None:
    path = NAB / "realTraffic" / "speed_7578.csv"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    stream = cluster.stream()
    done = hr("replay", str(path), "--stream", stream, "--speed", "max", "-o", "json").json
    assert (done["readings"], done["topics"]) == (1_127, [f"{stream}:speed_7578"])
    assert (done["first_time"], done["last_time"]) == ("2015-09-08T11:39:00.000Z", "2015-09-17T14:05:00.000Z")
    records = hr("consume", f"{stream}:speed_7578", "--from-beginning", "-o", "json").json_lines
    assert len(records) == 1_127
    assert (records[0]["timestamp"], records[0]["key"]) == (1_441_712_340_000, "speed_7578")
    assert json.loads(records[0]["value"]) == {"time": "2015-09-08T11:39:00.000Z", "sensor": "speed_7578", "value": 73}


def test_what_came_before_an_unreadable_row_is_stored_and_the_error_says_so(
    hr: Headrace, cluster: Any, tmp_path: Path
) -> None:
    stream = cluster.stream()
    (tmp_path / "torn.csv").write_text("time,value\n2015-09-01,1\n2015-09-02,2\nyesterday,3\n2015-09-04,4\n")
    ran = hr("replay", str(tmp_path / "torn.csv"), "-s", stream, "--speed", "max")
    said = ran.err.splitlines()[-1]
    assert (ran.code, "row 3: 'yesterday'" in said, said.endswith("; 2 records are stored")) == (1, True, True), said
    records = hr("consume", f"{stream}:torn", "--from-beginning", "-o", "json").json_lines
    assert [json.loads(record["value"])["value"] for record in records] == [1, 2]


def test_each_device_gets_a_topic_and_speed_is_kept(hr: Headrace, cluster: Any, tmp_path: Path) -> None:
    stream = cluster.stream(auto_create=False)
    rows = [
        f"2015-09-01 13:45:{second:02d},{'press 7' if second % 2 else 'oven'},temp,{second}" for second in range(60)
    ]
    (tmp_path / "plant.csv").write_text("\n".join(["time,device,sensor,value", *rows]))
    done = hr("replay", str(tmp_path / "plant.csv"), "-s", stream, "--speed", "60x", "-o", "json").json
    assert done["topics"] == [f"{stream}:oven", in_stream(stream, "press 7")]
    assert done["readings"] == 60
    assert 59 / 60 <= done["seconds"] < 10
    keys = {record["key"] for record in hr("consume", f"{stream}:oven", "--from-beginning", "-o", "json").json_lines}
    assert keys == {"temp"}


def test_times_are_shifted_to_now_on_request_and_old_ones_are_warned_of(
    hr: Headrace, cluster: Any, tmp_path: Path
) -> None:
    stream = cluster.stream(ttl_ms=3_600_000)
    (tmp_path / "old.csv").write_text("time,value\n2015-09-01,1\n")
    shifted = hr("replay", str(tmp_path / "old.csv"), "-s", stream, "--timestamps", "now", "-o", "json")
    assert shifted.json["first_time"] > "2026"
    assert "warning" not in shifted.err
    assert "--timestamps now" in hr("replay", str(tmp_path / "old.csv"), "-s", stream).err


def test_an_interrupted_replay_says_what_it_sent(
    hr: Headrace, headrace_process: Process, cluster: Any, tmp_path: Path
) -> None:
    stream = cluster.stream()
    hr("topic", "create", f"{stream}:slow")
    (tmp_path / "slow.csv").write_text("time,value\n2015-09-01,1\n2015-09-02,2\n")
    sending = headrace_process(
        "replay", str(tmp_path / "slow.csv"), "-s", stream, "--speed", "1x", "-o", "json", "-b", cluster.bootstrap
    )
    assert hr("consume", f"{stream}:slow", "-g", stream[1:], "--from-beginning", "--follow", "-n", "1").code == 0
    sending.send_signal(signal.SIGINT)
    assert sending.wait(timeout=60) == 130
    assert json.loads(sending.stdout.read())["readings"] == 1


def test_values_keep_their_digits_and_devices_their_topics(hr: Headrace, cluster: Any, tmp_path: Path) -> None:
    stream = cluster.stream()
    (tmp_path / "big.csv").write_text(
        "time,device,value\n2015-09-01,温度,9007199254740993\n2015-09-02,湿度,0.12345678901234567890\n"
    )
    shown = hr("replay", str(tmp_path / "big.csv"), "--stream", stream, "--speed", "max", "-o", "json").json
    first, second = shown["topics"]
    records = [hr("consume", topic, "--from-beginning").out for topic in (first, second)]
    assert sorted('"value":9007199254740993}' in each for each in records) == [False, True]
    assert sorted('"value":0.12345678901234567890}' in each for each in records) == [False, True]


def test_readings_come_from_stdin_too(hr: Headrace, cluster: Any) -> None:
    stream = cluster.stream()
    hr("replay", "-", "--stream", stream, "--speed", "max", stdin="time,value\n2015-09-01,1\n")
    assert len(hr("consume", f"{stream}:stdin", "--from-beginning").out.splitlines()) == 1

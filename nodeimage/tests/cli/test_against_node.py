import base64
import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.bench import percentile
from headrace.cli.connect import connected, split_address
from headrace.cli.topic_names import in_stream
from headrace.kafka_client.blocking_client import BrokerConnection
from headrace.wire import produce
from headrace.wire.api_keys import ApiKey
from headrace.wire.batch import build_batch

Headrace = Callable[..., Any]
Process = Callable[..., "subprocess.Popen[str]"]
NAB = Path(__file__).parents[4] / "shared" / "data" / "nab" / "data"


@pytest.fixture
def hr(headrace: Headrace, cluster: Any) -> Headrace:
    """`headrace` with the shared node as its running embedded cluster."""

    def run(*arguments: str, **more: str) -> Any:
        return headrace(*arguments, HEADRACE_DATA=str(cluster.data), **more)

    return run


# --- streams and topics


def test_a_stream_is_made_shown_altered_listed_and_deleted(hr: Headrace) -> None:
    policy = ("--ttl", "7d", "--no-auto-create", "--partitions", "3")
    made = hr("stream", "create", "/cli/plant", *policy, "-o", "json").json
    assert (made["ttl_ms"], made["auto_create"], made["default_partitions"]) == (604_800_000, False, 3)
    assert "stream alter" in hr("stream", "create", "/cli/plant").refused()
    assert hr("stream", "alter", "/cli/plant", "--ttl", "forever", "-o", "json").json["ttl_ms"] == 0
    assert hr("stream", "show", "/cli/plant", "-o", "json").json["default_partitions"] == 3
    assert "/cli/plant" in {stream["path"] for stream in hr("stream", "list", "-o", "json").json}
    table = hr("stream", "list").out
    assert "/cli/plant" in table
    assert "forever" in table
    assert hr("stream", "delete", "/cli/plant", "-o", "json").json == {"deleted": "/cli/plant"}
    assert "stream create" in hr("stream", "show", "/cli/plant").refused()


@pytest.mark.parametrize("path", ["no-slash", "/dots.are.not", "/", "/double//slash"])
def test_an_illegal_path_is_refused(hr: Headrace, path: str) -> None:
    assert hr("stream", "create", path).refused()


def test_a_stream_with_topics_is_deleted_only_by_force(hr: Headrace, cluster: Any) -> None:
    stream = cluster.stream()
    hr("topic", "create", f"{stream}:a")
    assert hr("stream", "delete", stream).refused()
    assert hr("stream", "delete", stream, "--force").code == 0


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


# --- produce and consume


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


def test_a_record_for_a_copy_is_told_where_its_home_is(hr: Headrace, cluster: Any) -> None:
    stream = cluster.stream()
    hr("topic", "create", f"{stream}:t")
    topic_id = hr("topic", "show", f"{stream}:t", "-o", "json").json["topic_id"]
    with connected(cluster.bootstrap, None) as client:
        client.admin(
            "home.cede", {"version": 1, "topic_ids": [base64.urlsafe_b64decode(topic_id + "==")], "to": "far-away"}
        )
    said = hr("produce", f"{stream}:t", "-v", "x").refused()
    assert "its home is cluster far-away" in said
    assert "Policy violation" not in said, "it is told once, and better"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_following_ends_cleanly_and_keeps_the_cursor(
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


# --- where it lies


def test_the_chain_of_a_topic_grows_by_a_roll(hr: Headrace, cluster: Any) -> None:
    topic = cluster.topic()
    hr("produce", topic, stdin="1\n2\n")
    cluster.admin("roll", {"topic": topic, "partition": 0})
    hr("produce", topic, "-v", "3")
    chain = hr("chain", f"{topic}/0", "-o", "json").json
    assert [(each["first"], each["end"]) for each in chain] == [(0, 2), (2, 3)]
    assert [each["state"] for each in chain] == ["sealed", "open"]
    assert hr("chain", topic).out.count("open") == 1
    assert hr("consume", topic, "--from-beginning").out == "1\n2\n3\n"
    assert "no partition 9" in hr("chain", f"{topic}/9").refused()


def test_a_scrub_reads_everything_back_and_names_what_is_damaged(
    headrace: Headrace, new_cluster: Callable[..., Any]
) -> None:
    cluster = new_cluster("--chunk-bytes=1048576")
    for _ in range(3):
        assert headrace("produce", "words", "-b", cluster.bootstrap, stdin=("x" * 1000 + "\n") * 1000).code == 0
    scrubbed = headrace("scrub", "--wait", "-o", "json", "-b", cluster.bootstrap).json
    assert not scrubbed["running"]
    assert scrubbed["errors"] == []
    assert scrubbed["read_bytes"] > 1_000_000

    oldest = min(cluster.data.glob("node-1/containers/2/*.chunk"))
    with oldest.open("r+b") as chunk:
        chunk.seek(500_000)
        chunk.write(b"damage")
    damaged = headrace("scrub", "--wait", "-b", cluster.bootstrap)
    assert damaged.code == 1
    assert oldest.name in damaged.out


def test_status_shows_the_node_and_its_containers(hr: Headrace, cluster: Any) -> None:
    status = hr("status", "-o", "json").json
    (node,) = status["nodes"]
    assert (status["bootstrap"], node["pid"], node["state"]) == (cluster.bootstrap, cluster.pid, "up")
    assert status["redundancy"]["whole"]
    shown = hr("status", "--bootstrap", cluster.bootstrap).out
    assert status["cluster"] in shown
    assert "1 replica" in shown
    alone = hr("status", "--node", str(node["node"]), "-o", "json").json
    assert {container["kind"] for container in alone["containers"]} == {"catalog", "data"}
    assert {container["role"] for container in alone["containers"]} == {"primary"}
    assert "there is no node 77" in hr("status", "--node", "77").refused()


# --- replay


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


# --- bench


def test_a_bench_measures_and_leaves_nothing_behind(hr: Headrace, cluster: Any) -> None:
    before = cluster.admin("status")["topics"]
    done = hr("bench", "-n", "2000", "--topics", "3", "--seconds", "0.2", "--rate", "200", "-o", "json").json
    assert [stage["records"] for stage in done["throughput"]] == [2000, 2000]
    assert all(stage["records_per_s"] > 0 for stage in done["throughput"])
    assert [(stage["records"], 0 < stage["p50_ms"] <= stage["p99_ms"]) for stage in done["latency"]] == [(40, True)] * 2
    assert cluster.admin("status")["topics"] == before


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.01, 1))
def test_at_most_the_share_lies_below_a_percentile(values: list[float], share: float) -> None:
    ordered = sorted(values)
    found = percentile(ordered, share)
    assert sum(value <= found for value in ordered) >= share * len(ordered)
    assert sum(value < found for value in ordered) < share * len(ordered)


# --- any bytes


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


def test_names_of_headers_come_back_exactly(hr: Headrace, cluster: Any) -> None:
    topic = cluster.topic()
    names = [b"\xff\xfe", b"a\x00b", b"", "ü".encode()]
    records = [(1_000, b"k", b"v", [(name.decode("utf-8", "surrogateescape"), None)]) for name in names]
    hr("topic", "create", topic)
    stored(cluster.bootstrap, topic, bytes(build_batch(records)))
    read = hr("consume", topic, "--from-beginning", "-o", "json").json_lines
    found = [each["headers"][0] for each in read]
    assert [
        base64.b64decode(each["name_base64"]) if "name_base64" in each else each["name"].encode() for each in found
    ] == names
    assert len(hr("consume", topic, "--from-beginning").out.splitlines()) == len(names)


def stored(bootstrap: str, topic: str, batch: bytes) -> None:
    """Stores a record batch as it is."""
    request = produce.ProduceRequest(None, -1, 10_000, [produce.PartitionRecords(topic, 0, memoryview(batch))])
    with BrokerConnection(*split_address(bootstrap.split(",")[0])) as connection:
        answer = connection.call(ApiKey.PRODUCE, 7, produce.encode_request(7, request))
    results, _ = produce.decode_response(answer, 0, 7)
    assert [each.error for each in results] == [0]


@pytest.mark.parametrize("at_ms", [2**63 - 1, -(2**63), 1_700_000_000_000_000])
def test_a_stream_is_shown_whatever_times_its_records_have(hr: Headrace, cluster: Any, at_ms: int) -> None:
    topic = cluster.topic(cluster.stream())
    hr("topic", "create", topic)
    stored(cluster.bootstrap, topic, bytes(build_batch([(at_ms, None, b"v", [])])))
    assert f"{at_ms} ms" in hr("stream", "show", topic.partition(":")[0]).out
    (record,) = hr("consume", topic, "--from-beginning", "-o", "json").json_lines
    assert record["timestamp"] == at_ms


def test_a_group_whose_id_steers_terminals_is_shown_escaped(hr: Headrace, cluster: Any) -> None:
    topic, group = cluster.topic(), "a\x1b[31mred\x1b]0;title\x07\u202e"
    hr("produce", topic, "-v", "1")
    assert hr("consume", topic, "--group", group).out == "1\n"
    for out in (hr("groups", "list").out, hr("groups", "show", group).out):
        assert "a\\x1b[31mred\\x1b]0;title\\x07\\u202e" in out
        assert not set(out) & {"\x1b", "\x07", "\u202e"}
    assert group in {each["group"] for each in hr("groups", "list", "-o", "json").json}
    assert hr("groups", "delete", group).code == 0


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


def test_a_key_has_one_partition_whatever_the_time_of_its_records(hr: Headrace, cluster: Any, tmp_path: Path) -> None:
    stream = cluster.stream(default_partitions=7)
    rows = [f"{seconds},sensor-{sensor},{seconds}" for sensor in range(12) for seconds in (0, 1)]
    (tmp_path / "relative.csv").write_text("\n".join(["time,sensor,value", *rows, ""]))
    hr("replay", str(tmp_path / "relative.csv"), "--stream", stream, "--speed", "max")
    read = hr("consume", f"{stream}:relative", "--from-beginning", "-o", "json").json_lines
    assert len(read) == len(rows)
    assert len({(each["key"], each["partition"]) for each in read}) == 12


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

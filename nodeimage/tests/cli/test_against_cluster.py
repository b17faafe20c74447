"""The commands on a running cluster of three nodes. Tests leave it as they find it: three nodes, all of them up."""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from headrace.cli.target import plain
from headrace.local.cluster import Started, StartOptions, running_cluster, start, stop
from kit.patience import PATIENCE

Headrace = Callable[..., Any]
Process = Callable[..., Any]
SMALL = ("--chunk-bytes=1048576", "--rebalance-delay-ms=0")
LIMIT_S = 30.0 * PATIENCE


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    folder = tmp_path_factory.mktemp("three")
    running = start(folder, StartOptions(nodes=3, port=0, node_options=SMALL), progress=lambda _: None)
    yield running
    stop(folder, timeout_s=20)
    for child in running.children.values():
        child.wait()


@pytest.fixture
def hr(headrace: Headrace, three: Started) -> Headrace:
    def run(*arguments: str, **more: str) -> Any:
        return headrace(*arguments, HEADRACE_DATA=str(three.folder), **more)

    return run


def until(condition: Callable[[], Any]) -> Any:
    """Wait until the condition returns a true value, and return it."""
    deadline = time.monotonic() + LIMIT_S
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def pid_of(folder: Path, node: int) -> int:
    cluster = running_cluster(folder)
    assert cluster is not None
    return next(each.pid for each in cluster.nodes if each.node_id == node)


def test_status_shows_nodes_volume_redundancy_and_events(hr: Headrace, three: Started) -> None:
    ran = hr("status", "--wait", "-o", "json")
    status = ran.json
    assert status["bootstrap"] == three.cluster.bootstrap
    assert [node["state"] for node in status["nodes"]] == ["up"] * 3
    assert [node["pid"] for node in status["nodes"]] == [node.pid for node in three.cluster.nodes]
    assert status["controller"] in (1, 2, 3)
    assert sum("catalog" in node["roles"] for node in status["nodes"]) == 1
    assert status["redundancy"]["whole"]
    assert status["lacking"] == []
    (volume,) = [each for each in status["volumes"] if each["volume"] == "default"]
    assert (volume["replicas"], volume["min_in_sync"], volume["problem"]) == (3, 2, None)
    assert any(event["kind"] == "office" for event in hr("status", "--events", "200", "-o", "json").json["events"])
    shown = hr("status").out
    assert "3 replicas; a record is acknowledged once all in sync, 2 at least, have it on disk" in shown
    assert "whole: " in shown


def test_a_cluster_that_a_file_names_is_not_that_of_the_folder_here(
    headrace: Headrace, three: Started, tmp_path: Path
) -> None:
    """Both have a node 1."""
    config = tmp_path / "client.properties"
    config.write_text(f"bootstrap.servers={three.cluster.bootstrap}\n")
    elsewhere = headrace("status", "-o", "json", HEADRACE_CONFIG=str(config), HEADRACE_DATA=str(three.folder)).json
    assert "data" not in elsewhere
    assert [node["pid"] for node in elsewhere["nodes"]] == [None] * 3


def test_a_node_that_is_removed_elsewhere_leaves_the_one_of_its_name_here(
    headrace: Headrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A context in use used to count for the cluster, but not for the process and the folder."""
    asked: list[dict[str, Any]] = []

    class Elsewhere:
        target = plain("h:1,i:1")

        def admin(self, method: str, params: dict[str, Any] | None = None) -> Any:
            if method == "node.list":
                return [{"node": 1, "address": "h:1"}, {"node": 2, "address": "i:1"}]
            asked.append(params or {})
            return {"node": 1, "removed": True, "replicas_given_up": 0}

    monkeypatch.setattr("headrace.cli.connect.connected", lambda *_: nullcontext(Elsewhere()))
    monkeypatch.setattr("headrace.cli.connect.connected_to", lambda _target: nullcontext(Elsewhere()))
    here = start(tmp_path / "here", StartOptions(nodes=1, port=0, node_options=SMALL), progress=lambda _: None)
    try:
        removed = headrace("node", "remove", "1", HEADRACE_DATA=str(here.folder))
        assert (removed.code, removed.err) == (0, "removed node 1\n")
        assert [each.get("check_only", False) for each in asked] == [True, False]
        assert here.children["node-1"].poll() is None
        assert (here.folder / "node-1").exists()
    finally:
        stop(here.folder, timeout_s=20)
        here.children["node-1"].wait()


def test_every_node_answers_for_the_cluster(headrace: Headrace, three: Started) -> None:
    told = []
    for node in three.cluster.nodes:
        answer = headrace("containers", "-b", f"127.0.0.1:{node.port}", "-o", "json").json
        told.append([(each["container"], each["primary"], each["replicas"], each["bytes"] is None) for each in answer])
    assert told[0] == told[1] == told[2]
    assert [each["kind"] for each in answer].count("catalog") == 1
    assert not any(unknown for *_, unknown in told[0])
    assert {len(replicas) for _, _, replicas, _ in told[0]} == {3}


def test_groups_are_shown_whichever_node_is_asked(hr: Headrace, headrace: Headrace, three: Started) -> None:
    assert hr("produce", "/default:grouped", stdin="1\n2\n3\n").code == 0
    assert hr("consume", "/default:grouped", "-g", "three", "-n", "2", "--from-beginning").code == 0
    for node in three.cluster.nodes:
        address = f"127.0.0.1:{node.port}"
        assert headrace("groups", "show", "three", "-b", address, "-o", "json").json["lag"] == 1
        assert [each["group"] for each in headrace("groups", "list", "-b", address, "-o", "json").json] == ["three"]
    assert hr("groups", "delete", "three").code == 0


def test_a_chain_names_the_node_of_each_partitionlet(hr: Headrace) -> None:
    assert hr("topic", "create", "/default:spread", "-p", "12").code == 0
    chain = hr("chain", "/default:spread", "-o", "json").json
    leads = {each["container"]: each["primary"] for each in hr("containers", "-o", "json").json}
    assert [each["node"] for each in chain] == [leads[each["container"]] for each in chain]
    leaders = [each["leader"] for each in hr("topic", "show", "/default:spread", "-o", "json").json["partitions"]]
    assert leaders == [each["node"] for each in chain]
    assert len(set(leaders)) > 1


def test_how_much_is_in_a_stream_is_of_all_nodes(hr: Headrace, three: Started) -> None:
    hr("stream", "create", "/figures")
    hr("topic", "create", "/figures:spread", "--partitions", "12")
    begun = int(time.time() * 1000)
    sender = Producer({"bootstrap.servers": three.cluster.bootstrap})
    for number in range(120):
        sender.produce("/figures:spread", "x" * 100, partition=number % 12)
    assert sender.flush(20) == 0
    shown = hr("stream", "show", "/figures", "-o", "json").json
    assert shown["messages"] == 120
    assert shown["bytes"] > 12_000
    assert begun <= shown["oldest_ms"] <= time.time() * 1000
    assert hr("stream", "delete", "/figures", "--force").code == 0


def test_a_scrub_reads_every_nodes_replicas(hr: Headrace) -> None:
    scrubbed = hr("scrub", "--wait", "-o", "json").json
    assert (scrubbed["nodes"], scrubbed["state"], scrubbed["errors"]) == (3, "ended", [])
    replicas = sum(len(each["replicas"]) for each in hr("containers", "-o", "json").json)
    assert scrubbed["containers_done"] == scrubbed["containers"] == replicas


# --- volumes


def test_volumes_are_made_shown_altered_and_used(hr: Headrace) -> None:
    made = hr("volume", "create", "pair", "--replicas", "2", "-o", "json").json
    assert (made["replicas"], made["min_in_sync"], made["spread"]) == (2, 1, "preferred")
    assert "volume alter" in hr("volume", "create", "pair").refused()
    assert hr("volume", "alter", "pair", "--min-in-sync", "2", "-o", "json").json["min_in_sync"] == 2
    assert hr("volume", "show", "pair", "-o", "json").json["replicas"] == 2
    assert "pair" in hr("volume", "list").out
    assert hr("stream", "create", "/pair", "--volume", "pair", "-o", "json").json["volume"] == "pair"
    assert hr("produce", "/pair:topic", "-v", "kept twice").code == 0
    (partitionlet,) = hr("chain", "/pair:topic", "-o", "json").json
    containers = {each["container"]: each for each in hr("containers", "--volume", "pair", "-o", "json").json}
    assert len(containers[partitionlet["container"]]["replicas"]) == 2
    assert hr("consume", "/pair:topic", "--from-beginning").out == "kept twice\n"


def test_a_volume_at_its_limit_takes_no_records_until_there_is_room(hr: Headrace, three: Started) -> None:
    hr("volume", "create", "small", "--size-limit", "300KiB")
    hr("stream", "create", "/small", "--volume", "small")
    hr("topic", "create", "/small:topic", "--partitions", "3")
    errors: list[Any] = []
    sender = Producer({"bootstrap.servers": three.cluster.bootstrap, "message.timeout.ms": 3_000})

    def send() -> bool:
        errors.clear()
        for number in range(30):
            text = os.urandom(2_000).hex()
            sender.produce("/small:topic", text, partition=number % 3, on_delivery=lambda no, _: errors.append(no))
        sender.flush(20)
        return all(error is None for error in errors)

    assert send()
    until(lambda: not send())
    shown = hr("volume", "show", "small", "-o", "json").json
    assert shown["held_bytes"] >= shown["size_limit_bytes"] == 300 << 10
    assert "accepts no records" in shown["problem"]
    assert hr("consume", "/small:topic", "--from-beginning", "--count", "30").code == 0
    hr("volume", "alter", "small", "--size-limit", "unlimited")
    until(send)
    hr("volume", "alter", "small", "--size-limit", "300KiB")
    until(lambda: not send())
    hr("topic", "delete", "/small:topic")
    hr("topic", "create", "/small:topic", "--partitions", "3")
    until(send)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("create", "many", "--replicas", "4", "--spread", "required"), "there are 3 hosts"),
        (("create", "many", "--replicas", "3", "--min-in-sync", "4"), "min_in_sync is 4"),
        (("create", "many", "--replicas", "10"), "replicas is 10"),
        (("create", "far", "--zones", "mars"), "0 nodes in zone mars"),
        (("create", "odd", "--spread", "sometimes"), "spread"),
        (("create", "odd", "--durability", "maybe"), "durability"),
        (("create", "no spaces"), "name"),
        (("alter", "default", "--label", "disk=ssd"), "disk=ssd"),
        (("alter", "nowhere", "--replicas", "1"), "volume create"),
        (("show", "nowhere"), "volume create"),
    ],
)
def test_a_volume_that_cannot_be_is_refused_in_one_line(hr: Headrace, arguments: tuple[str, ...], says: str) -> None:
    assert says in hr("volume", *arguments).refused()


def test_a_stream_in_a_volume_that_is_not_there_is_refused(hr: Headrace) -> None:
    assert "volume create" in hr("stream", "create", "/nowhere", "--volume", "nowhere").refused()
    assert hr("stream", "show", "/nowhere").code == 1


# --- nodes


def test_a_node_joins_is_emptied_and_forgotten_and_no_record_is_lost(hr: Headrace, three: Started) -> None:
    lines = "".join(f"{number}\n" for number in range(500))
    assert hr("produce", "/default:moving", stdin=lines).code == 0
    added = hr("node", "add", "--port", "0", "-o", "json").json
    node = str(added["id"])
    shown = until(
        lambda: [
            each for each in hr("node", "list", "-o", "json").json if each["node"] == added["id"] and each["leads"]
        ]
    )
    assert shown[0]["state"] == "up"
    assert "not drained" in hr("node", "remove", node).refused()
    drained = hr("node", "drain", node, "-o", "json").json
    assert (drained["draining"], drained["replicas"], drained["leads"]) == (True, 0, 0)
    removed = hr("node", "remove", node, "-o", "json")
    assert removed.json == {"node": added["id"], "removed": True, "replicas_given_up": 0}
    assert not (three.folder / added["name"]).exists()
    until(lambda: len(hr("node", "list", "-o", "json").json) == 3)
    assert f"there is no node {node}" in hr("node", "drain", node).refused()
    assert hr("status", "--wait").code == 0
    assert hr("consume", "/default:moving", "--from-beginning").out == lines


def test_a_drain_can_be_taken_back(hr: Headrace) -> None:
    ran = hr("node", "drain", "3", "--no-wait", "-o", "json")
    assert ran.json["draining"]
    waited = hr("node", "drain", "3", "--timeout", "0")
    over = waited.code == 0  # if it finished between the two commands
    assert over or (waited.code, "is being drained" in waited.err) == (1, True)
    assert "asks for 3 replicas" in ran.json["warnings"][0]
    assert hr("node", "drain", "3", "--cancel", "-o", "json").json["draining"] is False
    assert hr("status", "--wait").code == 0
    assert {each["state"] for each in hr("node", "list", "-o", "json").json} == {"up"}


def test_a_drain_that_would_break_the_minimum_is_refused(hr: Headrace) -> None:
    assert hr("volume", "create", "all", "--replicas", "3", "--min-in-sync", "3").code == 0
    refused = hr("node", "drain", "2").refused()
    assert "'all' could not have 3 in sync" in refused
    assert "headrace volume alter all --min-in-sync 2" in refused
    assert hr("volume", "alter", "all", "--min-in-sync", "2").code == 0


def test_status_tells_of_a_death_and_when_redundancy_is_whole_again(hr: Headrace, three: Started) -> None:
    assert hr("status", "--wait").code == 0
    status = hr("status", "-o", "json").json
    victim = next(node["node"] for node in status["nodes"] if "catalog" in node["roles"])
    os.kill(pid_of(three.folder, victim), signal.SIGKILL)

    def whole() -> Any:
        now = hr("status", "--events", "200", "-o", "json")
        # The node that led the catalog is dead; for a moment no node may answer.
        return now.json if now.code == 0 and not now.json["redundancy"]["whole"] else None

    lost = until(whole)
    assert next(node for node in lost["nodes"] if node["node"] == victim)["state"] == "down"
    assert any(f"node {victim}" in each["reason"] for each in lost["lacking"])
    until(lambda: f"node {victim} refuses connections" in hr("status", "--events", "200").out)
    assert f"headrace node start {victim}" in hr("status").err
    assert hr("produce", "/default:after", "-v", "still writable").code == 0

    assert hr("node", "start", str(victim)).code == 0
    again = hr("status", "--wait", "--events", "200", "-o", "json").json
    kinds = [event["kind"] for event in again["events"] if event["kind"] in ("lost", "whole")]
    assert kinds[-2:] == ["lost", "whole"]
    assert "primary" in {event["kind"] for event in again["events"]}
    assert hr("consume", "/default:after", "--from-beginning").out == "still writable\n"


def test_a_node_that_stands_still_is_passed_over(hr: Headrace, three: Started) -> None:
    first = pid_of(three.folder, 1)
    os.kill(first, signal.SIGSTOP)
    try:
        nodes = hr("node", "list", "-o", "json").json
        assert [node["state"] for node in nodes] == ["down", "up", "up"]
        assert hr("stream", "list").code == 0
    finally:
        os.kill(first, signal.SIGCONT)
    assert hr("status", "--wait").code == 0


def test_a_probe_goes_through_every_node_and_fails_where_one_is_silent(hr: Headrace, three: Started) -> None:
    assert hr("status", "--wait").code == 0

    def all_lead() -> bool:
        (told,) = hr("probe", "-o", "json").json_lines
        return all(each["roundtrip_ms"] for each in told["nodes"]) and len(told["nodes"]) == 3

    until(all_lead)
    third = pid_of(three.folder, 3)
    os.kill(third, signal.SIGSTOP)
    try:
        ran = hr("probe", "--timeout", "3")
    finally:
        os.kill(third, signal.SIGCONT)
    assert ran.code == 1
    assert "node 3  FAILED" in ran.out
    assert hr("status", "--wait").code == 0


# --- balance, recovery


def test_balance_is_shown_paused_and_resumed(hr: Headrace) -> None:
    assert hr("balance", "--pause", "-o", "json").json["paused"]
    assert until(lambda: hr("balance", "-o", "json").json["paused"])
    assert "--resume" in hr("balance").err
    assert hr("balance", "--resume", "-o", "json").json["paused"] is False
    explained = hr("balance", "--explain")
    assert "1.25 of the mean" in explained.out


def test_a_container_that_can_be_led_cleanly_is_not_recovered_uncleanly(hr: Headrace) -> None:
    assert "needs no recovery" in hr("recover-unclean", "1", "--yes").refused()
    assert "no container 999" in hr("recover-unclean", "999").refused()
    assert "headrace down" in hr("recover-store", "--yes").refused()


def test_a_container_whose_only_in_sync_replica_is_lost_goes_on_with_what_another_has(
    hr: Headrace, headrace_process: Process, three: Started
) -> None:
    """Invariant 15: this takes an explicit command, which says what may be lost."""
    assert hr("volume", "create", "risky", "--replicas", "2", "--min-in-sync", "1").code == 0
    assert hr("stream", "create", "/risky", "--volume", "risky").code == 0
    assert hr("produce", "/risky:topic", stdin="on both\n").code == 0
    (partitionlet,) = hr("chain", "/risky:topic", "-o", "json").json
    number = partitionlet["container"]

    def container() -> Any:
        return next(each for each in hr("containers", "-o", "json").json if each["container"] == number)

    leader = until(lambda: container() if len(container()["in_sync"]) == 2 else None)["primary"]
    (other,) = [node for node in container()["replicas"] if node != leader]
    assert hr("node", "stop", str(other)).code == 0
    assert hr("produce", "/risky:topic", stdin="on one\n").code == 0
    assert hr("node", "stop", str(leader)).code == 0
    shutil.rmtree(three.folder / f"node-{leader}" / "containers" / str(number))
    assert hr("node", "start", str(other)).code == 0
    assert hr("node", "start", str(leader)).code == 0

    asked = until(lambda: ran if "--yes" in (ran := hr("recover-unclean", str(number))).err else None)
    assert f"Node {other} would lead it" in asked.err
    assert "What may be lost" in asked.err
    reader = headrace_process("consume", "/risky:topic", "--from-beginning", HEADRACE_DATA=str(three.folder))
    assert "partition 0 cannot be read at present; `headrace status`" in reader.stderr.readline()
    recovered = hr("recover-unclean", str(number), "--yes", "-o", "json").json
    assert (recovered["node"], recovered["in_sync"], recovered["done"]) == (other, [leader], True)
    logs = [path.read_text() for path in (three.folder / "logs").glob("node-*.log")]
    told = [line for log in logs for line in log.splitlines() if 'event="unclean recovery"' in line]
    (line,) = [each for each in told if f" container={number} " in each]
    assert "level=warning" in line
    assert f" node={other} " in line
    assert recovered["loss"] in line
    assert f"node {leader} had" in recovered["loss"]
    assert container()["recovered"] == 1
    assert hr("status", "--wait").code == 0
    assert hr("produce", "/risky:topic", stdin="and on\n").code == 0
    assert hr("consume", "/risky:topic", "--from-beginning").out == "on both\nand on\n"
    assert reader.wait(timeout=60) == 0
    assert reader.stdout.readline() == "on both\n"


def test_a_change_of_access_is_waited_for_on_all_nodes_and_names_one_that_is_down(hr: Headrace) -> None:
    change = ("access", "set", "/default", "--copy", "u:ANONYMOUS", "-o", "json")
    assert hr(*change).err == ""
    assert hr("node", "stop", "3").code == 0
    ran = hr(*change)
    assert ran.json[0]["expression"] == "u:ANONYMOUS"
    assert "the change is stored, but node 3 has not confirmed that it is applied there" in ran.err
    assert hr("node", "start", "3").code == 0
    until(lambda: hr("access", "set", "/default", "--remove", "copy").err == "")
    hr("status", "--wait")


def test_security_is_turned_on_for_all_nodes_and_off_again(hr: Headrace, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("not a secret 1\n")
    assert hr("user", "create", "cli-root", "--password-file", str(tmp_path / "password")).code == 0
    assert hr("access", "set", "cluster", "--admin", "u:cli-root | p").err == "", "so that this test can go on"
    on = hr("security", "on", "-o", "json")
    assert (on.json["on"], on.err) == (True, "")
    status = hr("status", "-o", "json").json
    assert (status["security"]["on"], status["security"]["problem"]) == (True, None)
    assert hr("stream", "create", "/owned", "--produce", "g:none").code == 0
    shown = {each["permission"]: each for each in hr("access", "show", "/owned", "-o", "json").json["permissions"]}
    assert {name: each["expression"] for name, each in shown.items()} == {
        "produce": "g:none",
        **dict.fromkeys(("consume", "topic", "copy", "admin"), "u:ANONYMOUS"),
    }
    assert "with force" in hr("access", "set", "cluster", "--admin", "u:cli-root").refused()
    (told,) = hr("access", "explain", "bob", "/owned", "consume", "-o", "json").json
    assert "an administrator of the cluster: allowed by p" in told["reason"]
    assert "--open-everything" in hr("security", "off").refused()
    assert hr("security", "off", "--open-everything", "-o", "json").json["on"] is False
    assert hr("access", "set", "cluster", "--remove", "admin").code == 0
    assert hr("user", "delete", "cli-root").code == 0
    assert hr("stream", "delete", "/owned").code == 0

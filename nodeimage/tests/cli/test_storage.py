"""The scrubs of several nodes, combined."""

from collections.abc import Callable
from typing import Any

from headrace.cli.storage import merged
from kit.commands_on_node import Headrace


def state(kind: str = "done", *errors: str, seconds: float = 1.0) -> dict[str, Any]:
    return {
        "running": kind == "running",
        "state": kind,
        "containers": 3,
        "containers_done": 2,
        "frames": 100,
        "read_bytes": 5000,
        "seconds": seconds,
        "errors": list(errors),
    }


def test_sums_are_of_all_nodes_and_it_takes_as_long_as_the_slowest() -> None:
    found = merged({1: state(seconds=2.0), 2: state(seconds=5.0)})
    assert (found["nodes"], found["containers"], found["containers_done"], found["frames"]) == (2, 6, 4, 200)
    assert (found["read_bytes"], found["seconds"], found["errors"]) == (10_000, 5.0, [])


def test_it_runs_until_all_have_ended() -> None:
    assert merged({1: state(), 2: state("running")})["state"] == "running"
    ended = merged({1: state(), 2: state("failed")})
    assert (ended["state"], ended["running"]) == ("done, failed", False)


def test_damage_is_told_with_its_node_where_there_are_several() -> None:
    assert merged({1: state("done", "bad frame")})["errors"] == ["bad frame"]
    assert merged({1: state(), 2: state("done", "bad frame")})["errors"] == ["node 2: bad frame"]


def test_a_node_that_does_not_answer_is_an_error() -> None:
    found = merged({1: state(), 2: None})
    assert (found["nodes"], found["errors"]) == (1, ["node 2 does not answer"])
    assert merged({1: None})["seconds"] == 0


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

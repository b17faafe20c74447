"""kcat, Debian's, against a running node: an older librdkafka in one-line programs."""

import json
import shutil
import subprocess
import uuid
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(shutil.which("kcat") is None, reason="no kcat here; apt-get install kcat")


def kcat(cluster: Any, *arguments: str, text: str = "", timeout: float = 30) -> str:
    """What one run prints."""
    run = subprocess.run(
        ["kcat", "-b", cluster.bootstrap, *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_lines_go_in_and_come_out(cluster: Any, codec: str) -> None:
    topic = cluster.topic()
    lines = "".join(f"k{number}:value {number} {'x' * 50}\n" for number in range(200))
    kcat(cluster, "-P", "-t", topic, "-K", ":", "-z", codec, "-H", "a=b", text=lines)
    assert kcat(cluster, "-C", "-t", topic, "-e", "-q", "-K", ":") == lines
    (first,) = kcat(cluster, "-C", "-t", topic, "-c", "1", "-q", "-J").splitlines()
    found = json.loads(first)
    assert (found["topic"], found["offset"], found["key"], found["headers"]) == (topic, 0, "k0", ["a", "b"])


def test_offsets(cluster: Any) -> None:
    topic = cluster.topic()
    kcat(cluster, "-P", "-t", topic, text="a\nb\nc\nd\n")
    assert kcat(cluster, "-C", "-t", topic, "-o", "2", "-e", "-q") == "c\nd\n"
    assert kcat(cluster, "-C", "-t", topic, "-o", "-1", "-e", "-q") == "d\n"
    alias = topic.replace("/default:", "default..")  # what asks for times splits at colons
    assert kcat(cluster, "-Q", "-t", f"{alias}:0:1") == f"{alias} [0] offset 0\n"
    assert kcat(cluster, "-C", "-t", topic, "-o", "s@1", "-c", "1", "-q") == "a\n"


def test_a_group_goes_on_where_it_was(cluster: Any) -> None:
    topic, group = cluster.topic(), uuid.uuid4().hex
    kcat(cluster, "-P", "-t", topic, text="a\nb\n")
    read = ("-G", group, topic, "-q", "-e", "-X", "auto.offset.reset=earliest")
    assert kcat(cluster, *read) == "a\nb\n"
    kcat(cluster, "-P", "-t", topic, text="c\n")
    assert kcat(cluster, *read) == "c\n"


def test_a_listing_shows_full_names_and_bare_ones_of_the_default_stream(cluster: Any) -> None:
    stream, bare = cluster.stream(auto_create=True), f"bare-{uuid.uuid4().hex}"
    kcat(cluster, "-P", "-t", f"{stream}:t", text="x\n")
    kcat(cluster, "-P", "-t", bare, text="x\n")
    listed = json.loads(kcat(cluster, "-L", "-J"))
    names = {topic["topic"] for topic in listed["topics"]}
    assert {f"{stream}:t", bare} <= names
    assert [broker["name"] for broker in listed["brokers"]] == [cluster.bootstrap]


def test_alias_full_and_bare_names_are_one_topic(cluster: Any) -> None:
    name = f"bare-{uuid.uuid4().hex}"
    for form in (name, f"/default:{name}", f"default..{name}"):
        kcat(cluster, "-P", "-t", form, text=f"by {form}\n")
    assert len(kcat(cluster, "-C", "-t", name, "-e", "-q").splitlines()) == 3

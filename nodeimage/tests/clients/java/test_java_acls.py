"""Kafka's own `kafka-acls` against a cluster of `headrace up --secure`: its short forms for producers and consumers."""

import re
import subprocess
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.base.properties import parse_properties
from headrace.local.cluster import Started, StartOptions, start
from headrace.local.folder import client_properties_path
from headrace.local.secure_folder import librdkafka_properties_path
from kit.java_clients import QUIET, RELEASES, program
from kit.own_ports import own_port

pytestmark = pytest.mark.headrace_only


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    folder = tmp_path_factory.mktemp("acls")
    started = start(folder, StartOptions(port=own_port(), secure=True), progress=lambda _: None)
    yield started
    started.stop()


RELEASE = RELEASES[-1]
"""Its tools have `kafka-acls`; before 4.0 that is a program of the broker's."""


class Tool:
    """`kafka-acls`, as the administrator."""

    def __init__(self, secure: Started) -> None:
        self._command = [
            *("java", "-Xmx256m", "-XX:TieredStopAtLevel=1", QUIET, "-cp", f"{program(RELEASE)}/jars/*"),
            *("org.apache.kafka.tools.AclCommand", "--bootstrap-server", secure.cluster.bootstrap),
            *("--command-config", str(client_properties_path(secure.folder))),
        ]

    def run(self, *arguments: str, fails: bool = False) -> str:
        """All that it printed."""
        done = subprocess.run([*self._command, *arguments], capture_output=True, text=True, timeout=100, check=False)
        said = done.stdout + done.stderr
        assert ("Error while executing ACL command" in said) == fails, said
        return said

    def shown(self, *arguments: str) -> set[tuple[str, str]]:
        """By row, who and the operation."""
        return set(re.findall(r"principal=User:(\S+), .*?operation=(\w+)", self.run("--list", *arguments)))


@pytest.fixture
def topic(secure: Started, unique: str) -> str:
    admin = AdminClient(parse_properties(librdkafka_properties_path(secure.folder).read_text()))
    admin.create_topics([NewTopic(unique, 1)])[unique].result(60)
    return unique


def test_a_producer_and_a_consumer_are_let_in_shown_and_taken_out(secure: Started, topic: str) -> None:
    tool, bob, ann = Tool(secure), ("--allow-principal", "User:bob"), ("--allow-principal", "User:ann")
    of_topic, of_group, of_id = ("--topic", topic), ("--group", f"g-{topic}"), ("--transactional-id", f"x-{topic}")
    tool.run("--add", *bob, "--producer", *of_topic, *of_id, "--idempotent")
    tool.run("--add", *ann, "--consumer", *of_topic, *of_group)
    assert tool.shown(*of_topic) == {("bob", "WRITE"), ("bob", "DESCRIBE"), ("ann", "READ"), ("ann", "DESCRIBE")}
    assert tool.shown(*of_group) == {("ann", "READ"), ("ann", "DESCRIBE")}
    assert tool.shown(*of_id) == {("bob", "WRITE"), ("bob", "DESCRIBE")}
    assert "IDEMPOTENT" not in tool.run("--list")
    tool.run("--remove", "--force", *bob, "--producer", *of_topic, *of_id, "--idempotent")
    tool.run("--remove", "--force", *ann, "--consumer", *of_topic, *of_group)
    assert [tool.shown(*each) for each in (of_topic, of_group, of_id)] == [set()] * 3


def test_a_producer_to_a_topic_that_is_not_there_is_refused_by_its_name(secure: Started, unique: str) -> None:
    said = Tool(secure).run("--add", "--allow-principal", "User:bob", "--producer", "--topic", unique, fails=True)
    assert f"there is no topic /default:{unique}" in said

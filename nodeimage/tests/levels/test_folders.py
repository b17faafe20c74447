"""Folders as each feature level's first version has left them are read by this one, record by record, and stay as they
are: a folder of level 0 is of level 0 until the cluster is raised."""

import json
import tarfile
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from headrace.base.levels import NEWEST, Level, format_of
from headrace.kafka_client.blocking_client import BrokerConnection
from headrace.local.cluster import StartOptions, start
from kit.folder_content import (
    ACCESS,
    GROUP,
    KEPT_FROM,
    OPTIONS,
    RECORDS,
    TOPIC,
    USER,
    USERS,
    committed,
    key_of,
    value_of,
)

FOLDERS = {int(path.name[6:-7]): path for path in sorted(Path(__file__).parent.glob("level-*.tar.xz"))}


def test_there_is_a_folder_of_each_level() -> None:
    assert sorted(FOLDERS) == list(range(NEWEST + 1))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("level", FOLDERS)
def test_a_folder_of_each_level_is_read(level: int, tmp_path: Path) -> None:
    with tarfile.open(FOLDERS[level]) as archive:
        archive.extractall(tmp_path)  # written by ourselves
    folder = tmp_path / "cluster"
    for _ in range(2):  # what a start leaves is read by the next
        running = start(folder, StartOptions(port=0, node_options=OPTIONS), progress=lambda _: None)
        try:
            port = running.cluster.nodes[0].port
            assert everything(port) == {
                partition: [
                    (offset, key_of(number), value_of(number))
                    for offset, number in enumerate(range(partition, RECORDS, 2))
                    if partition or offset >= KEPT_FROM
                ]
                for partition in (0, 1)
            }
            assert committed_offsets(port) == committed()
            with BrokerConnection("127.0.0.1", port) as connection:
                shown = connection.admin("features.show")
                connection.admin("scrub.start")
                if level >= Level.SECURED:
                    user = connection.admin("user.show", {"name": USER})
                    assert (user["groups"], len(user["mechanisms"])) == ([USERS], 2)
                    rules = connection.admin("access.list")
                    assert {(each["object"], each["permission"], each["expression"]) for each in rules} == set(ACCESS)
            assert shown["level"] == level
        finally:
            running.stop()
    assert json.loads((folder / "node-1" / "node.json").read_bytes())["format"] == format_of(level)


def everything(port: int) -> dict[int, list[tuple[int, bytes, bytes]]]:
    """All records of the topic, by partition."""
    consumer = Consumer(
        {"bootstrap.servers": f"127.0.0.1:{port}", "group.id": "all", "auto.offset.reset": "earliest", "log_level": 0}
    )
    ends = {part: consumer.get_watermark_offsets(TopicPartition(TOPIC, part), timeout=30)[1] for part in (0, 1)}
    consumer.assign([TopicPartition(TOPIC, part, 0 if part else KEPT_FROM) for part in (0, 1)])
    found: dict[int, list[tuple[int, bytes, bytes]]] = {0: [], 1: []}
    while any(not of or of[-1][0] + 1 < ends[part] for part, of in found.items()):
        for message in consumer.consume(500, 0.5):  # until as many are there, or as long
            assert message.error() is None, message.error()
            found[message.partition()].append((message.offset(), message.key(), message.value()))
    consumer.close()
    return found


def committed_offsets(port: int) -> dict[int, int]:
    """Of the group, by partition."""
    consumer = Consumer({"bootstrap.servers": f"127.0.0.1:{port}", "group.id": GROUP, "log_level": 0})
    found = consumer.committed([TopicPartition(TOPIC, part) for part in committed()], timeout=30)
    consumer.close()
    return {each.partition: each.offset for each in found}

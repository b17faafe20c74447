"""Writes a cluster's folder as a version leaves it, for later versions to read.

    PYTHONPATH=nodeimage/tests[:CODE] python -m kit.write_folder OUT.tar.xz

Once for each feature level, by the version that brought it; what comes of it is kept beside the tests and never made
anew. CODE is another version's packages (kit/old_versions.py builds them).
"""

import random
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.kafka_client.blocking_client import BrokerConnection
from headrace.local.cluster import StartOptions, start
from kit.folder_content import (
    ACCESS,
    GROUP,
    KEPT_FROM,
    OPTIONS,
    RECORDS,
    SHORT,
    TOPIC,
    USER,
    USERS,
    committed,
    key_of,
    value_of,
)


def write(folder: Path) -> None:
    """Write chunks that are open, closed, partly freed and regrouped; rolls, a log start, committed offsets, a
    snapshot.
    """
    running = start(folder, StartOptions(nodes=1, port=0, node_options=OPTIONS), progress=lambda _: None)
    port = running.cluster.nodes[0].port

    def admin(method: str, **params: object) -> object:
        with BrokerConnection("127.0.0.1", port) as connection:
            return connection.admin(method, params)

    address = {"bootstrap.servers": f"127.0.0.1:{port}"}
    admin("stream.create", path="/short", policy={"ttl_ms": 1})
    kafka = AdminClient(address)
    for made in kafka.create_topics([NewTopic(TOPIC, 2), NewTopic(SHORT, 1)]).values():
        made.result()
    admin("user.create", name=USER, password="a password", groups=[USERS])
    admin(
        "access.set", items=[{"object": where, "permission": what, "expression": text} for where, what, text in ACCESS]
    )
    producer = Producer({**address, "enable.idempotence": True, "linger.ms": 0, "compression.type": "lz4"})
    for number in range(RECORDS):
        producer.produce(TOPIC, key=key_of(number), value=value_of(number), partition=number % 2)
        producer.produce(SHORT, value=random.Random(number).randbytes(1000), partition=0)
        if number % 10 == 9:
            assert producer.flush(30) == 0
        if number == RECORDS // 2:
            admin("roll", topic=TOPIC, partition=0)
    consumer = Consumer({**address, "group.id": GROUP})
    consumer.commit(
        offsets=[TopicPartition(TOPIC, part, offset) for part, offset in committed().items()], asynchronous=False
    )
    consumer.close()
    for done in kafka.delete_records([TopicPartition(TOPIC, 0, KEPT_FROM)]).values():
        done.result()
    time.sleep(8)  # short-lived records are freed, and the rest is regrouped
    assert running.stop() == ()


def main() -> int:
    """Exits with code 0 if the folder is written."""
    out = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as there:
        folder = Path(there) / "cluster"
        write(folder)
        with tarfile.open(out, "w:xz") as archive:
            archive.add(folder, "cluster")
    print(f"{out}: {out.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())

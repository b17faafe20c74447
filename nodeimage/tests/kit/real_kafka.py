"""Apache Kafka with a listener of each security protocol, from Maven's jars, for the tests of one module."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import confluent_kafka as ck
from bench.servers import KafkaServer, free_ports
from confluent_kafka import admin

from kit.certificates import Certificates

USER, PASSWORD = "alice", "s3cret, with=signs"
NOT_YET = (ck.KafkaError.NOT_COORDINATOR, ck.KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
"""Errors of commits while Kafka creates its topic of offsets."""
PROTOCOLS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
_JAAS = "org.apache.kafka.common.security"


class RealKafka:
    """One Kafka node. `port` by security protocol."""

    def __init__(self, folder: Path, certificates: Certificates) -> None:
        self._server = KafkaServer(folder, heap=("-Xmx384m",))
        self.ports = dict(zip(PROTOCOLS, free_ports(len(PROTOCOLS)), strict=True))
        self.ports["PLAINTEXT"] = int(self._server.addresses[0].rpartition(":")[2])
        self.bootstrap = self._server.addresses[0]
        properties = folder / "server-0.properties"
        text = properties.read_text()
        (listeners,) = [line for line in text.splitlines() if line.startswith("listeners=")]
        keys = folder / "server.pem"
        keys.write_text(certificates.text("server.key") + certificates.text("server.pem"))
        secure = {name: f"{name}://127.0.0.1:{self.ports[name]}" for name in PROTOCOLS}
        added = {
            "listeners": ",".join([listeners.partition("=")[2], *secure.values()]),
            "advertised.listeners": ",".join([f"PLAINTEXT://{self.bootstrap}", *secure.values()]),
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,"
            + ",".join(f"{name}:{name}" for name in PROTOCOLS),
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(keys),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": certificates.path("ca.pem"),
            "listener.name.ssl.ssl.client.auth": "required",
            "log.retention.ms": "-1",  # the tests' records have timestamps of 1970
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
        }
        for name in ("sasl_plaintext", "sasl_ssl"):
            plain = f'{_JAAS}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
            added[f"listener.name.{name}.plain.sasl.jaas.config"] = plain
            for mechanism in ("scram-sha-256", "scram-sha-512"):
                added[f"listener.name.{name}.{mechanism}.sasl.jaas.config"] = (
                    f"{_JAAS}.scram.ScramLoginModule required;"
                )
        properties.write_text(text + "".join(f"{key}={value}\n" for key, value in added.items()))

    def start(self) -> None:
        """Start it, and create the user's SCRAM credentials."""
        self._server.start()
        self.admin = admin.AdminClient({"bootstrap.servers": self.bootstrap})
        for mechanism in (admin.ScramMechanism.SCRAM_SHA_256, admin.ScramMechanism.SCRAM_SHA_512):
            known = admin.UserScramCredentialUpsertion(
                USER, admin.ScramCredentialInfo(mechanism, 4096), password=PASSWORD.encode()
            )
            self.admin.alter_user_scram_credentials([known])[USER].result(30)

    def kill(self) -> None:
        self._server.kill()

    def create(self, name: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        """Create a topic."""
        topic = admin.NewTopic(name, partitions, 1, config=dict(configs or {}))
        self.admin.create_topics([topic])[name].result(30)
        while name not in self.admin.list_topics(timeout=30).topics:
            pass  # the controller knows the topic before the broker does

    def producer(self, **settings: Any) -> ck.Producer:
        return ck.Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 5} | settings)

    def consumer(self, **settings: Any) -> ck.Consumer:
        return ck.Consumer({"bootstrap.servers": self.bootstrap, "enable.auto.commit": False} | settings)

    def await_markers(self, topic: str) -> None:
        """Wait until no transaction is open in partition 0: Kafka writes their ends after it has reported them."""
        place = ck.TopicPartition(topic, 0)
        latest = {place: admin.OffsetSpec.latest()}

        def end(level: ck.IsolationLevel) -> int:
            return int(self.admin.list_offsets(latest, isolation_level=level)[place].result(30).offset)

        while end(ck.IsolationLevel.READ_COMMITTED) < end(ck.IsolationLevel.READ_UNCOMMITTED):
            pass

    def read_committed(self, topic: str) -> list[tuple[int, bytes | None, bytes | None, int]]:
        """The records that Kafka's consumer under read_committed sees in partition 0: offset, key, value, timestamp."""
        found: list[tuple[int, bytes | None, bytes | None, int]] = []
        settings = {"group.id": "reader", "isolation.level": "read_committed", "enable.partition.eof": True}
        consumer = self.consumer(**settings)
        try:
            consumer.assign([ck.TopicPartition(topic, 0, ck.OFFSET_BEGINNING)])
            while True:
                message = consumer.poll(30)
                assert message is not None
                if message.error() is not None:
                    assert message.error().code() == ck.KafkaError._PARTITION_EOF, message.error()
                    return found
                found.append((message.offset(), message.key(), message.value(), message.timestamp()[1]))
        finally:
            consumer.close()

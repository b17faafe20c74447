"""Stock clients over TLS, with and without certificates of their own, against a node's process."""

import asyncio
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, KafkaProducer

from kit.certificates import Certificates
from kit.clients import until
from kit.own_ports import HOST
from kit.patience import PATIENCE
from kit.tls_listeners import TlsListeners

COUNT = 20
OWN = pytest.mark.parametrize("own", ["", "client"], ids=["server's certificate alone", "client's certificate too"])


@pytest.fixture
def listeners(tls_listeners: TlsListeners) -> TlsListeners:
    return tls_listeners


@pytest.fixture
def topic(secured: Any) -> str:
    name: str = secured.topic().replace("/default:", "default..")
    return name


def produced(producer: Producer, topic: str, values: range) -> list[str]:
    """Errors of records that were sent and flushed."""
    errors: list[str] = []
    for number in values:
        producer.produce(topic, str(number), on_delivery=lambda error, _: errors.append(str(error)) if error else None)
    assert producer.flush(30 * PATIENCE) == 0
    return errors


@OWN
def test_librdkafka(secured: Any, listeners: TlsListeners, topic: str, own: str) -> None:
    told = listeners.librdkafka(own=own)
    assert produced(Producer(told), topic, range(COUNT)) == []
    consumer = Consumer(told | {"group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[bytes] = []

    def all_read() -> bool:
        message = consumer.poll(0.1)
        if message is not None:
            assert message.error() is None, message.error()
            found.append(message.value())
        return len(found) == COUNT

    until(all_read, within=30)
    consumer.close()
    assert sorted(map(int, found)) == list(range(COUNT))
    port = listeners.mutual if own else listeners.secure
    assert [each.port for each in AdminClient(told).list_topics(timeout=30).brokers.values()] == [port]


@OWN
def test_kafka_python(secured: Any, listeners: TlsListeners, topic: str, own: str) -> None:
    told = listeners.kafka_python(own=own)
    producer = KafkaProducer(acks="all", **told)
    for number in range(COUNT):
        producer.send(topic, str(number).encode())
    producer.flush(30 * PATIENCE)
    producer.close()
    consumer = KafkaConsumer(topic, auto_offset_reset="earliest", consumer_timeout_ms=20_000, **told)
    assert [int(next(consumer).value) for _ in range(COUNT)] == list(range(COUNT))
    consumer.close()


@OWN
async def test_aiokafka(secured: Any, listeners: TlsListeners, topic: str, own: str) -> None:
    told = listeners.librdkafka(own=own)
    context = ssl.create_default_context(cafile=told["ssl.ca.location"])
    if own:
        context.load_cert_chain(told["ssl.certificate.location"], told["ssl.key.location"])
    client = {"bootstrap_servers": told["bootstrap.servers"], "security_protocol": "SSL", "ssl_context": context}
    async with asyncio.timeout(60 * PATIENCE):
        async with AIOKafkaProducer(acks="all", **client) as producer:
            await asyncio.gather(*[await producer.send(topic, str(number).encode()) for number in range(COUNT)])
        async with AIOKafkaConsumer(topic, auto_offset_reset="earliest", **client) as consumer:
            assert [int((await consumer.getone()).value) for _ in range(COUNT)] == list(range(COUNT))


@pytest.mark.parametrize(
    ("own", "says"),
    [("", "certificate required"), ("intruder", "unknown ca")],
    ids=["without a certificate", "of another authority"],
)
def test_a_client_that_proves_nothing_is_refused_and_told_why(
    secured: Any, listeners: TlsListeners, own: str, says: str
) -> None:
    errors: list[KafkaError] = []
    admin = AdminClient(listeners.librdkafka(own=own, listener="mutual") | {"error_cb": errors.append})
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=0.5)
    until(lambda: admin.poll(0.1) >= 0 and any(says in str(each) for each in errors), within=10)


def test_a_plain_client_at_a_port_for_tls_and_the_reverse_get_one_line_each(
    secured: Any, listeners: TlsListeners
) -> None:
    plain = AdminClient({"bootstrap.servers": f"{HOST}:{listeners.secure}"})
    with pytest.raises(KafkaException):
        plain.list_topics(timeout=0.5)
    tls = AdminClient(listeners.librdkafka() | {"bootstrap.servers": secured.bootstrap})
    with pytest.raises(KafkaException):
        tls.list_topics(timeout=0.5)
    until(lambda: "this port does not: its security.protocol has to be PLAINTEXT" in secured.log(), within=10)
    assert secured.log().count("the client does not use TLS: its security.protocol has to be SSL at this port") == 1


def test_half_open_handshakes_keep_nobody_out(secured: Any, listeners: TlsListeners, topic: str) -> None:
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=HOST).do_handshake()
    hello = outgoing.read()
    opened = [socket.create_connection((HOST, listeners.secure)) for _ in range(500)]
    try:
        for number, each in enumerate(opened):
            if number % 2:
                each.sendall(hello)
        for client in ({"bootstrap.servers": secured.bootstrap}, listeners.librdkafka(own="client")):
            began = time.monotonic()
            assert produced(Producer(client), topic, range(1)) == []
            assert time.monotonic() - began < 3 * PATIENCE, "of another port"
        assert produced(Producer(listeners.librdkafka()), topic, range(1)) == []
    finally:
        for each in opened:
            each.close()


@pytest.mark.slow
def test_certificates_change_under_load(
    new_cluster: Callable[..., Any], tmp_path: Path, certificates: Certificates
) -> None:
    listeners = TlsListeners(tmp_path, certificates)
    cluster = new_cluster(f"--listeners={listeners.file}")
    topic = cluster.topic().replace("/default:", "default..")

    def seen() -> bytes | None:
        context = ssl.create_default_context(cafile=certificates.path("ca.pem"))
        with (
            socket.create_connection((HOST, listeners.secure), 10) as plain,
            context.wrap_socket(plain, server_hostname=HOST) as wrapped,
        ):
            return wrapped.getpeercert(binary_form=True)

    def status() -> str:
        shown = cluster.admin("status")["listeners"]
        return str(shown[0]["problem"])

    before = seen()
    stopping = threading.Event()
    errors: list[str] = []
    sent = [0]
    producer = Producer(
        listeners.librdkafka(own="client") | {"error_cb": lambda error: errors.append(str(error)), "linger.ms": 1}
    )

    def send() -> None:
        while not stopping.wait(0.005):
            errors.extend(produced(producer, topic, range(sent[0], sent[0] + 5)))
            sent[0] += 5

    sending = threading.Thread(target=send)
    sending.start()
    try:
        listeners.put("renewed", into="server", kinds=(".pem",))
        until(lambda: "does not belong" in status(), within=20)
        assert seen() == before
        listeners.put("renewed", into="server")
        until(lambda: seen() != before, within=20)
        so_far = sent[0]
        until(lambda: sent[0] > so_far, within=20)
    finally:
        stopping.set()
        sending.join()
    assert errors == []
    consumer = KafkaConsumer(
        topic, auto_offset_reset="earliest", consumer_timeout_ms=20_000, **listeners.kafka_python(own="client")
    )
    assert [int(next(consumer).value) for _ in range(sent[0])] == list(range(sent[0]))
    consumer.close()
    assert cluster.log().count('event="certificate replaced"') == 2


def test_a_listener_whose_files_are_bad_ends_the_start_with_one_line(
    tmp_path: Path, certificates: Certificates
) -> None:
    listeners = TlsListeners(tmp_path, certificates)
    listeners.put("client", into="server", kinds=(".key",))
    command = [sys.executable, "-m", "headrace.node", f"--data={tmp_path / 'node'}", f"--store={tmp_path / 'store'}"]
    ended = subprocess.run(
        [*command, f"--listeners={listeners.file}"], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 2
    lines = [line for line in ended.stderr.splitlines() if line.startswith("headrace: ")]
    assert len(lines) == 1
    assert lines[0].startswith("headrace: listener secure: the key in ")
    assert "does not belong to the certificate" in lines[0]


def test_the_command_line_shows_its_certificate(
    secured: Any, listeners: TlsListeners, topic: str, tmp_path: Path
) -> None:
    own, config = tmp_path / "own.pem", tmp_path / "client.properties"
    own.write_text(listeners.certificates.text("client.key") + listeners.certificates.text("client.pem"))
    own.chmod(0o600)
    config.write_text(
        f"bootstrap.servers={HOST}:{listeners.mutual}\nsecurity.protocol=SSL\nssl.truststore.type=PEM\n"
        f"ssl.truststore.location={listeners.certificates.path('ca.pem')}\nssl.keystore.type=PEM\n"
        f"ssl.keystore.location={own}\n"
    )

    def run(*arguments: str, file: Path = config) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "headrace.cli.main", *arguments, "--config", str(file)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert run("produce", topic, "-v", "x", "-H", "name=value").returncode == 0
    read = run("consume", topic, "--from-beginning", "-o", "json")
    assert '"headers":[{"name":"name","value":"value"}]' in read.stdout, read.stderr
    assert run("groups").returncode == 0
    (tmp_path / "without").write_text("".join(config.read_text().partition("ssl.keystore")[0]))
    assert "certificate of the client" in run("groups", file=tmp_path / "without").stderr

"""Kafka's console tools against a cluster of `headrace up --secure`, with the properties that it writes."""

import subprocess
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from headrace.base.properties import parse_properties
from headrace.local.cluster import Started, StartOptions, start
from headrace.local.folder import client_properties_path
from headrace.local.secure_folder import librdkafka_properties_path
from kit.java_clients import RELEASES, program
from kit.own_ports import own_port

pytestmark = pytest.mark.headrace_only


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    folder = tmp_path_factory.mktemp("secure")
    started = start(folder, StartOptions(port=own_port(), secure=True), progress=lambda _: None)
    yield started
    started.stop()


@pytest.mark.parametrize("release", RELEASES)
def test_the_console_consumer_takes_the_properties_as_they_are(secure: Started, unique: str, release: str) -> None:
    producer = Producer(parse_properties(librdkafka_properties_path(secure.folder).read_text()))
    for value in ("one", "two"):
        producer.produce(unique, value.encode())
    assert producer.flush(60) == 0
    folder, properties = program(release), str(client_properties_path(secure.folder))
    java = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
    command = [*java, "-cp", f"{folder}/jars/*", "org.apache.kafka.tools.consumer.ConsoleConsumer"]
    command += ["--bootstrap-server", secure.cluster.bootstrap, "--consumer.config", properties, "--topic", unique]
    command += ["--from-beginning", "--max-messages", "2", "--timeout-ms", "60000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-2:] == ["one", "two"], "4.x tells of another name of the option first"

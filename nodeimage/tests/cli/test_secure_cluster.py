"""`headrace up --secure`, as a newcomer experiences it."""

import json
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from headrace.base.properties import parse_properties
from headrace.local.cluster import stop
from headrace.local.folder import ClusterNotRunning
from kit.own_ports import own_port

Headrace = Callable[..., Any]
PATIENT_S = 30.0


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "cluster"
    try:
        stop(tmp_path / "cluster")
    except ClusterNotRunning:
        pass


def test_a_cluster_that_was_open_is_made_secure_and_stays_so(headrace: Headrace, folder: Path, tmp_path: Path) -> None:
    at = ("--data", str(folder))
    port = own_port()
    assert headrace("up", *at, "--port", str(port), "-d").code == 0
    assert headrace("produce", "words", "-v", "kept", *at).code == 0
    assert headrace("down", *at).code == 0

    up = headrace("up", *at, "--secure", "-d", "-o", "json")
    bootstrap, properties = up.json["bootstrap"], up.json["client_properties"]
    assert f"--consumer.config {properties}" in up.err
    assert stat.S_IMODE(Path(properties).stat().st_mode) == 0o600

    # the command line knows who it is
    assert headrace("consume", "words", "--from-beginning", *at).out == "kept\n"
    assert headrace("topic", "create", "/default:more", *at).code == 0
    assert headrace("produce", "more", "-v", "one", *at).code == 0
    assert headrace("consume", "more", "--from-beginning", "-b", bootstrap, HEADRACE_DATA=str(folder)).out == "one\n"
    status = headrace("status", *at, "-o", "json").json
    assert status["nodes"][0]["state"] == "up"
    assert headrace("groups", *at).code == 0
    elsewhere = {"HEADRACE_DATA": str(tmp_path / "nothing-here")}
    assert headrace("topic", "list", "--config", properties, **elsewhere).out == "/default:more\n/default:words\n"

    # librdkafka, by its file
    told = parse_properties((folder / "librdkafka.properties").read_text())
    producer = Producer(told)
    producer.produce("more", b"two")
    assert producer.flush(PATIENT_S) == 0
    consumer = Consumer({**told, "group.id": "g"})
    consumer.assign([TopicPartition("more", 0, 0)])
    values = [message.value() for message in consumer.consume(2, PATIENT_S)]
    consumer.close()
    assert values == [b"one", b"two"]
    if shutil.which("kcat") is not None:
        kcat = ["kcat", "-F", str(folder / "librdkafka.properties"), "-L", "-J"]
        listed = subprocess.run(kcat, capture_output=True, timeout=PATIENT_S, check=True).stdout
        assert "more" in [topic["topic"] for topic in json.loads(listed)["topics"]]

    # nobody else gets in
    assert "does it require TLS or a user" in headrace("topic", "list", "-b", bootstrap, **elsewhere).refused()
    assert (
        "does it require TLS or a user"
        in headrace("produce", "more", "-v", "x", "-b", bootstrap, **elsewhere).refused()
    )
    password = tmp_path / "password"
    password.write_text("gue55ed it\n")
    password.chmod(0o600)
    guess = ("--user", "admin", "--password-file", str(password))
    refused = headrace("consume", "more", *guess, *at).refused()
    assert "'admin' is refused: authentication failed" in refused
    assert "gue55ed" not in refused
    untrusted = headrace("topic", "list", "-b", bootstrap, *guess, **elsewhere).refused()
    assert "has a certificate that is not trusted" in untrusted
    with pytest.raises(Exception, match=r"_TRANSPORT|_TIMED_OUT"):
        AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=1)

    # one more node is as secure, and the next start too
    assert headrace("node", "add", *at).code == 0
    assert len(parse_properties(Path(properties).read_text())["bootstrap.servers"].split(",")) == 2
    assert headrace("down", *at).code == 0
    again = headrace("up", *at, "-d")
    assert "secure: clients log in over TLS" in again.err
    assert [each["state"] for each in headrace("node", "list", *at, "-o", "json").json] == ["up", "up"]
    assert "does it require TLS or a user" in headrace("topic", "list", "-b", bootstrap, **elsewhere).refused()


def test_a_cluster_for_others_is_secure_or_said_to_be_open(headrace: Headrace, folder: Path) -> None:
    refused = headrace("up", "--data", str(folder), "--host", "factory.example", "-d").refused()
    assert "anybody who reaches factory.example could do everything: add --secure, or --allow-anonymous" in refused
    assert "no name or address" in headrace("up", "--data", str(folder), "--host", "a b", "--secure").refused()


def test_clients_elsewhere_are_told_the_hosts_name(headrace: Headrace, folder: Path) -> None:
    at = ("--data", str(folder))
    up = headrace("up", *at, "--secure", "--host", "localhost", "--port", str(own_port()), "-d", "-o", "json")
    assert up.json["bootstrap"].startswith("localhost:")
    assert headrace("produce", "words", "-v", "x", *at).code == 0

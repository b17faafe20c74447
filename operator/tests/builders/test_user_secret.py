"""The content of a user's Secret, in the form that each kind of client reads."""

import pytest

from headrace.security.certificate_authority import KeyPair
from headrace_operator.builders.listeners import Port
from headrace_operator.builders.user_secret import Entry, mechanism_of, password_fault, values
from headrace_operator.specs import Listener

PASSWORD = 'pass"word\\é'


def port(**asked: object) -> Port:
    return Port("internal", 9092, Listener(**asked))  # type: ignore[arg-type]


def test_a_password_over_tls() -> None:
    found = values(Entry("alice", "c:9092", port(), "SCRAM-SHA-512", PASSWORD, ca="PEM"))
    assert found["client.properties"].splitlines() == [
        "bootstrap.servers=c:9092",
        "security.protocol=SASL_SSL",
        "sasl.mechanism=SCRAM-SHA-512",
        "sasl.username=alice",
        f"sasl.password={PASSWORD}",
        "ssl.ca.location=/etc/headrace/user/ca.crt",
        "client.id=alice",
    ]
    assert found["sasl.jaas.config"] == (
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="pass\\"word\\\\é";'
    )
    java = dict(line.split("=", 1) for line in found["java.properties"].splitlines())
    assert java["sasl.jaas.config"].endswith('password="pass\\\\"word\\\\\\\\\\u00e9";')
    assert java["ssl.truststore.type"] == "PEM"
    assert (found["password"], found["ca.crt"], "user.crt" in found) == (PASSWORD, "PEM", False)


def test_a_certificate_alone() -> None:
    pair = KeyPair("CERT\n", "KEY\n")
    found = values(Entry("alice", "c:9092", port(protocol="SSL"), certificate=pair, ca="PEM"))
    assert "ssl.certificate.location=/etc/headrace/user/user.crt" in found["client.properties"]
    assert "ssl.keystore.location=/etc/headrace/user/user.pem" in found["java.properties"]
    assert found["user.pem"] == "KEY\nCERT\n"
    assert not {"password", "sasl.jaas.config"} & found.keys()


def test_a_cluster_without_security() -> None:
    found = values(Entry("alice", "c:9092", None, "SCRAM-SHA-512", PASSWORD))
    assert "security.protocol=PLAINTEXT" in found["client.properties"]
    assert found["password"] == PASSWORD
    assert "java.properties" not in found


def test_plain_has_a_module_of_its_own() -> None:
    asked = port(protocol="SASL_PLAINTEXT", mechanisms=["PLAIN"])
    found = values(Entry("alice", "c:9092", asked, "PLAIN", PASSWORD))
    assert "plain.PlainLoginModule" in found["sasl.jaas.config"]
    assert "ssl." not in found["client.properties"]


@pytest.mark.parametrize(
    ("mechanisms", "asked", "then"),
    [
        ([], "SCRAM-SHA-512", "SCRAM-SHA-512"),
        (["SCRAM-SHA-256"], "SCRAM-SHA-512", "SCRAM-SHA-256"),
        (["OAUTHBEARER"], "SCRAM-SHA-512", ""),
        (["PLAIN", "SCRAM-SHA-256"], "SCRAM-SHA-256", "SCRAM-SHA-256"),
    ],
)
def test_a_password_goes_by_a_mechanism_that_the_listener_has(mechanisms: list[str], asked: str, then: str) -> None:
    assert mechanism_of(port(mechanisms=mechanisms), asked) == then
    assert mechanism_of(port(protocol="SSL"), asked) == ""


@pytest.mark.parametrize("password", ["short", "x" * 257, "line\nbreak1", " blank at 1", "AliceAlice"])
def test_a_password_that_cannot_be_is_not_shown(password: str) -> None:
    fault = password_fault(password, "alicealice")
    assert fault
    assert password not in fault


def test_a_password_that_can() -> None:
    assert password_fault(PASSWORD, "alice") == ""


def test_nothing_secret_is_shown() -> None:
    assert PASSWORD not in repr(Entry("alice", "c:9092", None, password=PASSWORD, certificate=KeyPair("C", "K")))

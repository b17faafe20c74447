"""Java clients with SASL, by a password, over TLS and without; and sessions that they renew."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kit.certificates import Certificates
from kit.java_clients import JavaError
from kit.sasl import PASSWORD
from kit.sasl_node import SaslNode, running

pytestmark = pytest.mark.headrace_only


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[SaslNode]:
    with running(tmp_path_factory.mktemp("sasl"), certificates) as made:
        yield made


def told(node: SaslNode, listener: str, mechanism: str, *, password: str = PASSWORD) -> dict[str, Any]:
    """Where and how a client logs in as alice."""
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    config = {
        "security.protocol": "SASL_SSL" if listener == "tls" else "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"org.apache.kafka.common.security.{module} required "
        f'username="alice" password="{password}";',
    }
    if listener == "tls":
        ca = node.certificates.path("ca.pem")
        config |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": ca}
    return {"bootstrap": node.bootstrap(listener), "config": config}


@pytest.mark.parametrize("listener", ["plain", "tls"])
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
def test_records_come_back(java: Any, unique: str, node: SaslNode, listener: str, mechanism: str) -> None:
    client = told(node, listener, mechanism)
    java.call("create_topic", topic=unique, partitions=1, **client)
    java.call("produce", topic=unique, records=[{"value": str(i)} for i in range(20)], **client)
    read = java.call("read", topic=unique, expect=20, **client)
    assert [each["value"] for each in read] == [str(i) for i in range(20)]


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
def test_a_wrong_password_is_told_at_once(java: Any, unique: str, node: SaslNode, mechanism: str) -> None:
    with pytest.raises(JavaError) as refused:
        java.call("create_topic", topic=unique, partitions=1, **told(node, "plain", mechanism, password="wrong"))
    assert refused.value.name == "SaslAuthenticationException"
    assert f"authentication failed with mechanism {mechanism}" in str(refused.value)


def test_a_mechanism_that_is_off_is_told_at_once(java: Any, unique: str, node: SaslNode) -> None:
    with pytest.raises(JavaError) as refused:
        java.call("create_topic", topic=unique, partitions=1, **told(node, "scram", "PLAIN"))
    assert refused.value.name == "UnsupportedSaslMechanismException"


def test_a_session_is_renewed_while_records_are_sent(
    java: Any, unique: str, node: SaslNode, until: Callable[..., Any]
) -> None:
    client = told(node, "short", "SCRAM-SHA-512")
    java.call("create_topic", topic=unique, partitions=1, **client)
    java.call("feed_start", name=unique, topic=unique, partitions=1, pace_ms=5, **client)
    first: dict[Any, float] = {}

    def renewed() -> bool:
        open_now = [each for each in list(node.node.parts.connections.open) if each.principal.until is not None]
        return any(each.principal.until > first.setdefault(each, each.principal.until) for each in open_now)

    until(renewed, "a connection whose session was renewed")
    answers = java.call("feed_stop", name=unique)
    assert len(answers) > 100
    assert [each["error"] for each in answers if each["error"]] == []

"""Java clients with SASL, by a password, over TLS and without, and by tokens; and sessions that they renew."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.certificates import Certificates
from kit.java_clients import RELEASES, JavaClients, JavaError, program
from kit.sasl import PASSWORD
from kit.sasl_node import CLIENT, SaslNode, running

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


# --- tokens

OAUTH = "org.apache.kafka.common.security.oauthbearer"
LIFE_S = 8.0
"""Of a token that is renewed; a client begins to at half of that."""


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For a token."""
    return tmp_path_factory.mktemp("token") / "token"


@pytest.fixture(scope="module", params=RELEASES)
def bearer(request: pytest.FixtureRequest, node: SaslNode, token_file: Path) -> Iterator[JavaClients]:
    """Clients of one release that may take tokens from the issuer of `node`, and from a file."""
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={node.keys.token_url},{token_file.as_uri()}"
    clients = JavaClients(request.param, node.bootstrap("tls"), program(request.param), allowed)
    yield clients
    clients.end()


def by_token(node: SaslNode, url: str, *, secret: str = CLIENT[1], **more: str) -> dict[str, Any]:
    """Where and how a client logs in over TLS by a token from there."""
    config = {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": node.certificates.path("ca.pem"),
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": f"{OAUTH}.OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": url,
        "sasl.jaas.config": f'{OAUTH}.OAuthBearerLoginModule required clientId="{CLIENT[0]}" clientSecret="{secret}";',
    }
    return {"bootstrap": node.bootstrap("tls"), "config": config | more}


@pytest.mark.parametrize("source", ["issuer", "file"])
def test_records_come_back_by_tokens(
    bearer: JavaClients, unique: str, node: SaslNode, token_file: Path, source: str
) -> None:
    token_file.write_text(node.token())
    client = by_token(node, node.keys.token_url if source == "issuer" else token_file.as_uri())
    bearer.call("create_topic", topic=unique, partitions=1, **client)
    bearer.call("produce", topic=unique, records=[{"value": str(i)} for i in range(20)], **client)
    read = bearer.call("read", topic=unique, expect=20, **client)
    assert [each["value"] for each in read] == [str(i) for i in range(20)]


def test_a_token_of_another_issuer_is_refused_at_once(
    bearer: JavaClients, unique: str, node: SaslNode, token_file: Path
) -> None:
    token_file.write_text(node.token(iss="https://elsewhere.example"))
    with pytest.raises(JavaError) as refused:
        bearer.call("create_topic", topic=unique, partitions=1, **by_token(node, token_file.as_uri()))
    assert refused.value.name == "SaslAuthenticationException"


def test_a_session_is_renewed_by_another_token_before_the_first_ends(
    bearer: JavaClients, unique: str, node: SaslNode, until: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node.keys, "token_s", LIFE_S)
    soon = {
        "sasl.login.refresh.window.factor": "0.5",
        "sasl.login.refresh.window.jitter": "0",
        "sasl.login.refresh.min.period.seconds": "1",
        "sasl.login.refresh.buffer.seconds": "1",
    }
    client = by_token(node, node.keys.token_url, **soon)
    bearer.call("create_topic", topic=unique, partitions=1, **client)
    bearer.call("feed_start", name=unique, topic=unique, partitions=1, pace_ms=5, **client)
    first: dict[Any, float] = {}

    def renewed() -> bool:
        open_now = [each for each in list(node.node.parts.connections.open) if each.listener == "tls"]
        sessions = [each for each in open_now if each.principal.until is not None]
        return any(each.principal.until > first.setdefault(each, each.principal.until) for each in sessions)

    until(renewed, "a connection whose session was renewed")
    answers = bearer.call("feed_stop", name=unique)
    assert len(answers) > 100
    assert [each["error"] for each in answers if each["error"]] == []

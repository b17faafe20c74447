"""Stock clients with SASL, each mechanism, over TLS and without, against a node in this process."""

import asyncio
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider
from structlog.testing import capture_logs

from headrace.security.principals import Mechanism
from kit.certificates import Certificates
from kit.clients import until
from kit.patience import PATIENCE
from kit.sasl_node import MECHANISMS, SHORT_MS, SaslNode, login, running

COUNT = 5
EACH = pytest.mark.parametrize("mechanism", MECHANISMS)
TLS_CLIENT = (
    "the client speaks TLS, and this port does not: its security.protocol has to be SASL_PLAINTEXT here, or it has to "
    "use the port of a listener with TLS"
)
LISTENER = pytest.mark.parametrize("listener", ["plain", "tls"])


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[SaslNode]:
    with running(tmp_path_factory.mktemp("sasl"), certificates) as made:
        yield made


def topic_of(request: pytest.FixtureRequest) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)


def proved(node: SaslNode, listener: str, mechanism: str) -> bool:
    """Whether somebody is connected as alice by a mechanism."""
    return any((each.user, each.mechanism) == ("alice", mechanism) for each in node.principals(listener))


def sent(producer: Producer, topic: str, value: object) -> list[str]:
    """Errors of a record that was sent and flushed."""
    errors: list[str] = []
    producer.produce(topic, str(value), on_delivery=lambda error, _: errors.append(str(error)) if error else None)
    assert producer.flush(30 * PATIENCE) == 0
    return errors


@LISTENER
@EACH
def test_librdkafka(node: SaslNode, listener: str, mechanism: str, request: pytest.FixtureRequest) -> None:
    told = node.librdkafka(listener, mechanism)
    producer = Producer(told)
    assert [sent(producer, topic_of(request), number) for number in range(COUNT)] == [[]] * COUNT
    assert proved(node, listener, mechanism)
    admin = AdminClient(told)
    admin.poll(0)  # where the token is fetched
    shown = admin.list_topics(timeout=30)
    assert [each.port for each in shown.brokers.values()] == [node.ports[listener]]


@LISTENER
@EACH
def test_kafka_python(node: SaslNode, listener: str, mechanism: str, request: pytest.FixtureRequest) -> None:
    class Tokens(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return node.token()

    told = {**login(node.librdkafka(listener, mechanism)), "ssl_cafile": node.certificates.path("ca.pem")}
    if mechanism == "OAUTHBEARER":
        told["sasl_oauth_token_provider"] = Tokens()
    producer = KafkaProducer(acks="all", **told)
    for number in range(COUNT):
        producer.send(topic_of(request), str(number).encode())
    producer.flush(30 * PATIENCE)
    assert proved(node, listener, mechanism)
    producer.close()
    consumer = KafkaConsumer(topic_of(request), auto_offset_reset="earliest", consumer_timeout_ms=20_000, **told)
    assert [int(next(consumer).value) for _ in range(COUNT)] == list(range(COUNT))
    consumer.close()


@LISTENER
@EACH
async def test_aiokafka(node: SaslNode, listener: str, mechanism: str, request: pytest.FixtureRequest) -> None:
    class Tokens(AioTokenProvider):  # type: ignore[misc]
        async def token(self) -> str:
            return node.token()

    told = dict(login(node.librdkafka(listener, mechanism)))
    if listener == "tls":
        told["ssl_context"] = ssl.create_default_context(cafile=node.certificates.path("ca.pem"))
    if mechanism == "OAUTHBEARER":
        told["sasl_oauth_token_provider"] = Tokens()
    topic = topic_of(request)
    async with asyncio.timeout(60 * PATIENCE):
        async with AIOKafkaProducer(acks="all", **told) as producer:
            await asyncio.gather(*[await producer.send(topic, str(number).encode()) for number in range(COUNT)])
            assert proved(node, listener, mechanism)
        async with AIOKafkaConsumer(topic, auto_offset_reset="earliest", **told) as consumer:
            assert [int((await consumer.getone()).value) for _ in range(COUNT)] == list(range(COUNT))


def errors_of(told: dict[str, Any], says: str) -> None:
    """A client with these properties hears an error that says this, and gets nothing."""
    errors: list[KafkaError] = []
    admin = AdminClient(told | {"error_cb": errors.append})
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=0.5)
    until(lambda: admin.poll(0.1) >= 0 and any(says in str(each) for each in errors), within=10)


@pytest.mark.parametrize(
    ("user", "password"), [("alice", "another password"), ("nobody", "any password")], ids=["password", "user"]
)
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_wrong_password_and_an_unknown_user_hear_the_same(
    node: SaslNode, mechanism: str, user: str, password: str
) -> None:
    told = node.librdkafka("plain", mechanism, user=user, password=password)
    errors_of(told, f"authentication failed with mechanism {mechanism}")


def test_a_mechanism_that_is_off_is_named_with_those_that_there_are(node: SaslNode) -> None:
    errors_of(node.librdkafka("scram", "PLAIN"), "SCRAM-SHA-512")


def test_a_token_of_another_issuer_is_refused(node: SaslNode) -> None:
    told = node.librdkafka("tls", "OAUTHBEARER")
    told["oauth_cb"] = lambda _: (node.token(iss="https://elsewhere.example"), time.time() + 600)
    errors_of(told, "authentication failed with mechanism OAUTHBEARER")


def test_sasl_at_a_port_without_it_and_the_reverse_say_so(node: SaslNode) -> None:
    plain_port = node.node.parts.node.port
    told = node.librdkafka("plain", "PLAIN") | {"bootstrap.servers": f"127.0.0.1:{plain_port}"}
    errors_of(told, "Request not valid in current SASL state")
    with capture_logs() as logs:
        for listener, protocol in (("plain", "PLAINTEXT"), ("tls", "SASL_PLAINTEXT"), ("plain", "SASL_SSL")):
            told = node.librdkafka("tls", "PLAIN") | {"bootstrap.servers": node.bootstrap(listener)}
            with pytest.raises(KafkaException):
                AdminClient(told | {"security.protocol": protocol}).list_topics(timeout=0.5)
    said = {each["reason"] for each in logs if each["event"] in ("connection closed", "TLS handshakes failed")}
    assert said == {
        "METADATA came before authentication: the client's security.protocol has to be SASL_PLAINTEXT",
        "the client does not use TLS: its security.protocol has to be SASL_SSL at this port",
        TLS_CLIENT,
    }


def under_load(producer: Producer, topic: str, meanwhile: Callable[[Callable[[int], None]], None]) -> list[str]:
    """Errors while one sends and `meanwhile` does its part; that is given what waits for so many more records."""
    stopping = threading.Event()
    errors: list[str] = []
    count = [0]

    def send() -> None:
        while not stopping.wait(0.005):
            errors.extend(sent(producer, topic, count[0]))
            count[0] += 1

    def more(records: int) -> None:
        least = count[0] + records
        until(lambda: count[0] >= least)

    sending = threading.Thread(target=send)
    sending.start()
    try:
        meanwhile(more)
    finally:
        stopping.set()
        sending.join()
    return errors


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "OAUTHBEARER"])
def test_sessions_are_renewed_under_load(node: SaslNode, mechanism: str, request: pytest.FixtureRequest) -> None:
    errors: list[str] = []
    told = node.librdkafka("short", mechanism) | {"error_cb": lambda error: errors.append(str(error)), "linger.ms": 0}
    producer = Producer(told)
    began: dict[Any, float] = {}

    def meanwhile(more: Callable[[int], None]) -> None:
        more(1)
        ends = {each: each.principal.until for each in open_at(node, "short")}
        assert ends
        began.update(ends)
        until(lambda: all(each.principal.until > end + SHORT_MS / 1000 for each, end in ends.items()), within=10)
        more(5)

    errors += under_load(producer, topic_of(request), meanwhile)
    assert errors == []
    assert all(not each.closed for each in began), "the connections are those of the beginning"
    assert {each.principal.mechanism for each in began} == {Mechanism(mechanism)}


def open_at(node: SaslNode, listener: str) -> list[Any]:
    return [each for each in list(node.node.parts.connections.open) if each.listener == listener]


def test_a_password_that_changes_is_for_new_logins(node: SaslNode, request: pytest.FixtureRequest) -> None:
    node.set_password("bob", "the former password")
    errors: list[str] = []
    old = node.librdkafka("plain", "SCRAM-SHA-256", user="bob", password="the former password")
    producer = Producer(old | {"error_cb": lambda error: errors.append(str(error))})

    def meanwhile(more: Callable[[int], None]) -> None:
        more(1)
        node.set_password("bob", "the next password")
        more(20)
        errors_of(old, "authentication failed")
        new = node.librdkafka("plain", "SCRAM-SHA-256", user="bob", password="the next password")
        assert sent(Producer(new), topic_of(request), "new") == []
        more(1)

    errors += under_load(producer, topic_of(request), meanwhile)
    assert errors == []

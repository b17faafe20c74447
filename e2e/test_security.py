"""A cluster with security on kind: which clients get in, and the renewal of an authority while clients run."""

import json
import textwrap
import time
from collections.abc import Iterator
from typing import Any

import kube
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from headrace.security.certificate_authority import Authority, KeyPair
from kit.patience import PATIENCE

TOPIC = "/plant:pumps"
OVERLAP_S = 60.0
LOOK_S = 30.0
"""Seconds that the operator and the nodes take to notice that something is due, and to apply it."""
MACHINES_PORT = 9300
COMPANY = Authority.create("company", days=30, now=time.time())
"""An external authority, which the listener `machines` trusts."""


def user(name: str, namespace: str, **spec: Any) -> kube.Body:
    """Return a StreamUser of the cluster, for clients outside."""
    return kube.resource("StreamUser", name, namespace, {"clusterRef": {"name": "c"}, "listener": "external", **spec})


@pytest.fixture(scope="module")
def secure(namespace: str) -> Iterator[kube.Cluster]:
    """A cluster of one node; alice may use the stream /plant, bob may not."""
    certificates = {"overlap": f"{OVERLAP_S:.0f}s"}
    given = {"configMapRef": {"name": "company", "key": "ca.pem"}}
    machines = {"name": "machines", "port": MACHINES_PORT, "protocol": "SSL", "clientCa": given}
    listeners = {"external": {"type": "NodePort"}, "additional": [machines]}
    security = {"enabled": True, "certificates": certificates}
    cluster = kube.Cluster("c", namespace, nodes=1, security=security, listeners=listeners)
    kube.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "company", "namespace": namespace},
            "data": {"ca.pem": COMPANY.pair.certificate},
        }
    )
    cluster.apply()
    permissions = dict.fromkeys(("produce", "consume", "topic"), "g:plant")
    stream = {"clusterRef": {"name": "c"}, "path": "/plant", "permissions": permissions}
    kube.apply(
        kube.resource("Stream", "plant", namespace, stream),
        user("alice", namespace, groups=["plant"]),
        user("bob", namespace),
    )
    cluster.await_ready()
    for kind, name in (("stream", "plant"), ("streamuser", "alice"), ("streamuser", "bob")):
        kube.until(f"{kind} {name} is ready", lambda at=(kind, name): kube.is_ready(*at, namespace))
    # The address outside is known once the pod has a worker; nodes check certificates every ten seconds.
    kube.until("alice comes in", lambda: comes_in(kube.client_of("alice", namespace)))
    yield cluster
    cluster.close()


def comes_in(properties: dict[str, Any]) -> bool:
    """Return whether a client can connect and list the cluster's nodes."""
    try:
        return bool(AdminClient(properties).list_topics(timeout=5).brokers)
    except KafkaException:
        return False


def produced(properties: dict[str, Any], value: bytes) -> KafkaError | None:
    """Produce one record; return the error, or None."""
    said: list[KafkaError | None] = []
    producer = Producer({**properties, "message.timeout.ms": int(20_000 * PATIENCE)})
    producer.produce(TOPIC, value, on_delivery=lambda error, _: said.append(error))
    producer.flush(30 * PATIENCE)
    return said[0]


@pytest.mark.ci_part
def test_clients_come_in_by_what_their_secrets_hold_and_by_nothing_else(secure: kube.Cluster) -> None:
    with kube.reported("12 a secure cluster: who comes in"):
        assert kube.condition(secure.body, "Secured")[:2] == ("True", "Secured")
        alice = kube.client_of("alice", secure.namespace)
        assert produced(alice, b"12 bar") is None
        consumer = Consumer({**alice, "group.id": "readers", "auto.offset.reset": "earliest"})
        consumer.subscribe([TOPIC])
        record = consumer.poll(60 * PATIENCE)
        consumer.close()
        assert record is not None
        assert record.value() == b"12 bar"
        refused = produced(kube.client_of("bob", secure.namespace), b"0 bar")
        assert refused is not None
        assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        for wrong in (
            {"bootstrap.servers": secure.bootstrap, "log_level": 0},
            {**alice, "sasl.password": "not alice's"},
            {**alice, "ssl.ca.pem": _ca("c-clients-ca", secure)},
        ):
            assert not comes_in(wrong)
        assert secure.headrace("security", "show")["on"]


IN_POD = """
    import json, socket, ssl, sys
    told = json.load(sys.stdin)
    for name in ("certificate", "key"):
        with open(f"/tmp/{name}", "w") as file:
            file.write(told[name])
    context = ssl.create_default_context(cafile="/etc/headrace/server/ca.crt")
    context.load_cert_chain("/tmp/certificate", "/tmp/key")
    plain = socket.create_connection(("localhost", told["port"]), timeout=30)
    try:
        with context.wrap_socket(plain, server_hostname="localhost") as connection:
            # ApiVersions 0: with TLS 1.3 a client learns only at its first read that its certificate was refused.
            connection.sendall(bytes.fromhex("0000000a 0012 0000 00000001 ffff"))
            print("answered" if connection.recv(4) else "ended")
    except OSError as error:
        print(type(error).__name__, error)
"""


@pytest.mark.ci_part
def test_an_additional_listener_accepts_certificates_of_the_authority_that_it_names(secure: kube.Cluster) -> None:
    with kube.reported("12 a secure cluster: a listener with an authority of clients by reference"):
        assert kube.condition(secure.body, "Certificates")[:2] == ("True", "Valid")
        ports = {each["name"]: each["port"] for each in _service("c-bootstrap", secure)["spec"]["ports"]}
        assert ports["machines"] == MACHINES_PORT
        policy = kube.get("networkpolicy", "c", secure.namespace)
        assert policy is not None
        assert {"protocol": "TCP", "port": MACHINES_PORT} in policy["spec"]["ingress"][0]["ports"]
        others = Authority.create("another company", days=30, now=time.time())
        held = kube.held("c-clients-ca", secure.namespace)
        clusters = Authority.of(KeyPair(held["ca.crt"], held["ca.key"]))
        assert answer(secure, COMPANY) == "answered"
        for other in (others, clusters):
            assert answer(secure, other) != "answered"
        assert answer(secure, COMPANY, "headrace-operator") != "answered"


def answer(cluster: kube.Cluster, authority: Authority, name: str = "press-7") -> str:
    """Return the answer of the listener `machines` to a client in a pod with a certificate of the authority."""
    shown = authority.issue(name, days=1, now=time.time(), client=True)
    told = json.dumps({"certificate": shown.certificate, "key": shown.key, "port": MACHINES_PORT})
    command = ("python", "-c", textwrap.dedent(IN_POD))
    return kube.kubectl("exec", "-i", "c-0", "-n", cluster.namespace, "--", *command, stdin=told).strip()


def _service(name: str, cluster: kube.Cluster) -> kube.Body:
    found = kube.get("service", name, cluster.namespace)
    assert found is not None
    return found


@pytest.mark.ci_part
def test_an_authority_is_renewed_while_a_client_continues(secure: kube.Cluster) -> None:
    with kube.reported("12 a secure cluster: the authority is renewed") as figures:
        alice = kube.client_of("alice", secure.namespace)
        failed: list[KafkaError] = []
        producer = Producer({**alice, "acks": "all"})
        lives, first = secure.lives(), _ca("c-cluster-ca", secure)
        kube.kubectl("annotate", "secret", "c-cluster-ca", "headrace.dev/force-renew=true", "-n", secure.namespace)
        began, written = time.monotonic(), 0

        def goes_on() -> None:
            nonlocal written
            producer.produce(TOPIC, b"x", on_delivery=lambda error, _: failed.append(error) if error else None)
            producer.poll(0)
            written += 1

        def renewed() -> bool:
            goes_on()
            current = _ca("c-cluster-ca", secure)
            # The client trusts only the new authority: nodes show its certificates.
            return current != first and comes_in({**kube.client_of("alice", secure.namespace), "ssl.ca.pem": current})

        kube.until("nodes have certificates of the new authority", renewed, timeout_s=OVERLAP_S + 3 * LOOK_S)
        figures["renewed_s"] = round(time.monotonic() - began, 1)
        assert first in _ca("c-ca", secure), "the former one is still trusted"
        goes_on()
        assert producer.flush(30 * PATIENCE) == 0
        assert failed == []
        assert secure.lives() == lives
        figures["records"] = written


@pytest.mark.ci_part
def test_secrets_are_nowhere_but_in_secrets(secure: kube.Cluster) -> None:
    """No secret is in any other object, event or log written for the cluster so far."""
    with kube.reported("12 a secure cluster: no secret is written") as figures:
        secrets = kube.secret_texts(secure.namespace)
        assert len(secrets) >= 8, "three passwords, keys of authorities and certificates, the cluster's own secret"
        kinds = kube.kubectl("api-resources", "--verbs=list", "--namespaced", "-o", "name").split()
        written = [
            kube.kubectl("get", ",".join(set(kinds) - {"secrets"}), "-n", secure.namespace, "-o", "json"),
            kube.kubectl("get", "events", "-n", kube.SYSTEM, "-o", "json"),
            kube.kubectl("logs", "deployment/headrace", "-n", kube.SYSTEM),
            str(secure.headrace("status")),
            str(secure.headrace("user", "list")),
        ]
        for pod in secure.pods():
            written.append(kube.kubectl("logs", pod["metadata"]["name"], "--all-containers", "-n", secure.namespace))
            written.append(kube.kubectl("describe", "pod", pod["metadata"]["name"], "-n", secure.namespace))
        assert all(len(text) > 100 for text in written)
        found = [(secret[:4], number) for secret in secrets for number, text in enumerate(written) if secret in text]
        assert found == [], "the beginning of each secret, and which of the texts it stands in"
        figures["secrets"] = len(secrets)
        figures["mib"] = round(sum(map(len, written)) / 2**20, 1)


def _ca(secret: str, cluster: kube.Cluster) -> str:
    """Return the certificates in a Secret's `ca.crt`."""
    return kube.held(secret, cluster.namespace)["ca.crt"]

"""A cluster with security on kind: who comes in, and an authority that is renewed while clients go on."""

import base64
import json
import time
from collections.abc import Iterator
from typing import Any

import kube
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from kit.patience import PATIENCE

TOPIC = "/plant:pumps"
OVERLAP_S = 60.0
LOOK_S = 30.0
"""What the operator and the nodes take to see that something is due, and to take it up."""


def user(name: str, namespace: str, **spec: Any) -> kube.Body:
    """Of the cluster, for clients outside."""
    return kube.resource("StreamUser", name, namespace, {"clusterRef": {"name": "c"}, "listener": "external", **spec})


@pytest.fixture(scope="module")
def secure(namespace: str) -> Iterator[kube.Cluster]:
    """A cluster of one node, alice who may use the stream /plant, and bob who may not."""
    certificates = {"overlap": f"{OVERLAP_S:.0f}s"}
    cluster = kube.Cluster("c", namespace, nodes=1, security={"enabled": True, "certificates": certificates})
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
    # Its address outside is known once the pod has a worker; nodes look for certificates every ten seconds.
    kube.until("alice comes in", lambda: comes_in(kube.client_of("alice", namespace)))
    yield cluster
    cluster.close()


def comes_in(properties: dict[str, Any]) -> bool:
    """Whether a client learns of the cluster's nodes."""
    try:
        return bool(AdminClient(properties).list_topics(timeout=5).brokers)
    except KafkaException:
        return False


def produced(properties: dict[str, Any], value: bytes) -> KafkaError | None:
    """What comes of one record."""
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


@pytest.mark.ci_part
def test_an_authority_is_renewed_while_a_client_goes_on(secure: kube.Cluster) -> None:
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
            # By the new one alone: nodes show its certificates.
            return current != first and comes_in({**kube.client_of("alice", secure.namespace), "ssl.ca.pem": current})

        kube.until("nodes have certificates of the new authority", renewed, timeout_s=OVERLAP_S + 3 * LOOK_S)
        figures["renewed_s"] = round(time.monotonic() - began, 1)
        assert first in _ca("c-ca", secure), "the former one is trusted still"
        goes_on()
        assert producer.flush(30 * PATIENCE) == 0
        assert failed == []
        assert secure.lives() == lives
        figures["records"] = written


@pytest.mark.ci_part
def test_no_secret_stands_anywhere_but_in_secrets(secure: kube.Cluster) -> None:
    """In no other object, event or log of all that was written for the cluster until now."""
    with kube.reported("12 a secure cluster: no secret is written") as figures:
        secrets = {text for body in kube.listed("secrets", secure.namespace) for text in _secret_texts(body)}
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


def _secret_texts(body: kube.Body) -> Iterator[str]:
    """What of a Secret nobody may read elsewhere: passwords, a line of each key, the cluster's own secret."""
    for name, encoded in body.get("data", {}).items():
        text = base64.b64decode(encoded).decode(errors="replace")
        if name.endswith("password"):
            yield text.strip()
        elif name.endswith(".key"):
            yield text.splitlines()[1]
        elif '"secret"' in text:
            yield json.loads(text)["secret"]


def _ca(secret: str, cluster: kube.Cluster) -> str:
    """The certificates that a Secret has as `ca.crt`."""
    return kube.held(secret, cluster.namespace)["ca.crt"]

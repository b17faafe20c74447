"""The alerts about nodes, under a Prometheus that scrapes real ones: these are killed, stopped, filled and damaged."""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer

from kit.cluster_clients import at, make_topics
from kit.cluster_nodes import Cluster, MakeCluster
from kit.node_certificates import DAY, Authority
from kit.own_ports import HOST, own_port

from .conftest import MakePrometheus
from .prometheus import Prometheus
from .promtool import promtool

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(promtool() is None, reason="needs prometheus: .ci/tools gets it"),
]

JOB = "plant"


@contextlib.contextmanager
def writing(cluster: Cluster, *topics: str, size: int = 1_000, pause_s: float = 0.02) -> Iterator[None]:
    """A producer writes to topics while inside, whether it gets an answer or not."""
    stopping = threading.Event()
    producer = Producer({**at(cluster.bootstrap), "linger.ms": 5})

    def run() -> None:
        while not stopping.wait(pause_s):
            for topic in topics:
                with contextlib.suppress(BufferError):
                    producer.produce(topic, os.urandom(size))
            producer.poll(0)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
        producer.purge()


def start_again(prometheus: Prometheus, cluster: Cluster, *numbers: int) -> None:
    """Start nodes that are down, and have them scraped where they are then."""
    cluster.start(*numbers)
    cluster.await_ready(*numbers)
    prometheus.look()


def test_nodes_that_are_lost(make_cluster: MakeCluster, make_prometheus: MakePrometheus) -> None:
    cluster, prometheus = make_cluster(), make_prometheus(20)
    cluster.admin("volume.create", {"name": "single", "replicas": 1})
    cluster.admin("stream.create", {"path": "/single", "policy": {"volume": "single"}})
    make_topics(cluster, ["all", "/single:one"], 3)
    prometheus.watch(JOB, cluster)
    with writing(cluster, "all", "/single:one"):
        alone = {each.container_id: each.primary for each in cluster.containers() if each.wanted == 1}
        assert alone
        first = cluster.number_of(next(iter(alone.values())))
        cluster.kill(first)
        prometheus.await_firing("HeadraceNodeDown", "HeadraceUnderReplicated", "HeadraceContainerWaits")
        second = next(number for number in cluster.nodes if number != first)
        cluster.kill(second)
        prometheus.await_firing("HeadraceNodeDown", "HeadraceContainerStalled", "HeadraceRequestErrors")
        start_again(prometheus, cluster, first, second)
        prometheus.await_cleared("HeadraceNodeDown", "HeadraceUnderReplicated", "HeadraceContainerWaits")
        prometheus.await_cleared("HeadraceContainerStalled", "HeadraceRequestErrors")


def test_a_store_that_is_away(make_cluster: MakeCluster, make_prometheus: MakePrometheus) -> None:
    cluster, prometheus = make_cluster(), make_prometheus(20)
    prometheus.watch(JOB, cluster)
    with contextlib.ExitStack() as away:
        for node in cluster.nodes.values():
            away.enter_context(node.fault("store-away"))
        prometheus.await_firing("HeadraceStoreSilent", "HeadraceControllerAbsent")
    prometheus.await_cleared("HeadraceStoreSilent", "HeadraceControllerAbsent")


def test_two_clusters_under_one_job(make_cluster: MakeCluster, make_prometheus: MakePrometheus) -> None:
    one, other = make_cluster(count=1), make_cluster(count=1, name="other")
    prometheus = make_prometheus(20)
    prometheus.watch(JOB, one, other)
    prometheus.await_firing("HeadraceTwoControllers")
    prometheus.watch(JOB, one)
    prometheus.watch("other", other)
    prometheus.await_cleared("HeadraceTwoControllers")


def test_certificates_and_logins(tmp_path: Path, make_cluster: MakeCluster, make_prometheus: MakePrometheus) -> None:
    authority, folder, port = Authority(), tmp_path / "tls", own_port()
    authority.node(folder, left=DAY)
    listeners = tmp_path / "listeners.toml"
    listeners.write_text(
        f'[[listener]]\nname = "users"\nport = {port}\nprotocol = "SASL_PLAINTEXT"\nmechanisms = ["SCRAM-SHA-512"]\n'
    )
    cluster = make_cluster(f"--peer-tls={folder}", f"--listeners={listeners}", count=1)
    prometheus = make_prometheus(60)
    prometheus.watch(JOB, cluster)
    prometheus.await_firing("HeadraceCertificateExpires", "HeadraceCertificateExpiresNow")
    authority.node(folder, left=5 * DAY)
    prometheus.await_cleared("HeadraceCertificateExpiresNow")
    prometheus.await_firing("HeadraceCertificateExpires")
    authority.node(folder, left=30 * DAY)
    prometheus.await_cleared("HeadraceCertificateExpires")

    wrong = {
        **at(f"{HOST}:{port}"),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": "no longer right",
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 100,
    }
    clients = [Producer(wrong) for _ in range(8)]

    def log_in() -> None:
        for each in clients:
            with contextlib.suppress(KafkaException):
                each.list_topics(timeout=0.1)

    prometheus.await_firing("HeadraceLoginsRefused", step=log_in)
    clients.clear()
    prometheus.await_cleared("HeadraceLoginsRefused")

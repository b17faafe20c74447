"""The alerts about nodes, in a Prometheus that scrapes real nodes, which are killed, stopped, filled and damaged."""

import contextlib
import itertools
import json
import os
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from headrace.kafka_client.blocking_client import BrokerConnection
from headrace.log.files import FILE_HEAD_BYTES
from kit.cluster_clients import at, make_topics
from kit.cluster_nodes import Cluster, MakeCluster, until
from kit.damaged_files import flip
from kit.node_certificates import DAY, Authority
from kit.own_ports import HOST, own_port

from .conftest import METRICS, MakePrometheus
from .prometheus import Prometheus
from .promtool import promtool

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(promtool() is None, reason="needs prometheus: .ci/tools gets it"),
]

JOB = "plant"
SMALL_CHUNKS = "--chunk-bytes=262144"
PULSE_S = 0.2
"""Seconds that a processor or a disk stalls at a time: far more than the alerts' 0.05 and 0.1 s."""
SLOW = {"HeadraceLoopLag", "HeadraceSyncSlow"}
"""Alerts that a busy machine may trigger by itself."""


@contextlib.contextmanager
def writing(cluster: Cluster, *topics: str, size: int = 1_000, pause_s: float = 0.02) -> Iterator[None]:
    """Run a producer to topics while the context is active, whether or not it gets answers."""
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
    """Restart nodes that are down, and scrape them at their new ports."""
    cluster.start(*numbers)
    cluster.await_ready(*numbers)
    prometheus.look()


def busiest(cluster: Cluster) -> int:
    """Return the node that leads most containers."""
    led = [each.leader for each in cluster.containers() if each.state != "deleted"]
    return cluster.number_of(max(led, key=led.count))


def test_nodes_that_are_lost(make_cluster: MakeCluster, make_prometheus: MakePrometheus) -> None:
    cluster, prometheus = make_cluster(), make_prometheus(20)
    cluster.admin("volume.create", {"name": "single", "replicas": 1})
    cluster.admin("stream.create", {"path": "/single", "policy": {"volume": "single"}})
    make_topics(cluster, ["all", "/single:one"], 3)
    prometheus.watch(JOB, cluster)
    with writing(cluster, "all", "/single:one"):
        alone = {each.container_id: each.leader for each in cluster.containers() if each.wanted == 1}
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


def test_a_node_that_is_no_target(make_cluster: MakeCluster, make_prometheus: MakePrometheus) -> None:
    """A pod without a worker has no address, so Prometheus on Kubernetes does not know it."""
    cluster, prometheus = make_cluster(), make_prometheus(20)
    prometheus.watch(JOB, cluster)
    cluster.kill(3)
    prometheus.look(away={3})
    prometheus.await_firing("HeadraceNodeMissing")
    assert "HeadraceNodeDown" not in prometheus.firing()
    start_again(prometheus, cluster, 3)
    prometheus.await_cleared("HeadraceNodeMissing")


def test_a_rolling_restart_is_silent(make_cluster: MakeCluster, make_prometheus: MakePrometheus) -> None:
    """Six times as fast: what may take 3 minutes has to be over in 30 s."""
    cluster, prometheus = make_cluster(), make_prometheus(6)
    make_topics(cluster, ["all"], 3)
    prometheus.watch(JOB, cluster)
    with writing(cluster, "all"):
        began = time.monotonic()
        for number in cluster.nodes:
            cluster.terminate(number)
            start_again(prometheus, cluster, number)
            cluster.await_whole()
        prometheus.until(
            "metrics say so", lambda: not prometheus.query('headrace_containers{state=~"behind|stalled|waiting"} > 0')
        )
    assert prometheus.fired(within_s=time.monotonic() - began + 1) <= SLOW


def test_a_node_that_restarts_again_and_again(make_cluster: MakeCluster, make_prometheus: MakePrometheus) -> None:
    cluster, prometheus = make_cluster(), make_prometheus(20)
    prometheus.watch(JOB, cluster)

    def starts() -> set[str]:
        return {each["value"][1] for each in prometheus.query("headrace_start_time_seconds")}

    def restart() -> None:
        known = starts()
        cluster.kill(3)
        start_again(prometheus, cluster, 3)
        prometheus.until("its start is known", lambda: starts() - known)

    prometheus.await_firing("HeadraceNodeRestarts", step=restart)
    prometheus.await_cleared("HeadraceNodeRestarts")


def test_nodes_that_stand_still_in_turn(make_cluster: MakeCluster, make_prometheus: MakePrometheus) -> None:
    cluster, prometheus = make_cluster(), make_prometheus(20)
    prometheus.watch(JOB, cluster)

    def stop_a_leader() -> None:
        number = busiest(cluster)
        node = cluster.nodes[number].node_id
        with cluster.paused(number):
            until("others lead", lambda: all(each.leader != node for each in cluster.containers()))
        cluster.await_whole()

    prometheus.await_firing("HeadraceFailoverStorm", within_s=300, step=stop_a_leader)
    prometheus.await_cleared("HeadraceFailoverStorm")


def test_a_slow_processor_and_a_slow_disk(make_cluster: MakeCluster, make_prometheus: MakePrometheus) -> None:
    cluster, prometheus = make_cluster(count=1), make_prometheus(20)
    node = cluster.nodes[1]
    make_topics(cluster, ["all"], 1)
    prometheus.watch(JOB, cluster)

    def hold_the_disk() -> None:
        with node.fault("sync-hangs"):
            time.sleep(PULSE_S)  # the fault's length
        time.sleep(PULSE_S / 4)

    def take_the_processor() -> None:
        node.send(signal.SIGSTOP)
        time.sleep(PULSE_S)  # the fault's length
        node.send(signal.SIGCONT)
        time.sleep(PULSE_S)

    with writing(cluster, "all"):
        prometheus.await_firing("HeadraceSyncSlow", step=hold_the_disk)
        prometheus.await_cleared("HeadraceSyncSlow")
        prometheus.await_firing("HeadraceLoopLag", step=take_the_processor)
        prometheus.await_cleared("HeadraceLoopLag")


@contextlib.contextmanager
def limited(folder: Path, *, port: int, descriptors: int, connections: int) -> Iterator[int]:
    """A node with a limited number of descriptors (`ulimit -n`); yields the port of its metrics."""
    folder.mkdir(exist_ok=True)
    ready = folder / "ready"
    ready.unlink(missing_ok=True)
    command = [sys.executable, "-m", "headrace.node", f"--data={folder / 'data'}", f"--store={folder / 'store'}"]
    command += [f"--port={port}", METRICS, f"--ready-file={ready}", f"--max-connections={connections}"]
    command += [f"--max-connections-per-ip={connections}"]
    with (folder / "log").open("ab") as log:
        node = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors)),
        )
    try:
        until("the node is ready", ready.exists)
        yield int(json.loads(ready.read_text())["metrics_port"])
    finally:
        node.kill()
        node.wait()


def test_limits_that_are_near(tmp_path: Path, make_prometheus: MakePrometheus) -> None:
    prometheus, folder, port = make_prometheus(20), tmp_path / "node", own_port()
    serial = itertools.count()
    with limited(folder, port=port, descriptors=512, connections=20) as metrics_port:
        prometheus.scrape(JOB, metrics_port)
        with contextlib.ExitStack() as clients:
            for _ in range(19):
                clients.enter_context(contextlib.closing(greeted(port)))
            prometheus.await_firing("HeadraceConnectionsNearLimit")
        prometheus.await_cleared("HeadraceConnectionsNearLimit")

        # Client connections are refused long before; containers are what opens more and more files.
        with BrokerConnection(HOST, port, "test", 30.0) as connection:
            producer = Producer(at(f"{HOST}:{port}"))

            def one_more() -> None:
                used = prometheus.query("headrace_open_descriptors / headrace_descriptors_limit > 0.8")
                if used:
                    time.sleep(1.5)  # so that it is scraped before the next one opens
                if used and float(used[0]["value"][1]) > 0.91:
                    return
                name = f"v{next(serial)}"
                connection.admin("volume.create", {"name": name, "replicas": 1})
                connection.admin("stream.create", {"path": f"/{name}", "policy": {"volume": name}})
                producer.produce(f"/{name}:t", b"a record")
                assert producer.flush(60) == 0

            prometheus.await_firing("HeadraceDescriptorsNearLimit", step=one_more)
    with limited(folder, port=port, descriptors=2_048, connections=20) as metrics_port:
        prometheus.scrape(JOB, metrics_port)
        prometheus.await_cleared("HeadraceDescriptorsNearLimit")


def greeted(port: int) -> socket.socket:
    """Return an idle connection of a client that has sent ApiVersions 0."""
    connection = socket.create_connection((HOST, port), timeout=30)
    request = b"\x00\x12\x00\x00\x00\x00\x00\x01\xff\xff"  # key 18, version 0, correlation 1, no client id
    connection.sendall(len(request).to_bytes(4, "big") + request)
    assert connection.recv(4)
    return connection


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


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a separate file system as the folder of node 3; skipped without the right to mount."""
    folder = tmp_path / "plant" / "node-3"
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=256m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs the right to mount a file system that can be filled")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(path: Path, *, free: float) -> None:
    """Grow a file until a given share of its file system is free."""
    disk = shutil.disk_usage(path.parent)
    with path.open("ab") as file:
        begin, size = file.tell(), max(int(disk.free - disk.total * free), 1)
        os.posix_fallocate(file.fileno(), begin, size)


def test_a_disk_that_fills(small_disk: Path, make_cluster: MakeCluster, make_prometheus: MakePrometheus) -> None:
    cluster, prometheus = make_cluster(SMALL_CHUNKS, f"--disk-reserve={8 << 20}"), make_prometheus(60)
    make_topics(cluster, ["all"], 3)
    filler = small_disk / "filler"
    fill(filler, free=0.48)
    prometheus.watch(JOB, cluster)

    def grow() -> None:
        with filler.open("ab") as file:
            os.posix_fallocate(file.fileno(), file.tell(), 1 << 19)
        time.sleep(1)  # the rate at which it fills

    prometheus.await_firing("HeadraceDiskFullSoon", step=grow)
    fill(filler, free=0.02)  # less than the reserve, which is not available to records
    with writing(cluster, "all", size=20_000):
        prometheus.await_firing("HeadraceDiskLow", "HeadraceDiskFull", "HeadraceNodeNotReady")
    filler.unlink()
    prometheus.await_cleared("HeadraceDiskLow", "HeadraceDiskFull", "HeadraceDiskFullSoon", "HeadraceNodeNotReady")


def test_damage_on_disks(make_cluster: MakeCluster, make_prometheus: MakePrometheus) -> None:
    cluster, prometheus = make_cluster(SMALL_CHUNKS), make_prometheus(360)
    make_topics(cluster, ["all"], 3)
    prometheus.watch(JOB, cluster)
    with writing(cluster, "all", size=20_000):
        chunk = until("a chunk is full", lambda: full_chunk(cluster, 3))
    cluster.await_whole()
    flip(chunk, FILE_HEAD_BYTES + 3_000)
    cluster.admin("scrub.start", node=3)
    prometheus.await_firing("HeadraceScrubFoundDamage")
    cluster.await_whole()

    follower = next(n for n, node in cluster.nodes.items() if node.node_id != cluster.catalog().leader)
    cluster.ways.isolate(follower)  # otherwise it gets its tables from the others within a moment
    tables = cluster.nodes[follower].data / "catalog" / "catalog.sqlite"
    with contextlib.closing(sqlite3.connect(tables, isolation_level=None, timeout=30)) as connection:
        assert connection.execute("UPDATE streams SET created = created + 1").rowcount > 0
    cluster.admin("scrub.start", node=follower)
    prometheus.await_firing("HeadraceCatalogDamaged")
    cluster.ways.heal()
    prometheus.await_cleared("HeadraceScrubFoundDamage", "HeadraceCatalogDamaged")


def full_chunk(cluster: Cluster, number: int) -> Path | None:
    """Return a closed chunk of records on a node's disk."""
    for folder in (cluster.nodes[number].data / "containers").iterdir():
        chunks = sorted(folder.glob("*.chunk"))
        if len(chunks) > 1 and folder.name != str(cluster.catalog().container_id):
            return chunks[0]
    return None


def test_a_group_whose_consumer_is_gone(make_cluster: MakeCluster, make_prometheus: MakePrometheus) -> None:
    cluster, prometheus = make_cluster(count=1), make_prometheus(60)
    make_topics(cluster, ["all"], 1)
    prometheus.watch(JOB, cluster)

    def joined() -> Consumer:
        made = Consumer({**at(cluster.bootstrap), "group.id": "billing", "auto.offset.reset": "earliest"})
        made.subscribe(["all"])
        return made

    def reading(consumer: Consumer) -> Callable[[], object]:
        return lambda: consumer.consume(1_000, 0.2)

    with writing(cluster, "all"):
        consumer = joined()
        prometheus.until(
            "the group has a member that has read something",
            lambda: prometheus.query('headrace_group_members{group="billing"} == 1'),
            step=reading(consumer),
        )
        consumer.close()
        prometheus.await_firing("HeadraceGroupLag")
        consumer = joined()
        prometheus.await_cleared("HeadraceGroupLag", step=reading(consumer))
        consumer.close()


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

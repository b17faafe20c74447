"""Headrace's monitoring: Prometheus scrapes what the PodMonitors select, and alerts fire and clear."""

import json
import re
import time
from collections.abc import Iterator

import kube
import monitoring
import pytest
from confluent_kafka import Producer
from rolls import roll
from streamjobs import Job

from headrace.security.certificate_authority import Authority
from kit.cluster_clients import END_S, Load, at, make_topics
from kit.patience import PATIENCE

BEHAVIOUR = "13 observability"
STACK = "kube-prometheus-stack"
OF_THE_MACHINE = (
    *("HeadraceLoopLag", "HeadraceSyncSlow", "HeadraceDiskLow", "HeadraceDiskFull", "HeadraceDiskFullSoon"),
)
"""Alerts that are disabled: they would report that the tests' machine is slow or full."""
MEMORY_MIB = 150.0
SCRAPED_S = 30.0
AWAY_S = 240.0
DAYS_SOON = 10
MAY_HAVE_NOTHING = {
    # Only with metrics by topic, after a failure, or with security.
    *("Errors that clients get", "Errors", "Certificate", "Throttled", "Logins", "Not as asked for"),
    *("Without series of their own", "Records of topics", "Failovers, rolls, moves"),
}
BOARDS = ("cluster", "node", "streams", "operator")
BACKLOG = 4_000
RECORD_BYTES = 1_000
SLOW = "4Ki"
HELD_BACK_S = BEHIND_S = 300 / monitoring.HURRY


@pytest.fixture(scope="module", autouse=True)
def monitored(kind: None) -> Iterator[None]:
    """The charts, installed as for kube-prometheus-stack."""
    monitoring.install_crds()
    values = {
        "metrics.podMonitor.enabled": "true",
        "metrics.podMonitor.labels.release": STACK,
        "metrics.prometheusRule.enabled": "true",
        "metrics.prometheusRule.labels.release": STACK,
        "metrics.prometheusRule.disabled": f"{{{','.join(OF_THE_MACHINE)}}}",
        "metrics.dashboards.enabled": "true",
    }
    kube.install(**values)
    yield
    kube.install()
    monitoring.delete_crds()


@pytest.fixture(scope="module")
def prometheus(monitored: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[monitoring.Prometheus]:
    with monitoring.running(tmp_path_factory.mktemp("prometheus")) as found:
        yield found


def test_the_api_server_takes_pod_monitors_and_rules_as_they_are() -> None:
    """With strict validation: otherwise unknown fields would be dropped silently."""
    with kube.reported(f"{BEHAVIOUR}: the API server takes all that the chart makes"):
        manifest = kube.run("helm", "get", "manifest", "headrace", "-n", kube.SYSTEM)
        strictly = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict")
        said = kube.kubectl(*strictly, "-n", kube.SYSTEM, "-f", "-", stdin=manifest)
        assert said.count("podmonitor.monitoring.coreos.com/") == 3
        assert said.count("prometheusrule.monitoring.coreos.com/") == 1
        for kind in monitoring.KINDS:
            found = kube.listed(f"{kind}.monitoring.coreos.com", kube.SYSTEM, labels=f"release={STACK}")
            assert len(found) == {"podmonitors": 3, "prometheusrules": 1}[kind]
            assert all(each["spec"] for each in found)


def test_prometheus_scrapes_nodes_and_operator_and_dashboards_show_them(
    three: kube.Cluster, prometheus: monitoring.Prometheus
) -> None:
    with kube.reported(f"{BEHAVIOUR}: Prometheus scrapes what the PodMonitors choose") as figures:
        load = Load(three)
        of = f'namespace="{three.namespace}",job="{three.name}"'

        def scraped() -> bool:
            nodes = {each.labels["pod"] for each in prometheus.query(f"up{{{of}}} == 1")}
            assert nodes == {f"{three.name}-{index}" for index in range(3)}, nodes
            assert prometheus.query('up{job="headrace-operator"} == 1'), "the operator"
            return True

        began = time.monotonic()
        kube.until("all targets are scraped", scraped, timeout_s=SCRAPED_S)
        figures["scraped_s"] = round(time.monotonic() - began, 1)
        assert {int(each.labels["node"]) for each in prometheus.query(f"headrace_ready{{{of}}} == 1")} == three.ids()
        # `container` is both a label of Headrace and a label of every target.
        led = {int(each.labels["container"]) for each in prometheus.query(f"headrace_container_leads{{{of}}} == 1")}
        assert led == set(three.containers())
        assert not prometheus.query(f'headrace_container_leads{{{of},exported_container!=""}}')
        ready = 'headrace_operator_objects{kind="StreamCluster",condition="Ready",status="True"} >= 1'
        assert prometheus.query(ready)

        def shown() -> bool:
            silent = without_data(prometheus, three) - MAY_HAVE_NOTHING
            assert not silent, silent
            return True

        kube.until("all panels show something", shown, timeout_s=SCRAPED_S, every_s=3)
        load.finish()
        (scraped_bytes,) = prometheus.query('process_resident_memory_bytes{job="headrace-operator"}')
        memory = max(kube.operator_process()[0], scraped_bytes.value / 2**20)
        assert memory < MEMORY_MIB
        figures["operator_memory_mib"] = f"{memory:.0f} (below {MEMORY_MIB:.0f})"


def without_data(prometheus: monitoring.Prometheus, cluster: kube.Cluster) -> set[str]:
    """Return the titles of panels without data of the cluster and the operator, from the dashboards that Grafana's
    sidecar finds.
    """
    found = set()
    for name in BOARDS:
        (board,) = (
            json.loads(text)
            for each in kube.listed("configmaps", kube.SYSTEM, labels="grafana_dashboard=1")
            for file, text in each["data"].items()
            if file == f"headrace-{name}.json"
        )
        namespace, job = (kube.SYSTEM, "headrace-operator") if name == "operator" else (cluster.namespace, cluster.name)
        for panel in board["panels"]:
            for target in panel.get("targets", []):
                expression = target["expr"].replace("$__rate_interval", "20s")
                expression = expression.replace('"$namespace"', f'"{namespace}"').replace('"$job"', f'"{job}"')
                if not prometheus.query(re.sub(r'"\$\w+"', '".*"', expression)):
                    found.add("Records of topics" if "_topic_" in expression else str(panel["title"]))
    return found


def test_no_alert_fires_while_pods_are_recreated(three: kube.Cluster, prometheus: monitoring.Prometheus) -> None:
    prometheus.await_calm()
    since = time.monotonic()
    roll(three, behaviour=f"{BEHAVIOUR}: a rolling restart", pod={"labels": {"rolled": "once"}})
    # Faults that remain after the last pod's start fire once that start no longer holds alerts back.
    of = f'namespace="{three.namespace}",job="{three.name}"'
    over = f"min(time() - headrace_start_time_seconds{{{of}}}) > {HELD_BACK_S}"
    kube.until("it is over for the alerts too", lambda: prometheus.query(over), timeout_s=2 * HELD_BACK_S, every_s=1)
    with kube.reported(f"{BEHAVIOUR}: no alert in a rolling restart") as figures:
        figures["calm_s"] = prometheus.await_calm()
        assert prometheus.fired_since(since) == []


def test_a_node_that_hangs_is_reported(three: kube.Cluster, prometheus: monitoring.Prometheus) -> None:
    pod = f"{three.name}-1"
    prometheus.await_calm()
    with kube.reported(f"{BEHAVIOUR}: HeadraceNodeDown, of a node that hangs") as figures:
        three.signal(pod, "STOP")
        try:
            alert = "HeadraceNodeDown"
            figures["fires_s"] = prometheus.await_firing(
                alert, namespace=three.namespace, job=three.name, pod=pod, severity="warning"
            )
        finally:
            three.signal(pod, "CONT")
        figures["clears_s"] = prometheus.await_calm()
        three.await_ready()


def test_a_pod_that_cannot_be_scheduled_is_reported(three: kube.Cluster, prometheus: monitoring.Prometheus) -> None:
    """The pod is no target of Prometheus, so no `up` is 0: the other nodes and the operator report it."""
    pod = f"{three.name}-2"
    worker = next(each["spec"]["nodeName"] for each in three.pods() if each["metadata"]["name"] == pod)
    of = f'namespace="{three.namespace}",job="{three.name}"'
    prometheus.await_calm()
    with kube.reported(f"{BEHAVIOUR}: HeadraceUnderReplicated and HeadraceResourceNotReady") as figures:
        kube.kubectl("cordon", worker)
        try:
            kube.kubectl("delete", "pod", pod, "-n", three.namespace)
            names = ("HeadraceNodeMissing", "HeadraceUnderReplicated", "HeadraceResourceNotReady")
            figures["fires_s"] = prometheus.await_firing(*names, timeout_s=AWAY_S)
            assert {each.labels["pod"] for each in prometheus.query(f"up{{{of}}}")} == {
                f"{three.name}-{index}" for index in (0, 1)
            }
        finally:
            kube.kubectl("uncordon", worker)
        figures["clears_s"] = prometheus.await_calm()
        three.await_ready()


def test_an_operator_that_is_away_is_reported(prometheus: monitoring.Prometheus) -> None:
    prometheus.await_calm()
    with kube.reported(f"{BEHAVIOUR}: HeadraceOperatorAbsent") as figures:
        scale = ("scale", "deployment/headrace", "-n", kube.SYSTEM)
        kube.kubectl(*scale, "--replicas=0")
        try:
            figures["fires_s"] = prometheus.await_firing("HeadraceOperatorAbsent", severity="warning")
        finally:
            kube.kubectl(*scale, "--replicas=1")
        figures["clears_s"] = prometheus.await_calm()


def test_a_certificate_that_expires_soon_is_reported_until_it_is_replaced(
    namespace: str, prometheus: monitoring.Prometheus
) -> None:
    """On a secure cluster, whose metrics are scraped like those of others."""
    listener = {"name": "own", "port": 9300, "certificate": {"secretRef": {"name": "own"}}}
    cluster = kube.Cluster(
        "secure", namespace, nodes=1, security={"enabled": True}, listeners={"additional": [listener]}
    )
    with kube.reported(f"{BEHAVIOUR}: HeadraceCertificateExpires") as figures:
        show(cluster, days=DAYS_SOON)
        cluster.apply()
        kube.until("the condition reports it", lambda: cluster.condition("Certificates")[1] == "CertificateExpires")
        of = {"namespace": namespace, "job": cluster.name, "listener": "own"}
        figures["fires_s"] = prometheus.await_firing("HeadraceCertificateExpires", timeout_s=180, **of)
        assert not prometheus.firing("HeadraceCertificateExpiresNow")
        show(cluster, days=90)
        figures["clears_s"] = prometheus.await_calm()
        kube.until("so does the condition", lambda: cluster.condition("Certificates")[0] == "True")
    kube.kubectl("delete", "streamcluster", cluster.name, "-n", namespace)


def show(cluster: kube.Cluster, *, days: int) -> None:
    """Put a certificate of a company's authority that is valid for `days` into the Secret `own`."""
    company = Authority.create("company", days=365, now=time.time())
    hosts = [f"{cluster.name}-bootstrap.{cluster.namespace}.svc"]
    shown = company.issue("own", days=days, now=time.time(), hosts=hosts, client=False)
    kube.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "metadata": {"name": "own", "namespace": cluster.namespace},
            "stringData": {"tls.crt": shown.certificate, "tls.key": shown.key, "ca.crt": company.certificate},
        }
    )


def test_a_link_that_cannot_keep_up_is_reported(
    three: kube.Cluster, namespace: str, prometheus: monitoring.Prometheus
) -> None:
    """The link's throttle holds it back; it is raised, as in the runbook."""
    south = kube.Cluster("south", namespace, nodes=1)
    south.apply()
    south.await_ready()
    prometheus.await_calm()
    with kube.reported(f"{BEHAVIOUR}: HeadraceLinkLag") as figures:
        topic = "copied"
        make_topics(three, [topic], 1)
        producer = Producer({**at(three.bootstrap), "compression.type": "none", "batch.size": 16 * RECORD_BYTES})
        for number in range(BACKLOG):
            producer.produce(topic, f"{number:0{RECORD_BYTES}}", partition=0)
        assert producer.flush(END_S) == 0
        spec = {
            "clusterRef": {"name": south.name},
            "source": {"clusterRef": {"name": three.name}, "stream": "/default"},
            "target": {"stream": "/default"},
            "topics": [topic],
            "mode": "OneWay",
            "reclaimPolicy": "Delete",
        }
        kube.apply(kube.resource("ReplicationLink", "slow", namespace, {**spec, "throttle": SLOW}))
        figures["fires_s"] = prometheus.await_firing(
            "HeadraceLinkLag", namespace=namespace, job=south.name, link="slow", timeout_s=4 * BEHIND_S + 120
        )
        kube.apply(kube.resource("ReplicationLink", "slow", namespace, {**spec, "throttle": "100Mi"}))
        caught_up = ("wait", "replicationlink/slow", "-n", namespace, "--for=condition=CaughtUp", "--timeout=180s")
        kube.kubectl(*caught_up, timeout_s=200)
        figures["clears_s"] = prometheus.await_calm()
    kube.kubectl("delete", "replicationlink", "slow", "-n", namespace)


def test_a_driver_of_a_stream_job_is_scraped(
    three: kube.Cluster, prometheus: monitoring.Prometheus, spark_worker: str
) -> None:
    make_topics(three, ["readings", "capitals"], 1)
    job = Job(
        three,
        "capitals",
        input={"stream": "/default", "topics": ["readings"]},
        output={"stream": "/default", "topic": "capitals"},
        application={"sql": "SELECT key, upper(CAST(value AS STRING)) AS value FROM input"},
        trigger={"interval": "2s"},
        pod={"nodeSelector": {"kubernetes.io/hostname": spark_worker}},
    )
    with kube.reported(f"{BEHAVIOUR}: a StreamJob's driver is scraped") as figures:
        job.apply()
        job.await_state("Running")
        producer = Producer(at(three.bootstrap))
        producer.produce("readings", b"hello")
        assert producer.flush(END_S * PATIENCE) == 0
        of = f'namespace="{three.namespace}",job="{job.name}"'
        began = time.monotonic()
        running = f'headrace_job_state{{{of},state="Running"}} == 1'
        kube.until("it runs, by its metrics", lambda: prometheus.query(running), timeout_s=SCRAPED_S)
        kube.until(
            "its records are counted",
            lambda: [each for each in prometheus.query(f"headrace_job_records_total{{{of}}}") if each.value >= 1],
        )
        figures["scraped_s"] = round(time.monotonic() - began, 1)
        (told,) = prometheus.query(running)
        assert told.labels["streamjob"] == f"{three.namespace}.{job.name}"
    job.delete()

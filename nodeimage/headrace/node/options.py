"""The command line of a storage node: `python -m headrace.node`."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace.partitions.cluster_layout import NodeSettings
from headrace.security.access_rules import Permission
from headrace.security.audit import LOGIN
from headrace.security.peer_tls import PeerTlsMode
from headrace.tracing.endpoint import TracingRefused, checked_endpoint

MINIMA = {
    "chunk_bytes": 64 * 1024,
    "container_bytes": 64 * 1024,
    "partitionlet_bytes": 1024,
    "disk_quota": 0,
    "disk_reserve": 0,
    "rebalance_delay_ms": 0,
    "snapshot_rate": 0,
    "max_connections": 0,
    "max_connections_per_ip": 0,
    "connections_max_idle_ms": 1000,
    "metrics_topics": 0,
}
"""Smallest values of options. With smaller chunks, containers or partitionlets a node would do nothing but create files
and rolls."""
AUDITED = (*map(str, Permission), LOGIN)
"""Actions that the audit can also record when they are allowed."""


@dataclass(frozen=True, slots=True)
class KubernetesCluster:
    """The cluster store is in Kubernetes. `record`: the mounted file with the cluster's own record."""

    name: str
    namespace: str
    record: Path
    api: str = ""
    """The API server's address; "": as pods find it."""
    token: Path | None = None
    """With `api`: the file with the token for it."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a storage node."""

    data: Path
    store: Path | KubernetesCluster
    host: str
    port: int
    ready_file: Path | None
    settings: NodeSettings
    peer_port: int = 0
    bind: str = ""
    """Address to listen at; "": the same as `host`."""
    peer_host: str = ""
    listeners: dict[str, int] = field(default_factory=dict)
    """Further ports for clients, by the listener's name."""
    secure: bool = False
    """Whether to turn the cluster's security on."""
    bootstrap_admin: Path | None = None
    """The file with the administrator of a cluster that has none (node.bootstrap_admin)."""
    allow_anonymous: bool = False
    """Whether listeners beyond loopback may let anybody in."""
    listeners_file: Path | None = None
    """The file with further listeners and their protocols (security.listener_config)."""
    peer_tls: Path | None = None
    """The folder with the certificates that nodes show each other (security.peer_tls); None: nodes speak in clear."""
    peer_tls_mode: PeerTlsMode = PeerTlsMode.REQUIRE
    peer_secrets: Path | None = None
    """The file with the secrets by which nodes authenticate each other (node.peer_secrets)."""
    admin_port: int | None = None
    """Port for health, metrics and calls that change something, over HTTP; 0: a free port; None: not served."""
    metrics_port: int | None = None
    """Port for health and metrics only, on loopback; 0: a free port; None: not served."""
    admin_token_file: Path | None = None
    """The file with a token. Callers from other hosts that show it may make calls that change something; None: only
    this host may."""
    slot: str = ""
    first_nodes: int = 1
    failure_host: str = ""
    zone: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    rebuild_after_s: float = 600.0
    audit_allowed: frozenset[str] = frozenset()
    """Actions that the audit also records when they are allowed, not only when they are refused."""
    tracing_endpoint: str = ""
    """The address of the collector that traces are sent to; "": as OpenTelemetry's environment variables say."""


def parse(arguments: Sequence[str]) -> Options:
    """Parse `arguments`; exits with a usage message if they are wrong."""
    parser = argparse.ArgumentParser(
        prog="headrace.node", description="One storage node of a cluster.", allow_abbrev=False
    )
    parser.add_argument("--data", type=Path, required=True, help="this node's folder")
    store = parser.add_mutually_exclusive_group(required=True)
    store.add_argument("--store", type=Path, help="the cluster store's SQLite file")
    store.add_argument(
        "--kubernetes", metavar="NAMESPACE/CLUSTER", help="keep the cluster store in Kubernetes, for this cluster"
    )
    parser.add_argument("--cluster-record", type=Path, help="with --kubernetes: file with the cluster's own record")
    parser.add_argument("--kubernetes-api", default="", help="address of the API server, if this is not a pod")
    parser.add_argument("--kubernetes-token", type=Path, help="with --kubernetes-api: file with a token for it")
    parser.add_argument("--host", default="127.0.0.1", help="host name that clients receive as this node's address")
    parser.add_argument("--bind", default="", help="address to listen at, if it is not --host")
    parser.add_argument("--peer-host", default="", help="where other nodes reach this one, if it is not --host")
    parser.add_argument(
        "--listener",
        action="append",
        default=[],
        metavar="NAME=PORT",
        help="one more port for clients, which receive the nodes' addresses at that listener",
    )
    parser.add_argument("--listeners", type=Path, metavar="FILE", help="listeners with TLS and SASL, or without (TOML)")
    parser.add_argument(
        "--secure", action="store_true", help="turn the cluster's security on: clients may do only what is allowed"
    )
    parser.add_argument(
        "--bootstrap-admin",
        type=Path,
        metavar="FILE",
        help="user and password (TOML) of the administrator to create, if there is none",
    )
    parser.add_argument(
        "--allow-anonymous",
        action="store_true",
        help="without --secure: accept unauthenticated clients at addresses other than loopback",
    )
    parser.add_argument(
        "--admin-port",
        type=int,
        help="health, metrics, and calls that change something, over HTTP; 0: a free port",
    )
    parser.add_argument(
        "--metrics-port",
        type=int,
        help="health and metrics alone, at 127.0.0.1; 0: a free port; below 0: none",
    )
    parser.add_argument(
        "--admin-token-file",
        type=Path,
        metavar="FILE",
        help="with --admin-port: file with a token, with which other hosts may do what this host may",
    )
    parser.add_argument(
        "--slot",
        default="",
        help="name of the place where this process runs: with a new folder it replaces the node that ran there",
    )
    parser.add_argument("--port", type=int, default=0, help="for Kafka clients; 0: any free one")
    parser.add_argument("--peer-port", type=int, default=0, help="for the other nodes; 0: any free one")
    parser.add_argument(
        "--peer-tls",
        type=Path,
        metavar="DIR",
        help="folder with tls.crt, tls.key and ca.crt: nodes use TLS with each other",
    )
    parser.add_argument(
        "--peer-tls-mode",
        choices=[mode.value for mode in PeerTlsMode],
        help="with --peer-tls: whether peers may omit TLS; `require` by default",
    )
    parser.add_argument(
        "--peer-secrets",
        type=Path,
        metavar="FILE",
        help="secrets by which nodes authenticate each other, if it exists, instead of the one in the cluster's record",
    )
    parser.add_argument("--ready-file", type=Path, help="written as JSON once the node serves")
    parser.add_argument(
        "--first-nodes",
        type=int,
        default=1,
        help="in a new cluster: nodes to wait for before the first containers are created",
    )
    parser.add_argument(
        "--failure-host",
        default="",
        help="failure domain of this node, for the spread of replicas; none: this host's name",
    )
    parser.add_argument(
        "--zone", default="", help="this node's zone: volumes can choose zones, and Kafka's clients see it as the rack"
    )
    parser.add_argument(
        "--label", action="append", default=[], metavar="KEY=VALUE", help="a label by which volumes choose nodes"
    )
    parser.add_argument(
        "--audit-allowed",
        default="",
        metavar="ACTION,...",
        help=f"actions that the audit records also when they are allowed: any of {', '.join(AUDITED)}",
    )
    parser.add_argument(
        "--tracing-endpoint",
        default="",
        metavar="URL",
        help="collector of OpenTelemetry traces over HTTP, such as http://localhost:4318",
    )
    parser.add_argument(
        "--rebuild-after-s",
        type=float,
        default=600.0,
        help="seconds after which a missing node's replicas are recreated elsewhere",
    )
    defaults = NodeSettings()
    for name, what in (
        ("chunk-bytes", "largest chunk file, in bytes"),
        ("container-bytes", "bytes at which a container closes"),
        ("partitionlet-bytes", "bytes at which a partition rolls into a new partitionlet"),
        ("disk-quota", "most bytes that this node keeps; 0: no limit"),
        ("disk-reserve", "bytes of the disk that new chunks leave free"),
        ("rebalance-delay-ms", "milliseconds that a group's first rebalance waits for members"),
        (
            "snapshot-rate",
            "bytes per second of catalog snapshots that this node sends to joining nodes, in total; 0: no limit",
        ),
        ("max-connections", "most client connections; 0: as many as file descriptors allow"),
        ("max-connections-per-ip", "most client connections from one address; 0: half of --max-connections"),
        ("connections-max-idle-ms", "milliseconds without a request after which a client's connection is closed"),
        ("metrics-topics", "most topics whose traffic /metrics reports by topic; 0: none"),
    ):
        parser.add_argument(f"--{name}", type=int, default=getattr(defaults, name.replace("-", "_")), help=what)
    parser.add_argument("--no-fsync", action="store_true", help="acknowledge from the page cache (durability: memory)")
    given = parser.parse_args(arguments)
    for name, least in MINIMA.items():
        if getattr(given, name) < least:
            parser.error(f"--{name.replace('_', '-')} is {getattr(given, name)}; the least is {least}")
    labels = dict(label.partition("=")[::2] for label in given.label)
    listeners: dict[str, int] = {}
    for each in given.listener:
        name, _, port = each.partition("=")
        if not name or not port.isdecimal():
            parser.error(f"--listener is {each}; it is NAME=PORT")
        if name in listeners:
            parser.error(f"--listener {name} is given twice")
        listeners[name] = int(port)
    if given.admin_token_file is not None and given.admin_port is None:
        parser.error("--admin-token-file needs --admin-port")
    if given.peer_tls_mode is not None and given.peer_tls is None:
        parser.error("--peer-tls-mode needs --peer-tls")
    audit_allowed = frozenset(each.strip() for each in given.audit_allowed.split(",") if each.strip())
    if unknown := audit_allowed - set(AUDITED):
        parser.error(f"--audit-allowed has no {', '.join(sorted(unknown))}; there are {', '.join(AUDITED)}")
    if given.tracing_endpoint:
        try:
            checked_endpoint(given.tracing_endpoint)
        except TracingRefused as error:
            parser.error(f"--tracing-endpoint: {error}")
    where: Path | KubernetesCluster = given.store
    if given.kubernetes is not None:
        namespace, _, name = given.kubernetes.partition("/")
        if not namespace or not name or given.cluster_record is None:
            parser.error("--kubernetes is NAMESPACE/CLUSTER, and needs --cluster-record")
        where = KubernetesCluster(
            name=name,
            namespace=namespace,
            record=given.cluster_record,
            api=given.kubernetes_api,
            token=given.kubernetes_token,
        )
    return Options(
        data=given.data,
        store=where,
        host=given.host,
        port=given.port,
        peer_port=given.peer_port,
        bind=given.bind,
        peer_host=given.peer_host,
        listeners=listeners,
        secure=given.secure,
        bootstrap_admin=given.bootstrap_admin,
        allow_anonymous=given.allow_anonymous,
        listeners_file=given.listeners,
        peer_tls=given.peer_tls,
        peer_tls_mode=PeerTlsMode(given.peer_tls_mode or PeerTlsMode.REQUIRE),
        peer_secrets=given.peer_secrets,
        admin_port=given.admin_port,
        metrics_port=None if given.metrics_port is None or given.metrics_port < 0 else given.metrics_port,
        admin_token_file=given.admin_token_file,
        slot=given.slot,
        ready_file=given.ready_file,
        first_nodes=given.first_nodes,
        failure_host=given.failure_host,
        zone=given.zone,
        labels=labels,
        rebuild_after_s=given.rebuild_after_s,
        audit_allowed=audit_allowed,
        tracing_endpoint=given.tracing_endpoint,
        settings=NodeSettings(
            chunk_bytes=given.chunk_bytes,
            container_bytes=given.container_bytes,
            partitionlet_bytes=given.partitionlet_bytes,
            disk_quota=given.disk_quota,
            disk_reserve=given.disk_reserve,
            rebalance_delay_ms=given.rebalance_delay_ms,
            snapshot_rate=given.snapshot_rate,
            max_connections=given.max_connections,
            max_connections_per_ip=given.max_connections_per_ip,
            connections_max_idle_ms=given.connections_max_idle_ms,
            metrics_topics=given.metrics_topics,
            fsync=not given.no_fsync,
        ),
    )

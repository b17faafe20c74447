"""The `spec` of each kind of resource, with its defaults, as validated by the CRDs. Pure."""

import os
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any, Final, Literal

import msgspec

from headrace.store.kubernetes import objects
from headrace.store.record_types import default_min_in_sync, default_replicas

GROUP: Final = objects.GROUP
VERSION: Final = objects.VERSION
API: Final = f"{GROUP}/{VERSION}"
FINALIZER: Final = f"{GROUP}/delete"
PAUSED: Final = f"{GROUP}/paused"
AUTO: Final = "auto"
OWN_NAMESPACE: Final = os.environ.get("POD_NAMESPACE", "")
"""The operator's namespace; "" if it is unknown."""


class Spec(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Base of all specs. Fields that this version does not know are ignored."""


class ClusterRef(Spec, frozen=True):
    name: str
    namespace: str | None = None


class Resources(Spec, frozen=True):
    requests: dict[str, str | int] = {}
    limits: dict[str, str | int] = {}


class Storage(Spec, frozen=True):
    size: str = "10Gi"
    class_: str | None = msgspec.field(name="class", default=None)


class Replication(Spec, frozen=True):
    replicas: int | None = None
    min_in_sync: int | None = None


class SecretRef(Spec, frozen=True):
    name: str


class SecretKey(Spec, frozen=True):
    """An entry of a Secret."""

    name: str
    key: str = "password"


class Certificate(Spec, frozen=True):
    """A listener's certificate that the user provides (for example by cert-manager), in place of the cluster's own."""

    secret_ref: SecretRef


class Entry(Spec, frozen=True):
    """An entry of a Secret or a ConfigMap."""

    name: str
    key: str = "ca.crt"


class Authorities(Spec, frozen=True):
    """User-provided certificates of authorities: either field is set."""

    secret_ref: Entry | None = None
    config_map_ref: Entry | None = None


class ClientCa(Authorities, frozen=True):
    """The authorities of the certificates that clients of a listener show."""

    include_cluster_ca: bool = False
    """Whether the cluster's own authority of clients is accepted too."""


class OAuth(Spec, frozen=True):
    """The tokens that a listener accepts."""

    jwks_url: str
    issuer: str
    audience: list[str]
    user_claim: str | None = None
    scope_claim: str | None = None
    required_scopes: list[str] = []
    groups_claim: str | None = None
    jwks_ca: Authorities | None = None
    """The authorities for the server of the issuer's keys; None for those of the nodes' image."""


class Listener(Spec, frozen=True):
    """How clients connect. Without a protocol: SASL_SSL if security is enabled, else PLAINTEXT."""

    protocol: str | None = None
    mechanisms: list[str] = []
    client_auth: str | None = None
    principal_mapping_rules: str | None = None
    oauth: OAuth | None = None
    max_reauth_seconds: int = 0
    certificate: Certificate | None = None
    client_ca: ClientCa | None = None
    """None for the cluster's own authority."""
    default_stream: str | None = None


class Outside(Spec, frozen=True, kw_only=True):
    """How clients outside Kubernetes reach a listener: a Service per pod."""

    type: str
    node_ports: list[int] = []
    host: str | None = None
    annotations: dict[str, str] = {}


class Additional(Listener, frozen=True, kw_only=True):
    """An additional listener, inside or outside."""

    name: str
    port: int
    """The listener's port on shard 0."""
    external: Outside | None = None


class External(Listener, frozen=True, kw_only=True):
    type: str
    node_ports: list[int] = []
    host: str | None = None
    annotations: dict[str, str] = {}

    @property
    def outside(self) -> Outside:
        """The fields that listeners inside do not have."""
        return Outside(type=self.type, node_ports=self.node_ports, host=self.host, annotations=self.annotations)


class Listeners(Spec, frozen=True):
    internal: Listener = Listener()
    secure: Listener | None = None
    """A second listener inside, for clients that migrate to it while the first one is still in clear text."""
    external: External | None = None
    additional: list[Additional] = []


class Certificates(Spec, frozen=True):
    """How long the cluster's own authorities and the certificates they sign are valid, and when they are renewed."""

    validity_days: int = 365
    renewal_days: int = 30
    overlap: str = "1h"
    """How long a new authority is trusted before it is used, and the former one afterwards."""


class Permissions(Spec, frozen=True):
    """Access expressions of one object; None if it has no expression of its own."""

    produce: str | None = None
    consume: str | None = None
    topic: str | None = None
    copy: str | None = None
    admin: str | None = None

    def given(self) -> dict[str, str]:
        """Return the expressions that are set, by permission."""
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}


class Security(Spec, frozen=True):
    """A cluster's security."""

    enabled: bool = False
    authorization: bool = True
    """Whether access expressions are checked."""
    certificates: Certificates = Certificates()
    permissions: Permissions = Permissions()
    """The expressions of the cluster as a whole."""
    network_policy: bool = True


class Floors(Spec, frozen=True):
    traffic: str = "8Mi"
    requests: int = 2_000
    disk: str = "8Gi"


class Balance(Spec, frozen=True):
    policy: str = "on"
    over_mean_percent: int = 125
    moves_per_minute: int = 6
    floors: Floors = Floors()


class Zones(Spec, frozen=True):
    topology_key: str = "topology.kubernetes.io/zone"


class PassedOn(Spec, frozen=True):
    """Fields for pods of clusters and jobs that are passed to Kubernetes unchanged."""

    volumes: list[dict[str, Any]] = []
    volume_mounts: list[dict[str, Any]] = []
    """Mounts of Headrace's own container."""
    sidecars: list[dict[str, Any]] = []
    """Containers beside Headrace's own."""
    init_containers: list[dict[str, Any]] = []
    security_context: dict[str, Any] | None = None
    """None for the user of the images."""


class PodSpec(PassedOn, frozen=True):
    """Fields for storage nodes' pods that are passed to Kubernetes."""

    env: list[dict[str, Any]] = []
    annotations: dict[str, str] = {}
    labels: dict[str, str] = {}
    node_selector: dict[str, str] = {}
    tolerations: list[dict[str, Any]] = []
    affinity: dict[str, Any] = {}
    topology_spread_constraints: list[dict[str, Any]] | None = None
    priority_class_name: str | None = None
    termination_grace_period_seconds: int = 60


class Selector(Spec, frozen=True):
    match_labels: dict[str, str] = {}


class AllowedNamespaces(Spec, frozen=True):
    names: list[str] = []
    selector: Selector | None = None


class SparkDefaults(Spec, frozen=True):
    """Defaults for StreamJobs."""

    image: str | None = None
    image_pull_policy: str | None = None
    spark_conf: dict[str, str] = {}


class Tracing(Spec, frozen=True):
    endpoint: str = ""


class ClusterSpec(Spec, frozen=True):
    """The spec of a StreamCluster."""

    nodes: int = 3
    shards: int = 1
    image: str | None = None
    image_pull_policy: str | None = None
    image_pull_secrets: list[dict[str, str]] = []
    storage: Storage = Storage()
    replication: Replication = Replication()
    resources: Resources = Resources()
    zones: Zones = Zones()
    listeners: Listeners = Listeners()
    balance: Balance = Balance()
    version: str | None = None
    security: Security = Security()
    feature_level: Annotated[int, msgspec.Meta(ge=0)] | Literal["auto"] = AUTO
    settings: dict[str, str] = {}
    tracing: Tracing = Tracing()
    spark: SparkDefaults = SparkDefaults()
    pod: PodSpec = PodSpec()
    allowed_namespaces: AllowedNamespaces = AllowedNamespaces()
    reclaim_policy: str = "Retain"

    @property
    def replicas(self) -> int:
        """Replicas of the default volume. If not specified: three, or one per pod if there are fewer pods."""
        return self.replication.replicas or default_replicas(self.nodes)

    @property
    def min_in_sync(self) -> int:
        """Least in-sync replicas of the default volume."""
        return self.replication.min_in_sync or default_min_in_sync(self.replicas)


class VolumeSpec(Spec, frozen=True):
    """The spec of a Volume."""

    cluster_ref: ClusterRef
    name: str | None = None
    replicas: int = 3
    min_in_sync: int = 2
    spread: str = "preferred"
    zones: list[str] = []
    node_labels: dict[str, str] = {}
    size_limit: str | None = None
    durability: str = "fsync"


class StreamSpec(Spec, frozen=True):
    """The spec of a Stream."""

    cluster_ref: ClusterRef
    path: str
    volume: str = "default"
    ttl: str = "0"
    size_limit: str | None = None
    default_partitions: int = 1
    auto_create: bool = True
    compression: str = "producer"
    max_message_bytes: int = 1_048_588
    timestamp_type: str = "CreateTime"
    description: str = ""
    permissions: Permissions = Permissions()
    reclaim_policy: str = "Retain"


class TopicSpec(Spec, frozen=True):
    """The spec of a Topic."""

    cluster_ref: ClusterRef
    stream: str
    name: str | None = None
    partitions: int | None = None
    config: dict[str, str] = {}
    permissions: Permissions = Permissions()
    reclaim_policy: str = "Retain"


class Scram(Spec, frozen=True):
    """A password: from a Secret beside the resource, or generated."""

    mechanism: str = "SCRAM-SHA-512"
    password: SecretKey | None = None


class TlsCertificate(Spec, frozen=True):
    """A certificate signed by the clients' authority."""


class Authentication(Spec, frozen=True):
    """How a user authenticates; without either field by a generated password."""

    scram: Scram | None = None
    tls: TlsCertificate | None = None


class Quotas(Spec, frozen=True):
    """Kafka's client quotas of a user."""

    producer_byte_rate: int | None = None
    consumer_byte_rate: int | None = None
    request_percentage: float | None = None
    controller_mutation_rate: float | None = None


class UserSpec(Spec, frozen=True):
    """The spec of a StreamUser."""

    cluster_ref: ClusterRef
    user: str | None = None
    secret_name: str | None = None
    listener: str = "internal"
    authentication: Authentication = Authentication()
    groups: list[str] = []
    quotas: Quotas = Quotas()


class UserRef(Spec, frozen=True):
    """A StreamUser beside the resource."""

    name: str


class LinkSource(Spec, frozen=True):
    """The source of a link: `cluster_ref` or `bootstrap`."""

    bootstrap: str | None = None
    cluster_ref: ClusterRef | None = None
    stream: str = ""
    """"" for an Apache Kafka cluster."""
    user_ref: UserRef | None = None
    credentials_secret: str | None = None


class LinkTarget(Spec, frozen=True):
    stream: str
    ttl: str | None = None
    bootstrap: str | None = None
    """The cluster's addresses, as the source reaches them."""
    user_ref: UserRef | None = None
    credentials_secret: str | None = None


class LinkSpec(Spec, frozen=True):
    """The spec of a ReplicationLink."""

    cluster_ref: ClusterRef
    source: LinkSource
    target: LinkTarget
    name: str | None = None
    topics: list[str] = msgspec.field(default_factory=lambda: ["*"])
    mode: str = "OneWay"
    forward_writes: bool = False
    throttle: str | None = None
    paused: bool = False
    reclaim_policy: str = "Delete"


class JobInput(Spec, frozen=True):
    stream: str
    name: str = "input"
    topics: list[str] = []
    topic_pattern: str | None = None
    starting_offsets: str = "earliest"
    watermark: str | None = None
    options: dict[str, str] = {}


class JobOutput(Spec, frozen=True):
    stream: str
    topic: str | None = None
    mode: str = "append"
    options: dict[str, str] = {}


class ConfigMapFile(Spec, frozen=True):
    name: str
    key: str = "main.py"


class Application(Spec, frozen=True):
    config_map: ConfigMapFile | None = None
    path: str | None = None
    url: str | None = None
    sql: str | None = None


class Trigger(Spec, frozen=True):
    interval: str | None = None
    available_now: bool = False
    schedule: str | None = None
    time_zone: str | None = None


class Machine(Spec, frozen=True):
    """The resources of a driver or an executor."""

    cores: int = 1
    cpu: str | None = None
    """The CPU request, if it differs from `cores`."""
    memory: str = "1Gi"
    """Java's heap; Python's workers have additional memory."""


class Autoscale(Spec, frozen=True):
    min: int
    max: int
    lag_seconds: int = 30
    up_after_seconds: int = 30
    down_after_seconds: int = 120


class Checkpoint(Spec, frozen=True):
    size: str = "1Gi"
    class_: str | None = msgspec.field(name="class", default=None)
    claim: str | None = None
    url: str | None = None


class JobPodSpec(PassedOn, frozen=True):
    """Fields for the pods of driver and executors that are passed to Kubernetes."""

    annotations: dict[str, str] = {}
    labels: dict[str, str] = {}
    node_selector: dict[str, str] = {}
    tolerations: list[dict[str, Any]] = []
    affinity: dict[str, Any] = {}
    priority_class_name: str | None = None


class JobSpec(Spec, frozen=True):
    """The spec of a StreamJob."""

    cluster_ref: ClusterRef
    application: Application
    input: JobInput | None = None
    inputs: list[JobInput] = []
    output: JobOutput | None = None
    user: str | None = None
    credentials_secret: str | None = None
    parameters: dict[str, str] = {}
    env: list[dict[str, Any]] = []
    spark_conf: dict[str, str] = {}
    trigger: Trigger = Trigger()
    driver: Machine = Machine()
    executor: Machine = Machine()
    executors: int = 0
    autoscale: Autoscale | None = None
    checkpoint: Checkpoint = Checkpoint()
    image: str | None = None
    image_pull_policy: str | None = None
    image_pull_secrets: list[dict[str, str]] = []
    pod: JobPodSpec = JobPodSpec()
    suspend: bool = False
    engine: str = "native"
    reclaim_policy: str = "Retain"

    @property
    def distributed(self) -> bool:
        """Whether there are executors besides the driver."""
        return self.executors > 0 or self.autoscale is not None

    @property
    def all_inputs(self) -> list[JobInput]:
        """The inputs, from `input` or `inputs`."""
        return self.inputs if self.input is None else [self.input]

    @property
    def own_claim(self) -> bool:
        """Whether the checkpoint is on a claim that the operator creates."""
        return self.checkpoint.claim is None and self.checkpoint.url is None


_KNOWN: Final = [
    msgspec.json.Decoder(spec) for spec in (ClusterSpec, VolumeSpec, StreamSpec, TopicSpec, UserSpec, LinkSpec, JobSpec)
]
"""Decoders that make msgspec analyse the classes once, before `convert` gets them, which is not safe in two threads."""

_UNITS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_FACTORS: Final[Mapping[str, Decimal]] = {
    **{f"{unit}i": Decimal(2) ** (10 * power) for power, unit in enumerate("KMGTPE", 1)},
    **{
        unit: Decimal(10) ** (3 * power)
        for power, unit in enumerate(("n", "u", "m", "", "k", "M", "G", "T", "P", "E"), -3)
    },
}
_QUANTITY: Final = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))([KMGTPE]i|[eE][+-]?[0-9]+|[numkMGTPE]?)")
"""Kubernetes' resource.Quantity."""


def milliseconds(duration: str) -> int:
    """Return a duration such as `90s`, `12h`, `7d` or `0` in milliseconds. Raises ValueError."""
    number = duration.rstrip("".join(set("".join(_UNITS))))
    unit = duration[len(number) :]
    if unit and unit not in _UNITS:
        raise ValueError(f"{unit!r} is not a unit of time; there are {', '.join(_UNITS)}")
    return int(number) * _UNITS[unit] if unit else int(number)


def quantity(text: str | int) -> int:
    """Return a quantity such as `10Gi`, `500M`, `1.5Ti` or `1e9` in bytes, rounded down; also in the API server's form
    (1.3Gi is returned as `1395864371200m`). Raises ValueError.
    """
    found = _QUANTITY.fullmatch(str(text))
    if found is None:
        raise ValueError(f"{text!r} is not a quantity")
    number, suffix = found.groups()
    if suffix in _FACTORS:
        return int(Decimal(number) * _FACTORS[suffix])
    return int(Decimal(f"{number}{suffix}"))

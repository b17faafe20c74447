"""How clusters are reached whose nodes ask the operator who it is: by which addresses, and with what proof.

Reconcilers name a cluster by where its clients begin, and nodes as the cluster tells of them: addresses inside of
Kubernetes, `NAME-bootstrap.NAMESPACE.svc:PORT` and `POD.NAME-nodes.NAMESPACE.svc:PORT`. Where a cluster has a route,
both lead to the operator's own listener instead, over TLS and with its password. While pods are made anew that get the
listener then, those that have it are asked, and the others in clear, as they ever were.

Nothing is ever sent in clear to a pod that has the listener. No I/O but the reading of certificates, in `Route.of`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from headrace.kafka_client.blocking_client import Access
from headrace.security.client_security import security_of
from headrace_operator.builders.digest import digest
from headrace_operator.builders.names import CLIENT_PORT, EXTERNAL_PORT, OPERATOR_PORT, SECURE_PORT

MOST_SHARDS: Final = 32
INSIDE: Final = (CLIENT_PORT, SECURE_PORT, EXTERNAL_PORT, OPERATOR_PORT)
"""First ports of listeners that a node's address may have."""


@dataclass(frozen=True, slots=True)
class Route:
    """To one cluster."""

    access: Access = field(repr=False)
    mark: str
    """Another one: what is proved, or trusted, is not what it was."""
    pods: tuple[str, ...] = ()
    """Those that have the operator's listener, where not all do; else none are named."""

    @classmethod
    def of(cls, properties: Mapping[str, str], pods: Sequence[str] = ()) -> "Route":
        """[blocking for a moment] Raises KafkaError for properties that cannot be used."""
        return cls(Access(security_of(properties)), digest(dict(properties)), tuple(pods))


@dataclass(frozen=True, slots=True)
class Way:
    """Where a call goes; `access` None: in clear."""

    address: str
    access: Access | None = field(default=None, repr=False)
    mark: str = ""
    closed: str = ""
    """Why nothing may be asked; "": it may."""


class Routes:
    """Of all clusters."""

    def __init__(self) -> None:
        self._routes: dict[tuple[str, str], Route | str | None] = {}

    def put(self, namespace: str, name: str, route: Route | None) -> None:
        """What is known of a cluster; None: its nodes ask nobody who he is."""
        self._routes[namespace, name] = route

    def close(self, namespace: str, name: str, why: str) -> None:
        """Nothing is known by which a cluster could be asked that asks for proofs."""
        self._routes[namespace, name] = why

    def forget(self, namespace: str, name: str) -> None:
        """There is no such cluster any more."""
        self._routes.pop((namespace, name), None)

    def get(self, namespace: str, name: str) -> Route | None:
        """The route to a cluster."""
        found = self._routes.get((namespace, name))
        return found if isinstance(found, Route) else None

    def is_known(self, namespace: str, name: str) -> bool:
        """Whether anybody has looked how the cluster is reached."""
        return (namespace, name) in self._routes

    def way(self, address: str) -> Way:
        """Where a call to an address goes."""
        host, _, port = address.rpartition(":")
        of = _cluster_of(host)
        if of is None:
            return Way(address)
        namespace, name, pod = of
        route = self._routes.get((namespace, name))
        if route is None:
            return Way(address)
        if isinstance(route, str):
            return Way(address, closed=route)
        if route.pods and pod not in route.pods:
            if pod:
                return Way(address)
            host = f"{route.pods[0]}.{name}-nodes.{namespace}.svc"
        return Way(f"{host}:{OPERATOR_PORT + _shard(int(port))}", route.access, route.mark)


def _cluster_of(host: str) -> tuple[str, str, str] | None:
    """Namespace, name of the cluster and of the pod, "" for the Service; None: an address of somewhere else."""
    match host.split("."):
        case [service, namespace, "svc"] if service.endswith("-bootstrap"):
            return namespace, service.removesuffix("-bootstrap"), ""
        case [pod, service, namespace, "svc"] if service.endswith("-nodes"):
            return namespace, service.removesuffix("-nodes"), pod
    return None


def _shard(port: int) -> int:
    for first in INSIDE:
        if first <= port < first + MOST_SHARDS:
            return port - first
    return 0

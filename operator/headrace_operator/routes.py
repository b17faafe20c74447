"""How the operator reaches clusters with security: by which addresses, and with which credentials.

Reconcilers name a cluster by its bootstrap address, and nodes by the addresses that the cluster reports, all inside
Kubernetes: `NAME-bootstrap.NAMESPACE.svc:PORT` and `POD.NAME-nodes.NAMESPACE.svc:PORT`. If a cluster has a route, both
lead to the operator's own listener instead, over TLS and with its password. While pods are recreated to get that
listener, those that have it are called over it, and the others in clear text as before.

Nothing is ever sent in clear text to a pod that has the listener. No I/O, except for the reading of certificates in
`Route.of`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from headrace.kafka_client.blocking_client import Access
from headrace.security.client_security import security_of
from headrace_operator.builders.digest import digest
from headrace_operator.builders.names import CLIENT_PORT, EXTERNAL_PORT, OPERATOR_PORT, SECURE_PORT

MAX_SHARDS: Final = 32
INSIDE: Final = (CLIENT_PORT, SECURE_PORT, EXTERNAL_PORT, OPERATOR_PORT)
"""First ports of the listeners that a node's address may have."""


@dataclass(frozen=True, slots=True)
class Route:
    """The route to one cluster."""

    access: Access = field(repr=False)
    mark: str
    """A digest of the client properties: it changes with the credentials and the trusted authorities."""
    pods: tuple[str, ...] = ()
    """The pods that have the operator's listener, if not all do; otherwise empty."""

    @classmethod
    def of(cls, properties: Mapping[str, str], pods: Sequence[str] = ()) -> "Route":
        """[blocking for a moment] Return the route by these client properties. Raises KafkaError for properties that
        cannot be used.
        """
        return cls(Access(security_of(properties)), digest(dict(properties)), tuple(pods))


@dataclass(frozen=True, slots=True)
class Destination:
    """The destination of a call; `access` None: in clear text."""

    address: str
    access: Access | None = field(default=None, repr=False)
    mark: str = ""
    closed: str = ""
    """Why no call may be sent; "" if calls may be sent."""


class Routes:
    """The routes to all clusters."""

    def __init__(self) -> None:
        self._routes: dict[tuple[str, str], Route | str | None] = {}

    def put(self, namespace: str, name: str, route: Route | None) -> None:
        """Set the route of a cluster; None if its nodes need no authentication."""
        self._routes[namespace, name] = route

    def close(self, namespace: str, name: str, why: str) -> None:
        """Refuse calls to a cluster that needs authentication, for which no credentials are known."""
        self._routes[namespace, name] = why

    def forget(self, namespace: str, name: str) -> None:
        """Remove the route of a cluster that no longer exists."""
        self._routes.pop((namespace, name), None)

    def get(self, namespace: str, name: str) -> Route | None:
        """Return the route to a cluster; None if there is none."""
        found = self._routes.get((namespace, name))
        return found if isinstance(found, Route) else None

    def is_known(self, namespace: str, name: str) -> bool:
        """Return whether it has been determined how the cluster is reached."""
        return (namespace, name) in self._routes

    def way(self, address: str) -> Destination:
        """Return the destination of a call to an address."""
        host, _, port = address.rpartition(":")
        of = _cluster_of(host)
        if of is None:
            return Destination(address)
        namespace, name, pod = of
        route = self._routes.get((namespace, name))
        if route is None:
            return Destination(address)
        if isinstance(route, str):
            return Destination(address, closed=route)
        if route.pods and pod not in route.pods:
            if pod:
                return Destination(address)
            host = f"{route.pods[0]}.{name}-nodes.{namespace}.svc"
        return Destination(f"{host}:{OPERATOR_PORT + _shard(int(port))}", route.access, route.mark)


def _cluster_of(host: str) -> tuple[str, str, str] | None:
    """Return namespace, cluster and pod of an address, with pod "" for the Service; None for an address elsewhere."""
    match host.split("."):
        case [service, namespace, "svc"] if service.endswith("-bootstrap"):
            return namespace, service.removesuffix("-bootstrap"), ""
        case [pod, service, namespace, "svc"] if service.endswith("-nodes"):
            return namespace, service.removesuffix("-nodes"), pod
    return None


def _shard(port: int) -> int:
    for first in INSIDE:
        if first <= port < first + MAX_SHARDS:
            return port - first
    return 0

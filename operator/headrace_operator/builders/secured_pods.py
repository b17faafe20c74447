"""What the pods of a cluster with security have beside those of one without: files, arguments, ports. Pure.

    /etc/headrace/listeners   ConfigMap NAME-listeners   a file of listeners for each storage node
    /etc/headrace/server      Secret NAME-server         what clients are shown, and whose certificates count (trust)
    /etc/headrace/server-L    a Secret of somebody's     the certificate of listener L, where the resource names one
    /etc/headrace/peers       Secret NAME-peers          what nodes show each other
    /etc/headrace/operator    Secret NAME-operator       whom nodes make administrator, for `headrace` in a pod too

Nodes look at the certificates every few seconds, so nothing of these is in the digest that has pods made anew; only
what a node reads at its start is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace_operator.builders import listeners
from headrace_operator.builders.names import OPERATOR_PORT, Manifest, ObjectName
from headrace_operator.specs import ClusterSpec

LISTENERS: Final = "/etc/headrace/listeners"
PEERS: Final = "/etc/headrace/peers"
OPERATOR: Final = "/etc/headrace/operator"
ADMIN_FILE: Final = "admin.toml"
PROPERTIES_FILE: Final = "client.properties"
ACCEPT: Final = "accept"
REQUIRE: Final = "require"
PEER_MODE: Final = "--peer-tls-mode"
SECURE: Final = "--secure"


@dataclass(frozen=True, slots=True)
class Secured:
    """How far security is in the pods of a cluster."""

    peer_mode: str
    """ACCEPT or REQUIRE."""
    from_start: bool
    """Nodes check access expressions before they serve anybody; else security is turned on when all pods have it."""


def arguments(spec: ClusterSpec, secured: Secured) -> list[str]:
    """Of headrace.node.pod."""
    found = ["--listeners-folder", LISTENERS, "--peer-tls", PEERS, PEER_MODE, secured.peer_mode]
    found += ["--bootstrap-admin", f"{OPERATOR}/{ADMIN_FILE}"]
    if secured.from_start:
        return [*found, SECURE]
    return [*found, "--allow-anonymous"] if listeners.allows_anonymous(spec) else found


def volumes(cluster: str, spec: ClusterSpec) -> list[tuple[Manifest, Manifest]]:
    """Each mount with its volume."""
    found = [
        _mount("headrace-listeners", LISTENERS, {"configMap": {"name": ObjectName.LISTENERS.of(cluster)}}),
        _mount("headrace-server", listeners.SERVER, _secret(ObjectName.SERVER.of(cluster))),
        _mount("headrace-peers", PEERS, _secret(ObjectName.PEERS.of(cluster))),
        _mount("headrace-operator", OPERATOR, _secret(ObjectName.OPERATOR.of(cluster))),
    ]
    found += [
        _mount(f"headrace-server-{port.name}", listeners.certificate_folder(port), _secret(port.given_secret))
        for port in listeners.ports(spec)
        if port.has_tls and port.given_secret is not None
    ]
    return found


def rolled(spec: ClusterSpec, secured: Secured) -> dict[str, Any]:
    """What a change of has pods made anew."""
    given = [(port.name, port.given_secret) for port in listeners.ports(spec) if port.given_secret is not None]
    return {"listeners": listeners.files(spec), "arguments": arguments(spec, secured), "certificates": given}


def service_ports(spec: ClusterSpec) -> list[tuple[str, int]]:
    """Name and first port of the listeners inside that come with security."""
    without = ("internal", listeners.EXTERNAL)  # those that are there without security too
    return [(port.name, port.first) for port in listeners.ports(spec) if port.name not in without]


def hosts(cluster: str, namespace: str, outside: Sequence[str]) -> list[str]:
    """The names in the certificate that nodes show clients: of pods and Services, however many there are, and
    `outside`, hosts that clients outside are told.
    """
    found = ["localhost"]
    for name in (f"*.{ObjectName.NODES_SERVICE.of(cluster)}", ObjectName.BOOTSTRAP_SERVICE.of(cluster)):
        found += [f"{name}.{namespace}", f"{name}.{namespace}.svc", f"{name}.{namespace}.svc.cluster.local"]
    return [ObjectName.BOOTSTRAP_SERVICE.of(cluster), *found, *outside]


def secured_of(template: Manifest | None) -> Secured | None:
    """What a pod's template says, or a pod itself; None: it has nothing of security."""
    if template is None:
        return None
    command: list[str] = template["spec"]["containers"][0].get("command") or []
    if PEER_MODE not in command:
        return None
    return Secured(command[command.index(PEER_MODE) + 1], SECURE in command)


def next_secured(
    template: Secured | None, pods: Sequence[Secured | None], *, is_new: bool, authorization: bool
) -> Secured:
    """How far it is to be in the template. `is_new`: there is no pod and no template.

    Nodes that speak in clear with each other go by ACCEPT, until all of the `pods` do; no way leads back from REQUIRE.
    What nodes check from their start on was checked in a new cluster from its first start on.
    """
    if is_new:
        return Secured(REQUIRE, authorization)
    if template is None:
        return Secured(ACCEPT, from_start=False)
    all_have_it = bool(pods) and all(pod is not None for pod in pods)
    peer_mode = REQUIRE if template.peer_mode == REQUIRE or all_have_it else ACCEPT
    return Secured(peer_mode, template.from_start and authorization)


def serves_operator(pod: Manifest) -> bool:
    """Whether a pod has the operator's own listener."""
    declared = pod["spec"]["containers"][0].get("ports") or []
    return any(each.get("containerPort") == OPERATOR_PORT for each in declared)


def _secret(name: str) -> Manifest:
    return {"secret": {"secretName": name, "defaultMode": 0o440}}


def _mount(name: str, path: str, volume: Manifest) -> tuple[Manifest, Manifest]:
    return {"name": name, "mountPath": path, "readOnly": True}, volume

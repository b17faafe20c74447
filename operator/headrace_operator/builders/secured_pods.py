"""What security adds to the pods of a cluster: files, arguments, ports. Pure.

    /etc/headrace/listeners   ConfigMap NAME-listeners   a listener file for each storage node
    /etc/headrace/server      Secret NAME-server         the certificate shown to clients, and trusted authorities
    /etc/headrace/server-L    a user's Secret            the certificate of listener L, if the resource names one
    /etc/headrace/peers       Secret NAME-peers          the certificate that nodes show each other
    /etc/headrace/operator    Secret NAME-operator       the administrator's credentials, also for `headrace` in a pod

Nodes reload certificates within seconds, so these are not part of the digest whose change recreates pods; the digest
covers only what a node reads when it starts.
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
    """The stage of security in the pods of a cluster."""

    peer_mode: str
    """ACCEPT or REQUIRE."""
    from_start: bool
    """Whether nodes check access expressions from their start; otherwise security is turned on once all pods have it.
    """


def arguments(spec: ClusterSpec, secured: Secured) -> list[str]:
    """Return the arguments of headrace.node.pod."""
    found = ["--listeners-folder", LISTENERS, "--peer-tls", PEERS, PEER_MODE, secured.peer_mode]
    found += ["--bootstrap-admin", f"{OPERATOR}/{ADMIN_FILE}"]
    if secured.from_start:
        return [*found, SECURE]
    return [*found, "--allow-anonymous"] if listeners.allows_anonymous(spec) else found


def volumes(cluster: str, spec: ClusterSpec) -> list[tuple[Manifest, Manifest]]:
    """Return each mount with its volume."""
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
    """Return the values whose change recreates the pods."""
    given = [(port.name, port.given_secret) for port in listeners.ports(spec) if port.given_secret is not None]
    return {"listeners": listeners.files(spec), "arguments": arguments(spec, secured), "certificates": given}


def service_ports(spec: ClusterSpec) -> list[tuple[str, int]]:
    """Return name and first port of the listeners inside that only clusters with security have."""
    without = ("internal", listeners.EXTERNAL)  # listeners that clusters without security have too
    return [(port.name, port.first) for port in listeners.ports(spec) if port.name not in without]


def hosts(cluster: str, namespace: str, outside: Sequence[str]) -> list[str]:
    """Return the names in the certificate that nodes show clients: wildcards for the pods, the Services, and `outside`,
    the hosts that clients outside use.
    """
    found = ["localhost"]
    for name in (f"*.{ObjectName.NODES_SERVICE.of(cluster)}", ObjectName.BOOTSTRAP_SERVICE.of(cluster)):
        found += [f"{name}.{namespace}", f"{name}.{namespace}.svc", f"{name}.{namespace}.svc.cluster.local"]
    return [ObjectName.BOOTSTRAP_SERVICE.of(cluster), *found, *outside]


def secured_of(template: Manifest | None) -> Secured | None:
    """Return the stage of security of a pod or a pod template; None if it has no security."""
    if template is None:
        return None
    command: list[str] = template["spec"]["containers"][0].get("command") or []
    if PEER_MODE not in command:
        return None
    return Secured(command[command.index(PEER_MODE) + 1], SECURE in command)


def next_secured(
    template: Secured | None, pods: Sequence[Secured | None], *, is_new: bool, authorization: bool
) -> Secured:
    """Return the stage of security for the template. `is_new`: there is no pod and no template yet.

    Nodes that talk to each other in clear text move to ACCEPT until all `pods` have security; REQUIRE is never left
    again.
    `from_start` is set in new clusters only and is never turned on later.
    """
    if is_new:
        return Secured(REQUIRE, authorization)
    if template is None:
        return Secured(ACCEPT, from_start=False)
    all_have_it = bool(pods) and all(pod is not None for pod in pods)
    peer_mode = REQUIRE if template.peer_mode == REQUIRE or all_have_it else ACCEPT
    return Secured(peer_mode, template.from_start and authorization)


def serves_operator(pod: Manifest) -> bool:
    """Return whether a pod has the operator's own listener."""
    declared = pod["spec"]["containers"][0].get("ports") or []
    return any(each.get("containerPort") == OPERATOR_PORT for each in declared)


def _secret(name: str) -> Manifest:
    return {"secret": {"secretName": name, "defaultMode": 0o440}}


def _mount(name: str, path: str, volume: Manifest) -> tuple[Manifest, Manifest]:
    return {"name": name, "mountPath": path, "readOnly": True}, volume

"""Who reaches a cluster's pods: clients' ports are open to everybody, the others only to those who need them. Pure.

    clients' listeners    everybody: clients authenticate there
    peer ports            the pods of this cluster
    operator's listener   the operator's pods; the cluster's own, for `headrace` in one of them
    admin (HTTP)          the operator's pods, the cluster's own, and namespaces with the label headrace.dev/metrics

The kubelet's probes are let in by every implementation of NetworkPolicies.
"""

from typing import Any, Final

from headrace_operator.builders import listeners
from headrace_operator.builders.names import ADMIN_PORT, PEER_PORT, Manifest, selector
from headrace_operator.specs import GROUP, OWN_NAMESPACE, ClusterSpec

METRICS_LABEL: Final = f"{GROUP}/metrics"
"""Label of namespaces whose pods may read metrics: "true"."""
_OPERATOR_LABELS: Final = {"app.kubernetes.io/name": "headrace-operator"}
"""Labels of the operator's pods, from its chart."""


def network_policy(metadata: Manifest, cluster: str, spec: ClusterSpec) -> Manifest:
    """Return the NetworkPolicy of a cluster whose pods have security."""
    own = {"podSelector": {"matchLabels": selector(cluster)}}
    operator = {"podSelector": {"matchLabels": _OPERATOR_LABELS}, "namespaceSelector": _operators_namespace()}
    readers = {"namespaceSelector": {"matchLabels": {METRICS_LABEL: "true"}}}
    clients = [port.first for port in listeners.ports(spec) if port.name != listeners.OPERATOR]
    of_operator = [port.first for port in listeners.ports(spec) if port.name == listeners.OPERATOR]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata,
        "spec": {
            "podSelector": {"matchLabels": selector(cluster)},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"ports": _ports(clients, spec.shards)},
                {"ports": _ports([PEER_PORT], spec.shards), "from": [own]},
                {"ports": _ports(of_operator, spec.shards), "from": [operator, own]},
                {"ports": [{"protocol": "TCP", "port": ADMIN_PORT}], "from": [operator, own, readers]},
            ],
        },
    }


def _operators_namespace() -> dict[str, Any]:
    """Return the selector of the operator's namespace; if its name is unknown, every namespace matches."""
    return {"matchLabels": {"kubernetes.io/metadata.name": OWN_NAMESPACE}} if OWN_NAMESPACE else {}


def _ports(firsts: list[int], shards: int) -> list[Manifest]:
    found: list[Manifest] = [{"protocol": "TCP", "port": first} for first in firsts]
    if shards > 1:
        for port in found:
            port["endPort"] = port["port"] + shards - 1
    return found

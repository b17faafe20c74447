"""A StreamCluster's objects. Pure.

Objects that are deleted with the resource have it as owner: the StatefulSet, Services, the PodDisruptionBudget, the
ServiceAccount and its Role. Objects that outlive it have no owner: the claims, the Secret with the cluster record, and
the objects that nodes write.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from copy import copy
from itertools import zip_longest
from typing import Any, Final

import msgspec

from headrace.store.kubernetes.objects import lease_name, store_name
from headrace_operator.builders import listeners, secured_pods
from headrace_operator.builders.digest import digest
from headrace_operator.builders.images import pull_policy
from headrace_operator.builders.names import (
    ADMIN_PORT,
    CLIENT_PORT,
    EXTERNAL_PORT,
    OPERATOR_PORT,
    PEER_PORT,
    POD_LABEL,
    Manifest,
    ObjectName,
    bootstrap,
    metadata,
    record_name,
    selector,
)
from headrace_operator.builders.network_policy import network_policy
from headrace_operator.builders.pod_extras import add, security_context
from headrace_operator.builders.secured_pods import Secured
from headrace_operator.specs import GROUP, ClusterSpec, Outside

DATA: Final = "/data"
RECORD_FOLDER: Final = "/etc/headrace/cluster"
"""Where pods mount the cluster record."""
HOST_KEY: Final = "kubernetes.io/hostname"
REQUESTS: Final = {"cpu": 100, "memory": 256 * 2**20}
"""Resource requests of each storage node, in thousandths of a core and in bytes, if the resource names none: so that
pods are not the first to be evicted, and are admitted to namespaces with a quota.
"""
NEWER: Final = frozenset({"env", "volumes", "volumeMounts", "sidecars", "initContainers", "securityContext"})
"""Fields of `pod` that are part of the ROLLED digest only if they are set: earlier operators did not know them."""
RESTART: Final = f"{GROUP}/restart"
"""Annotation of a StreamCluster that is copied to its pods: a new value restarts them one by one."""
ROLLED: Final = f"{GROUP}/rolled"
"""Annotation of pods: a digest of what the user asks of them. If it differs, the pods are recreated; other changes that
a newer operator makes to the template wait until the pods are recreated for another reason.
"""


class ClusterObjects:
    """Builds the objects of one StreamCluster."""

    def __init__(
        self,
        resource: Manifest,
        spec: ClusterSpec,
        *,
        image: str,
        replicas: int | None = None,
        record_format: int = 1,
        node_ports: Mapping[str, Sequence[int]] | None = None,
        secured: Secured | None = None,
    ) -> None:
        """`image`: the image of the storage nodes (`node_image`). `replicas`: the replicas of the volume with the most
        of them; None: those of the resource's default volume. `record_format`: the format of the cluster record that
        pods mount. `node_ports`: the node ports that each pod's Service already has, by pod, which it keeps. `secured`:
        the stage of security in the pods; None: no security.
        """
        self.resource = resource
        self._spec = spec
        self.image = image
        self._replicas = spec.replicas if replicas is None else replicas
        self._record_format = record_format
        self._node_ports = node_ports or {}
        self._secured = secured
        self.name: str = resource["metadata"]["name"]
        self.namespace: str = resource["metadata"]["namespace"]

    def with_security(self, secured: Secured | None) -> "ClusterObjects":
        """Return a copy with this stage of security in the pods."""
        made = copy(self)
        made._secured = secured
        return made

    def all(self) -> list[Manifest]:
        """Return the objects in the order in which they are applied, without the cluster record's Secret, which is
        created once.
        """
        found = [
            self.service_account(),
            self.role(),
            self.role_binding(),
            self.nodes_service(),
            self.bootstrap_service(),
            self.clients_config(),
        ]
        if self.has_disruption_budget:
            found.append(self.disruption_budget())
        found += self.external_services()
        if self._secured is not None:
            found.append(self.listeners_config())
        if self._secured is not None and self._spec.security.network_policy:
            found.append(self.network_policy())
        found.append(self.stateful_set())
        return found

    @property
    def record(self) -> str:
        """The name of the Secret with the cluster record."""
        return record_name(self.name)

    # --- rights

    @property
    def account(self) -> str:
        return f"{self.name}-nodes"

    def service_account(self) -> Manifest:
        """Return the nodes' identity at the API server."""
        return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": self._metadata(self.account)}

    def role(self) -> Manifest:
        """Return the nodes' rights: to read and write the objects of the cluster store."""
        every = ["get", "list", "watch", "create", "update", "delete"]
        return {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": self._metadata(self.account),
            "rules": [
                {"apiGroups": [GROUP], "resources": ["storagenodes", "storagecontainers"], "verbs": every},
                {
                    "apiGroups": ["coordination.k8s.io"],
                    "resources": ["leases"],
                    "resourceNames": [lease_name(self.name)],
                    "verbs": ["get", "list", "watch", "update"],
                },
                {
                    "apiGroups": [""],
                    "resources": ["configmaps"],
                    "resourceNames": [store_name(self.name)],
                    "verbs": ["get", "list", "watch", "update"],
                },
                # RBAC cannot restrict `create` by name: the object does not exist yet.
                {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
                {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]},
            ],
        }

    def role_binding(self) -> Manifest:
        """Return the binding that grants the role to the nodes."""
        return {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": self._metadata(self.account),
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": self.account},
            "subjects": [{"kind": "ServiceAccount", "name": self.account, "namespace": self.namespace}],
        }

    def secret(self, record: dict[str, Any]) -> Manifest:
        """Return the Secret with the cluster record. Nothing recreates it: the cluster's id and secret live as long as
        its data.
        """
        name = record_name(self.name, record.get("format_version", 1))
        made = metadata(name, self.namespace, self.name, owned_by=None)
        value = base64.b64encode(json.dumps(record).encode()).decode()
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": made,
            "type": "Opaque",
            "immutable": True,
            "data": {"record": value},
        }

    # --- network

    def nodes_service(self) -> Manifest:
        """Return the Service that names each pod, ready or not: nodes need each other while they start."""
        ports = [*self._ports("client", CLIENT_PORT), *self._ports("peer", PEER_PORT)]
        for name, first in self._secured_ports():
            ports += self._ports(name, first)
        return self._service(
            ObjectName.NODES_SERVICE.of(self.name), {"clusterIP": "None", "publishNotReadyAddresses": True}, ports
        )

    def bootstrap_service(self) -> Manifest:
        """Return the bootstrap Service of clients inside Kubernetes: any node that is ready."""
        ports = [_port("client", CLIENT_PORT), *(_port(name, first) for name, first in self._secured_ports())]
        return self._service(ObjectName.BOOTSTRAP_SERVICE.of(self.name), {}, ports)

    def external_services(self) -> list[Manifest]:
        """Return one Service for each pod and listener that clients outside reach, with a port for each node."""
        return [
            service
            for port in listeners.exposed(self._spec)
            if port.outside is not None
            for service in self._outside_services(port, port.outside)
        ]

    def _outside_services(self, listener: listeners.Port, external: Outside) -> list[Manifest]:
        fixed = iter(external.node_ports)
        made = []
        for index in range(self._spec.nodes):
            ports = self._ports(listener.name, listener.first)
            pod = f"{self.name}-{index}"
            name = listener.outside_service(pod)
            known = self._node_ports.get(name.removesuffix(listeners.OUTSIDE), ())
            for port, had in zip_longest(ports, known[: len(ports)]):
                node_port = next(fixed, None) or (None if had in external.node_ports else had)
                if node_port is not None:
                    port["nodePort"] = node_port
            service = self._service(
                name,
                {
                    "type": external.type,
                    "publishNotReadyAddresses": True,
                    "externalTrafficPolicy": "Local" if external.type == "LoadBalancer" else "Cluster",
                },
                ports,
                chosen=selector(self.name) | {POD_LABEL: pod},
            )
            service["metadata"]["annotations"] = dict(external.annotations)
            made.append(service)
        return made

    def _secured_ports(self) -> list[tuple[str, int]]:
        return [] if self._secured is None else secured_pods.service_ports(self._spec)

    def listeners_config(self) -> Manifest:
        """Return the ConfigMap with the nodes' listeners."""
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": self._metadata(ObjectName.LISTENERS.of(self.name)),
            "data": listeners.files(self._spec),
        }

    def network_policy(self) -> Manifest:
        """Return the NetworkPolicy that says who reaches the pods."""
        return network_policy(self._metadata(self.name), self.name, self._spec)

    def _ports(self, name: str, first: int) -> list[Manifest]:
        return [_port(f"{name}-{shard}", first + shard) for shard in range(self._spec.shards)]

    def _service(
        self, name: str, fields: Manifest, ports: list[Manifest], *, chosen: dict[str, str] | None = None
    ) -> Manifest:
        return {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": self._metadata(name),
            "spec": {"selector": chosen or selector(self.name), "ports": ports, **fields},
        }

    def clients_config(self) -> Manifest:
        """Return the ConfigMap from which clients' pods take the bootstrap address, as environment variable or file."""
        address = bootstrap(self.name, self.namespace)
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": self._metadata(f"{self.name}-clients"),
            "data": {"HEADRACE_BOOTSTRAP": address, "client.properties": f"bootstrap.servers={address}\n"},
        }

    # --- pods

    @property
    def has_disruption_budget(self) -> bool:
        """Whether a disruption budget protects anything: if no volume has a second replica it would only block
        evictions.
        """
        return self._spec.nodes > 1 and self._replicas > 1

    def disruption_budget(self) -> Manifest:
        """Return the budget that lets evictions take one pod at a time."""
        return {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": self._metadata(self.name),
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": selector(self.name)}},
        }

    def stateful_set(self) -> Manifest:
        """Return the StatefulSet. The operator restarts its pods one by one and asks the nodes first (`OnDelete`)."""
        storage = self._spec.storage
        claim: Manifest = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data", "labels": selector(self.name)},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": storage.size}}},
        }
        if storage.class_ is not None:
            claim["spec"]["storageClassName"] = storage.class_
        return {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": self._metadata(self.name),
            "spec": {
                "replicas": self._spec.nodes,
                "serviceName": ObjectName.NODES_SERVICE.of(self.name),
                "podManagementPolicy": "Parallel",
                "updateStrategy": {"type": "OnDelete"},
                "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
                "selector": {"matchLabels": selector(self.name)},
                "template": self._template(),
                "volumeClaimTemplates": [claim],
            },
        }

    def _template(self) -> Manifest:
        pod = self._spec.pod
        made = metadata("", "", self.name, owned_by=None)
        template: Manifest = {
            "metadata": {
                "labels": {**pod.labels, **made["labels"]},
                "annotations": {**pod.annotations, **self._restart(), ROLLED: self.rolled()},
            },
            "spec": {
                "serviceAccountName": self.account,
                "enableServiceLinks": False,
                "terminationGracePeriodSeconds": pod.termination_grace_period_seconds,
                "securityContext": security_context(pod.security_context),
                "topologySpreadConstraints": self._spread(),
                "containers": [self._container(), *pod.sidecars],
                "volumes": [
                    {"name": "cluster", "projected": {"sources": self._record_sources()}},
                    {"name": "tmp", "emptyDir": {}},
                    *({"name": mount["name"], **volume} for mount, volume in self._secured_volumes()),
                ],
            },
        }
        spec = template["spec"]
        for key, value in (
            ("nodeSelector", pod.node_selector),
            ("tolerations", pod.tolerations),
            ("affinity", self._affinity()),
            ("priorityClassName", pod.priority_class_name),
            ("imagePullSecrets", self._spec.image_pull_secrets),
        ):
            if value:
                spec[key] = value
        add(pod, spec)
        return template

    def _secured_volumes(self) -> list[tuple[Manifest, Manifest]]:
        return [] if self._secured is None else secured_pods.volumes(self.name, self._spec)

    def _restart(self) -> dict[str, str]:
        asked = (self.resource["metadata"].get("annotations") or {}).get(RESTART)
        return {RESTART: str(asked)} if asked else {}

    def rolled(self) -> str:
        """Return the digest for ROLLED."""
        spec = self._spec
        asked: dict[str, Any] = {
            "image": self.image,
            "shards": spec.shards,
            "settings": spec.settings,
            "pod": {
                name: value
                for name, value in msgspec.to_builtins(spec.pod).items()
                if name not in NEWER or value not in ([], None)
            },
            "resources": msgspec.to_builtins(spec.resources),
            "pull": [spec.image_pull_policy, spec.image_pull_secrets],
        }
        if self._secured is not None:  # earlier operators knew nothing of security
            asked["security"] = secured_pods.rolled(spec, self._secured)
        if spec.tracing.endpoint:
            asked["tracing"] = spec.tracing.endpoint
        return digest(asked)

    def _spread(self) -> list[Manifest]:
        if self._spec.pod.topology_spread_constraints is not None:
            return self._spec.pod.topology_spread_constraints
        return [
            {
                "maxSkew": 1,
                "topologyKey": self._spec.zones.topology_key,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": selector(self.name)},
            }
        ]

    def _affinity(self) -> Manifest:
        """Return the requested affinity, and the preference that each pod runs on its own host if there are enough.

        The preference is not a topology spread constraint: as soon as one of several constraints names a label that
        workers lack (zones), Kubernetes ignores all constraints for these workers.
        """
        pod = self._spec.pod
        apart = {"topologyKey": HOST_KEY, "labelSelector": {"matchLabels": selector(self.name)}}
        preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": apart}]}
        own = {} if pod.topology_spread_constraints is not None else {"podAntiAffinity": preferred}
        return {**own, **(pod.affinity or {})}

    def _container(self) -> Manifest:
        command = ["python", "-m", "headrace.node.pod", "--cluster", self.name, "--shards", str(self._spec.shards)]
        if self._secured is not None:
            command += secured_pods.arguments(self._spec, self._secured)
        for name, value in sorted(self._spec.settings.items()):
            command += [f"--{name}", value] if value else [f"--{name}"]
        if self._spec.tracing.endpoint:
            command += ["--tracing-endpoint", self._spec.tracing.endpoint]
        container: Manifest = {
            "name": "node",
            "image": self.image,
            "imagePullPolicy": pull_policy(self.image, self._spec.image_pull_policy),
            "command": command,
            "env": [
                _from_field("POD_NAME", "metadata.name"),
                _from_field("POD_NAMESPACE", "metadata.namespace"),
                _from_field("POD_IP", "status.podIP"),
                _from_field("HOST_NAME", "spec.nodeName"),
                *self._command_env(),
                *self._spec.pod.env,
            ],
            "ports": [
                {"name": f"{name}-{shard}", "containerPort": first + shard, "protocol": "TCP"}
                for name, first in (
                    *(("client", CLIENT_PORT), ("peer", PEER_PORT), ("external", EXTERNAL_PORT)),
                    *self._secured_ports(),
                )
                for shard in range(self._spec.shards)
            ],
            "startupProbe": _probe("/livez", period=2, failures=300),
            "livenessProbe": _probe("/livez", period=10, failures=6),
            "readinessProbe": _probe("/readyz", period=2, failures=2),
            "lifecycle": {"preStop": {"exec": {"command": self._hand_over()}}},
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
            "volumeMounts": [
                {"name": "data", "mountPath": DATA},
                {"name": "cluster", "mountPath": RECORD_FOLDER, "readOnly": True},
                {"name": "tmp", "mountPath": "/tmp"},
                *(mount for mount, _ in self._secured_volumes()),
            ],
        }
        container["ports"].append({"name": "admin", "containerPort": ADMIN_PORT, "protocol": "TCP"})
        container["resources"] = self._resources()
        return container

    def _record_sources(self) -> list[Manifest]:
        """Return the sources of the record's volume: the cluster record, and the peer secrets once they are rotated."""
        found = [{"name": record_name(self.name, self._record_format)}, {"name": ObjectName.PEER_SECRETS.of(self.name)}]
        return [{"secret": found[0]}, {"secret": {**found[1], "optional": True}}]

    def _command_env(self) -> list[Manifest]:
        """Return the environment that tells commands run in a pod, such as `headrace status`, where to connect and as
        whom.
        """
        where = bootstrap(self.name, self.namespace)
        if self._secured is None:
            return [{"name": "HEADRACE_BOOTSTRAP", "value": where}]
        host, _, _ = where.rpartition(":")
        return [
            {"name": "HEADRACE_BOOTSTRAP", "value": f"{host}:{OPERATOR_PORT}"},
            {"name": "HEADRACE_CONFIG", "value": f"{secured_pods.OPERATOR}/{secured_pods.PROPERTIES_FILE}"},
        ]

    def _resources(self) -> Manifest:
        """Return the requested resources, completed by REQUESTS. (Kubernetes takes a limit as the request where none is
        set.)
        """
        asked, shards = self._spec.resources, self._spec.shards
        missing = REQUESTS.keys() - asked.requests.keys() - asked.limits.keys()
        own = {"cpu": f"{REQUESTS['cpu'] * shards}m", "memory": f"{REQUESTS['memory'] * shards >> 20}Mi"}
        requests = {**asked.requests, **{name: own[name] for name in sorted(missing)}}
        given = (("requests", requests), ("limits", asked.limits))
        return {name: dict(amounts) for name, amounts in given if amounts}

    def _hand_over(self) -> list[str]:
        return ["python", "-m", "headrace.node.pod", "--hand-over", "--shards", str(self._spec.shards)]

    def _metadata(self, name: str) -> Manifest:
        return metadata(name, self.namespace, self.name, owned_by=self.resource)


def _port(name: str, number: int) -> Manifest:
    return {"name": name, "port": number, "targetPort": number, "protocol": "TCP"}


def _from_field(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _probe(path: str, *, period: int, failures: int) -> Manifest:
    return {
        "httpGet": {"path": path, "port": ADMIN_PORT},
        "periodSeconds": period,
        "timeoutSeconds": 3,
        "failureThreshold": failures,
    }

"""The Services of a cluster's pods for clients outside, with ports that stay the same.

Kubernetes chooses a NodePort when a Service is created, and clients outside remember it. So the chosen ports are noted
at the cluster record, which outlives the resource as the data do: a Service that is recreated asks for the same port.
"""

from collections.abc import Callable
from http import HTTPStatus
from typing import Final

import msgspec

from headrace.store.kubernetes.api import ApiError
from headrace_operator.builders.cluster import ClusterObjects
from headrace_operator.builders.listeners import OUTSIDE, exposed
from headrace_operator.builders.names import Manifest
from headrace_operator.kinds.cluster_record import NODE_PORTS, ClusterRecords
from headrace_operator.kinds.cluster_view import ObservedCluster
from headrace_operator.kinds.reporting import Reporter
from headrace_operator.kube import Kube
from headrace_operator.specs import ClusterSpec

FIELD: Final = "nodePort"
"""The field that the API server's error names if a port is taken, or out of its range."""


class ExternalServices:
    """Applies the Services for clients outside."""

    def __init__(self, *, kube: Kube, cluster_records: ClusterRecords, reporter: Reporter) -> None:
        self._kube = kube
        self._cluster_records = cluster_records
        self._reporter = reporter

    async def apply(
        self, objects: ClusterObjects, spec: ClusterSpec, seen: ObservedCluster, is_ours: Callable[[Manifest], bool]
    ) -> None:
        """Apply the Services, delete those of removed pods, note the ports. Raises NameTaken, ApiError, ApiSilent."""
        services = objects.external_services()
        ports: dict[str, list[int]] = {}
        for manifest in services:
            made = await self._applied(objects, spec, manifest, is_ours)
            found = [port.get(FIELD) for port in made["spec"]["ports"]]
            ports[manifest["metadata"]["name"].removesuffix(OUTSIDE)] = found if all(found) else []
        kept = {each["metadata"]["name"] for each in services}
        for service in seen.services:
            name = service["metadata"]["name"]
            if name.endswith(OUTSIDE) and name not in kept:
                await self._kube.delete("v1", "Service", objects.namespace, name)
        if any(ports.values()):
            noted = msgspec.json.encode(ports, order="sorted").decode()
            await self._cluster_records.note(objects, seen, {NODE_PORTS: noted})

    async def _applied(
        self, objects: ClusterObjects, spec: ClusterSpec, manifest: Manifest, is_ours: Callable[[Manifest], bool]
    ) -> Manifest:
        """Apply one Service with its former ports, except for those that another Service has taken."""
        asked = {number for port in exposed(spec) if port.outside is not None for number in port.outside.node_ports}
        lost: dict[int, str] = {}
        while True:
            ports = [
                {name: value for name, value in port.items() if name != FIELD or value not in lost}
                for port in manifest["spec"]["ports"]
            ]
            try:
                made = await self._kube.apply(
                    {**manifest, "spec": {**manifest["spec"], "ports": ports}}, is_ours=is_ours
                )
            except ApiError as error:
                had = [port[FIELD] for port in ports if FIELD in port and port[FIELD] not in asked]
                if error.status != HTTPStatus.UNPROCESSABLE_ENTITY or not had or FIELD not in str(error):
                    raise
                lost |= dict.fromkeys([port for port in had if str(port) in str(error)] or had, str(error))
                continue
            for port, why in lost.items():
                text = f"{manifest['metadata']['name']} had port {port}, and gets another: {why}"
                await self._reporter.tell(objects, "NodePortChanged", text, warning=True)
            return made

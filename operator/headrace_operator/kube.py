"""What the operator asks of the API server, over the same small client as the storage nodes.

Server-side apply under one field manager, so that what others set on the same objects stays. "Already absent" is
success.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final

from headrace.store.kubernetes.api import Api, ApiError
from headrace_operator.builders.names import FIELD_MANAGER, Manifest
from headrace_operator.specs import API

APPLY: Final = "application/apply-patch+yaml"
MERGE: Final = "application/merge-patch+json"

_PLURALS: Final = {
    "ConfigMap": "configmaps",
    "CronJob": "cronjobs",
    "Event": "events",
    "Job": "jobs",
    "Lease": "leases",
    "Namespace": "namespaces",
    "Node": "nodes",
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "Pod": "pods",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "ReplicationLink": "replicationlinks",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "Secret": "secrets",
    "Service": "services",
    "ServiceAccount": "serviceaccounts",
    "SparkApplication": "sparkapplications",
    "StatefulSet": "statefulsets",
    "StorageContainer": "storagecontainers",
    "StorageNode": "storagenodes",
    "Stream": "streams",
    "StreamCluster": "streamclusters",
    "StreamJob": "streamjobs",
    "StreamUser": "streamusers",
    "Topic": "topics",
    "Volume": "volumes",
}


def path(api_version: str, kind: str, namespace: str | None, name: str | None = None) -> str:
    """Of a collection, or of one object."""
    root = "/api" if "/" not in api_version else "/apis"
    within = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}/{api_version}{within}/{_PLURALS[kind]}" + (f"/{name}" if name else "")


def path_of(manifest: Mapping[str, Any]) -> str:
    """Of an object as it is given."""
    meta = manifest["metadata"]
    return path(manifest["apiVersion"], manifest["kind"], meta.get("namespace"), meta["name"])


class Kube:
    """One API server."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.patches = 0
        """Counted for those who look for hot loops."""

    async def apply(self, manifest: Manifest) -> Manifest:
        """Have the object be so in all that is given. Raises ApiError, ApiSilent."""
        self.patches += 1
        params = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self._api.call("PATCH", path_of(manifest), params=params, body=manifest, content_type=APPLY)

    async def apply_status(self, resource: Mapping[str, Any], status: Mapping[str, Any]) -> None:
        """Set a resource's status. Nothing, where the resource is gone."""
        self.patches += 1
        manifest = {
            "apiVersion": resource["apiVersion"],
            "kind": resource["kind"],
            "metadata": {"name": resource["metadata"]["name"], "namespace": resource["metadata"]["namespace"]},
            "status": status,
        }
        params = {"fieldManager": f"{FIELD_MANAGER}-status", "force": "true"}
        try:
            await self._api.call(
                "PATCH", f"{path_of(manifest)}/status", params=params, body=manifest, content_type=APPLY
            )
        except ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise

    async def merge(self, where: str, patch: Mapping[str, Any]) -> Manifest | None:
        """A merge patch; None: there is no such object."""
        self.patches += 1
        try:
            return await self._api.call("PATCH", where, body=patch, content_type=MERGE)
        except ApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    async def create(self, manifest: Manifest) -> bool:
        """Make an object; whether it was not there yet."""
        meta = manifest["metadata"]
        where = path(manifest["apiVersion"], manifest["kind"], meta.get("namespace"))
        try:
            await self._api.call("POST", where, params={"fieldManager": FIELD_MANAGER}, body=manifest)
        except ApiError as error:
            if error.status == HTTPStatus.CONFLICT:
                return False
            raise
        return True

    async def get(self, api_version: str, kind: str, namespace: str | None, name: str) -> Manifest | None:
        """An object; None: there is none."""
        try:
            return await self._api.call("GET", path(api_version, kind, namespace, name))
        except ApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    async def list(
        self, api_version: str, kind: str, namespace: str | None, *, labels: Mapping[str, str] | None = None
    ) -> Sequence[Manifest]:
        """All objects of a kind that have these labels."""
        params = {"labelSelector": ",".join(f"{key}={value}" for key, value in labels.items())} if labels else None
        listed = await self._api.call("GET", path(api_version, kind, namespace), params=params)
        return [{"apiVersion": api_version, "kind": kind, **each} for each in listed["items"]]

    async def delete(
        self,
        api_version: str,
        kind: str,
        namespace: str | None,
        name: str,
        *,
        uid: str | None = None,
        propagation: str | None = None,
    ) -> None:
        """Have an object be gone; `uid`: that one only."""
        body: Manifest = {}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        if propagation is not None:
            body["propagationPolicy"] = propagation
        try:
            await self._api.call("DELETE", path(api_version, kind, namespace, name), body=body or None)
        except ApiError as error:
            if error.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
                raise

    async def tell(self, resource: Mapping[str, Any], *, reason: str, message: str, warning: bool = False) -> None:
        """Post an event about a resource."""
        meta = resource["metadata"]
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        namespace = meta.get("namespace") or "default"
        event: Manifest = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{meta['name']}.", "namespace": namespace},
            "involvedObject": {
                "apiVersion": resource.get("apiVersion", API),
                "kind": resource["kind"],
                "name": meta["name"],
                "namespace": namespace,
                "uid": meta.get("uid", ""),
            },
            "reason": reason,
            "message": message[:1024],
            "type": "Warning" if warning else "Normal",
            "eventTime": now,
            "firstTimestamp": now[:19] + "Z",
            "lastTimestamp": now[:19] + "Z",
            "count": 1,
            "reportingComponent": FIELD_MANAGER,
            "reportingInstance": FIELD_MANAGER,
            "action": reason,
            "source": {"component": FIELD_MANAGER},
        }
        await self.create(event)

"""The operator's calls to the API server, over the same small client as the storage nodes.

1. Objects are written by server-side apply under one field manager, so that fields that others set stay.
2. Nothing is written that is already as wanted: an object carries a digest of what was applied, and is compared with
   the wanted one. Values that the server normalizes (`1024Mi` to `1Gi`) are applied once, not in each reconcile.
3. Deleting an absent object is success. An event that cannot be posted is lost, without other consequences.
4. Every change is logged, except for statuses (`Reporter` logs changes of conditions).

This module does not interpret the objects.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final, Protocol
from urllib.parse import quote

import structlog

from headrace.base.errors import HeadraceError
from headrace.store.kubernetes.api import ApiError
from headrace_operator.actions import action
from headrace_operator.builders.digest import digest
from headrace_operator.builders.names import FIELD_MANAGER, Manifest
from headrace_operator.specs import API, GROUP

log = structlog.get_logger()

APPLY: Final = "application/apply-patch+yaml"
MERGE: Final = "application/merge-patch+json"
APPLIED: Final = f"{GROUP}/applied"
"""Annotation of applied objects: a digest of what was applied, which also reveals fields that are no longer wanted."""
PAGE: Final = 500
ATOMIC: Final = frozenset({"selector", "labelSelector", "nodeSelector"})
"""Maps that are compared as a whole: an additional label would select other objects."""
EITHER_OR: Final[Mapping[str, tuple[tuple[str, ...], Mapping[str, None]]]] = {
    "StatefulSet": (("spec", "updateStrategy"), {"rollingUpdate": None}),
    "PodDisruptionBudget": (("spec",), {"minAvailable": None}),
}
"""By kind, the place of a field that excludes one of ours, and the patch that removes it. Its owner keeps it, whatever
is applied.
"""
REFUSALS: Final = (HTTPStatus.BAD_REQUEST, HTTPStatus.FORBIDDEN, HTTPStatus.UNPROCESSABLE_ENTITY)
"""Responses of the API server that a retry does not change."""
KNOWN: Final = 20_000
"""The maximum number of objects whose state after an apply is remembered."""


class NameTaken(Exception):
    """An object that is to be created exists already, and belongs to something else."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        super().__init__(f"{found['kind']} {found['metadata']['name']} is somebody else's")


class Api(Protocol):
    """One call to the API server; tests replace it. Raises ApiError for an error response, ApiSilent for none."""

    async def call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]: ...


_PLURALS: Final = {
    "ConfigMap": "configmaps",
    "CronJob": "cronjobs",
    "Deployment": "deployments",
    "Event": "events",
    "Job": "jobs",
    "Lease": "leases",
    "Namespace": "namespaces",
    "NetworkPolicy": "networkpolicies",
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
_KINDS: Final = {plural: kind for kind, plural in _PLURALS.items()}


def path(api_version: str, kind: str, namespace: str | None, name: str | None = None) -> str:
    """Return the path of a collection or of one object. The name is escaped to one path segment, whatever a resource
    holds.
    """
    root = "/api" if "/" not in api_version else "/apis"
    within = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}/{api_version}{within}/{_PLURALS[kind]}" + (f"/{_step(name)}" if name else "")


def _step(name: str) -> str:
    if name in (".", ".."):
        raise ApiError(HTTPStatus.BAD_REQUEST, f"{name!r} is not a valid object name")
    return quote(name, safe="")


def path_of(manifest: Mapping[str, Any]) -> str:
    """Return the path of a manifest's object."""
    meta = manifest["metadata"]
    return path(manifest["apiVersion"], manifest["kind"], meta.get("namespace"), meta["name"])


def covers(present: object, wanted: object) -> bool:
    """Return whether an object has all that is wanted; fields that others or the server added are ignored. Pure."""
    if not wanted and present is None:
        return True  # the server leaves out empty values
    match wanted:
        case dict():
            return isinstance(present, dict) and all(
                present.get(name) == value if name in ATOMIC else covers(present.get(name), value)
                for name, value in wanted.items()
            )
        case list():
            return (
                isinstance(present, list)
                and len(present) == len(wanted)
                and all(covers(*pair) for pair in zip(present, wanted, strict=True))
            )
        case _:
            return present == wanted


class Kube:
    """A client of one API server."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.patches = 0
        """Writes of every kind, counted to reveal hot loops."""
        self.unchanged = 0
        """Objects that were read, and were as wanted."""
        self._made: dict[str, tuple[str, str]] = {}
        """The digest applied last and the version of the resulting object, by path."""

    async def apply(self, manifest: Manifest, *, is_ours: Callable[[Manifest], bool] = lambda _found: True) -> Manifest:
        """Apply an object and return the result. Raises NameTaken if one exists that is not ours, which stays as it is;
        ApiError, ApiSilent.
        """
        where = path_of(manifest)
        wanted = _with_digest(manifest)
        mark = wanted["metadata"]["annotations"][APPLIED]
        present = await self._find(where)
        if present is not None and not is_ours(present):
            raise NameTaken(manifest)
        if present is not None and (covers(present, wanted) or self._made.get(where) == (mark, _state_of(present))):
            self.unchanged += 1
            return present
        self.patches += 1
        try:
            made = await self._server_side_apply(where, wanted)
        except ApiError as error:
            if error.status != HTTPStatus.UNPROCESSABLE_ENTITY or present is None or manifest["kind"] not in EITHER_OR:
                raise
            await self.merge(where, _without_excluded(wanted))
            made = await self._server_side_apply(where, wanted)
        _log_change("made" if present is None else "changed", where)
        if len(self._made) >= KNOWN:
            self._made.clear()
        self._made[where] = (mark, _state_of(made))
        return made

    async def apply_status(self, resource: Mapping[str, Any], status: Mapping[str, Any]) -> Manifest | None:
        """Set a resource's status; return the resource, or None if it is gone. Raises ApiError, ApiSilent."""
        self.patches += 1
        meta = resource["metadata"]
        manifest = {
            "apiVersion": resource["apiVersion"],
            "kind": resource["kind"],
            # The uid excludes a newer resource of the same name.
            "metadata": {"name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]},
            "status": status,
        }
        params = {"fieldManager": f"{FIELD_MANAGER}-status", "force": "true"}
        try:
            return await self._api.call(
                "PATCH", f"{path_of(manifest)}/status", params=params, body=manifest, content_type=APPLY
            )
        except ApiError as error:
            if error.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
                raise
            return None

    async def merge(self, where: str, patch: Mapping[str, Any]) -> Manifest | None:
        """Apply a merge patch; return the object, or None if there is none. Raises ApiError (409: it has changed
        since), ApiSilent.
        """
        self.patches += 1
        try:
            changed = await self._api.call("PATCH", where, body=patch, content_type=MERGE)
        except ApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise
        _log_change("changed", where, fields=",".join(_leaves(patch)))
        return changed

    async def create(self, manifest: Manifest) -> bool:
        """Create an object; return False if it existed already."""
        self.patches += 1
        meta = manifest["metadata"]
        where = path(manifest["apiVersion"], manifest["kind"], meta.get("namespace"))
        try:
            await self._api.call("POST", where, params={"fieldManager": FIELD_MANAGER}, body=manifest)
        except ApiError as error:
            if error.status == HTTPStatus.CONFLICT:
                return False
            raise
        if manifest["kind"] == "Event":
            involved = manifest["involvedObject"]
            log.info("told", kind=involved["kind"], of=_of(involved), **_said(manifest))
        else:
            _log_change("made", f"{where}/{meta.get('name', '')}")
        return True

    async def get(self, api_version: str, kind: str, namespace: str | None, name: str) -> Manifest | None:
        """Return an object; None if there is none."""
        found = await self._find(path(api_version, kind, namespace, name))
        return None if found is None else {"apiVersion": api_version, "kind": kind, **found}

    async def list(
        self, api_version: str, kind: str, namespace: str | None, *, labels: Mapping[str, str] | None = None
    ) -> Sequence[Manifest]:
        """Return all objects of a kind that have these labels; namespace None: of all namespaces."""
        return [each async for each in self.pages(api_version, kind, namespace, labels=labels)]

    async def pages(
        self, api_version: str, kind: str, namespace: str | None, *, labels: Mapping[str, str] | None = None
    ) -> AsyncIterator[Manifest]:
        """Like `list`, with one page in memory at a time."""
        params = {"limit": str(PAGE)}
        if labels:
            params["labelSelector"] = ",".join(f"{key}={value}" for key, value in labels.items())
        while True:
            listed = await self._api.call("GET", path(api_version, kind, namespace), params=params)
            for each in listed["items"]:
                yield {"apiVersion": api_version, "kind": kind, **each}
            following = (listed.get("metadata") or {}).get("continue")
            if not following:
                return
            params["continue"] = following

    async def revision(self, api_version: str, kind: str, namespace: str | None) -> int:
        """Return the API server's current revision, by listing this kind. Raises ApiError, ApiSilent, ValueError."""
        listed = await self._api.call("GET", path(api_version, kind, namespace), params={"limit": "1"})
        return int(listed["metadata"]["resourceVersion"])

    async def events_of(self, kind: str, namespace: str, name: str) -> Sequence[Manifest]:
        """Return Kubernetes' events about an object; none if this operator may not read events. Raises ApiError,
        ApiSilent.
        """
        params = {"limit": str(PAGE), "fieldSelector": f"involvedObject.kind={kind},involvedObject.name={name}"}
        try:
            listed = await self._api.call("GET", path("v1", "Event", namespace), params=params)
        except ApiError as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            log.info("no permission to read events: causes are not known", namespace=namespace, error=str(error))
            return []
        return list(listed["items"])

    async def delete(
        self,
        api_version: str,
        kind: str,
        namespace: str | None,
        name: str,
        *,
        uid: str | None = None,
        version: str | None = None,
        propagation: str | None = None,
    ) -> bool:
        """Delete an object; return False if there was none. `uid`: only that object; `version`: only in that
        resourceVersion; an object that differs in these counts as none.
        """
        self.patches += 1
        body: Manifest = {}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        if version is not None:
            body.setdefault("preconditions", {})["resourceVersion"] = version
        if propagation is not None:
            body["propagationPolicy"] = propagation
        try:
            await self._api.call("DELETE", path(api_version, kind, namespace, name), body=body or None)
        except ApiError as error:
            if error.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
                raise
            return False
        _log_change("deleted", path(api_version, kind, namespace, name))
        return True

    async def tell(
        self, resource: Mapping[str, Any], *, reason: str, message: str, warning: bool = False, mark: str = ""
    ) -> bool:
        """Post an event about a resource; return whether it is posted. `mark`: identifies what happened, so that it is
        posted once. Raises no errors of Kubernetes: what the event reports has happened anyway.
        """
        meta = resource["metadata"]
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        namespace = meta.get("namespace") or "default"
        name = {"name": f"{meta['name']}.{mark}"} if mark else {"generateName": f"{meta['name']}."}
        event: Manifest = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {**name, "namespace": namespace},
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
            "action": action(reason),
            "source": {"component": FIELD_MANAGER},
        }
        try:
            await self.create(event)
        except HeadraceError as error:
            log.warning("an event was not posted", reason=reason, of=f"{namespace}/{meta['name']}", error=str(error))
            return False
        return True

    async def _server_side_apply(self, where: str, wanted: Manifest) -> Manifest:
        params = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self._api.call("PATCH", where, params=params, body=wanted, content_type=APPLY)

    async def _find(self, where: str) -> Manifest | None:
        try:
            return await self._api.call("GET", where)
        except ApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise


def _log_change(what: str, where: str, **more: str) -> None:
    """Log a change of an object."""
    root, _, name = where.rpartition("/")
    above, _, plural = root.rpartition("/")
    namespace = above.partition("/namespaces/")[2]
    log.info(what, kind=_KINDS[plural], of=f"{namespace}/{name}" if namespace else name, **more)


def _of(involved: Mapping[str, Any]) -> str:
    return f"{involved['namespace']}/{involved['name']}"


def _said(event: Manifest) -> dict[str, str]:
    return {name: str(event[name]) for name in ("type", "reason", "message")}


def _leaves(patch: Mapping[str, Any], at: str = "") -> list[str]:
    """Return the names of the fields that a merge patch sets, without values, which may be secret."""
    found = []
    for name, value in patch.items():
        inside = isinstance(value, Mapping) and value
        found += _leaves(value, f"{at}{name}.") if inside else [f"{at}{name}"]
    return found


def _without_excluded(wanted: Manifest) -> Manifest:
    """Return a merge patch that sets our fields and removes those that exclude them (EITHER_OR), in one patch, as the
    server fills in missing fields.
    """
    where, others = EITHER_OR[wanted["kind"]]
    part: Any = wanted
    for name in where:
        part = part[name]
    patch: Manifest = {**{name: value for name, value in part.items() if not isinstance(value, dict | list)}, **others}
    for name in reversed(where):
        patch = {name: patch}
    return patch


def _with_digest(manifest: Manifest) -> Manifest:
    meta = manifest["metadata"]
    annotations = {**meta.get("annotations", {}), APPLIED: digest(manifest)}
    return {**manifest, "metadata": {**meta, "annotations": annotations}}


def _state_of(found: Mapping[str, Any]) -> str:
    """Return an object's uid and generation, which its status does not change; without one its resourceVersion."""
    meta = found["metadata"]
    return f"{meta.get('uid', '')}/{meta.get('generation') or meta.get('resourceVersion', '')}"

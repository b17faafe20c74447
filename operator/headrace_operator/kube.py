"""What the operator asks of the API server, over the same small client as the storage nodes.

1. Server-side apply under one field manager, so that what others set on the same objects stays.
2. Nothing is written that is so already: an object carries a digest of what was applied, and is compared with it. What
   the server writes in its own way (`1024Mi` as `1Gi`) is applied once, not for ever.
3. "Already absent" is success. An event that cannot be posted is lost, and nothing else with it.
4. The log has a line for each change that was made, but for statuses (`Reporter` tells what changes in them).

Knows nothing of what the objects mean.
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
"""Annotation of what is applied: a digest of it, so that a field that is asked for no longer is noticed too."""
PAGE: Final = 500
ATOMIC: Final = frozenset({"selector", "labelSelector", "nodeSelector"})
"""Maps that Kubernetes takes as one: a label that somebody adds to one selects other things."""
EITHER_OR: Final[Mapping[str, tuple[tuple[str, ...], Mapping[str, None]]]] = {
    "StatefulSet": (("spec", "updateStrategy"), {"rollingUpdate": None}),
    "PodDisruptionBudget": (("spec",), {"minAvailable": None}),
}
"""By kind, where a field stands that cannot be beside one of ours. Whose it is keeps it, whatever we apply."""
REFUSALS: Final = (HTTPStatus.BAD_REQUEST, HTTPStatus.FORBIDDEN, HTTPStatus.UNPROCESSABLE_ENTITY)
"""Answers of the API server that asking again does not change."""
KNOWN: Final = 20_000
"""Objects of which is remembered what the server made of them."""


class NameTaken(Exception):
    """An object that is to be made is there already, and is somebody else's."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        super().__init__(f"{found['kind']} {found['metadata']['name']} is somebody else's")


class Api(Protocol):
    """The seam: one call to the API server. Raises ApiError for an answer that is no success, ApiSilent for none."""

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
    """Of a collection, or of one object. A name is one step of it, whatever a resource has written there."""
    root = "/api" if "/" not in api_version else "/apis"
    within = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}/{api_version}{within}/{_PLURALS[kind]}" + (f"/{_step(name)}" if name else "")


def _step(name: str) -> str:
    if name in (".", ".."):
        raise ApiError(HTTPStatus.BAD_REQUEST, f"{name!r} is no name of an object")
    return quote(name, safe="")


def path_of(manifest: Mapping[str, Any]) -> str:
    """Of an object as it is given."""
    meta = manifest["metadata"]
    return path(manifest["apiVersion"], manifest["kind"], meta.get("namespace"), meta["name"])


def covers(present: object, wanted: object) -> bool:
    """Whether an object is as asked for, in all that is asked for; what others or the server added is let be. Pure."""
    if not wanted and present is None:
        return True  # the server leaves out what is empty
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
    """One API server."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.patches = 0
        """Writes of every kind, counted for those who look for hot loops."""
        self.unchanged = 0
        """Objects that were looked at, and were as they should be."""
        self._made: dict[str, tuple[str, str]] = {}
        """By path: the digest that was applied last, and the version of what the server made of it."""

    async def apply(self, manifest: Manifest, *, is_ours: Callable[[Manifest], bool] = lambda _found: True) -> Manifest:
        """Have the object be so in all that is given; as it is then. Raises NameTaken where there is one that is not
        ours, which is left as it is; ApiError, ApiSilent.
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
            await self.merge(where, _without_either(wanted))
            made = await self._server_side_apply(where, wanted)
        _tell("made" if present is None else "changed", where)
        if len(self._made) >= KNOWN:
            self._made.clear()
        self._made[where] = (mark, _state_of(made))
        return made

    async def apply_status(self, resource: Mapping[str, Any], status: Mapping[str, Any]) -> Manifest | None:
        """Set a resource's status; the resource then. None: that one is gone. Raises ApiError, ApiSilent."""
        self.patches += 1
        meta = resource["metadata"]
        manifest = {
            "apiVersion": resource["apiVersion"],
            "kind": resource["kind"],
            # Not one of the same name that was made since.
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
        """A merge patch; None: there is no such object. Raises ApiError (409: it has changed since), ApiSilent."""
        self.patches += 1
        try:
            changed = await self._api.call("PATCH", where, body=patch, content_type=MERGE)
        except ApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise
        _tell("changed", where, fields=",".join(_leaves(patch)))
        return changed

    async def create(self, manifest: Manifest) -> bool:
        """Make an object; whether it was not there yet."""
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
            _tell("made", f"{where}/{meta.get('name', '')}")
        return True

    async def get(self, api_version: str, kind: str, namespace: str | None, name: str) -> Manifest | None:
        """An object; None: there is none."""
        found = await self._find(path(api_version, kind, namespace, name))
        return None if found is None else {"apiVersion": api_version, "kind": kind, **found}

    async def list(
        self, api_version: str, kind: str, namespace: str | None, *, labels: Mapping[str, str] | None = None
    ) -> Sequence[Manifest]:
        """All objects of a kind that have these labels; namespace None: of all."""
        return [each async for each in self.pages(api_version, kind, namespace, labels=labels)]

    async def pages(
        self, api_version: str, kind: str, namespace: str | None, *, labels: Mapping[str, str] | None = None
    ) -> AsyncIterator[Manifest]:
        """As `list`, a page in memory at a time."""
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
        """The API server's revision now, as a list of this kind tells it. Raises ApiError, ApiSilent, ValueError."""
        listed = await self._api.call("GET", path(api_version, kind, namespace), params={"limit": "1"})
        return int(listed["metadata"]["resourceVersion"])

    async def events_of(self, kind: str, namespace: str, name: str) -> Sequence[Manifest]:
        """What Kubernetes tells of an object; none where this operator may not ask. Raises ApiError, ApiSilent."""
        params = {"limit": str(PAGE), "fieldSelector": f"involvedObject.kind={kind},involvedObject.name={name}"}
        try:
            listed = await self._api.call("GET", path("v1", "Event", namespace), params=params)
        except ApiError as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            log.info("no right to look at events: causes are not known", namespace=namespace, error=str(error))
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
        """Have an object be gone; `uid`: that one only; `version`: only as it was then (its resourceVersion). Whether
        there was such a one.
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
        _tell("deleted", path(api_version, kind, namespace, name))
        return True

    async def tell(
        self, resource: Mapping[str, Any], *, reason: str, message: str, warning: bool = False, mark: str = ""
    ) -> bool:
        """Post an event about a resource; whether it is there now. `mark`: names what happened, and it is posted once.

        Raises nothing of Kubernetes': what it tells of has happened anyway.
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


def _tell(what: str, where: str, **more: str) -> None:
    """Log a change that was made to an object."""
    root, _, name = where.rpartition("/")
    above, _, plural = root.rpartition("/")
    namespace = above.partition("/namespaces/")[2]
    log.info(what, kind=_KINDS[plural], of=f"{namespace}/{name}" if namespace else name, **more)


def _of(involved: Mapping[str, Any]) -> str:
    return f"{involved['namespace']}/{involved['name']}"


def _said(event: Manifest) -> dict[str, str]:
    return {name: str(event[name]) for name in ("type", "reason", "message")}


def _leaves(patch: Mapping[str, Any], at: str = "") -> list[str]:
    """The fields that a merge patch sets: their names, as a value may be anything."""
    found = []
    for name, value in patch.items():
        inside = isinstance(value, Mapping) and value
        found += _leaves(value, f"{at}{name}.") if inside else [f"{at}{name}"]
    return found


def _without_either(wanted: Manifest) -> Manifest:
    """A merge patch: ours, and not what excludes it (EITHER_OR); in one, as the server fills in what is missing."""
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
    """A version that an object's own status does not change, where there is one, and else any change does."""
    meta = found["metadata"]
    return f"{meta.get('uid', '')}/{meta.get('generation') or meta.get('resourceVersion', '')}"

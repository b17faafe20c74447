"""An API server in memory that implements headrace_operator.kube.Api.

It implements what reconcilers rely on: server-side apply (fields that their manager no longer applies are removed),
merge patches, conflicts, finalizers, garbage collection by owner, generations and versions. Tests can make it refuse a
call, or lose the response to a completed write. A call that the chart's rules do not allow fails the test.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any

from headrace.store.kubernetes.api import ApiError, ApiSilent

from . import rights

Object = dict[str, Any]
ALLOWED = rights.in_a_namespace() | rights.in_the_cluster() | rights.before_uninstall()
NOW = "2026-01-01T00:00:00Z"


class FakeApi:
    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.writes: list[str] = []
        self.reads = 0
        self.used: set[rights.Right] = set()
        """The rights that were used."""
        self.fail_after: int | None = None
        """How many more writes are answered; the response to the last one is lost."""
        self.refuse: Callable[[str, str], ApiError | None] = lambda method, path: None
        self._applied: dict[tuple[str, str], Object] = {}
        self._version = 0
        self._uids = 0

    async def call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> Object:
        is_apply = content_type.startswith("application/apply")
        is_there = path.endswith("/status") or path in self.objects
        for right in rights.needed(method, path, is_apply=is_apply, is_there=is_there):
            assert right in ALLOWED, f"the chart does not allow {right.verb} {right.resource}, for {method} {path}"
            self.used.add(right)
        if (error := self.refuse(method, path)) is not None:
            raise error
        if method == "GET":
            self.reads += 1
            return copy.deepcopy(self._get(path, params or {}))
        body = copy.deepcopy(body)
        answer = self._write(method, path, params or {}, body, content_type)
        self.writes.append(f"{method} {path}")
        if self.fail_after is not None:
            self.fail_after -= 1
            if self.fail_after == 0:
                self.fail_after = None
                raise ApiSilent("the connection was lost")
        return copy.deepcopy(answer)

    # --- for tests

    def put(self, manifest: Object) -> Object:
        """Create or replace an object as another client would."""
        where = path_of(manifest)
        present = self.objects.get(where)
        return self._store(where, {**(present or {}), **copy.deepcopy(manifest)}, present)

    def find(self, kind: str, name: str | None = None) -> list[Object]:
        return [
            each for each in self.objects.values() if each["kind"] == kind and name in (None, each["metadata"]["name"])
        ]

    def one(self, kind: str, name: str) -> Object:
        (found,) = self.find(kind, name)
        return found

    def remove(self, kind: str, name: str) -> None:
        """Delete an object as another client would."""
        found = self.one(kind, name)
        self._delete(path_of(found), {})

    # --- internals

    def _get(self, path: str, params: Mapping[str, str]) -> Object:
        if path in self.objects:
            return self.objects[path]
        root, _, plural = path.rpartition("/")
        if plural not in KINDS:
            raise ApiError(404, f"{path} not found")
        version, _, namespace = root.partition("/namespaces/")
        found = []
        for each in self.objects.values():
            meta = each["metadata"]
            if each["kind"] != KINDS[plural] or not version.endswith(each["apiVersion"]):
                continue
            if namespace and meta.get("namespace") != namespace:
                continue
            wanted = [pair.split("=") for pair in params.get("labelSelector", "").split(",") if pair]
            fields = [pair.split("=") for pair in params.get("fieldSelector", "").split(",") if pair]
            if not all(_at(each, field) == value for field, value in fields):
                continue
            if all((meta.get("labels") or {}).get(key) == value for key, value in wanted):
                found.append(each)
        return {"items": found, "metadata": {"resourceVersion": str(self._version)}}

    def _write(self, method: str, path: str, params: Mapping[str, str], body: Any, content_type: str) -> Object:
        match method:
            case "POST":
                meta = body["metadata"]
                if "generateName" in meta:
                    meta["name"] = f"{meta.pop('generateName')}{self._version}"
                where = f"{path}/{meta['name']}"
                if where in self.objects:
                    raise ApiError(409, f"{where} already exists")
                return self._store(where, body, None)
            case "DELETE":
                if path not in self.objects:
                    raise ApiError(404, f"{path} not found")
                return self._delete(path, body or {})
            case "PATCH" if content_type.startswith("application/apply"):
                return self._apply(path, params["fieldManager"], body)
            case "PATCH":
                return self._merge(path, body)
        raise AssertionError(method)

    def _apply(self, path: str, manager: str, body: Object) -> Object:
        where = path.removesuffix("/status")
        present = self.objects.get(where)
        if present is None and where != path:
            raise ApiError(404, f"{where} not found")
        uid = body["metadata"].get("uid")
        if uid is not None and (present is None or present["metadata"]["uid"] != uid):
            raise ApiError(409, "the uid is another one")
        before = self._applied.get((where, manager), {})
        changed = copy.deepcopy(present) if present is not None else {}
        _prune(changed, before, body)
        _lay_over(changed, body)
        _check(changed)
        self._applied[where, manager] = body
        return self._store(where, changed, present)

    def _merge(self, path: str, patch: Object) -> Object:
        present = self.objects.get(path)
        if present is None:
            raise ApiError(404, f"{path} not found")
        version = patch.get("metadata", {}).pop("resourceVersion", None)
        if version is not None and version != present["metadata"]["resourceVersion"]:
            raise ApiError(409, "the object has been modified")
        changed = _merged(present, patch)
        stored = self._store(path, changed, present)
        if stored["metadata"].get("deletionTimestamp") and not stored["metadata"].get("finalizers"):
            self._drop(path)
        return stored

    def _delete(self, path: str, options: Object) -> Object:
        found = self.objects[path]
        uid = options.get("preconditions", {}).get("uid")
        if uid is not None and uid != found["metadata"]["uid"]:
            raise ApiError(409, "the uid is another one")
        version = options.get("preconditions", {}).get("resourceVersion")
        if version is not None and version != found["metadata"]["resourceVersion"]:
            raise ApiError(409, "the resource version is another one")
        if found["metadata"].get("finalizers"):
            found["metadata"].setdefault("deletionTimestamp", NOW)
            self._bump(found)
            return found
        self._drop(path, orphan=options.get("propagationPolicy") == "Orphan")
        return found

    def _drop(self, path: str, *, orphan: bool = False) -> None:
        gone = self.objects.pop(path)
        self._applied = {key: value for key, value in self._applied.items() if key[0] != path}
        self._version += 1
        for each, owned in list(self.objects.items()):
            owners = owned["metadata"].get("ownerReferences") or []
            is_owned = any(owner.get("uid") == gone["metadata"]["uid"] for owner in owners)
            if is_owned and not orphan and each in self.objects:
                self._delete(each, {})

    def _store(self, path: str, changed: Object, present: Object | None) -> Object:
        meta = changed["metadata"]
        if present is None:
            self._uids += 1
            meta.setdefault("uid", f"uid-{self._uids}")
            meta.setdefault("creationTimestamp", NOW)
            meta["generation"] = 1
        elif present == changed:
            return present
        elif present.get("spec") != changed.get("spec"):
            meta["generation"] = present["metadata"].get("generation", 1) + 1
        self.objects[path] = changed
        self._bump(changed)
        return changed

    def _bump(self, found: Object) -> None:
        self._version += 1
        found["metadata"]["resourceVersion"] = str(self._version)


def _at(found: Any, field: str) -> Any:
    for name in field.split("."):
        found = (found or {}).get(name)
    return found


def _check(changed: Object) -> None:
    """Refuse fields that exclude each other."""
    spec = changed.get("spec", {})
    match changed["kind"]:
        case "StatefulSet" if spec.get("updateStrategy", {}).get("type") == "OnDelete":
            if "rollingUpdate" in spec["updateStrategy"]:
                raise ApiError(422, "rollingUpdate: only allowed for updateStrategy 'RollingUpdate'")
        case "PodDisruptionBudget":
            if {"minAvailable", "maxUnavailable"} <= spec.keys():
                raise ApiError(422, "minAvailable and maxUnavailable cannot be both set")


def _prune(present: Object, before: Object, wanted: Object) -> None:
    """Remove fields that were applied before and no longer are."""
    for name, value in before.items():
        if name not in wanted:
            if isinstance(value, dict) and isinstance(present.get(name), dict):
                _prune(present[name], value, {})
                if not present[name]:
                    del present[name]
            else:
                present.pop(name, None)
        elif isinstance(value, dict) and isinstance(present.get(name), dict) and isinstance(wanted[name], dict):
            _prune(present[name], value, wanted[name])


def _lay_over(present: Object, wanted: Object) -> None:
    for name, value in wanted.items():
        if isinstance(value, dict) and isinstance(present.get(name), dict):
            _lay_over(present[name], value)
        else:
            present[name] = copy.deepcopy(value)


def _merged(present: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    made = dict(present) if isinstance(present, dict) else {}
    for name, value in patch.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = _merged(made.get(name), value)
    return made


def path_of(manifest: Object) -> str:
    from headrace_operator.kube import path_of as of

    return of(manifest)


def _kinds() -> dict[str, str]:
    from headrace_operator.kube import _PLURALS

    return {plural: kind for kind, plural in _PLURALS.items()}


KINDS = _kinds()


class ClosingApi(FakeApi):
    """An API that its operator closes."""

    async def close(self) -> None:
        """Nothing to close."""

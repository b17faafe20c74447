"""The ClusterStore of a cluster on Kubernetes.

One thread of its own runs an event loop for all that goes to the API server. Watches keep a cache of every object; a
call by name, once a second, tells whether the server is there and whether the watches are: a lease that is newer than
the watched one shows a watch that has gone silent, and all of them begin anew.

`get` and `list` ask the server, which answers from etcd's quorum, and so does what `put` compares with, unless the cache
has just the expected version. `watch` is served from the cache alone.
"""

import asyncio
import threading
import time
from collections.abc import Coroutine, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final, TypeVar

import structlog

from headrace.errors import CorruptLog, HeadraceError
from headrace.store.kubernetes import objects
from headrace.store.kubernetes.api import Access, Api, ApiError, ApiSilent
from headrace.store.kubernetes.objects import Object, Place, Resource
from headrace.store.protocol import Changes, StoreUnavailable, VersionConflict, Versioned
from headrace.store.record_types import CLUSTER_KEY, LEASE_KEY

log = structlog.get_logger()

T = TypeVar("T")

PING_S: Final = 1.0
SILENT_S: Final = 2.0
"""Without an answer for so long, the store counts as away."""
DEAF_S: Final = 3.0
"""A watch that has not told of what a call found for so long is begun anew."""
AGAIN_S: Final = (0.1, 0.5, 1.0, 2.0)
"""Between two attempts to list and watch."""
CALL_S: Final = 12.0


class KubernetesStore:
    """Threads may share it. `cluster_record`: the cluster's own, as it is mounted into the pod."""

    def __init__(self, *, cluster: str, namespace: str, access: Access, cluster_record: bytes) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._own = Versioned(CLUSTER_KEY, cluster_record, 1)
        self._changed = threading.Condition()
        self._cache = _Cache()
        self._cache.take(self._own)
        self._heard = float("-inf")
        self._told: dict[str, int] = {}
        """Up to where each watch has come, by kind."""
        self._deaf_since: float | None = None
        self._watches: list[asyncio.Task[None]] = []
        self._unlisted = {resource.kind for resource, _ in objects.watched(cluster)}
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(access, started), name="kubernetes-store", daemon=True)
        self._thread.start()
        started.wait()

    def close(self) -> None:
        """End all connections and the thread."""
        self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join()

    # --- ClusterStore

    def get(self, key: str) -> Versioned | None:
        """See ClusterStore."""
        return self._own if key == CLUSTER_KEY else self._call(self._get(key))

    def list(self, prefix: str) -> list[Versioned]:
        """See ClusterStore."""
        return self._call(self._list(prefix))

    def put(self, key: str, value: bytes, expected_version: int | None) -> int:
        """See ClusterStore."""
        if key == CLUSTER_KEY:
            raise HeadraceError("on Kubernetes the cluster's own record is the operator's to write")
        return self._call(self._put(key, value, expected_version))

    def delete(self, key: str, expected_version: int) -> None:
        """See ClusterStore."""
        self._call(self._delete(key, expected_version))

    def watch(self, prefix: str, *, since: int, timeout_s: float) -> Changes:
        """See ClusterStore."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                changes = self._cache.changes(prefix, since)
                left = deadline - time.monotonic()
                if not self._unlisted and (changes.records or changes.removed):
                    return changes
                if left <= 0:
                    break
                self._changed.wait(left)
        if self._unlisted:
            raise StoreUnavailable(f"Kubernetes has not listed the cluster's {', '.join(sorted(self._unlisted))} yet")
        if time.monotonic() - self._heard > SILENT_S:
            raise StoreUnavailable("Kubernetes does not answer")
        return changes

    # --- calls, on the loop

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(CALL_S)
        except (ApiSilent, ApiError, TimeoutError) as error:
            raise StoreUnavailable(f"the cluster store does not answer: {error or 'timeout'}") from error
        except RuntimeError as error:  # the loop has ended
            coroutine.close()
            raise StoreUnavailable("the cluster store is closed") from error

    async def _find(self, where: Place) -> Object | None:
        try:
            return await self._api.call("GET", f"{where.resource.path(self._namespace)}/{where.name}")
        except ApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    async def _get(self, key: str) -> Versioned | None:
        where = objects.place(self._cluster, key)
        found = await self._find(where)
        return None if found is None else self._record(where.resource, found, key)

    def _record(self, resource: Resource, found: Object, key: str) -> Versioned | None:
        return next((each for each in objects.records(resource, self._cluster, found) if each.key == key), None)

    async def _list(self, prefix: str) -> list[Versioned]:
        found = [self._own]
        for resource, params in objects.watched(self._cluster):
            listed = await self._api.call("GET", resource.path(self._namespace), params=params)
            for each in listed["items"]:
                found += self._read(resource, each)
        return sorted((each for each in found if each.key.startswith(prefix)), key=lambda each: each.key)

    async def _put(self, key: str, value: bytes, expected: int | None) -> int:
        where = objects.place(self._cluster, key)
        found = await self._expected(where, key, expected)
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        base = objects.fresh(self._cluster, self._namespace, where) if found is None else found
        wanted = objects.with_record(base, key, value, now=now)
        path = where.resource.path(self._namespace)
        if found is None:
            written = await self._write(key, expected, "POST", path, wanted)
        else:
            written = await self._write(key, expected, "PUT", f"{path}/{where.name}", wanted)
        self._take(where.resource, written)
        return objects.version(written)

    async def _delete(self, key: str, expected: int) -> None:
        where = objects.place(self._cluster, key)
        found = await self._expected(where, key, expected)
        assert found is not None
        left = objects.without_record(found, key)
        path = f"{where.resource.path(self._namespace)}/{where.name}"
        if left is not None:
            self._take(where.resource, await self._write(key, expected, "PUT", path, left))
            return
        meta = found["metadata"]
        precise = {"preconditions": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}}
        await self._write(key, expected, "DELETE", path, precise)

    async def _expected(self, where: Place, key: str, expected: int | None) -> Object | None:
        """The object, if the record in it is at the expected version. Raises VersionConflict."""
        cached = self._cache.object(where)
        if cached is not None and expected is not None and objects.version(cached) == expected:
            return cached
        found = await self._find(where)
        record = None if found is None else self._record(where.resource, found, key)
        version = None if record is None else record.version
        if version != expected:
            raise VersionConflict(key, expected=expected, found=version)
        return found

    async def _write(self, key: str, expected: int | None, method: str, path: str, body: Object) -> Object:
        try:
            return await self._api.call(method, path, body=body)
        except ApiError as error:
            if error.status in (HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND):
                raise VersionConflict(key, expected=expected, found=None) from error
            raise

    # --- the thread

    def _run(self, access: Access, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._ending = asyncio.Event()
        try:
            self._loop.run_until_complete(self._live(access, started))
        finally:
            self._loop.close()

    async def _live(self, access: Access, started: threading.Event) -> None:
        self._api = Api(access)
        started.set()
        self._begin_watches()
        ping = self._loop.create_task(self._ping_always())
        try:
            await self._ending.wait()
        finally:
            for task in (ping, *self._watches):
                task.cancel()
            await asyncio.gather(ping, *self._watches, return_exceptions=True)
            await self._api.close()

    def _begin_watches(self) -> None:
        for task in self._watches:
            task.cancel()
        self._watches = [
            self._loop.create_task(self._follow_always(resource, params), name=f"watch-{resource.plural}")
            for resource, params in objects.watched(self._cluster)
        ]

    async def _follow_always(self, resource: Resource, params: Mapping[str, str]) -> None:
        attempt = 0
        since = ""
        while True:
            try:
                if not since:
                    since = await self._relist(resource, params)
                attempt = 0
                async for kind, found in self._api.watch(resource.path(self._namespace), params=params, since=since):
                    self._told[resource.kind] = objects.version(found)
                    since = str(objects.version(found))
                    if kind != "BOOKMARK":
                        self._take(resource, found, deleted=kind == "DELETED")
            except ApiError as error:
                since = ""
                if error.status != HTTPStatus.GONE:
                    log.warning("Kubernetes refuses a watch", of=resource.plural, error=str(error))
            except ApiSilent as error:
                log.info("a watch of Kubernetes ended", of=resource.plural, error=str(error))
            await asyncio.sleep(AGAIN_S[min(attempt, len(AGAIN_S) - 1)])
            attempt += 1

    async def _relist(self, resource: Resource, params: Mapping[str, str]) -> str:
        listed = await self._api.call("GET", resource.path(self._namespace), params=params)
        version = objects.version(listed)
        names = set()
        for each in listed["items"]:
            names.add(each["metadata"]["name"])
            self._take(resource, {"kind": resource.kind, **each})
        with self._changed:
            self._cache.only(resource, names, version)
            self._unlisted.discard(resource.kind)
            self._told[resource.kind] = version
            self._changed.notify_all()
        return str(version)

    async def _ping_always(self) -> None:
        lease = objects.place(self._cluster, LEASE_KEY)
        while True:
            begun = self._loop.time()
            try:
                found = await self._find(lease)
            except (ApiSilent, ApiError) as error:
                log.debug("Kubernetes was asked in vain", error=str(error))
            else:
                self._heard = time.monotonic()
                self._mind_deafness(lease, found)
            await asyncio.sleep(max(0.0, begun + PING_S - self._loop.time()))

    def _mind_deafness(self, lease: Place, found: Object | None) -> None:
        if found is None or self._told.get(lease.resource.kind, 0) >= objects.version(found):
            self._deaf_since = None
        elif self._deaf_since is None:
            self._deaf_since = self._loop.time()
        elif self._loop.time() - self._deaf_since > DEAF_S:
            log.warning("the watches of Kubernetes have gone silent, and begin anew")
            self._deaf_since = None
            self._begin_watches()

    # --- the cache

    def _read(self, resource: Resource, found: Object) -> list[Versioned]:
        try:
            return objects.records(resource, self._cluster, found)
        except CorruptLog as error:
            log.error("an object of Kubernetes is left aside", error=str(error))
            return []

    def _take(self, resource: Resource, found: Object, *, deleted: bool = False) -> None:
        records = [] if deleted else self._read(resource, found)
        with self._changed:
            if self._cache.take_object(resource, found, records, deleted=deleted):
                self._changed.notify_all()


class _Cache:
    """Objects and records, each at its newest version, and when each record changed here."""

    def __init__(self) -> None:
        self._objects: dict[tuple[str, str], Object] = {}
        self._versions: dict[tuple[str, str], int] = {}
        """Of each object, the newest seen; of those that are gone, that of their end."""
        self._keys: dict[tuple[str, str], set[str]] = {}
        self._records: dict[str, Versioned] = {}
        self._removed: dict[str, int] = {}
        self._revisions: dict[str, int] = {}
        self._revision = 0

    def object(self, where: Place) -> Object | None:
        return self._objects.get((where.resource.kind, where.name))

    def take(self, record: Versioned) -> None:
        self._revision += 1
        self._records[record.key] = record
        self._removed.pop(record.key, None)
        self._revisions[record.key] = self._revision

    def take_object(self, resource: Resource, found: Object, records: list[Versioned], *, deleted: bool) -> bool:
        """Whether it was news."""
        at = (resource.kind, str(found["metadata"]["name"]))
        version = objects.version(found)
        if version <= self._versions.get(at, 0):
            return False
        self._versions[at] = version
        if deleted:
            self._objects.pop(at, None)
        else:
            self._objects[at] = {"kind": resource.kind, "apiVersion": resource.api_version, **found}
        before = self._keys.get(at, set())
        self._keys[at] = {each.key for each in records}
        for each in records:
            known = self._records.get(each.key)
            if known is None or known.value != each.value or known.version != each.version:
                self.take(each)
        for key in before - self._keys[at]:
            self._remove(key, version)
        return True

    def only(self, resource: Resource, names: set[str], version: int) -> None:
        """A whole list at that version had these objects and no others."""
        for at in [at for at in self._objects if at[0] == resource.kind and at[1] not in names]:
            if self._versions[at] <= version:
                self._versions[at] = version
                del self._objects[at]
                for key in self._keys.pop(at, set()):
                    self._remove(key, version)

    def _remove(self, key: str, version: int) -> None:
        self._revision += 1
        self._records.pop(key, None)
        self._removed[key] = version
        self._revisions[key] = self._revision

    def changes(self, prefix: str, since: int) -> Changes:
        keys = sorted(key for key, at in self._revisions.items() if at > since and key.startswith(prefix))
        return Changes(
            revision=self._revision,
            records=[self._records[key] for key in keys if key in self._records],
            removed={key: self._removed[key] for key in keys if key in self._removed},
            whole=False,
        )



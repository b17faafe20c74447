"""The ClusterStore of a cluster on Kubernetes.

A thread of its own runs an event loop for all requests to the API server. `get` and `list` ask the server, which
answers from etcd's quorum; `put` and `delete` write an object at exactly the resourceVersion of the expected record,
and so does a repeated put: of all puts that expect the same version, only one succeeds. `watch` is served from what the
watches have seen, and from the answers to calls, which may be ahead of them.

Writes are limited, both those in progress and those per second; the lease is exempt. A busy server is left alone for as
long as it says. Each change of a record is a single call, so a crash leaves an object either unchanged or completely
changed.
"""

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import AsyncIterator, Coroutine, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final, TypeVar

from headrace.base.token_bucket import TokenBucket
from headrace.store.kubernetes import objects
from headrace.store.kubernetes.api import Access, Api, ApiBusy, ApiError, ApiSilent
from headrace.store.kubernetes.objects import LEASES, Object, Place, Resource
from headrace.store.kubernetes.observed_objects import ObservedObjects
from headrace.store.kubernetes.watches import Watches
from headrace.store.protocol import Changes, NotOurs, StoreUnavailable, VersionConflict, Versioned
from headrace.store.record_types import CLUSTER_KEY

T = TypeVar("T")

ALL_S: Final = 12.0
"""Seconds within which one call of the store ends, including waits and retries."""
WRITES_AT_ONCE: Final = 8
"""The maximum number of writes in progress at the same time."""
WRITES_PER_S: Final = 50.0
"""Writes per second after the burst."""
BURST: Final = 300
"""Writes that may be made without waiting, for instance in a failover."""
_CLOSED: Final = "the cluster store is closed"


class KubernetesStore:
    """A ClusterStore that threads may share. `cluster_record`: the cluster's own record, as mounted into the pod.

    Raises OSError if the files of `access` cannot be read.
    """

    def __init__(self, *, cluster: str, namespace: str, access: Access, cluster_record: bytes) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._own = Versioned(CLUSTER_KEY, cluster_record, 1)
        self._seen = ObservedObjects(cluster, self._own)
        started: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(
            target=asyncio.run, args=(self._live(access, started),), name="kubernetes-store", daemon=True
        )
        self._thread.start()
        started.result()

    def close(self) -> None:
        """End all connections and the thread; calls in progress fail as if the store were unavailable."""
        with contextlib.suppress(RuntimeError):  # closed before
            self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join()

    # --- ClusterStore

    def get(self, key: str) -> Versioned | None:
        """See ClusterStore."""
        return self._own if key == CLUSTER_KEY else self._call(self._get(key))

    def list(self, prefix: str) -> list[Versioned]:
        """See ClusterStore."""
        found = [*self._call(self._list(prefix)), self._own]
        return sorted((each for each in found if each.key.startswith(prefix)), key=lambda each: each.key)

    def put(self, key: str, value: bytes, expected_version: int | None) -> int:
        """See ClusterStore."""
        if key == CLUSTER_KEY:
            raise NotOurs("on Kubernetes the cluster's own record is the operator's to write")
        return self._call(self._put(key, value, expected_version))

    def delete(self, key: str, expected_version: int) -> None:
        """See ClusterStore."""
        self._call(self._delete(key, expected_version))

    def watch(self, prefix: str, *, since: int, timeout_s: float) -> Changes:
        """See ClusterStore."""
        return self._seen.changes(prefix, since=since, timeout_s=timeout_s)

    # --- the thread

    async def _live(self, access: Access, started: "concurrent.futures.Future[None]") -> None:
        try:
            self._loop = asyncio.get_running_loop()
            self._ending = asyncio.Event()
            self._pace = _WriteLimiter()
            self._api = Api(access)
        except BaseException as error:
            started.set_exception(error)
            return
        watches = Watches(self._api, self._seen, cluster=self._cluster, namespace=self._namespace)
        following = asyncio.create_task(watches.run(), name="watches")
        started.set_result(None)
        try:
            await self._ending.wait()
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await self._api.close()

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the thread's loop, and wait for its result."""
        try:
            called = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError as error:  # the loop has ended
            coroutine.close()
            raise StoreUnavailable(_CLOSED) from error
        try:
            return called.result(ALL_S)
        except ApiError as error:
            raise StoreUnavailable(f"the cluster store does not answer: {error}") from error
        except (ApiSilent, TimeoutError, concurrent.futures.CancelledError) as error:
            called.cancel()
            if self._ending.is_set():  # `close` ended the connection, or the call
                raise StoreUnavailable(_CLOSED) from error
            reason = f": {error}" if isinstance(error, ApiSilent) else f" within {ALL_S:.0f} s"
            raise StoreUnavailable(f"the cluster store does not answer{reason}") from error

    # --- calls, on the thread's loop

    async def _ask(self, method: str, path: str, body: Object | None = None) -> Object:
        """Make one call; repeat it while the server is busy, since it was not carried out then."""
        while True:
            await self._pace.free()
            try:
                answer = await self._api.call(method, path, body=body)
            except ApiBusy as busy:
                self._pace.hold(busy.retry_after_s)
            else:
                self._seen.heard()
                return answer

    async def _find(self, where: Place) -> Object | None:
        known, generation = self._seen.version(where), self._seen.generation
        try:
            found = await self._ask("GET", f"{where.resource.path(self._namespace)}/{where.name}")
        except ApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                self._seen.heard()
                return None
            raise
        self._seen.compare(objects.version(found), known, generation)
        self._seen.take(where.resource, found)
        return found

    async def _get(self, key: str) -> Versioned | None:
        where = objects.place(self._cluster, key)
        found = await self._find(where)
        return None if found is None else self._record(where.resource, found, key)

    def _record(self, resource: Resource, found: Object, key: str) -> Versioned | None:
        return next((each for each in objects.records(resource, self._cluster, found) if each.key == key), None)

    async def _list(self, prefix: str) -> Sequence[Versioned]:
        records: list[Versioned] = []
        for resource, params in objects.watched(self._cluster):
            if objects.may_hold(resource, prefix):
                found, _ = await self._api.list_all(resource.path(self._namespace), params=params)
                self._seen.heard()
                for each in found:
                    records += objects.records(resource, self._cluster, each)
        return records

    async def _put(self, key: str, value: bytes, expected: int | None) -> int:
        where = objects.place(self._cluster, key)
        async with self._pace.write(where.resource):
            found = await self._expected(where, key, expected)
            now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
            base = objects.fresh(self._cluster, self._namespace, where) if found is None else found
            wanted = objects.with_record(base, key, value, now=now)
            written = await self._write(where, key, expected, "POST" if found is None else "PUT", wanted)
        self._seen.take(where.resource, written)
        return objects.version(written)

    async def _delete(self, key: str, expected: int) -> None:
        where = objects.place(self._cluster, key)
        async with self._pace.write(where.resource):
            found = await self._expected(where, key, expected)
            if found is None:
                raise VersionConflict(key, expected=expected, found=None)
            left = objects.without_record(found, key)
            if left is not None:
                self._seen.take(where.resource, await self._write(where, key, expected, "PUT", left))
                return
            meta = found["metadata"]
            precise = {"preconditions": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}}
            await self._write(where, key, expected, "DELETE", precise)

    async def _expected(self, where: Place, key: str, expected: int | None) -> Object | None:
        """Return the object if the record in it is at the expected version. Raises VersionConflict."""
        seen = self._seen.object(where)
        if seen is not None and objects.version(seen) == expected and self._record(where.resource, seen, key):
            return seen
        found = await self._find(where)
        record = None if found is None else self._record(where.resource, found, key)
        version = None if record is None else record.version
        if version != expected:
            raise VersionConflict(key, expected=expected, found=version)
        return found

    async def _write(self, where: Place, key: str, expected: int | None, method: str, body: Object) -> Object:
        path = where.resource.path(self._namespace)
        # A new object has a version above all of its kind. A PUT that changes nothing is answered with the old one.
        known = self._seen.highest(where.resource) if method == "POST" else self._seen.version(where)
        generation = self._seen.generation
        try:
            written = await self._ask(method, path if method == "POST" else f"{path}/{where.name}", body)
            if method != "DELETE":
                self._seen.compare(objects.version(written), known, generation)
            return written
        except ApiError as error:
            if error.status not in (HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND):
                raise
        # Another process was faster: its write is shown before the caller looks again.
        found = await self._find(where)
        record = None if found is None else self._record(where.resource, found, key)
        raise VersionConflict(key, expected=expected, found=None if record is None else record.version)


class _WriteLimiter:
    """Limits the writes of one process. Belongs to one loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._slots = asyncio.Semaphore(WRITES_AT_ONCE)
        self._writes = TokenBucket(BURST, self._loop.time())
        self._held_until = float("-inf")

    def hold(self, seconds: float) -> None:
        """The server is busy: send nothing for `seconds`."""
        self._held_until = max(self._held_until, self._loop.time() + seconds)

    async def free(self) -> None:
        """Return once the server is not busy."""
        if (wait := self._held_until - self._loop.time()) > 0:
            await asyncio.sleep(wait)

    @contextlib.asynccontextmanager
    async def write(self, resource: Resource) -> AsyncIterator[None]:
        """Wait until a write may begin, and count it.

        The lease does not wait: without it there is no controller, on which all other writes may depend.
        """
        if resource is LEASES:
            yield
            return
        async with self._slots:
            await self._take()
            yield

    async def _take(self) -> None:
        self._writes.fill(self._loop.time(), per_s=WRITES_PER_S, burst=BURST)
        self._writes.take()
        if self._writes.tokens < 0:
            await asyncio.sleep(-self._writes.tokens / WRITES_PER_S)

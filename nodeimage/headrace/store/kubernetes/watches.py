"""Keeps the observed objects of a cluster up to date: one list and watch for each kind, and a ping.

A watch whose time is over resumes where it ended; one that is refused because that is too long ago, or that was cut
off, lists again. The lease is renewed twice a second, so a healthy server is heard all the time. If nothing is heard,
the server is asked for the lease by name. The answer shows that the server is reachable. If the answers name a newer
lease than the watch has reported for a while, the watches are deaf, and all of them start over. (A single watch that is
cut off ends because of TCP's keepalives, or for lack of bookmarks: see api.)

All watches also start over if etcd was restored from a backup: a watch from a version that no longer exists stays
silent until that version is reached again, and then skips all earlier ones. A restore ends all watches, since API
servers are stopped for it. By the time that a watch starts over, the versions, including the lease's, may have passed
those seen before: then only the list shows the restore, by objects that are older than before.
"""

import asyncio
import contextlib
import random
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import structlog

from headrace.store.kubernetes import objects
from headrace.store.kubernetes.api import Api, ApiBusy, ApiError, ApiSilent
from headrace.store.kubernetes.objects import LEASES, Resource
from headrace.store.kubernetes.observed_objects import ObservedObjects
from headrace.store.record_types import LEASE_KEY

log = structlog.get_logger()

PING_S: Final = 0.5
"""Seconds of silence after which the server is asked."""
ANSWER_S: Final = 1.0
"""Seconds for which the answer to a ping is awaited."""
DEAF_S: Final = 1.5
"""Seconds for which a watch may lack a lease that a ping has returned, before it counts as deaf."""
AGAIN_S: Final = (0.05, 0.2, 0.5, 1.0)
"""Seconds before each further attempt to list and watch, randomized so that the nodes of a cluster spread out."""
STEADY_S: Final = 5.0
"""Seconds after which a watch counts as successful when it ends."""


class Watches:
    """The watches of one cluster. Belongs to one loop."""

    def __init__(self, api: Api, seen: ObservedObjects, *, cluster: str, namespace: str) -> None:
        self._api = api
        self._seen = seen
        self._cluster = cluster
        self._namespace = namespace
        self._reported_version = 0
        """The newest version of the lease that the watch has reported."""
        self._generation = 0

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            self._reported_version = 0
            self._generation = self._seen.generation
            following = [
                asyncio.create_task(self._follow(resource, params), name=f"watch-{resource.plural}")
                for resource, params in objects.watched(self._cluster)
            ]
            try:
                await self._until_deaf()
                log.warning("the watches of Kubernetes start over")
            except Exception:
                log.exception("Kubernetes sends unreadable answers; the watches start over")
                await asyncio.sleep(AGAIN_S[-1])
            finally:
                for each in following:
                    each.cancel()
                await asyncio.gather(*following, return_exceptions=True)

    async def _follow(self, resource: Resource, params: Mapping[str, str]) -> None:
        loop = asyncio.get_running_loop()
        path = resource.path(self._namespace)
        attempt = 0
        since = refused = ""
        while True:
            begun = loop.time()
            pause = 0.0
            try:
                if not since:
                    known, highest = self._seen.versions(resource), self._seen.highest(resource)
                    found, since = await self._api.list_all(path, params=params)
                    self._seen.compare(int(since), highest, self._generation)
                    for each in found:
                        each_known = known.get(str(each["metadata"]["name"]), 0)
                        self._seen.compare(objects.version(each), each_known, self._generation)
                    if self._seen.generation != self._generation:
                        return  # all watches start over
                    self._seen.listed(resource, found, int(since))
                    self._heard(resource, int(since))
                async with contextlib.aclosing(self._api.watch(path, params=params, since=since)) as events:
                    async for kind, each in events:
                        if kind != "BOOKMARK":
                            self._seen.take(resource, each, deleted=kind == "DELETED")
                        since = str(objects.version(each))
                        self._heard(resource, objects.version(each))
                        attempt = 0
                        refused = ""
            except ApiBusy as busy:
                pause = busy.retry_after_s
            except ApiError as error:
                since = ""
                if error.status != HTTPStatus.GONE:
                    self._seen.trouble = str(error)
                    if refused != str(error):
                        log.warning("Kubernetes refuses a watch", of=resource.plural, reason=str(error))
                    refused = str(error)
            except ApiSilent as error:
                since = ""
                self._seen.trouble = str(error)  # reported by readers if it lasts
            except Exception:  # otherwise the cache would never be updated again
                since = ""
                log.exception("a watch of Kubernetes failed unexpectedly", of=resource.plural)
            if loop.time() - begun > STEADY_S:
                attempt = 0
            await asyncio.sleep(pause + random.uniform(0.5, 1.0) * AGAIN_S[min(attempt, len(AGAIN_S) - 1)])
            attempt += 1

    def _heard(self, resource: Resource, version: int) -> None:
        self._seen.heard()
        if resource is LEASES:
            self._reported_version = max(self._reported_version, version)

    async def _until_deaf(self) -> None:
        loop = asyncio.get_running_loop()
        untold: tuple[float, int] | None = None
        """When a ping first returned a lease that the watch had not reported, and its version."""
        while self._seen.generation == self._generation:
            silent = loop.time() - self._seen.heard_at
            if silent < PING_S:
                await asyncio.sleep(PING_S - silent)
                continue
            begun = loop.time()
            version = await self._ping()
            if version is None:
                await asyncio.sleep(max(0.0, begun + PING_S - loop.time()))
                continue
            if untold is not None and self._reported_version >= untold[1]:
                untold = None
            if self._reported_version < version:
                untold = untold or (begun, version)
                if begun - untold[0] >= DEAF_S:
                    return

    async def _ping(self) -> int | None:
        """Return the version of the lease, 0 if there is none; None if the server did not answer."""
        where = objects.place(self._cluster, LEASE_KEY)
        known, generation = self._seen.version(where), self._seen.generation
        try:
            found = await self._api.call(
                "GET", f"{where.resource.path(self._namespace)}/{where.name}", timeout_s=ANSWER_S
            )
        except ApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                self._seen.heard()
                return 0
            self._seen.trouble = str(error)
            return None
        except ApiSilent as error:
            self._seen.trouble = str(error)
            return None
        self._seen.heard()
        self._seen.compare(objects.version(found), known, generation)
        self._seen.take(where.resource, found)
        return objects.version(found)

"""The operator's process: kopf watches, `engine` reconciles.

kopf lists and watches, with retries, and reports events to `on.event` handlers, which leave neither finalizers nor
annotations. Reconcilers do the rest. Settings are environment variables, which the chart sets:

    HEADRACE_NODE_IMAGE, HEADRACE_SPARK_IMAGE   images for resources that name none
    HEADRACE_NAMESPACES                         watched namespaces, separated by commas; empty: all
    HEADRACE_CLUSTER_RIGHTS                     0: no right to read namespaces, workers and CRDs
    HEADRACE_SWEEP_S                            seconds between two sweeps
    HEADRACE_BACKOFF_S                          longest back-off, in seconds
    POD_NAMESPACE                               the operator's own namespace
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from itertools import chain, repeat
from typing import Any, Final

import kopf
import structlog

from headrace import __version__
from headrace.base.log_limits import LogLimits
from headrace.base.log_output import log_to, telling
from headrace.store.kubernetes.api import Access, Api, ApiError
from headrace_operator.admin import Admin
from headrace_operator.builders.names import CLUSTER_LABEL, FIELD_MANAGER, JOB_LABEL
from headrace_operator.engine import BACKOFF_S, SWEEP_S, Body, Cache, Engine, Key, Reconcile, Refused, key_of
from headrace_operator.http_port import HttpPort
from headrace_operator.kinds.cluster import Clusters
from headrace_operator.kinds.cluster_watch import ClusterWatch
from headrace_operator.kinds.finalizers import is_ending
from headrace_operator.kinds.index import Index
from headrace_operator.kinds.job import Jobs
from headrace_operator.kinds.link import Links
from headrace_operator.kinds.reporting import Reporter
from headrace_operator.kinds.stream import Streams
from headrace_operator.kinds.topic import Topics
from headrace_operator.kinds.users import Users
from headrace_operator.kinds.volume import Volumes
from headrace_operator.kube import Kube
from headrace_operator.metrics import Figures, Metrics, Reconciles
from headrace_operator.pod_http import PodHttp
from headrace_operator.revision_watch import RevisionWatch
from headrace_operator.routes import Routes
from headrace_operator.specs import API, GROUP, OWN_NAMESPACE, VERSION

log = structlog.get_logger()

PORT: Final = 8080
RETRIES_S: Final = (1.0, 1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0, 30.0)
"""Pauses before kopf retries a request to the API server, if it watches some namespaces only; the last is repeated for
ever.
"""
WORKERS: Final = 16
IDLE_S: Final = 0.05
SERVER_S: Final = 300
OURS: Final = ("streamclusters", "volumes", "streams", "topics", "streamusers", "replicationlinks", "streamjobs")
_OF_A_CLUSTER: Final[Mapping[str, Any]] = {CLUSTER_LABEL: kopf.PRESENT}
BELONGING: Final[Sequence[tuple[str, str, str, Mapping[str, Any]]]] = (
    ("apps", "v1", "statefulsets", _OF_A_CLUSTER),
    ("policy", "v1", "poddisruptionbudgets", _OF_A_CLUSTER),
    ("", "v1", "services", _OF_A_CLUSTER),
    ("", "v1", "pods", {**_OF_A_CLUSTER, "app.kubernetes.io/component": "storage"}),
    ("", "v1", "pods", {JOB_LABEL: kopf.PRESENT}),
    ("batch", "v1", "jobs", _OF_A_CLUSTER),
    (GROUP, VERSION, "storagenodes", _OF_A_CLUSTER),
)
"""Watched objects of clusters and jobs; changes of other objects are found by the sweep."""


class Operator:
    """The parts of a running operator."""

    def __init__(
        self,
        api: Api,
        *,
        namespaces: Sequence[str],
        sweep_s: float,
        image: str,
        spark: str,
        longest_backoff_s: float = BACKOFF_S[-1],
        cluster_rights: bool = True,
    ) -> None:
        """`cluster_rights`: whether the operator may read namespaces and workers."""
        self._api = api
        self._namespaces = namespaces
        self._refused: set[str] = set()
        """Namespaces that could not be read."""
        self._routes = Routes()
        self.kube, self._admin, self._pods, cache = Kube(api), Admin(self._routes), PodHttp(), Cache()
        self._reporter = Reporter(self.kube, cache=cache)
        self._index = Index(cache)
        self._watch = ClusterWatch(admin=self._admin, wake=lambda cluster: self.engine.enqueue(cluster))
        reconciles = Reconciles()
        self.engine = Engine(
            self._reconcilers(cache, image=image, spark=spark, sees_workers=cluster_rights),
            cache=cache,
            sweep_s=sweep_s,
            longest_backoff_s=longest_backoff_s,
            listing=self._listed,
            referrers=self._index.concerned,
            others=["Namespace"] if cluster_rights else [],
            urgent=["StreamCluster"],
            done=reconciles.done,
        )
        self._revisions = RevisionWatch(self._revision)
        metrics = Metrics(reconciles=reconciles, figures=self._figures, cache=cache, kinds=self.engine.kinds)
        self.http = HttpPort(
            stale=lambda: self._revisions.set_back or self.engine.stale(),
            metrics=metrics.text,
            starting=lambda: not self.engine.has_looked,
        )

    async def start(self, port: int = PORT) -> None:
        """Start all parts. Raises OSError."""
        self.engine.start()
        self._watch.start()
        self._revisions.start()
        await self.http.start("", port)

    async def close(self) -> None:
        """Stop all parts."""
        closing: list[Callable[[], Awaitable[None]]] = [
            self._watch.close,
            self._revisions.close,
            self.engine.close,
            self.http.close,
            self._admin.close,
            self._pods.close,
            self._api.close,
        ]
        for close in closing:
            await close()

    def namespace_seen(self, body: Body, *, deleted: bool) -> None:
        """Record a namespace's current state. If it is being deleted, finalizers in it are removed; if it is the
        operator's own, all are.
        """
        cache, name = self.engine.cache, str(body["metadata"]["name"])
        self.engine.seen(body, deleted=deleted)
        if not is_ending(cache, name):
            return
        for kind in ("StreamCluster", "Stream", "Topic", "StreamUser", "ReplicationLink"):
            for key in map(key_of, cache.all(kind)):
                if name in (key.namespace, OWN_NAMESPACE):
                    self.engine.enqueue(key)

    def _reconcilers(self, cache: Cache, *, image: str, spark: str, sees_workers: bool) -> dict[str, Reconcile]:
        kube, admin, reporter, index = self.kube, self._admin, self._reporter, self._index
        pods = self._pods
        common: dict[str, Any] = {
            "kube": kube,
            "admin": admin,
            "reporter": reporter,
            "cache": cache,
            "index": index,
            "routes": self._routes,
        }
        clusters = Clusters(
            kube=kube,
            admin=admin,
            pods=pods,
            reporter=reporter,
            cache=cache,
            image=image,
            routes=self._routes,
            sees_workers=sees_workers,
            wake=self._wake,
            saw=self._watch.saw,
        )
        return {
            "StreamCluster": clusters.reconcile,
            "Volume": Volumes(**common).reconcile,
            "Stream": Streams(**common, wake=self._wake_all).reconcile,
            "Topic": Topics(**common).reconcile,
            "StreamUser": Users(**common).reconcile,
            "ReplicationLink": Links(**common).reconcile,
            "StreamJob": Jobs(kube=kube, admin=admin, pods=pods, reporter=reporter, cache=cache, image=spark).reconcile,
        }

    def _wake(self, cluster: Key) -> None:
        self._wake_all(self._index.referring(cluster))

    def _wake_all(self, keys: Collection[Key]) -> None:
        for key in keys:
            self.engine.enqueue(key)

    async def _revision(self) -> int:
        """Return the API server's revision, from the first watched namespace that may be read."""
        everywhere: Sequence[str | None] = self._namespaces or [None]
        *others, last = everywhere
        for namespace in others:
            with contextlib.suppress(ApiError):
                return await self.kube.revision(API, "StreamCluster", namespace)
        return await self.kube.revision(API, "StreamCluster", last)

    async def _listed(self, kind: str) -> AsyncIterator[Body]:
        if kind == "Namespace":
            async for body in self.kube.pages("v1", kind, None):
                yield body
            return
        everywhere: Sequence[str | None] = self._namespaces or [None]
        refused: dict[str, ApiError] = {}
        for namespace in everywhere:
            try:
                async for body in self.kube.pages(API, kind, namespace):
                    yield body
            except ApiError as error:
                if namespace is None or error.status not in (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND):
                    raise
                refused[namespace] = error
        if len(refused) == len(everywhere):
            raise next(iter(refused.values()))
        self._tell_refused(refused)
        if left := [each for each in refused if not self._is_gone(each)]:
            raise Refused(left)

    def _tell_refused(self, refused: Mapping[str, ApiError]) -> None:
        """Log a namespace that cannot be read once, until it can be read again."""
        for namespace in refused.keys() - self._refused:
            error = str(refused[namespace])
            log.warning("no permission to read a namespace: continuing with the others", of=namespace, error=error)
        self._refused = set(refused)

    def _is_gone(self, namespace: str) -> bool:
        """Return whether a namespace does not exist, as far as this operator may read namespaces."""
        cache = self.engine.cache
        return bool(cache.count("Namespace")) and cache.get(Key("Namespace", "", namespace)) is None

    def _figures(self) -> Figures:
        engine = self.engine
        return {
            "reconciles_total": {("done",): engine.reconciled, ("failed",): engine.failed},
            "reconcile_seconds_total": {(): engine.seconds},
            "missed_changes_total": {(): engine.missed},
            "writes_total": {(): self.kube.patches},
            "unchanged_total": {(): self.kube.unchanged},
            "status_writes_total": {(): self._reporter.statuses},
            "admin_calls_total": {(): self._admin.calls},
            "queue_resources": {(): engine.queued},
        }


_operator: Operator | None = None


def _running() -> Operator:
    assert _operator is not None, "kopf runs the startup handlers first"
    return _operator


def _namespaces() -> list[str]:
    return [each for each in os.environ.get("HEADRACE_NAMESPACES", "").split(",") if each]


def _has_cluster_rights() -> bool:
    return os.environ.get("HEADRACE_CLUSTER_RIGHTS", "1") != "0"


class Pause(float):
    """Seconds before kopf retries, which no `Retry-After` prolongs: kopf takes the greater of both, and a server, or a
    proxy before it, may name any time.
    """

    def __lt__(self, other: float) -> bool:
        return False


class Retries:
    """RETRIES_S, continued without end. When kopf's retries are exhausted kopf ends, and the operator with it; so one
    namespace in which the operator has lost its rights would end it for all others.
    """

    def __iter__(self) -> Iterator[float]:
        return map(Pause, chain(RETRIES_S, repeat(RETRIES_S[-1])))


def bound(settings: kopf.OperatorSettings, *, namespaced: bool = False) -> None:
    """Limit how long watches last, and how many events are handled concurrently. Each of kopf's workers serves one
    object, and stays for `idle_timeout` after its last event: with kopf's 5 s, 16 workers would handle three objects a
    second.
    """
    pauses = settings.networking.error_backoffs
    pauses = pauses if isinstance(pauses, Iterable) else [pauses]
    settings.networking.error_backoffs = Retries() if namespaced else [Pause(each) for each in pauses]
    settings.watching.server_timeout = SERVER_S
    settings.watching.client_timeout = SERVER_S + 10
    settings.watching.connect_timeout = 10
    settings.queueing.worker_limit = WORKERS
    settings.queueing.idle_timeout = IDLE_S
    settings.posting.enabled = False


@kopf.on.login()
def login(**settings: Any) -> kopf.ConnectionInfo | None:
    """Log in by the service account only: kopf's default would load the official client, which costs 21 MiB."""
    return kopf.login_with_service_account(**settings)


@kopf.on.startup()
async def start(settings: kopf.OperatorSettings, **_: Any) -> None:
    """Limit kopf, and start the operator."""
    global _operator
    bound(settings, namespaced=bool(_namespaces()))
    settings.scanning.disabled = not _has_cluster_rights()
    image = os.environ.get("HEADRACE_NODE_IMAGE", f"headrace/node:{__version__}")
    _operator = Operator(
        Api(Access.in_cluster(), agent=FIELD_MANAGER),
        namespaces=_namespaces(),
        sweep_s=float(os.environ.get("HEADRACE_SWEEP_S", SWEEP_S)),
        longest_backoff_s=float(os.environ.get("HEADRACE_BACKOFF_S", BACKOFF_S[-1])),
        cluster_rights=_has_cluster_rights(),
        image=image,
        spark=os.environ.get("HEADRACE_SPARK_IMAGE", f"headrace/spark:{__version__}"),
    )
    await _operator.start()
    log.info("operator started", version=__version__, image=image, namespaces=_namespaces() or "all")


@kopf.on.cleanup()
async def stop(**_: Any) -> None:
    """Stop the operator."""
    await _running().close()


async def seen(event: kopf.RawEvent, body: kopf.Body, **_: Any) -> None:
    """Record the current state of one of Headrace's resources."""
    _running().engine.seen(dict(body), deleted=event["type"] == "DELETED")


async def touched(body: kopf.Body, **_: Any) -> None:
    """Reconcile the cluster or job that a changed object belongs to."""
    meta = body["metadata"]
    job = meta["labels"].get(JOB_LABEL)
    kind, name = ("StreamJob", job) if job is not None else ("StreamCluster", meta["labels"][CLUSTER_LABEL])
    _running().engine.enqueue(Key(kind, str(meta["namespace"]), str(name)))


async def namespace_seen(event: kopf.RawEvent, body: kopf.Body, **_: Any) -> None:
    """Record a namespace, for clusters that other namespaces may use, and for the removal of finalizers."""
    _running().namespace_seen({"kind": "Namespace", **dict(body)}, deleted=event["type"] == "DELETED")


def register() -> None:
    """Make kopf watch what this operator may read."""
    for plural in OURS:
        kopf.on.event(GROUP, VERSION, plural)(seen)
    for group, version, plural, labels in BELONGING:
        kopf.on.event(group, version, plural, labels=dict(labels))(touched)
    if _has_cluster_rights():
        kopf.on.event("", "v1", "namespaces")(namespace_seen)


def main() -> None:
    """Run the process. Raises SystemExit."""
    limits = LogLimits()
    log_to(sys.stderr, limits)
    register()
    asyncio.run(_operate(limits))


async def _operate(limits: LogLimits) -> None:
    namespaces = _namespaces()
    async with telling(limits):
        await kopf.operator(clusterwide=not namespaces, namespaces=namespaces, standalone=True)


if __name__ == "__main__":
    main()

"""The operator's process: kopf watches, `engine` works.

kopf's part is to list and watch, to retry that, and to say what it saw: one `on.event` handler, which leaves neither
finalizers nor annotations. What is made of it is the reconcilers'. Settings come from the environment, which the chart
sets.
"""

import asyncio
import os
from typing import Any, Final

import kopf
import structlog

from headrace import __version__
from headrace.store.kubernetes.api import Access, Api
from headrace_operator.admin import Admin
from headrace_operator.builders.names import CLUSTER_LABEL
from headrace_operator.engine import Cache, Engine, Key
from headrace_operator.kinds.cluster import Clusters
from headrace_operator.kinds.data import Streams, Topics, Volumes
from headrace_operator.kinds.job import Jobs
from headrace_operator.kinds.reporting import Reporter
from headrace_operator.kinds.users import Links, Users
from headrace_operator.kube import Kube
from headrace_operator.specs import GROUP, VERSION

log = structlog.get_logger()

PORT: Final = 8080
WORKERS: Final = 16
SERVER_S: Final = 300
OURS: Final = ("streamclusters", "volumes", "streams", "topics", "streamusers", "replicationlinks", "streamjobs")

_engine: Engine | None = None
_closing: list[Any] = []


def _running() -> Engine:
    assert _engine is not None, "kopf runs the startup handlers first"
    return _engine


@kopf.on.startup()
async def start(settings: kopf.OperatorSettings, **_: Any) -> None:
    """Bound what kopf does, and start the engine."""
    global _engine
    settings.watching.server_timeout = SERVER_S
    settings.watching.client_timeout = SERVER_S + 10
    settings.watching.connect_timeout = 10
    settings.queueing.worker_limit = WORKERS
    settings.posting.enabled = False
    api = Api(Access.in_cluster())
    kube, admin, cache = Kube(api), Admin(), Cache()
    reporter = Reporter(kube)
    image = os.environ.get("HEADRACE_NODE_IMAGE", f"headrace/node:{__version__}")
    spark = os.environ.get("HEADRACE_SPARK_IMAGE", f"headrace/spark:{__version__}")
    common = {"kube": kube, "admin": admin, "reporter": reporter, "cache": cache}
    reconcilers = {
        "StreamCluster": Clusters(kube=kube, admin=admin, reporter=reporter, image=image).reconcile,
        "Volume": Volumes(**common).reconcile,
        "Stream": Streams(**common).reconcile,
        "Topic": Topics(**common).reconcile,
        "StreamUser": Users(kube=kube, reporter=reporter, cache=cache).reconcile,
        "ReplicationLink": Links(reporter=reporter).reconcile,
        "StreamJob": Jobs(kube=kube, reporter=reporter, cache=cache, image=spark).reconcile,
    }
    _engine = Engine(reconcilers, cache=cache, sweep_s=float(os.environ.get("HEADRACE_SWEEP_S", "300")))
    _engine.start()
    _closing[:] = [_engine.close, api.close]
    log.info("operator started", version=__version__, image=image)


@kopf.on.cleanup()
async def stop(**_: Any) -> None:
    """End what `start` began."""
    for close in _closing:
        await close()


async def seen(event: kopf.RawEvent, body: kopf.Body, **_: Any) -> None:
    """One of our resources is so now."""
    _running().seen(dict(body), deleted=event["type"] == "DELETED")


for _plural in OURS:
    kopf.on.event(GROUP, VERSION, _plural)(seen)  # type: ignore[arg-type]  # kopf's own types ask for any keyword


async def touched(body: kopf.Body, **_: Any) -> None:
    """Something that belongs to a cluster has changed: look whether it is as it should be."""
    meta = body["metadata"]
    _running().enqueue(Key("StreamCluster", str(meta["namespace"]), str(meta["labels"][CLUSTER_LABEL])))


for _group, _plural in (("apps", "statefulsets"), ("", "services"), ("policy", "poddisruptionbudgets")):
    kopf.on.event(_group, "v1", _plural, labels={CLUSTER_LABEL: kopf.PRESENT})(touched)  # type: ignore[arg-type]
kopf.on.event("", "v1", "pods", labels={CLUSTER_LABEL: kopf.PRESENT})(touched)  # type: ignore[arg-type]


@kopf.on.event("", "v1", "namespaces")  # type: ignore[arg-type]
async def namespace_seen(event: kopf.RawEvent, body: kopf.Body, **_: Any) -> None:
    """For clusters that other namespaces may use."""
    _running().cache.take({"kind": "Namespace", **dict(body)}, deleted=event["type"] == "DELETED")


@kopf.on.probe(id="reconciling")
def reconciling(**_: Any) -> str:
    """Fails where the engine is stuck, so that /healthz tells the truth."""
    why = _running().stale()
    if why:
        raise RuntimeError(why)
    return f"{_running().reconciled} reconciled, {_running().failed} failed"


def main() -> None:
    """The process. Raises SystemExit."""
    namespaces = [each for each in os.environ.get("HEADRACE_NAMESPACES", "").split(",") if each]
    asyncio.run(
        kopf.operator(
            clusterwide=not namespaces,
            namespaces=namespaces,
            standalone=True,
            liveness_endpoint=f"http://0.0.0.0:{PORT}/healthz",
        )
    )


if __name__ == "__main__":
    main()

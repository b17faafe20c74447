"""The chart's hook before it is uninstalled: `python -m headrace_operator.uninstall`.

Stops the operator, which would add its finalizers again, then removes them from every resource, so that remaining
resources can be deleted without an operator. Data stay as they are. Environment: POD_NAMESPACE, HEADRACE_NAMESPACES,
and HEADRACE_DEPLOYMENT, the operator's own.
"""

import asyncio
import os
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

import structlog

from headrace.store.kubernetes.api import Access, Api, ApiError
from headrace_operator.builders.names import FIELD_MANAGER
from headrace_operator.kube import Kube, path
from headrace_operator.specs import API, FINALIZER

log = structlog.get_logger()

KINDS: Final = ("StreamCluster", "Volume", "Stream", "Topic", "StreamUser", "ReplicationLink", "StreamJob")
STOP_S: Final = 30.0
CHECK_S: Final = 1.0
ATTEMPTS: Final = 5


async def stop_operator(kube: Kube, *, namespace: str, deployment: str) -> None:
    """Scale the operator to 0; return once no pod of it is left, or after STOP_S seconds."""
    where = path("apps/v1", "Deployment", namespace, deployment)
    found = await kube.merge(where, {"spec": {"replicas": 0}})
    if found is None:
        return
    labels = found["spec"]["selector"]["matchLabels"]
    deadline = asyncio.get_running_loop().time() + STOP_S
    while await kube.list("v1", "Pod", namespace, labels=labels):
        if asyncio.get_running_loop().time() > deadline:
            log.warning("the operator has not ended: finalizers may be added again", deployment=deployment)
            return
        await asyncio.sleep(CHECK_S)


async def strip(kube: Kube, *, namespaces: Sequence[str]) -> int:
    """Remove the operator's finalizer from all resources in these namespaces (empty: all); return how many had it."""
    stripped = 0
    everywhere: Sequence[str | None] = namespaces or [None]
    for kind in KINDS:
        for namespace in everywhere:
            try:
                stripped += await _strip_all(kube, kind, namespace)
            except ApiError as error:
                # The CRD was deleted, or the namespace with the operator's rights in it.
                gone = error.status == HTTPStatus.NOT_FOUND
                if not gone and (namespace is None or error.status != HTTPStatus.FORBIDDEN):
                    raise
                log.info("the kind cannot be listed", kind=kind, namespace=namespace, error=str(error))
    return stripped


async def _strip_all(kube: Kube, kind: str, namespace: str | None) -> int:
    stripped = 0
    async for body in kube.pages(API, kind, namespace):
        meta = body["metadata"]
        if FINALIZER in (meta.get("finalizers") or []):
            await _strip_one(kube, kind, str(meta["namespace"]), str(meta["name"]))
            stripped += 1
    return stripped


async def _strip_one(kube: Kube, kind: str, namespace: str, name: str) -> None:
    for attempt in range(ATTEMPTS):
        found = await kube.get(API, kind, namespace, name)
        if found is None:
            return
        meta = found["metadata"]
        left = [each for each in meta.get("finalizers") or [] if each != FINALIZER]
        patch = {"metadata": {"finalizers": left, "resourceVersion": meta["resourceVersion"]}}
        try:
            await kube.merge(path(API, kind, namespace, name), patch)
        except ApiError as error:
            if error.status != 409 or attempt == ATTEMPTS - 1:
                raise
            continue
        return


async def run() -> None:
    """Stop the operator and remove its finalizers. Raises ApiError, ApiSilent."""
    api = Api(Access.in_cluster(), agent=FIELD_MANAGER)
    try:
        kube = Kube(api)
        namespaces = [each for each in os.environ.get("HEADRACE_NAMESPACES", "").split(",") if each]
        deployment = os.environ["HEADRACE_DEPLOYMENT"]
        await stop_operator(kube, namespace=os.environ["POD_NAMESPACE"], deployment=deployment)
        log.info("removing finalizers", resources=await strip(kube, namespaces=namespaces))
    finally:
        await api.close()


if __name__ == "__main__":
    asyncio.run(run())

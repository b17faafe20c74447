"""The operator's one finalizer: only on resources with `reclaimPolicy: Delete`, and never where nobody would remove it.

The operator's rights in a namespace may be objects of that namespace, and are deleted with it. Kubernetes waits five
seconds before it deletes the content of a namespace that is being deleted (namespaceDeletionGracePeriod), so all
finalizers in it have to be removed by then.
"""

from http import HTTPStatus

import structlog

from headrace.store.kubernetes.api import ApiError
from headrace_operator.engine import Body, Cache, Key
from headrace_operator.kube import Kube, path
from headrace_operator.specs import API, FINALIZER, OWN_NAMESPACE

log = structlog.get_logger()


async def keep_finalizer(kube: Kube, cache: Cache, body: Body, *, wanted: bool) -> bool:
    """Add or remove the finalizer; return whether that was a change. Raises ApiError (409: the resource has changed
    since), ApiSilent.
    """
    meta = body["metadata"]
    present = list(meta.get("finalizers") or [])
    wanted = wanted and not is_leaving(cache) and not is_ending(cache, meta["namespace"])
    if wanted == (FINALIZER in present) or (wanted and meta.get("deletionTimestamp")):
        return False
    after = [*present, FINALIZER] if wanted else [each for each in present if each != FINALIZER]
    where = path(API, body["kind"], meta["namespace"], meta["name"])
    try:
        found = await kube.merge(where, {"metadata": {"finalizers": after, "resourceVersion": meta["resourceVersion"]}})
    except ApiError as error:
        if wanted or error.status != HTTPStatus.FORBIDDEN:
            raise
        log.warning(
            "a finalizer cannot be taken off, as the operator has no rights there: remove it by hand",
            kind=body["kind"],
            of=f"{meta['namespace']}/{meta['name']}",
            finalizer=FINALIZER,
            error=str(error),
        )
        return False
    if found is not None:
        cache.learn({"apiVersion": body["apiVersion"], "kind": body["kind"], **found})
    return True


def is_ending(cache: Cache, namespace: str) -> bool:
    """Return whether a namespace is being deleted, as far as this operator may read namespaces."""
    found = cache.get(Key("Namespace", "", namespace))
    return found is not None and bool(found["metadata"].get("deletionTimestamp"))


def is_leaving(cache: Cache) -> bool:
    """Return whether the operator's own namespace is being deleted: then nothing anywhere may wait for the operator."""
    return bool(OWN_NAMESPACE) and is_ending(cache, OWN_NAMESPACE)

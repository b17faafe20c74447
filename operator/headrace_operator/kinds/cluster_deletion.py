"""Marks StorageNodes whose StreamCluster was deleted with its data retained (`Retain`), until it is created again.

Their status is written by the nodes themselves and stays as it was when these ended: without a mark it would look like
that of running nodes. The mark is in `spec`, which the operator writes.
"""

from http import HTTPStatus
from typing import Final

from headrace.store.kubernetes.api import ApiError
from headrace_operator.builders.names import CLUSTER_LABEL
from headrace_operator.engine import Key
from headrace_operator.kinds.cluster_view import ObservedCluster
from headrace_operator.kube import Kube, path
from headrace_operator.specs import API

MARK: Final = "clusterDeleted"
OUT_OF_REACH: Final = (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND)
"""Responses for a namespace that is gone, or in which this operator no longer has rights."""


class Left:
    """Sets and removes the mark."""

    def __init__(self, *, kube: Kube) -> None:
        self._kube = kube

    async def mark(self, cluster: Key) -> None:
        """Mark the nodes of a StreamCluster that was reported as deleted. Raises ApiError, ApiSilent."""
        try:
            if await self._kube.get(API, "StreamCluster", cluster.namespace, cluster.name) is not None:
                return  # it has been created again, and has an event of its own
            labels = {CLUSTER_LABEL: cluster.name}
            for node in await self._kube.list(API, "StorageNode", cluster.namespace, labels=labels):
                if not (node.get("spec") or {}).get(MARK):
                    await self._set(cluster.namespace, node["metadata"]["name"], True)
        except ApiError as error:
            if error.status not in OUT_OF_REACH:
                raise

    async def take_back(self, namespace: str, seen: ObservedCluster) -> None:
        """Remove the mark: the StreamCluster exists. Raises ApiError, ApiSilent."""
        for node in seen.nodes:
            if (node.get("spec") or {}).get(MARK):
                await self._set(namespace, node["metadata"]["name"], None)

    async def _set(self, namespace: str, name: str, value: bool | None) -> None:
        await self._kube.merge(path(API, "StorageNode", namespace, name), {"spec": {MARK: value}})

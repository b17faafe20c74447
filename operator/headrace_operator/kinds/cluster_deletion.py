"""StorageNodes whose StreamCluster was deleted and left its data (`Retain`): they say so, until it comes again.

Their status is the nodes' own, and stays as it was when these ended: without a word of the cluster's end it looks like
that of nodes which run. The mark is in `spec`, which is the operator's.
"""

from http import HTTPStatus
from typing import Final

from headrace.store.kubernetes.api import ApiError
from headrace_operator.builders.names import CLUSTER_LABEL
from headrace_operator.engine import Key
from headrace_operator.kinds.cluster_view import Seen
from headrace_operator.kube import Kube, path
from headrace_operator.specs import API

MARK: Final = "clusterDeleted"
OUT_OF_REACH: Final = (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND)
"""Of a namespace that has gone, or in which this operator has no rights any more."""


class Left:
    """Sets the mark, and takes it away."""

    def __init__(self, *, kube: Kube) -> None:
        self._kube = kube

    async def mark(self, cluster: Key) -> None:
        """The StreamCluster is gone, as was heard. Raises ApiError, ApiSilent."""
        try:
            if await self._kube.get(API, "StreamCluster", cluster.namespace, cluster.name) is not None:
                return  # it has come again: that will be heard of
            labels = {CLUSTER_LABEL: cluster.name}
            for node in await self._kube.list(API, "StorageNode", cluster.namespace, labels=labels):
                if not (node.get("spec") or {}).get(MARK):
                    await self._set(cluster.namespace, node["metadata"]["name"], True)
        except ApiError as error:
            if error.status not in OUT_OF_REACH:
                raise

    async def take_back(self, namespace: str, seen: Seen) -> None:
        """The StreamCluster is there. Raises ApiError, ApiSilent."""
        for node in seen.nodes:
            if (node.get("spec") or {}).get(MARK):
                await self._set(namespace, node["metadata"]["name"], None)

    async def _set(self, namespace: str, name: str, value: bool | None) -> None:
        await self._kube.merge(path(API, "StorageNode", namespace, name), {"spec": {MARK: value}})

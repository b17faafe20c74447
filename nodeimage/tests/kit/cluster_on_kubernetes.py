"""A cluster of node processes whose store is Kubernetes: a toy API server, with a token that they need."""

import functools
import json
import time
import urllib.error
import urllib.request
from pathlib import Path

import msgspec

from headrace.store.kubernetes.api import Access
from headrace.store.kubernetes.store import KubernetesStore
from headrace.store.protocol import ClusterStore
from headrace.store.records import ClusterRecord
from kit.cluster_nodes import Cluster, Node
from kit.own_ports import HOST, own_port
from kit.toy_api import Body, ToyApi

NODES = "/apis/headrace.dev/v1alpha1/namespaces/ns/storagenodes"
CONTAINERS = "/apis/headrace.dev/v1alpha1/namespaces/ns/storagecontainers"


class KubernetesCluster(Cluster):
    """A cluster as on Kubernetes, but without pods: all ports are on loopback."""

    def __init__(self, folder: Path, api: ToyApi, count: int = 3, options: tuple[str, ...] = ()) -> None:
        super().__init__(folder, count, options)
        self.api = api
        self.external = {number: own_port() for number in self.nodes}
        self.admin_ports = {number: own_port() for number in self.nodes}
        record = ClusterRecord("id-of-the-cluster-22--", 7, secret="ab" * 16, first_nodes=count)
        self.record = folder / "record"
        self.record.write_bytes(msgspec.json.encode(record))
        self.token = folder / "token"
        self.rotate("first")

    def rotate(self, token: str, *, lives_s: float = 3600.0) -> None:
        """Put another token into the file; from now on no other is accepted."""
        self.api.tokens = {token: time.monotonic() + lives_s, "the test's": time.monotonic() + 3600}
        self.token.write_text(f"{token}\n")

    @functools.cached_property
    def store(self) -> ClusterStore:
        """The cluster store, for inspection."""
        token = self.folder / "token-of-the-test"
        token.write_text("the test's")
        store = KubernetesStore(
            cluster="c",
            namespace="ns",
            access=Access(self.api.url, token_file=token),
            cluster_record=self.record.read_bytes(),
        )
        self._closing.callback(store.close)
        return store

    def store_is_free(self) -> bool:
        """An API server keeps no lock for a suspended client."""
        return True

    def store_options(self, node: Node) -> list[str]:
        return [
            "--kubernetes=ns/c",
            f"--cluster-record={self.record}",
            f"--kubernetes-api={self.api.url}",
            f"--kubernetes-token={self.token}",
            f"--listener=external={self.external[node.number]}",
            f"--admin-port={self.admin_ports[node.number]}",
            f"--slot=c-{node.number - 1}/0",
        ]

    def http(self, number: int, path: str, *, method: str = "GET") -> tuple[int, str]:
        """(status, text) of a node's HTTP port; status 0: nobody listens."""
        asked = urllib.request.Request(f"http://{HOST}:{self.admin_ports[number]}{path}", method=method)
        try:
            with urllib.request.urlopen(asked, timeout=20) as answer:
                return int(answer.status), answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def node_object(self, number: int) -> tuple[str, Body]:
        """The path and the StorageNode object of a node."""
        path = f"{NODES}/c-{self.nodes[number].node_id}"
        return path, json.loads(json.dumps(self.api.objects[path]))

"""A cluster behind a fake API: StatefulSets make pods and claims, pods make StorageNodes, and admin calls are answered.

`converge` does everything that Kubernetes and the nodes would do by themselves after a while.
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from headrace.base.errors import Code, KafkaError
from headrace_operator.admin import NotAuthenticated, Unreachable
from headrace_operator.engine import Cache, Engine, Key, key_of
from headrace_operator.kinds.cluster import Clusters, balance_policy
from headrace_operator.kinds.cluster_level import ORIGINAL
from headrace_operator.kinds.index import Index
from headrace_operator.kinds.link import Links
from headrace_operator.kinds.reporting import Reporter
from headrace_operator.kinds.stream import Streams
from headrace_operator.kinds.topic import Topics
from headrace_operator.kinds.users import Users
from headrace_operator.kinds.volume import Volumes
from headrace_operator.kube import Kube
from headrace_operator.pod_http import Answer
from headrace_operator.routes import Routes
from headrace_operator.specs import API, Balance

from .fake_api import FakeApi, Object

NS = "ns"
IMAGE = "registry:5000/headrace/node:1"


LOOKS = (
    *("cluster.status", "cluster.events", "topic.show", "stream.show", "volume.list"),
    *("link.show", "link.hello", "link.topics", "features.show"),
    *("status", "access.show", "security.show", "user.list", "user.show"),
)
"""Calls that change nothing."""


class FakeCluster:
    """The answers of nodes. Drains complete at once unless they are held."""

    def __init__(self, api: FakeApi) -> None:
        self.api = api
        self.away = False
        self.hold_drains = False
        self.refuse_drain = ""
        self.lacking: list[Object] = []
        self.containers = 2
        self.catalog = True
        self.set_back: Object | None = None
        self.store_silent_ms = 0
        self.catalog_damage: dict[int, str] = {}
        self.unsafe: dict[str, str | None] = {}
        """Pods whose nodes cannot be spared, and why; None: they do not answer."""
        self.calls: list[tuple[str, Mapping[str, Any]]] = []
        self.streams: dict[str, Object] = {}
        self.topics: dict[str, Object] = {}
        self.volumes: dict[str, Object] = {"default": {"volume": "default", "replicas": 3, "min_in_sync": 2}}
        self.figures: Object = {}
        """The figures of every stream."""
        self.balancing: Object = {**balance_policy(Balance())}
        self.levels: Object | None = {**ORIGINAL, "raised_by_itself_after_s": 86_400.0}
        """The feature levels; None for a version without levels."""
        self.moved: set[int] = set()
        """Nodes that were drained."""
        self.placed: dict[int, Object] = {}
        """Zone, host and labels of nodes, as the cluster reports them."""
        self.next_node = 1
        self.first_port = 30000
        """The first NodePort that Kubernetes chooses."""
        self.happened: dict[str, list[Object]] = {}
        """Events recorded by nodes, by address."""
        self.links: dict[tuple[str, str], Object] = {}
        """By the bootstrap address of the copying cluster, and name."""
        self.homes: list[Object] = []
        """The homes of every stream's topics, as `link.topics` reports them."""
        self.refuses: KafkaError | None = None
        """The error of contacting a source."""
        self.holds_sources: asyncio.Event | None = None
        """Sources answer once it is set."""
        self.held = 0
        self.silent: set[str] = set()
        """Addresses that do not answer."""
        self.loses: tuple[str, bool] | None = None
        """A method whose next answer is lost, and whether its action is done."""
        self.asked: Callable[[str], None] = lambda _bootstrap: None
        """Called with the address of every admin call."""
        self._asked = ""
        self.users: dict[str, Object] = {}
        """By name: groups, password, mechanisms."""
        self.quotas: dict[str, dict[str, float]] = {}
        """By user."""
        self.expressions: dict[tuple[str, str], str] = {}
        """By object and permission."""
        self.listeners: list[Object] = []
        """The listeners as each node reports them."""
        self.secured = False
        self.refuses_operator = ""
        """Why the cluster rejects the operator's credentials; "" if it accepts them."""

    async def call(
        self,
        bootstrap: str,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        patience_s: float | None = None,
    ) -> Any:
        self.asked(bootstrap)
        if self.away or bootstrap in self.silent:
            raise Unreachable(f"{bootstrap} does not answer")
        if self.refuses_operator:
            raise NotAuthenticated(self.refuses_operator)
        params = params or {}
        if method not in LOOKS:
            self.calls.append((method, params))
        if method in ("link.create", "link.alter") and self.holds_sources is not None:
            self.held += 1
            await self.holds_sources.wait()
        self._asked = bootstrap
        answer = getattr(self, method.replace(".", "_"))
        if self.loses is None or self.loses[0] != method:
            return answer(**params)
        (_, is_done), self.loses = self.loses, None
        if is_done:
            answer(**params)
        raise Unreachable(f"the answer of {bootstrap} was lost")

    async def kafka(self, bootstrap: str, api_key: int, version: int, fields: Mapping[str, Any]) -> Any:
        if self.away:
            raise Unreachable(f"{bootstrap} does not answer")
        self.calls.append((api_key.name, fields))  # type: ignore[attr-defined]

        class Answer:
            topics: tuple[()] = ()
            results: tuple[Any, ...] = ()
            responses: tuple[()] = ()
            entries: tuple[Any, ...] = ()
            error_code = 0
            error_message: str | None = None

        match api_key.name:  # type: ignore[attr-defined]
            case "CREATE_TOPICS":
                for each in fields["topics"]:
                    configs = {config["name"]: config["value"] for config in each["configs"]}
                    count = each["num_partitions"] if each["num_partitions"] > 0 else 1
                    self.topics[each["name"]] = {"partitions": count, "configs": configs}
            case "CREATE_PARTITIONS":
                for each in fields["topics"]:
                    self.topics[each["name"]]["partitions"] = each["count"]
            case "DELETE_TOPICS":
                for each in fields["topics"]:
                    self.topics.pop(each["name"], None)
            case "INCREMENTAL_ALTER_CONFIGS":
                for each in fields["resources"]:
                    configs = self.topics[each["resource_name"]]["configs"]
                    for change in each["configs"]:
                        if change["config_operation"]:
                            configs.pop(change["name"], None)
                        else:
                            configs[change["name"]] = change["value"]
            case "DESCRIBE_CLIENT_QUOTAS":
                self.calls.pop()
                ((user),) = [each["match"] for each in fields["components"]]
                found = [SimpleNamespace(key=key, value=value) for key, value in self.quotas.get(user, {}).items()]
                Answer.entries = (SimpleNamespace(values=found),)
            case "ALTER_CLIENT_QUOTAS":
                for entry in fields["entries"]:
                    quotas = self.quotas.setdefault(entry["entity"][0]["entity_name"], {})
                    for op in entry["ops"]:
                        quotas.pop(op["key"], None)
                        if not op["remove"]:
                            quotas[op["key"]] = op["value"]
            case "ALTER_USER_SCRAM_CREDENTIALS":
                assert not fields["upsertions"]
                Answer.results = tuple(map(self._without_credential, fields["deletions"]))
        return Answer

    async def get(self, pod: Object, port: int, path: str) -> Answer | None:
        """Return pods' responses over HTTP."""
        assert (port, path) == (8080, "/safez")
        why = self.unsafe.get(pod["metadata"]["name"], "")
        return None if why is None else Answer(503 if why else 200, f"{why or 'ok'}\n")

    # --- admin calls

    def nodes(self) -> list[Object]:
        return [node for node in self.api.find("StorageNode") if node.get("status")]

    def cluster_status(self) -> Object:
        nodes = []
        for node in self.nodes():
            number, drain = node["status"]["nodeId"], node["spec"].get("drain")
            pod = node["status"]["slot"].split("/")[0]
            alive = bool(self.api.find("Pod", pod))
            if drain and not self.hold_drains:
                self.moved.add(number)
            if not drain:
                self.moved.discard(number)
            state = ("drained" if number in self.moved else "draining") if drain else "up" if alive else "down"
            replicas = 0 if number in self.moved else 2
            told = {"node": number, "state": state, "replicas": replicas, "address": f"{pod}:9092"}
            told["catalog_damage"] = self.catalog_damage.get(number, "")
            nodes.append({**told, **self.placed.get(number, {})})
        return {
            "cluster": "id",
            "controller": nodes[0]["node"] if nodes else None,
            "redundancy": {
                "whole": not self.lacking,
                "containers": self.containers,
                "catalog": self.catalog,
                "lacking": len(self.lacking),
                "below_minimum": 0,
            },
            "nodes": nodes,
            "volumes": list(self.volumes.values()),
            "lacking": self.lacking,
            "set_back": self.set_back,
            "store": {"node": nodes[0]["node"] if nodes else 1, "silent_ms": self.store_silent_ms},
        }

    def cluster_events(self, events: int) -> list[Object]:
        return self.happened.get(self._asked, [])[-events:]

    def balance(self, **wanted: Any) -> Object:
        self.balancing |= wanted
        return dict(self.balancing)

    def features_show(self) -> Object:
        if self.levels is None:
            raise KafkaError(Code.INVALID_REQUEST, "there is no method features.show")
        return dict(self.levels)

    def features_hold(self, level: int | None = None, off: bool = False) -> Object:
        assert self.levels is not None
        self.levels["held_at"] = None if off else level
        return dict(self.levels)

    def features_upgrade(self, level: int, wait_s: float) -> Object:
        assert self.levels is not None
        if level > self.levels["supported_by_all"]:
            raise KafkaError(Code.FEATURE_UPDATE_FAILED, f"level {level} is not supported by node 1")
        self.levels["wanted"] = level
        return dict(self.levels)

    def node_drain(self, node: int, cancel: bool = False) -> Object:
        if self.refuse_drain and not cancel:
            raise KafkaError(Code.POLICY_VIOLATION, self.refuse_drain)
        for each in self.nodes():
            if each["status"]["nodeId"] == node:
                each["spec"]["drain"] = not cancel
                self.api._bump(each)
        return {}

    def node_remove(self, node: int) -> Object:
        (found,) = [each for each in self.nodes() if each["status"]["nodeId"] == node]
        assert node in self.moved, "a node with replicas was removed"
        self.api.remove("StorageNode", found["metadata"]["name"])
        return {}

    def volume_list(self) -> list[Object]:
        return [{**each, "containers": 1, "held_bytes": 10} for each in self.volumes.values()]

    def volume_create(self, name: str, **fields: Any) -> Object:
        self.volumes[name] = {"volume": name, **fields, "size_limit_bytes": fields["size_limit"] or None}
        return self.volumes[name]

    def volume_alter(self, name: str, **fields: Any) -> Object:
        self.volumes[name] |= fields
        return self.volumes[name]

    def stream_show(self, path: str, figures: bool = False) -> Object:
        if path not in self.streams:
            raise KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no stream {path}")
        return {
            "path": path,
            **self.streams[path],
            "topics": 0,
            "partitions": 0,
            "problem": None,
            **(self.figures if figures else {}),
        }

    def stream_create(self, path: str, policy: Object, if_not_exists: bool) -> Object:
        self.streams[path] = dict(policy)
        return self.stream_show(path)

    def stream_alter(self, path: str, changes: Object) -> Object:
        self.streams[path] |= changes
        return self.stream_show(path)

    def stream_delete(self, path: str, force: bool) -> Object:
        if self.streams.pop(path, None) is None:
            raise KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no stream {path}")
        return {}

    def topic_show(self, topic: str) -> Object:
        if topic not in self.topics:
            raise KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic}")
        found = self.topics[topic]
        partitions = [{"partitionlets": 1} for _ in range(found["partitions"])]
        return {"topic_id": "x", "configs": dict(found["configs"]), "bytes": 5, "partitions": partitions}

    def link_show(self, name: str) -> Object:
        if (self._asked, name) not in self.links:
            raise KafkaError(Code.INVALID_REQUEST, f"there is no link {name!r}")
        shown = self.links[self._asked, name]
        return {**shown, "credentials": sorted(shown["credentials"])}

    def link_create(self, name: str, if_not_exists: bool, **fields: Any) -> Object:
        if self.refuses is not None:
            raise self.refuses
        assert (self._asked, name) not in self.links
        self.streams.setdefault(fields["stream"], {"ttl_ms": 1000})
        told = {"source_cluster": "north", "state": "CaughtUp", "since_ms": 0, "groups": {}, "partitions": 4}
        told |= {"lag_records": 0, "lag_bytes": 0, "lag_seconds": 0.0, "last_error": None, "last_error_ms": None}
        self.links[self._asked, name] = {"name": name, **fields, **told, "refused": [], "diverged": []}
        if fields["direction"] == "both":
            back = {"name": name, "stream": fields["source_stream"], "source_stream": fields["stream"]}
            back |= {"source": fields["bootstrap"], "direction": "pull"}
            back["credentials"] = fields.get("reverse_credentials", {})
            self.links[fields["source"][0], name] = back
        return self.link_show(name)

    def link_alter(self, name: str, **changes: Any) -> Object:
        if self.refuses is not None and changes.keys() & {"source", "credentials", "direction"}:
            raise self.refuses
        link = self.links[self._asked, name]
        if link["credentials"] and set(changes.get("source", ())) - set(link["source"]):
            assert "credentials" in changes, "kept ones are sent to no new address"
        reverse = changes.pop("reverse_credentials", None)
        if reverse is not None:
            assert (link | changes)["direction"] == "both"
            back = {"source": (link | changes)["bootstrap"], "credentials": reverse}
            self.links.setdefault((link["source"][0], name), {}).update(back)
        link |= changes
        return self.link_show(name)

    def link_pause(self, name: str) -> Object:
        self.links[self._asked, name]["state"] = "Paused"
        return self.link_show(name)

    def link_resume(self, name: str) -> Object:
        self.links[self._asked, name]["state"] = "CaughtUp"
        return self.link_show(name)

    def link_delete(self, name: str) -> Object:
        del self.links[self._asked, name]
        return {"deleted": name}

    def link_hello(self, version: int, stream: str) -> Object:
        return {"cluster_id": "own"}

    def link_topics(self, version: int, stream: str, after: str | None, limit: int) -> Object:
        return {"topics": self.homes, "after": None}

    def status(self) -> Object:
        return {"listeners": self.listeners}

    def security_show(self) -> Object:
        return {"on": self.secured}

    def security_on(self) -> Object:
        self.secured = True
        return self.security_show()

    def security_off(self, open_everything: bool) -> Object:
        assert open_everything
        self.secured = False
        return self.security_show()

    def access_show(self, object: str) -> Object:
        shown = []
        for permission in ("produce", "consume", "topic", "copy", "admin"):
            own = self.expressions.get((object, permission))
            inherited = self.expressions.get(("cluster", permission))
            is_inherited = own is None and inherited is not None
            told = {"permission": permission, "expression": inherited if own is None else own}
            shown.append({**told, "inherited": is_inherited})
        return {"object": object, "security": self.secured, "permissions": shown}

    def access_set(self, items: list[Object]) -> Object:
        for each in items:
            place = each["object"], each["permission"]
            self.expressions.pop(place, None)
            if each["expression"] is not None:
                self.expressions[place] = each["expression"]
        return {"items": items, "not_applied": [], "warnings": []}

    def user_list(self, after: str, limit: int) -> list[Object]:
        return [self.user_show(name) for name in sorted(self.users) if name > after][:limit]

    def user_show(self, name: str) -> Object:
        if name not in self.users:
            raise KafkaError(Code.RESOURCE_NOT_FOUND, f"there is no user {name!r}")
        found = self.users[name]
        mechanisms = ["SCRAM-SHA-256", "SCRAM-SHA-512"] if found["password"] is not None else []
        return {"user": name, "groups": found["groups"], "mechanisms": mechanisms}

    def _without_credential(self, deletion: Object) -> SimpleNamespace:
        """Delete one of a user's credentials: the fake's users have both or none, so the last deletion counts."""
        assert deletion["mechanism"] in (1, 2)
        found = self.users.get(deletion["name"])
        if found is None or found["password"] is None:
            code, why = Code.RESOURCE_NOT_FOUND, "there is no such credential"
        elif self.refuses is not None:
            code, why = self.refuses.code, str(self.refuses)
        else:
            code, why = Code.NONE, None
            if deletion["mechanism"] == 2:
                found["password"] = None
        return SimpleNamespace(user=deletion["name"], error_code=int(code), error_message=why)

    def user_create(self, name: str, groups: list[str], password: str | None = None) -> Object:
        if name in self.users:
            raise KafkaError(Code.DUPLICATE_RESOURCE, f"there is a user {name} already")
        self.users[name] = {"groups": groups, "password": password}
        return self.user_show(name)

    def user_alter(self, name: str, groups: list[str]) -> Object:
        self.users[name]["groups"] = groups
        return self.user_show(name)

    def user_passwd(self, name: str, password: str) -> Object:
        self.users[name]["password"] = password
        return self.user_show(name)

    def user_delete(self, name: str) -> Object:
        shown = self.user_show(name)
        del self.users[name]
        return shown

    # --- actions of Kubernetes and the nodes

    def converge(self) -> None:
        for stateful_set in self.api.find("StatefulSet"):
            self._run_stateful_set(stateful_set)
        for service in self.api.find("Service"):
            if service["spec"].get("type") == "NodePort":
                pod, *of_listener = map(int, re.findall(r"\d+", service["metadata"]["name"]))
                first = self.first_port + 10 * pod + (500 if of_listener else 0)
                for index, port in enumerate(service["spec"]["ports"]):
                    port.setdefault("nodePort", first + index)

    def _run_stateful_set(self, stateful_set: Object) -> None:
        name, spec = stateful_set["metadata"]["name"], stateful_set["spec"]
        wanted = {f"{name}-{index}" for index in range(spec["replicas"])}
        for pod in self.api.find("Pod"):
            if pod["metadata"]["name"] not in wanted:
                self.api.remove("Pod", pod["metadata"]["name"])
        for pod in sorted(wanted):
            if not self.api.find("PersistentVolumeClaim", f"data-{pod}"):
                template = spec["volumeClaimTemplates"][0]
                meta = {"name": f"data-{pod}", "namespace": NS, "labels": template["metadata"]["labels"]}
                self.api.put(
                    {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": template["spec"]}
                )
            if not self.api.find("Pod", pod):
                self._run_pod(stateful_set, pod)

    def _run_pod(self, stateful_set: Object, pod: str) -> None:
        template = stateful_set["spec"]["template"]
        meta = {
            "name": pod,
            "namespace": NS,
            "labels": template["metadata"]["labels"],
            "annotations": template["metadata"]["annotations"],
        }
        conditions = [{"type": "Ready", "status": "True"}]
        self.api.put(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": meta,
                "spec": {**template["spec"], "nodeName": "worker"},
                "status": {"conditions": conditions},
            }
        )
        command = template["spec"]["containers"][0]["command"]
        for shard in range(int(command[command.index("--shards") + 1])):
            slot = f"{pod}/{shard}"
            if not any(node["status"]["slot"] == slot for node in self.nodes()):
                self._register(stateful_set["metadata"]["name"], slot)

    def _register(self, cluster: str, slot: str) -> None:
        number = self.next_node
        self.next_node += 1
        meta = {"name": f"{cluster}-{number}", "namespace": NS, "labels": {"headrace.dev/cluster": cluster}}
        status = {"nodeId": number, "slot": slot}
        self.api.put(
            {"apiVersion": API, "kind": "StorageNode", "metadata": meta, "spec": {"drain": False}, "status": status}
        )


class World:
    """An operator, Kubernetes, and one cluster."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.cluster = FakeCluster(self.api)
        labels = {"topology.kubernetes.io/zone": "z1"}
        status = {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}
        self.api.put(
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "worker", "labels": labels}, "status": status}
        )
        self.woken: list[Key] = []
        self.watched: dict[Key, object] = {}
        """The status that each cluster reported at its last reconcile."""
        self.start_operator()

    def start_operator(self, *, image: str = IMAGE, sees_workers: bool = True) -> None:
        """Start a new operator, with nothing remembered."""
        self.routes = Routes()
        self.kube, self.cache = Kube(self.api), Cache()
        self.index = Index(self.cache)
        self.reporter = Reporter(self.kube, cache=self.cache)
        common: Any = {"kube": self.kube, "admin": self.cluster, "reporter": self.reporter, "cache": self.cache}
        self.reconcilers = {
            "StreamCluster": Clusters(
                **common,
                pods=self.cluster,
                routes=self.routes,
                image=image,
                sees_workers=sees_workers,
                saw=lambda key, status: self.saw(key, status),
            ).reconcile,
            "Volume": Volumes(**common, index=self.index, routes=self.routes).reconcile,
            "Stream": Streams(**common, index=self.index, routes=self.routes, wake=self.woken.extend).reconcile,
            "Topic": Topics(**common, index=self.index, routes=self.routes).reconcile,
            "StreamUser": Users(**common, index=self.index, routes=self.routes).reconcile,
            "ReplicationLink": Links(**common, index=self.index, routes=self.routes).reconcile,
        }

    def saw(self, key: Key, status: Mapping[str, Any] | None) -> None:
        self.watched[key] = status

    def engine(self) -> Engine:
        return Engine(self.reconcilers, cache=self.cache, referrers=self.index.concerned)

    def declare(self, kind: str, name: str, spec: Object, **meta: Any) -> Key:
        """Apply a resource like kubectl apply."""
        body = {"apiVersion": API, "kind": kind, "metadata": {"name": name, "namespace": NS, **meta}, "spec": spec}
        present = self.api.find(kind, name)
        if present:
            body["metadata"] = {**present[0]["metadata"], **meta}
            body["metadata"].pop("generation")
            body["metadata"]["generation"] = present[0]["metadata"]["generation"]
        self.api.put(body)
        return Key(kind, NS, name)

    async def once(self, key: Key) -> float | None:
        """Reconcile a resource once in its present state."""
        self.watch()
        return await self.reconcilers[key.kind](key, self.cache.get(key))

    def watch(self) -> None:
        """Update the cache from the API server."""
        seen = set()
        for body in self.api.objects.values():
            if body["kind"] in self.reconcilers or body["kind"] == "Namespace":
                self.cache.take(body)
                seen.add(key_of(body))
                self.index.concerned(key_of(body), body)
        for kind in (*self.reconcilers, "Namespace"):
            for body in self.cache.all(kind):
                if key_of(body) not in seen:
                    self.cache.gone(key_of(body))
                    self.index.concerned(key_of(body), body)

    async def run(self, key: Key, *, rounds: int = 40) -> int:
        """Reconcile and let everything converge until nothing is written any longer; return the number of rounds."""
        for number in range(rounds):
            before = [write for write in self.api.writes if "/events" not in write]
            version = self.api._version
            await self.once(key)
            self.cluster.converge()
            after = [write for write in self.api.writes if "/events" not in write]
            if before == after and version == self.api._version:
                return number
        raise AssertionError(f"does not converge: {self.api.writes[-10:]}")

    def condition(self, kind: str, name: str, type: str = "Ready") -> tuple[str, str, str]:
        (found,) = self.api.find(kind, name)
        for each in found.get("status", {}).get("conditions", []):
            if each["type"] == type:
                return each["status"], each["reason"], each["message"]
        raise AssertionError(f"{kind} {name} has no condition {type}: {found.get('status')}")

    def events(self) -> list[str]:
        return [each["reason"] for each in self.api.find("Event")]

"""Volumes, Streams and Topics: what is declared of the data, made so by the cluster's own admin calls.

All three go the same way: find the cluster, see what is there, make or change it, say what came of it. What is deleted
with `reclaimPolicy: Delete` is deleted in the cluster too, by a finalizer that gives up when the cluster is gone.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Generic, TypeVar

import msgspec

from headrace.errors import Code, HeadraceError, KafkaError
from headrace.wire.api_keys import ApiKey
from headrace_operator.admin import Admin
from headrace_operator.engine import Body, Cache, Key, key_of
from headrace_operator.kinds.references import Unresolved, check_oldest, cluster_key, resolve
from headrace_operator.kinds.reporting import Reporter
from headrace_operator.kube import Kube, path
from headrace_operator.specs import API, FINALIZER, Spec, StreamSpec, TopicSpec, VolumeSpec, milliseconds, quantity
from headrace_operator.status import Condition

AGAIN_S: Final = 15.0
FIGURES_AGAIN_S: Final = 60.0

S = TypeVar("S", VolumeSpec, StreamSpec, TopicSpec)



class Kind(ABC, Generic[S]):
    """What the three have in common."""

    name: ClassVar[str]
    spec: type[S]

    def __init__(self, *, kube: Kube, admin: Admin, reporter: Reporter, cache: Cache) -> None:
        self._kube = kube
        self._admin = admin
        self._reporter = reporter
        self._cache = cache

    async def reconcile(self, key: Key, body: Body | None) -> float | None:
        """See engine.Reconcile."""
        if body is None:
            return None
        spec = msgspec.convert(body["spec"], self.spec)
        if body["metadata"].get("deletionTimestamp"):
            return await self._end(body, spec)
        await self._keep_finalizer(body, wanted=self._deletes(spec))
        figures: Mapping[str, Any] = {}
        again: float | None = FIGURES_AGAIN_S
        try:
            _, _, bootstrap = resolve(self._cache, body, spec.cluster_ref)
            check_oldest(self._cache, body, self._identity(body, spec), self._identities())
            figures = await self._make(bootstrap, body, spec)
            condition = Condition("Reconciled", True, "AsAsked")
        except Unresolved as error:
            condition, again = error.condition, AGAIN_S
        except KafkaError as error:
            condition = Condition("Reconciled", False, "Refused", str(error))
        except HeadraceError as error:
            condition, again = Condition("Reconciled", False, "NoAnswer", str(error)), AGAIN_S
        await self._reporter.report(body, [condition], figures)
        return again

    # --- of each kind

    @abstractmethod
    def _identity(self, body: Body, spec: S) -> tuple[object, ...]:
        """What it is about: two resources of the same one clash."""

    @abstractmethod
    async def _make(self, bootstrap: str, body: Body, spec: S) -> Mapping[str, Any]:
        """Have it be so; its figures. Raises HeadraceError."""

    async def _unmake(self, bootstrap: str, body: Body, spec: S) -> None:
        """Have it be gone. Raises HeadraceError."""

    # --- inside

    def _deletes(self, spec: Spec) -> bool:
        return getattr(spec, "reclaim_policy", "Retain") == "Delete"

    def _identities(self) -> dict[Key, tuple[object, ...]]:
        return {
            key_of(each): self._identity(each, msgspec.convert(each["spec"], self.spec))
            for each in self._cache.all(self.name)
        }

    async def _end(self, body: Body, spec: S) -> float | None:
        if FINALIZER not in body["metadata"].get("finalizers", []):
            return None
        if self._deletes(spec):
            try:
                _, _, bootstrap = resolve(self._cache, body, spec.cluster_ref)
                check_oldest(self._cache, body, self._identity(body, spec), self._identities())
                await self._unmake(bootstrap, body, spec)
            except Unresolved:
                pass  # with its cluster gone, or an older one there, nothing is left to delete
            except KafkaError as error:
                if error.code is not Code.UNKNOWN_TOPIC_OR_PARTITION:
                    await self._reporter.report(body, [Condition("Reconciled", False, "NotDeleted", str(error))], {})
                    return AGAIN_S
            except HeadraceError as error:
                await self._reporter.report(body, [Condition("Reconciled", False, "NotDeleted", str(error))], {})
                return AGAIN_S
        await self._keep_finalizer(body, wanted=False)
        self._reporter.forget(body["metadata"]["uid"])
        return None

    async def _keep_finalizer(self, body: Body, *, wanted: bool) -> None:
        meta = body["metadata"]
        present = list(meta.get("finalizers", []))
        if wanted == (FINALIZER in present):
            return
        after = [*present, FINALIZER] if wanted else [each for each in present if each != FINALIZER]
        where = path(API, self.name, meta["namespace"], meta["name"])
        await self._kube.merge(where, {"metadata": {"finalizers": after, "resourceVersion": meta["resourceVersion"]}})


class Volumes(Kind[VolumeSpec]):
    """Volume. A volume of the cluster that no resource declares any more stays: containers may use it."""

    name = "Volume"
    spec = VolumeSpec

    def _identity(self, body: Body, spec: VolumeSpec) -> tuple[object, ...]:
        return cluster_key(body, spec.cluster_ref), spec.name or body["metadata"]["name"]

    async def _make(self, bootstrap: str, body: Body, spec: VolumeSpec) -> Mapping[str, Any]:
        fields: dict[str, Any] = {
            "name": spec.name or body["metadata"]["name"],
            "replicas": spec.replicas,
            "min_in_sync": spec.min_in_sync,
            "spread": spec.spread,
            "zones": spec.zones,
            "labels": spec.node_labels,
            "size_limit": quantity(spec.size_limit) if spec.size_limit else 0,
            "durability": spec.durability,
        }
        shown = await self._admin.call(bootstrap, "volume.list")
        known = next((each for each in shown if each["volume"] == fields["name"]), None)
        if known is None:
            known = await self._admin.call(bootstrap, "volume.create", fields)
        else:
            as_shown = {**fields, "size_limit_bytes": fields["size_limit"] or None}
            if any(known.get(name, value) != value for name, value in as_shown.items() if name in known):
                known = await self._admin.call(bootstrap, "volume.alter", fields)
        if known.get("problem"):
            raise KafkaError(Code.INVALID_REQUEST, known["problem"])
        return {"containers": known.get("containers"), "bytes": known.get("held_bytes")}


class Streams(Kind[StreamSpec]):
    """Stream."""

    name = "Stream"
    spec = StreamSpec

    def _identity(self, body: Body, spec: StreamSpec) -> tuple[object, ...]:
        return cluster_key(body, spec.cluster_ref), spec.path

    async def _make(self, bootstrap: str, body: Body, spec: StreamSpec) -> Mapping[str, Any]:
        policy: dict[str, Any] = {
            "ttl_ms": milliseconds(spec.ttl),
            "retention_bytes": quantity(spec.size_limit) if spec.size_limit else -1,
            "default_partitions": spec.default_partitions,
            "auto_create": spec.auto_create,
            "compression": spec.compression,
            "max_message_bytes": spec.max_message_bytes,
            "timestamp_type": spec.timestamp_type,
            "description": spec.description,
            "volume": spec.volume,
        }
        try:
            shown = await self._admin.call(bootstrap, "stream.show", {"path": spec.path})
        except KafkaError as error:
            if error.code is not Code.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            made = {"path": spec.path, "policy": policy, "if_not_exists": True}
            shown = await self._admin.call(bootstrap, "stream.create", made)
        changes = {name: value for name, value in policy.items() if name in shown and shown[name] != value}
        if changes:
            await self._admin.call(bootstrap, "stream.alter", {"path": spec.path, "changes": changes})
        if shown.get("problem"):
            raise KafkaError(Code.INVALID_REQUEST, shown["problem"])
        return {"topics": shown.get("topics"), "partitions": shown.get("partitions")}

    async def _unmake(self, bootstrap: str, body: Body, spec: StreamSpec) -> None:
        await self._admin.call(bootstrap, "stream.delete", {"path": spec.path, "force": True})


class Topics(Kind[TopicSpec]):
    """Topic."""

    name = "Topic"
    spec = TopicSpec

    def _identity(self, body: Body, spec: TopicSpec) -> tuple[object, ...]:
        return cluster_key(body, spec.cluster_ref), self._full(body, spec)

    @staticmethod
    def _full(body: Body, spec: TopicSpec) -> str:
        return f"{spec.stream}:{spec.name or body['metadata']['name']}"

    async def _make(self, bootstrap: str, body: Body, spec: TopicSpec) -> Mapping[str, Any]:
        full = self._full(body, spec)
        try:
            shown = await self._admin.call(bootstrap, "topic.show", {"topic": full})
        except KafkaError as error:
            if error.code is not Code.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            await self._create(bootstrap, full, spec)
            shown = await self._admin.call(bootstrap, "topic.show", {"topic": full})
        have = len(shown["partitions"])
        if spec.partitions is not None and spec.partitions < have:
            raise KafkaError(
                Code.INVALID_PARTITIONS,
                f"{full} has {have} partitions, and {spec.partitions} are asked for: partitions are never taken away",
            )
        if spec.partitions is not None and spec.partitions > have:
            await self._grow(bootstrap, full, spec.partitions)
        if spec.config != shown["configs"]:
            await self._configure(bootstrap, full, spec.config, shown["configs"])
        return {
            "topic": full,
            "topicId": shown["topic_id"],
            "partitions": max(have, spec.partitions or 0),
            "chainLength": max((each["partitionlets"] for each in shown["partitions"]), default=0),
            "bytes": shown["bytes"],
        }

    async def _unmake(self, bootstrap: str, body: Body, spec: TopicSpec) -> None:
        fields = {"topics": [{"name": self._full(body, spec), "topic_id": None}], "timeout": 10_000}
        answer = await self._admin.kafka(bootstrap, ApiKey.DELETE_TOPICS, 6, fields)
        _check(answer.responses)

    async def _create(self, bootstrap: str, full: str, spec: TopicSpec) -> None:
        asked = {
            "name": full,
            "num_partitions": spec.partitions or -1,
            "replication_factor": -1,
            "assignments": (),
            "configs": [{"name": name, "value": value} for name, value in sorted(spec.config.items())],
        }
        fields = {"topics": [asked], "timeout": 10_000, "validate_only": False}
        answer = await self._admin.kafka(bootstrap, ApiKey.CREATE_TOPICS, 7, fields)
        _check(answer.topics, known=Code.TOPIC_ALREADY_EXISTS)

    async def _grow(self, bootstrap: str, full: str, count: int) -> None:
        asked = {"name": full, "count": count, "assignments": None}
        fields = {"topics": [asked], "timeout": 10_000, "validate_only": False}
        answer = await self._admin.kafka(bootstrap, ApiKey.CREATE_PARTITIONS, 3, fields)
        _check(answer.results)

    async def _configure(
        self, bootstrap: str, full: str, wanted: Mapping[str, str], present: Mapping[str, str]
    ) -> None:
        changes = [
            {"name": name, "config_operation": 0, "value": value}
            for name, value in sorted(wanted.items())
            if present.get(name) != value
        ]
        changes += [{"name": name, "config_operation": 1, "value": None} for name in sorted(present.keys() - wanted.keys())]
        resource = {"resource_type": 2, "resource_name": full, "configs": changes}
        answer = await self._admin.kafka(
            bootstrap, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False}
        )
        _check(answer.responses)


def _check(results: Any, *, known: Code | None = None) -> None:
    for each in results:
        code = Code(int(each.error_code))
        if code not in (Code.NONE, known):
            raise KafkaError(code, each.error_message or code.name)

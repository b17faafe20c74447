"""Volumes, Streams and Topics: what is declared of the data, made so by the cluster's own admin calls.

All three go the same way: find the cluster, see what is there, make or change it, say what came of it. What is deleted
with `reclaimPolicy: Delete` is deleted in the cluster too, by a finalizer that gives up when the cluster is gone.
"""

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, TypeVar

import msgspec

from headrace.base.errors import Code, HeadraceError, KafkaError, code_of
from headrace.wire.api_keys import ApiKey
from headrace_operator.admin import Calls
from headrace_operator.engine import Body, Cache, Key, key_of
from headrace_operator.expressions import fault
from headrace_operator.kinds.finalizers import is_ending, is_leaving, keep_finalizer
from headrace_operator.kinds.index import Index
from headrace_operator.kinds.references import Unresolved, check_oldest, invalid, resolve
from headrace_operator.kinds.reporting import Reporter
from headrace_operator.kube import Kube
from headrace_operator.specs import FINALIZER, LinkSpec, Spec, StreamSpec, TopicSpec, VolumeSpec, milliseconds, quantity
from headrace_operator.status import Condition, instant

AGAIN_S: Final = 15.0
FIGURES_AGAIN_S: Final = 60.0
END_AGAIN_S: Final = 5.0
ENDING_S: Final = 3.0
"""So long what is to be deleted with its namespace may take; then there is no time left (kinds.finalizers)."""
SHOWN_S: Final = (0.0, 0.05, 0.2, 0.5, 1.0, 2.0)
"""Pauses before a topic that was made just now is looked for, each time."""
AGAIN_EACH_S: Final = 0.05
FIGURES_EACH_S: Final = 0.3
"""For each resource of a kind: with thousands of them each is looked at less often, and the operator stays idle."""
TYPES: Final = ("Reconciled", "Usable")
FINAL: Final = frozenset(
    {
        Code.INVALID_CONFIG,
        Code.INVALID_PARTITIONS,
        Code.INVALID_REQUEST,
        Code.INVALID_TOPIC_EXCEPTION,
        Code.POLICY_VIOLATION,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Refusals that the same request meets again."""

S = TypeVar("S", VolumeSpec, StreamSpec, TopicSpec, LinkSpec)
Figures = Mapping[str, Any]
Wake = Callable[[Collection[Key]], None]


@dataclass(frozen=True, slots=True)
class Made:
    """What came of it. `problem`: why it is of no use yet, though it is as asked."""

    figures: Figures
    problem: str = ""


class Kind(ABC, Generic[S]):
    """What the three have in common, and ReplicationLinks with them."""

    name: ClassVar[str]
    types: ClassVar[Sequence[str]] = TYPES
    aside: ClassVar[Sequence[str]] = ()
    """Those of `types` that Ready does not sum up."""
    spec: type[S]

    def __init__(
        self,
        *,
        kube: Kube,
        admin: Calls,
        reporter: Reporter,
        cache: Cache,
        index: Index,
        wake: Wake = lambda _keys: None,
    ) -> None:
        """`wake`: is called with resources that waited for what has been made."""
        self._wake = wake
        self._kube = kube
        self._admin = admin
        self._reporter = reporter
        self._cache = cache
        self._index = index

    async def reconcile(self, key: Key, body: Body | None) -> float | None:
        """See engine.Reconcile."""
        if body is None:
            return None
        try:
            spec = msgspec.convert(body["spec"], self.spec)
        except msgspec.ValidationError as error:
            await keep_finalizer(self._kube, self._cache, body, wanted=False)
            if not body["metadata"].get("deletionTimestamp"):
                await self._report(body, [invalid(error)], {})
            return None
        if body["metadata"].get("deletionTimestamp") or is_ending(self._cache, key.namespace):
            return await self._end(body, spec)
        await keep_finalizer(self._kube, self._cache, body, wanted=self._deletes(spec))
        conditions, figures, again = await self._advance(body, spec)
        await self._report(body, conditions, figures)
        return again

    async def _report(self, body: Body, conditions: Sequence[Condition], figures: Figures) -> None:
        await self._reporter.report(body, conditions, figures, types=self.types, aside=self.aside)

    async def _advance(self, body: Body, spec: S) -> tuple[list[Condition], Figures, float | None]:
        try:
            _, _, bootstrap = resolve(self._cache, body, spec.cluster_ref)
            check_oldest(self._cache, self._index, body)
            made = await self._make(bootstrap, body, spec)
        except Unresolved as error:
            return [error.condition], {}, None  # the index calls again when that changes
        except KafkaError as error:
            again = self._again(FIGURES_AGAIN_S, FIGURES_EACH_S) if error.code in FINAL else AGAIN_S
            return [Condition("Reconciled", False, "Refused", str(error))], {}, again
        except HeadraceError as error:
            again = self._again(AGAIN_S, AGAIN_EACH_S)
            return [Condition("Reconciled", False, "NoAnswer", str(error))], {}, again
        usable = (
            Condition("Usable", False, "Impossible", made.problem)
            if made.problem
            else Condition("Usable", True, "Usable")
        )
        again = AGAIN_S if made.problem else self._again(FIGURES_AGAIN_S, FIGURES_EACH_S)
        return [Condition("Reconciled", True, "AsAsked"), usable], made.figures, again

    # --- of each kind

    @abstractmethod
    async def _make(self, bootstrap: str, body: Body, spec: S) -> Made:
        """Have it be so. Raises HeadraceError, and Unresolved for what asking again does not change."""

    async def _unmake(self, bootstrap: str, body: Body, spec: S) -> None:
        """Have it be gone. Raises HeadraceError."""

    # --- inside

    def _deletes(self, spec: Spec) -> bool:
        return getattr(spec, "reclaim_policy", "Retain") == "Delete"

    def _again(self, least_s: float, each_s: float) -> float:
        return max(least_s, each_s * self._cache.count(self.name)) * random.uniform(0.9, 1.1)

    async def _end(self, body: Body, spec: S) -> float | None:
        if FINALIZER in (body["metadata"].get("finalizers") or []):
            why = await self._taken_away(body, spec) if self._deletes(spec) and not is_leaving(self._cache) else ""
            if why and is_ending(self._cache, body["metadata"]["namespace"]):
                await self._kube.tell(body, reason="NotDeleted", message=f"left in the cluster: {why}", warning=True)
            elif why:
                refused = Condition(
                    "Reconciled", False, "NotDeleted", f"{why}; with reclaimPolicy Retain it is left as it is"
                )
                await self._report(body, [refused], {})
                return END_AGAIN_S
            await keep_finalizer(self._kube, self._cache, body, wanted=False)
        self._reporter.forget(body["metadata"]["uid"])
        return None

    async def _taken_away(self, body: Body, spec: S) -> str:
        """Why it is to be tried again; "": it is gone, or nobody is there who could delete it."""
        ending = is_ending(self._cache, body["metadata"]["namespace"])
        try:
            _, _, bootstrap = resolve(self._cache, body, spec.cluster_ref)
            check_oldest(self._cache, self._index, body)
            async with asyncio.timeout(ENDING_S if ending else None):
                await self._unmake(bootstrap, body, spec)
        except TimeoutError:
            return f"no answer within {ENDING_S:g} s"
        except Unresolved:
            return ""  # with its cluster gone, or an older one there, nothing is left to delete
        except KafkaError as error:
            if error.code not in FINAL:
                return str(error)
            if error.code is not Code.UNKNOWN_TOPIC_OR_PARTITION:
                await self._kube.tell(body, reason="NotDeleted", message=f"left in the cluster: {error}", warning=True)
        except HeadraceError as error:
            return str(error)
        return ""


class Volumes(Kind[VolumeSpec]):
    """Volume. A volume of the cluster that no resource declares any more stays: containers may use it."""

    name = "Volume"
    spec = VolumeSpec

    async def _make(self, bootstrap: str, body: Body, spec: VolumeSpec) -> Made:
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
            if any(known[name] != value for name, value in as_shown.items() if name in known):
                known = await self._admin.call(bootstrap, "volume.alter", fields)
        return Made(
            {"containers": known.get("containers"), "bytes": known.get("held_bytes")}, str(known.get("problem") or "")
        )


class Streams(Kind[StreamSpec]):
    """Stream."""

    name = "Stream"
    spec = StreamSpec

    async def _make(self, bootstrap: str, body: Body, spec: StreamSpec) -> Made:
        for name, expression in spec.permissions.items():
            if wrong := fault(expression):
                raise Unresolved("BadExpression", f"permissions.{name} cannot be read: {wrong}")
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
            shown = await self._admin.call(bootstrap, "stream.show", {"path": spec.path, "figures": True})
        except KafkaError as error:
            if error.code is not Code.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            made = {"path": spec.path, "policy": policy, "if_not_exists": True}
            shown = await self._admin.call(bootstrap, "stream.create", made)
            self._wake(self._index.inside(key_of(body)))
        changes = {name: value for name, value in policy.items() if name in shown and shown[name] != value}
        if changes:
            await self._admin.call(bootstrap, "stream.alter", {"path": spec.path, "changes": changes})
            # What is wrong with it was said of what it was.
            shown = await self._admin.call(bootstrap, "stream.show", {"path": spec.path, "figures": True})
        oldest = shown.get("oldest_ms")
        figures = {
            "topics": shown.get("topics"),
            "partitions": shown.get("partitions"),
            "messages": shown.get("messages"),
            "bytes": shown.get("bytes"),
            "oldest": instant(oldest / 1000) if oldest is not None else "" if shown.get("messages") == 0 else None,
        }
        return Made(figures, str(shown.get("problem") or ""))

    async def _unmake(self, bootstrap: str, body: Body, spec: StreamSpec) -> None:
        await self._admin.call(bootstrap, "stream.delete", {"path": spec.path, "force": True})


class Topics(Kind[TopicSpec]):
    """Topic."""

    name = "Topic"
    spec = TopicSpec

    @staticmethod
    def _full(body: Body, spec: TopicSpec) -> str:
        return f"{spec.stream}:{spec.name or body['metadata']['name']}"

    async def _make(self, bootstrap: str, body: Body, spec: TopicSpec) -> Made:
        full = self._full(body, spec)
        try:
            shown = await self._admin.call(bootstrap, "topic.show", {"topic": full})
        except KafkaError as error:
            if error.code is not Code.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            await self._create(bootstrap, full, spec)
            shown = await self._made(bootstrap, full)
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
        figures = {
            "topic": full,
            "topicId": shown["topic_id"],
            "partitions": max(have, spec.partitions or 0),
            "chainLength": max((each["partitionlets"] for each in shown["partitions"]), default=0),
            "bytes": shown["bytes"],
        }
        return Made(figures)

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

    async def _made(self, bootstrap: str, full: str) -> Any:
        """What is shown of a topic that was made just now: another node may hear of it a moment later.

        Raises KafkaError LEADER_NOT_AVAILABLE where it has not by then.
        """
        for pause_s in SHOWN_S:
            await asyncio.sleep(pause_s)
            try:
                return await self._admin.call(bootstrap, "topic.show", {"topic": full})
            except KafkaError as error:
                if error.code is not Code.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
        raise KafkaError(Code.LEADER_NOT_AVAILABLE, f"{full} is made, and a node has not heard of it yet")

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
        changes += [
            {"name": name, "config_operation": 1, "value": None} for name in sorted(present.keys() - wanted.keys())
        ]
        resource = {"resource_type": 2, "resource_name": full, "configs": changes}
        answer = await self._admin.kafka(
            bootstrap, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False}
        )
        _check(answer.responses)


def _check(results: Any, *, known: Code | None = None) -> None:
    for each in results:
        code = code_of(int(each.error_code))
        if code not in (Code.NONE, known):
            raise KafkaError(code, each.error_message or code.name)

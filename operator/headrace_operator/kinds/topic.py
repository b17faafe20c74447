"""Topic: creates, grows, configures and deletes a topic by Kafka's own calls."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from headrace.base.errors import Code, KafkaError, code_of
from headrace.wire.api_keys import ApiKey
from headrace_operator.engine import Body
from headrace_operator.kinds import permissions
from headrace_operator.kinds.kind import TYPES, Kind, Outcome
from headrace_operator.kinds.references import resolve
from headrace_operator.specs import TopicSpec

SHOWN_S: Final = (0.0, 0.05, 0.2, 0.5, 1.0, 2.0)
"""Pauses in seconds before each look for a topic that was just created."""


class Topics(Kind[TopicSpec]):
    """Reconciles Topics."""

    name = "Topic"
    spec = TopicSpec
    types = (*TYPES, *permissions.TYPES)
    aside = permissions.TYPES

    @staticmethod
    def _full_name(body: Body, spec: TopicSpec) -> str:
        return f"{spec.stream}:{spec.name or body['metadata']['name']}"

    async def _make(self, bootstrap: str, body: Body, spec: TopicSpec) -> Outcome:
        full = self._full_name(body, spec)
        expressions = permissions.read(spec.permissions)
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
                f"{full} has {have} partitions, and {spec.partitions} are asked for: partitions are never removed",
            )
        if spec.partitions is not None and spec.partitions > have:
            await self._grow(bootstrap, full, spec.partitions)
        if spec.config != shown["configs"]:
            await self._configure(bootstrap, full, spec.config, shown["configs"])
        _, cluster, _ = resolve(self._cache, body, spec.cluster_ref)
        permitted = await self._permissions.step(bootstrap, cluster, full, expressions)
        figures = {
            "topic": full,
            "topicId": shown["topic_id"],
            "partitions": max(have, spec.partitions or 0),
            "chainLength": max((each["partitionlets"] for each in shown["partitions"]), default=0),
            "bytes": shown["bytes"],
        }
        return Outcome(figures, conditions=[permitted])

    async def _unmake(self, bootstrap: str, body: Body, spec: TopicSpec) -> None:
        fields = {"topics": [{"name": self._full_name(body, spec), "topic_id": None}], "timeout": 10_000}
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
        """Return a topic that was just created: another node may learn of it a moment later. Raises KafkaError
        LEADER_NOT_AVAILABLE if none shows it in time.
        """
        for pause_s in SHOWN_S:
            await asyncio.sleep(pause_s)
            try:
                return await self._admin.call(bootstrap, "topic.show", {"topic": full})
            except KafkaError as error:
                if error.code is not Code.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
        raise KafkaError(Code.LEADER_NOT_AVAILABLE, f"{full} was created, and a node does not know of it yet")

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

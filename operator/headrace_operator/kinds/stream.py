"""Stream: creates, alters and deletes a stream by the cluster's admin calls."""

from typing import Any

from headrace.base.errors import Code, KafkaError
from headrace_operator.engine import Body, key_of
from headrace_operator.kinds import permissions
from headrace_operator.kinds.kind import TYPES, Kind, Outcome
from headrace_operator.kinds.references import resolve
from headrace_operator.specs import StreamSpec, milliseconds, quantity
from headrace_operator.status import instant


class Streams(Kind[StreamSpec]):
    """Reconciles Streams."""

    name = "Stream"
    spec = StreamSpec
    types = (*TYPES, *permissions.TYPES)
    aside = permissions.TYPES

    async def _make(self, bootstrap: str, body: Body, spec: StreamSpec) -> Outcome:
        expressions = permissions.read(spec.permissions)
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
            # The problem that was shown belongs to the former policy.
            shown = await self._admin.call(bootstrap, "stream.show", {"path": spec.path, "figures": True})
        _, cluster, _ = resolve(self._cache, body, spec.cluster_ref)
        permitted = await self._permissions.step(bootstrap, cluster, spec.path, expressions)
        oldest = shown.get("oldest_ms")
        figures = {
            "topics": shown.get("topics"),
            "partitions": shown.get("partitions"),
            "messages": shown.get("messages"),
            "bytes": shown.get("bytes"),
            "oldest": instant(oldest / 1000) if oldest is not None else "" if shown.get("messages") == 0 else None,
        }
        return Outcome(figures, str(shown.get("problem") or ""), [permitted])

    async def _unmake(self, bootstrap: str, body: Body, spec: StreamSpec) -> None:
        await self._admin.call(bootstrap, "stream.delete", {"path": spec.path, "force": True})

"""Headrace's own admin calls on streams. Any node answers them."""

from typing import Final

import msgspec

from headrace.admin.stream_metrics import StreamMetrics
from headrace.admin.volumes import VolumeCalls
from headrace.base.errors import Code, KafkaError
from headrace.catalog.catalog import Catalog
from headrace.catalog.names import DEFAULT_STREAM, check_stream
from headrace.catalog.rows import StreamRow
from headrace.catalog.streams import AlterStream, CreateStream, DeleteStream, StreamOutcome
from headrace.partitions.admin_params import Methods, Params
from headrace.partitions.lookups import found_one, now, submitted
from headrace.partitions.stream_policies import PolicyFields, changes_from, policy_from, stream_shown


class OneStream(Params, frozen=True):
    path: str
    figures: bool = False
    """Whether it is asked how much is in it: all of its partitions are looked at for that."""


class NewStream(Params, frozen=True):
    path: str
    policy: PolicyFields = PolicyFields()
    if_not_exists: bool = False


class StreamChange(Params, frozen=True):
    path: str
    changes: PolicyFields


class StreamEnd(Params, frozen=True):
    path: str
    force: bool = False


class Page(Params, frozen=True):
    after: str = ""
    limit: int = -1


TAKEN: Final = (OneStream, NewStream, StreamChange, StreamEnd, Page)
_KNOWN: Final = [msgspec.msgpack.Decoder(params) for params in TAKEN]
"""Learnt by msgspec as this module is loaded; see admin_api."""


class StreamCalls:
    """The calls on streams."""

    def __init__(self, *, catalog: Catalog, volumes: VolumeCalls, metrics: StreamMetrics) -> None:
        self._catalog = catalog
        self._volumes = volumes
        self._metrics = metrics

    def methods(self) -> Methods:
        """By name: what a method takes, and what runs it."""
        return {
            "stream.create": (NewStream, self._create),
            "stream.list": (Page, self._list),
            "stream.show": (OneStream, self._show),
            "stream.alter": (StreamChange, self._alter),
            "stream.delete": (StreamEnd, self._delete),
        }

    async def _create(self, params: NewStream) -> dict[str, object]:
        """The stream as made. TOPIC_ALREADY_EXISTS for a path that is taken, unless `if_not_exists`."""
        check_stream(params.path)
        policy = policy_from(params.policy)
        if params.policy.volume is not None:
            await self._volumes.for_stream(params.policy.volume)
        command = CreateStream(path=params.path, policy=policy, now=now())
        outcome: StreamOutcome = await submitted(self._catalog, command, timeout_ms=0)
        if not outcome.changed and not params.if_not_exists:
            raise KafkaError(
                Code.TOPIC_ALREADY_EXISTS,
                f"stream {params.path} exists; change it with `headrace stream alter {params.path}`",
            )
        return stream_shown(outcome.stream)

    async def _list(self, params: Page) -> list[dict[str, object]]:
        """Streams in order of path; `limit` -1 for all after `after`."""
        rows = await self._catalog.query(lambda reader: reader.streams.page(after=params.after, limit=params.limit))
        return [stream_shown(row) for row in rows]

    async def _show(self, params: OneStream) -> dict[str, object]:
        """One stream: its policy, how much is in it, and (`problem`) why no topics can be made in it at present.

        With `figures` its messages, bytes and the time of the oldest too; null as long as they are not known yet.
        """
        row = await stream_of(self._catalog, params.path)
        shown = {**stream_shown(row), "problem": self._volumes.warning_of(row)}
        if not params.figures:
            return shown
        known = await self._metrics.of(row)
        if known is None:
            return {**shown, "messages": None, "bytes": None, "oldest_ms": None}
        return {**shown, "messages": known.messages, "bytes": known.bytes, "oldest_ms": known.oldest}

    async def _alter(self, params: StreamChange) -> dict[str, object]:
        """The stream as changed. Topics follow at once, but for what they set themselves.

        A new volume takes what a partition writes from its next roll on.
        """
        await stream_of(self._catalog, params.path)
        changes = changes_from(params.changes)
        if changes.volume is not None:
            await self._volumes.for_stream(changes.volume)
        command = AlterStream(path=params.path, changes=changes)
        outcome: StreamOutcome = await submitted(self._catalog, command, timeout_ms=0)
        return stream_shown(outcome.stream)

    async def _delete(self, params: StreamEnd) -> dict[str, object]:
        """The stream as it was. With topics in it, only by `force`; the default stream never."""
        await stream_of(self._catalog, params.path)
        if params.path == DEFAULT_STREAM:
            raise KafkaError(
                Code.POLICY_VIOLATION,
                f"{params.path} takes topics that are named without a stream; it cannot be deleted",
            )
        outcome: StreamOutcome = await submitted(
            self._catalog, DeleteStream(path=params.path, now=now(), force=params.force), timeout_ms=0
        )
        return stream_shown(outcome.stream)


async def stream_of(catalog: Catalog, path: str) -> StreamRow:
    """A stream by its path. Raises KafkaError where there is none."""
    check_stream(path)
    row = await found_one(catalog, lambda reader: reader.streams.at(path))
    if row is None:
        raise KafkaError(
            Code.UNKNOWN_TOPIC_OR_PARTITION,
            f"there is no stream {path}; `headrace stream list` shows those that exist,"
            f" `headrace stream create {path}` makes it",
        )
    return row

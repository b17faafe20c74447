"""Headrace's own admin calls on streams. Any node answers them."""

from typing import Final

import msgspec

from headrace.admin.access_changes import AccessChanges, read_expressions
from headrace.admin.stream_metrics import StreamMetrics
from headrace.admin.volumes import VolumeCalls
from headrace.base.errors import Code, KafkaError
from headrace.catalog.catalog import Catalog
from headrace.catalog.names import DEFAULT_STREAM, check_stream
from headrace.catalog.rows import StreamRow
from headrace.catalog.streams import AlterStream, DeleteStream, StreamOutcome
from headrace.partitions.admin_params import Method, Methods, Params
from headrace.partitions.admin_rights import ADMIN, ANY, Anybody, SeesStream, check, on_path, on_stream, stream_target
from headrace.partitions.authorizer import Authorizer
from headrace.partitions.caller import Caller
from headrace.partitions.lookups import look_up_one, now, submit_within, yield_to_loop
from headrace.partitions.new_streams import check_new_path, new_stream
from headrace.partitions.stream_policies import PolicyFields, changes_from, policy_from, stream_shown
from headrace.security.access_rules import Kind, Permission
from headrace.security.audit import Change


class OneStream(Params, frozen=True):
    path: str
    figures: bool = False
    """Whether to return the stream's size, for which all of its partitions are read."""


class NewStream(Params, frozen=True):
    path: str
    policy: PolicyFields = PolicyFields()
    if_not_exists: bool = False
    access: dict[Permission, str] = msgspec.field(default_factory=dict)
    """Expressions by permission; without one, only the creator has the permission while security is on."""


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
_DECODERS: Final = [msgspec.msgpack.Decoder(params) for params in TAKEN]
"""Decoders built as this module is loaded; see admin_api."""


class StreamCalls:
    """The admin calls on streams."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        volumes: VolumeCalls,
        metrics: StreamMetrics,
        authorizer: Authorizer,
        changes: AccessChanges,
    ) -> None:
        self._authorizer = authorizer
        self._changes = changes
        self._catalog = catalog
        self._volumes = volumes
        self._metrics = metrics

    def methods(self) -> Methods:
        """By method name: its parameters, its handler, and the right that it requires."""
        listed = Anybody("lists the streams on which, or on a topic of which, the caller has any permission")
        return {
            "stream.create": Method(NewStream, self._create, on_path(ADMIN), of_caller=True),
            "stream.list": Method(Page, self._list, listed, of_caller=True),
            "stream.show": Method(OneStream, self._show, SeesStream()),
            "stream.alter": Method(StreamChange, self._alter, on_stream(ADMIN)),
            "stream.delete": Method(StreamEnd, self._delete, on_stream(ADMIN)),
        }

    async def _create(self, params: NewStream, caller: Caller) -> dict[str, object]:
        """Create a stream and return it. Raises TOPIC_ALREADY_EXISTS for a path that is taken, unless `if_not_exists`.

        With `access` the answer also has the fields of a change of expressions.
        """
        check_new_path(params.path)
        policy = policy_from(params.policy)
        read = read_expressions(params.access, where=params.path)
        if params.policy.volume is not None:
            await self._volumes.for_stream(params.policy.volume)
        command = new_stream(
            params.path,
            policy,
            access={each: expression.text for each, expression in read.items()},
            owner=caller.principal.user if self._authorizer.is_on else None,
            now=now(),
        )
        outcome: StreamOutcome = await submit_within(self._catalog, command, timeout_ms=0)
        if not outcome.changed and not params.if_not_exists:
            raise KafkaError(
                Code.TOPIC_ALREADY_EXISTS,
                f"stream {params.path} exists; change it with `headrace stream alter {params.path}`",
            )
        if not outcome.changed and self._authorizer.is_on:
            # The right to create a stream at a path does not include the right to see another's.
            check(ANY, stream_target(params.path), caller, self._authorizer, method="stream.create")
        shown = stream_shown(outcome.stream)
        if not read or not outcome.changed:
            return shown
        given = ", ".join(f"{each} is {expression.text!r}" for each, expression in read.items())
        self._changes.note(caller, Change.ACCESS, params.path, given, api="stream.create", kind=Kind.STREAM)
        return {**shown, **await self._changes.outcome_fields(await self._changes.warnings(read.values()))}

    async def _list(self, params: Page, caller: Caller) -> list[dict[str, object]]:
        """The streams that the caller may see, after `after`, in order of path; `limit` -1 means all."""
        if not self._authorizer.is_on:
            rows = await self._catalog.query(lambda reader: reader.streams.page(after=params.after, limit=params.limit))
            return [stream_shown(row) for row in rows]
        rows = await self._catalog.query(lambda reader: reader.streams.page(after=params.after, limit=-1))
        seen: list[dict[str, object]] = []
        for index, row in enumerate(rows):
            if len(seen) == params.limit:
                break
            if self._authorizer.sees_stream(caller, row.path):
                seen.append(stream_shown(row))
            await yield_to_loop(index)
        return seen

    async def _show(self, params: OneStream) -> dict[str, object]:
        """One stream: its policy, and (`problem`) why no topics can be created in it at present.

        With `figures` also its messages, bytes and the time of the oldest record, which are null until they are known.
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
        """Change a stream's policy and return it. It applies to topics at once, except for configs that they set
        themselves.

        A new volume applies to each partition from its next roll on.
        """
        await stream_of(self._catalog, params.path)
        changes = changes_from(params.changes)
        if changes.volume is not None:
            await self._volumes.for_stream(changes.volume)
        command = AlterStream(path=params.path, changes=changes)
        outcome: StreamOutcome = await submit_within(self._catalog, command, timeout_ms=0)
        return stream_shown(outcome.stream)

    async def _delete(self, params: StreamEnd) -> dict[str, object]:
        """Delete a stream and return it. If it has topics, this requires `force`; the default stream cannot be
        deleted."""
        await stream_of(self._catalog, params.path)
        if params.path == DEFAULT_STREAM:
            raise KafkaError(
                Code.POLICY_VIOLATION,
                f"{params.path} holds the topics that are named without a stream; it cannot be deleted",
            )
        outcome: StreamOutcome = await submit_within(
            self._catalog, DeleteStream(path=params.path, now=now(), force=params.force), timeout_ms=0
        )
        return stream_shown(outcome.stream)


async def stream_of(catalog: Catalog, path: str) -> StreamRow:
    """The stream at a path. Raises KafkaError if there is none."""
    check_stream(path)
    row = await look_up_one(catalog, lambda reader: reader.streams.at(path))
    if row is None:
        raise KafkaError(
            Code.UNKNOWN_TOPIC_OR_PARTITION,
            f"there is no stream {path}; `headrace stream list` shows those that exist,"
            f" `headrace stream create {path}` creates it",
        )
    return row

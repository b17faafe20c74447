"""The link calls about this cluster as a source: its identity, its changes, and its committed offsets.

These are admin calls, as in admin/admin_api.py; topics.py and homes.py have those about topics and homes. Any node
answers them, but each node has its own feed. A page of rows may be shorter than requested, even empty: the last page is
the one whose `after` is null. docs/protocol.md has the parameters and answers.
"""

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from headrace.base.errors import Code, KafkaError
from headrace.catalog.catalog import Catalog
from headrace.catalog.names import check_stream
from headrace.catalog.reader import Reader
from headrace.catalog.rows import CommittedOffsetRow
from headrace.links.serving.change_feed import WHOLE_GROUP, ChangeFeed, Place
from headrace.links.serving.change_log import PARTITION, TOPIC
from headrace.links.serving.params import MAX_ITEMS, MAX_ROWS, VERSIONS, Group, OfStream, TopicId, check_call
from headrace.partitions.admin_params import Method, Methods
from headrace.partitions.admin_rights import COPY, check, on_stream, stream_target
from headrace.partitions.authorizer import Authorizer
from headrace.partitions.caller import Caller
from headrace.partitions.cluster_layout import Layout
from headrace.security.access_rules import Kind, Permission

MAX_WAIT_MS: Final = 30_000
"""Longest wait of a poll, so that a target or a connection that is gone is noticed."""

AnyTopicId = Annotated[bytes, msgspec.Meta(max_length=16)]
AnyIndex = Annotated[int, msgspec.Meta(ge=-1, lt=2**31)]
CommittedOffsetKey = tuple[Group, AnyTopicId, AnyIndex]


class ChangesAsked(OfStream, frozen=True):
    since: tuple[Annotated[str, msgspec.Meta(max_length=64)], int] | None = None
    topics: bool = False
    committed_offsets: bool = msgspec.field(name="cursors", default=False)
    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=MAX_WAIT_MS)] = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_ITEMS)] = MAX_ITEMS


class CommittedOffsetsAsked(OfStream, frozen=True):
    after: tuple[Group, TopicId, AnyIndex] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_ITEMS)] = MAX_ROWS
    keys: Annotated[list[CommittedOffsetKey], msgspec.Meta(max_length=MAX_ITEMS)] | None = None


TAKEN: Final = (ChangesAsked, CommittedOffsetsAsked)
_DECODERS: Final = [msgspec.msgpack.Decoder(params) for params in TAKEN]
"""Decoders built as this module is loaded; see admin/admin_api.py."""


class SourceApis:
    """Answers link calls about a stream, its changes and its committed offsets."""

    def __init__(
        self, *, catalog: Catalog, layout: Layout, changes: ChangeFeed, authorizer: Authorizer, own_cluster: str
    ) -> None:
        self._authorizer = authorizer
        self._catalog = catalog
        self._layout = layout
        self._changes = changes
        self._own = own_cluster

    def methods(self) -> Methods:
        """By method name: its parameters, its handler, and the right that it requires."""
        copied = on_stream(COPY, "stream")
        return {
            "link.hello": Method(OfStream, self.hello, copied, of_caller=True, is_traced=False),
            "link.changes": Method(ChangesAsked, self.changes, copied, of_caller=True, is_traced=False),
            "link.cursors": Method(
                CommittedOffsetsAsked, self.committed_offsets, copied, of_caller=True, is_traced=False
            ),
        }

    async def hello(self, params: OfStream, caller: Caller) -> dict[str, object]:
        """This cluster's identity and versions, and the stream's policy; `problem`: why nothing can be copied from
        it."""
        check_stream(params.stream)
        row = await self._catalog.query(lambda reader: reader.streams.at(params.stream))
        return {
            "versions": list(VERSIONS),
            "cluster_id": self._own,
            "nodes": [[each.node_id, each.host, each.port] for each in self._layout.addresses(caller.listener)],
            "policy": {} if row is None else msgspec.structs.asdict(row.policy),
            "problem": f"the source has no stream {params.stream}" if row is None else None,
        }

    async def changes(self, params: ChangesAsked, caller: Caller) -> dict[str, object]:
        """What changed on this node since a place in its feed (change_feed.py), without topics that the caller may not
        copy."""
        check_call(params)
        found = await self._changes.changes(
            params.stream,
            None if params.since is None else Place(*params.since),
            topics=params.topics,
            committed_offsets=params.committed_offsets,
            wait_ms=params.wait_ms,
            limit=params.limit,
        )
        # The caller may have lost the right while waiting.
        check(COPY, stream_target(params.stream), caller, self._authorizer, method="link.changes")
        hidden = await self._hidden(params.stream, [key for key, _ in found.changes], caller)
        partitions: list[list[object]] = []
        topics: list[object] = []
        committed_offsets: list[list[object]] = []
        for (kind, *key), value in found.changes:
            if hidden and not hidden.isdisjoint(key):
                continue
            if kind == PARTITION:
                partitions.append([*key, value])
            elif kind == TOPIC:
                topics.extend(key)
            else:
                committed_offsets.append(list(key))
        run, serial = found.place
        return {
            "run": run,
            "serial": serial,
            "reset": found.reset,
            "partitions": partitions,
            "topics": topics,
            "cursors": committed_offsets,
        }

    async def _hidden(self, stream: str, keys: Sequence[Sequence[object]], caller: Caller) -> set[object]:
        """The ids of topics among these changes that the caller may not copy."""
        if not self._authorizer.differs_by_topic(Permission.COPY, stream):
            return set()
        ids = {each for key in keys for each in key if isinstance(each, bytes)}
        rows = await self._catalog.query(lambda reader: reader.topics.by_ids(ids))
        return {
            row.topic_id for row in rows.values() if not self._authorizer.sees(caller, COPY, Kind.TOPIC, row.full_name)
        }

    async def committed_offsets(self, params: CommittedOffsetsAsked, caller: Caller) -> dict[str, object]:
        """A page of the committed offsets of all groups on a stream's topics, or those of `keys`. Committed offsets
        that do not exist are left out, and so are those on topics that the caller may not copy."""
        check_call(params)
        keys = params.keys
        if keys is not None:
            if any((key[1:] != WHOLE_GROUP) and (len(key[1]) != 16 or key[2] < 0) for key in keys):
                raise KafkaError(
                    Code.INVALID_REQUEST, "keys: a key is a group, topic id and partition; or a group, no bytes, and -1"
                )
            found = await self._catalog.query(lambda reader: _of_keys(reader, params.stream, keys))
            after = None
        else:
            found, after = await self._catalog.query(lambda reader: _page(reader, params))
        shown = [
            _shown(group, row)
            for group, row in found
            if self._authorizer.sees(caller, COPY, Kind.TOPIC, f"{row.stream}:{row.name}")
        ]
        return {"cursors": shown, "after": after}


def _of_keys(reader: Reader, stream: str, keys: list[CommittedOffsetKey]) -> list[tuple[str, CommittedOffsetRow]]:
    """[blocking] The committed offsets with these keys on the stream's topics, with their groups."""
    topics = reader.topics.by_ids({topic_id for _, topic_id, _ in keys if topic_id})
    wanted: dict[str, set[tuple[bytes, int]]] = {}
    for group, topic_id, partition in keys:
        wanted.setdefault(group, set()).add((topic_id, partition))
    found: list[tuple[str, CommittedOffsetRow]] = []
    for group, places in wanted.items():
        whole = WHOLE_GROUP in places
        numbers = [topics[topic_id].number for topic_id in {each for each, _ in places} if topic_id in topics]
        found += [
            (group, row)
            for row in reader.groups.committed_offsets(group, None if whole else numbers)
            if row.stream == stream and (whole or (row.topic_id, row.partition) in places)
        ]
    return found


def _page(
    reader: Reader, params: CommittedOffsetsAsked
) -> tuple[list[tuple[str, CommittedOffsetRow]], list[object] | None]:
    """[blocking] Read a page of committed offsets of all streams; returns those of this stream with their groups, and
    the last key of the page, or None at the end."""
    after = ("", -1, -1)
    if params.after is not None:
        group, topic_id, partition = params.after
        topic = reader.topics.by_id(topic_id)
        # If that topic no longer exists, the page starts again with the whole group.
        after = (group, -1, -1) if topic is None else (group, topic.number, partition)
    limit = min(params.limit, MAX_ROWS)
    rows = reader.groups.committed_offsets_after(after, limit=limit)
    last = rows[-1] if len(rows) == limit else None
    return (
        [(group, row) for group, row in rows if row.stream == params.stream],
        None if last is None else [last[0], last[1].topic_id, last[1].partition],
    )


def _shown(group: str, row: CommittedOffsetRow) -> list[object]:
    return [group, row.topic_id, row.partition, row.offset, row.metadata, row.committed_at]

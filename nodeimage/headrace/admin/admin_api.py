"""Headrace's own admin calls: what the command line asks a node, over the Kafka port (API key 24000).

    request  = 0x00, msgpack [method, {parameter: value}]
    response = msgpack {"error": Kafka code, "message": text or null, "result": anything}

Responsible for the envelope and the table of methods: parameters are checked against a struct per method (an unknown
one, or one of a wrong type, is an INVALID_REQUEST that names it), errors become codes with a line that says what to
do. The methods on streams and topics are here, those on the cluster in `cluster_admin`; `node_status`, `group_lag` and
`chains` have the others' contents. A method that only one node can answer refuses with NOT_COORDINATOR (groups) or
NOT_LEADER_OR_FOLLOWER (roll) elsewhere.
"""

import base64
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import structlog

from headrace.admin.group_lag import group_list, group_shown
from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.base.ids import ContainerId, NodeId
from headrace.catalog.commands import AlterStream, CreateStream, DeleteStream
from headrace.catalog.names import check_stream
from headrace.catalog.reader import Reader
from headrace.catalog.rows import INTENDED, OPEN, StreamOutcome, StreamRow, TopicRow
from headrace.kafka_client.blocking_client import decode_admin_request, encode_admin_response
from headrace.partitions.admin_params import Methods, NoParams, Params
from headrace.partitions.caller import Caller
from headrace.partitions.lookups import found_one, now, submitted, topic_rows
from headrace.partitions.partition_states import STATES
from headrace.partitions.stream_policies import PolicyFields, changes_from, policy_from, stream_shown
from headrace.partitions.topic_configs import MAX_PARTITIONS, effective

if TYPE_CHECKING:
    from headrace.kafka.dispatch import Broker

log = structlog.get_logger(__name__)

MAX_PAGE: Final = 10_000


class AdminApi:
    """Answers Headrace's own admin calls, by a table of methods."""

    def __init__(self, methods: Iterable[Methods]) -> None:
        self._methods: dict[str, _Method] = {}
        for table in methods:
            self.add(table)

    def add(self, methods: Methods, *, of_caller: bool = False) -> None:
        """Answer these too: those of a part that is made later than this. msgspec has learnt what they take.

        `of_caller`: the answer differs with who asks, so that each is given the `Caller`, too.
        """
        self._methods.update((name, _Method(*each, of_caller)) for name, each in methods.items())

    @property
    def names(self) -> Collection[str]:
        """Of the methods that there are."""
        return self._methods.keys()

    async def handle(self, body: bytes, caller: Caller) -> bytes:
        """The response's body. Raises MalformedRequest for bytes that are no admin request."""
        name, given = decode_admin_request(body)
        try:
            return encode_admin_response(await self.call(name, given, caller))
        except HeadraceError as error:
            return encode_admin_response(None, error=int(error.code), message=str(error))
        except Exception:
            log.exception("admin call failed", method=name, peer=caller.peer)
            return encode_admin_response(
                None, error=int(Code.UNKNOWN_SERVER_ERROR), message=f"{name} failed; the node's log says why"
            )

    async def call(self, name: str, given: Mapping[str, Any], caller: Caller) -> object:
        """What a method answers. Raises HeadraceError, KafkaError(INVALID_REQUEST) for a call that cannot be."""
        method = self._methods.get(name)
        if method is None:
            known = ", ".join(self._methods)
            raise KafkaError(Code.INVALID_REQUEST, f"there is no method {name[:100]!r}; there are {known}")
        try:
            params = msgspec.convert(given, method.params)
        except msgspec.ValidationError as error:
            raise KafkaError(Code.INVALID_REQUEST, f"{name}: {error}") from None
        return await (method.run(params, caller) if method.of_caller else method.run(params))


class _Method(NamedTuple):
    """A method: what it takes, and what runs it."""

    params: type[Params]
    run: Callable[..., Awaitable[object]]
    of_caller: bool = False
    """It is told who calls."""


# --- streams


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


async def stream_create(broker: "Broker", params: NewStream) -> dict[str, object]:
    """The stream as made. TOPIC_ALREADY_EXISTS for a path that is taken, unless `if_not_exists`."""
    check_stream(params.path)
    policy = policy_from(params.policy)
    if params.policy.volume is not None:
        await broker.volumes.for_stream(params.policy.volume)
    command = CreateStream(path=params.path, policy=policy, now=now())
    outcome: StreamOutcome = await submitted(broker.catalog, command, timeout_ms=0)
    if not outcome.changed and not params.if_not_exists:
        raise KafkaError(
            Code.TOPIC_ALREADY_EXISTS,
            f"stream {params.path} exists; change it with `headrace stream alter {params.path}`",
        )
    return stream_shown(outcome.stream)


async def stream_list(broker: "Broker", params: Page) -> list[dict[str, object]]:
    """Streams in order of path; `limit` -1 for all after `after`."""
    rows = await broker.catalog.query(lambda reader: reader.streams(after=params.after, limit=params.limit))
    return [stream_shown(row) for row in rows]


async def stream_show(broker: "Broker", params: OneStream) -> dict[str, object]:
    """One stream: its policy, how much is in it, and (`problem`) why no topics can be made in it at present.

    With `figures` its messages, bytes and the time of the oldest too; null as long as they are not known yet.
    """
    row = await _stream(broker, params.path)
    shown = {**stream_shown(row), "problem": broker.volumes.warning_of(row)}
    if not params.figures:
        return shown
    known = await broker.stream_figures.of(row)
    if known is None:
        return {**shown, "messages": None, "bytes": None, "oldest_ms": None}
    return {**shown, "messages": known.messages, "bytes": known.bytes, "oldest_ms": known.oldest}


async def stream_alter(broker: "Broker", params: StreamChange) -> dict[str, object]:
    """The stream as changed. Topics follow at once, but for what they set themselves.

    A new volume takes what a partition writes from its next roll on.
    """
    await _stream(broker, params.path)
    changes = changes_from(params.changes)
    if changes.volume is not None:
        await broker.volumes.for_stream(changes.volume)
    command = AlterStream(path=params.path, changes=changes)
    outcome: StreamOutcome = await submitted(broker.catalog, command, timeout_ms=0)
    return stream_shown(outcome.stream)


async def stream_delete(broker: "Broker", params: StreamEnd) -> dict[str, object]:
    """The stream as it was. With topics in it, only by `force`; the default stream never."""
    await _stream(broker, params.path)
    if params.path == broker.default_stream:
        raise KafkaError(
            Code.POLICY_VIOLATION, f"{params.path} takes topics that are named without a stream; it cannot be deleted"
        )
    outcome: StreamOutcome = await submitted(
        broker.catalog, DeleteStream(path=params.path, now=now(), force=params.force), timeout_ms=0
    )
    return stream_shown(outcome.stream)


async def _stream(broker: "Broker", path: str) -> StreamRow:
    check_stream(path)
    row = await found_one(broker.catalog, lambda reader: reader.stream(path))
    if row is None:
        raise KafkaError(
            Code.UNKNOWN_TOPIC_OR_PARTITION,
            f"there is no stream {path}; `headrace stream list` shows those that exist,"
            f" `headrace stream create {path}` makes it",
        )
    return row


# --- topics


class TopicPage(Params, frozen=True):
    stream: str
    prefix: str = ""
    after: str = ""
    limit: int = 1000


class OneTopic(Params, frozen=True):
    topic: str


class OnePartition(Params, frozen=True):
    topic: str
    partition: int | None = None


async def topic_list(broker: "Broker", params: TopicPage) -> list[dict[str, object]]:
    """A page of a stream's topics in order of name."""
    if not 1 <= params.limit <= MAX_PAGE:
        raise KafkaError(Code.INVALID_REQUEST, f"limit is {params.limit}; allowed are 1 to {MAX_PAGE}")
    await _stream(broker, params.stream)
    rows = await broker.catalog.query(lambda reader: _with_prefix(reader, params))
    return [
        {
            "name": row.name,
            "topic": row.full_name,
            "topic_id": shown_id(row.topic_id),
            "partitions": row.partitions,
            "configs": dict(row.configs),
        }
        for row in rows
    ]


def _with_prefix(reader: Reader, params: TopicPage) -> list[TopicRow]:
    """[blocking] Names in order, so that those with one prefix stand together."""
    first: list[TopicRow] = []
    after = params.after
    if after < params.prefix:
        itself = reader.topic(params.stream, params.prefix)
        first = [] if itself is None else [itself]
        after = params.prefix
    rows = first + reader.topics(params.stream, after=after, limit=params.limit)
    return [row for row in rows[: params.limit] if row.name.startswith(params.prefix)]


async def topic_show(broker: "Broker", params: OneTopic) -> dict[str, object]:
    """A topic: what holds for it, and each partition's leader, offsets and size."""
    row = await _topic(broker, params.topic)
    stream = await _stream(broker, row.stream)
    policy = effective(stream.policy, row.configs)
    partitions = await broker.partition_states.of_topic(row)
    opened = await broker.catalog.query(lambda reader: reader.open_partitionlets([row.number]))
    containers = {each.partition: each.container for each in opened.get(row.number, [])}
    return {
        "topic": row.full_name,
        "topic_id": shown_id(row.topic_id),
        **({} if row.home is None else {"home": broker.home_check.shown(row.home)}),
        "created_ms": row.created,
        "retention_ms": policy.retention_ms,
        "retention_bytes": policy.retention_bytes,
        "max_message_bytes": policy.max_message_bytes,
        "timestamp_type": "LogAppendTime" if policy.append_time else "CreateTime",
        "configs": dict(row.configs),
        "bytes": sum(each.size for each in partitions),
        "partitions": [
            {
                "partition": each.partition,
                "leader": _leader(broker, containers.get(each.partition)),
                "leader_epoch": each.leader_epoch,
                "first": each.log_start,
                "end": each.end,
                "bytes": each.size,
                "partitionlets": each.partitionlets,
            }
            for each in partitions
        ],
    }


async def chain(broker: "Broker", params: OnePartition) -> list[dict[str, object]]:
    """The partitionlets of a topic or of one partition, in order: which offsets, where, how big."""
    row = await _topic(broker, params.topic, partition=params.partition)
    rows = await broker.catalog.query(lambda reader: reader.chain(row.number, params.partition))
    stored = await broker.old_reads.extents(rows)
    shown: list[dict[str, object]] = []
    for each in rows:
        extent = stored.get(each.id)
        end: int | None = each.end
        if each.state == OPEN:
            end = broker.partition_states.committed_end(row.topic_id, each.partition)
            end = end if end is not None or extent is None else extent.end
        shown.append(
            {
                "partition": each.partition,
                "id": each.id,
                "state": STATES[each.state],
                "first": each.first,
                "end": end,
                "bytes": extent.size if extent is not None else None,
                "container": each.container,
                "node": _leader(broker, each.container),
                "leader_epoch": broker.partition_states.leader_epoch_now(each),
            }
        )
    return shown


def _leader(broker: "Broker", container: ContainerId | None) -> NodeId | None:
    """The node that leads a container."""
    found = None if container is None else broker.cluster.leader(container)
    return None if found is None else found[0]


async def roll(broker: "Broker", params: OnePartition) -> dict[str, object]:
    """Let a partition (0, unless another is named) go on in a new partitionlet; the new one."""
    index = params.partition or 0
    row = await _topic(broker, params.topic, partition=index)
    (topic,) = await broker.topics.resolve_ids([row.topic_id])
    if isinstance(topic, KafkaError):
        raise topic
    partition = await broker.partitions.leader(topic, index)
    opened = await broker.rolls.roll(partition)
    rows = await broker.catalog.query(lambda reader: reader.chain(row.number, index))
    return {
        "topic": row.full_name,
        "partition": index,
        "id": opened.id,
        "first": opened.first,
        "container": opened.container,
        "leader_epoch": broker.partition_states.leader_epoch_now(opened),
        "partitionlets": sum(each.state != INTENDED for each in rows),
    }


async def _topic(broker: "Broker", name: str, *, partition: int | None = None) -> TopicRow:
    """Raises KafkaError for an unknown topic or partition."""
    (row,) = await topic_rows(broker.catalog, [name])
    if isinstance(row, KafkaError):
        raise row
    if partition is not None and not 0 <= partition < min(row.partitions, MAX_PARTITIONS):
        raise KafkaError(
            Code.UNKNOWN_TOPIC_OR_PARTITION,
            f"{name} has no partition {partition}: there are {row.partitions}, from 0 on",
        )
    return row


def shown_id(topic_id: bytes) -> str:
    """A topic id as Kafka's tools print it: base64 of the 16 bytes, for URLs, without padding."""
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=")


# --- groups


class OneGroup(Params, frozen=True):
    group: str


async def groups_list(broker: "Broker", params: NoParams) -> list[dict[str, object]]:
    """Every group with its state and total lag."""
    return await group_list(broker)


async def groups_show(broker: "Broker", params: OneGroup) -> dict[str, object]:
    """A group's members, and its lag on each partition."""
    return await group_shown(broker, params.group)


TAKEN: Final = (OneStream, NewStream, StreamChange, StreamEnd, Page, TopicPage, OneTopic, OnePartition, OneGroup)
_KNOWN: Final = [msgspec.msgpack.Decoder(params) for params in TAKEN]
"""So that msgspec has learnt the classes before `convert` is given them, which it does not do safely in two threads."""


def methods(broker: "Broker") -> Methods:
    """By name: what a method takes, and what runs it."""
    calls: dict[str, tuple[type[Params], Callable[..., Awaitable[object]]]] = {
        "stream.create": (NewStream, stream_create),
        "stream.list": (Page, stream_list),
        "stream.show": (OneStream, stream_show),
        "stream.alter": (StreamChange, stream_alter),
        "stream.delete": (StreamEnd, stream_delete),
        "topic.list": (TopicPage, topic_list),
        "topic.show": (OneTopic, topic_show),
        "chain": (OnePartition, chain),
        "roll": (OnePartition, roll),
        "groups.list": (NoParams, groups_list),
        "groups.show": (OneGroup, groups_show),
    }
    return {name: (params, partial(run, broker)) for name, (params, run) in calls.items()}

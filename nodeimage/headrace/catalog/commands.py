"""The catalog's commands: what is written to the catalog container's log, in msgpack.

All times, uuids and placement stand inside a command, so that applying it is deterministic; its outcome is decided
when it is applied. Knows nothing of SQLite. Commands are maps with a tag `type`; the items of their lists are arrays.
A field may be added at the end with a default, and never removed or given another meaning: logs are replayed.

A command may come twice, since who submits it tries again when its primary goes away. The second copy changes nothing
that the first has done: numbers, ids and rows stay. Where that needs more than the rows themselves say, the docstring
tells how a repeat is known.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from headrace.base.errors import NewerFormat
from headrace.base.ids import ContainerId, Epoch, LeaderEpoch, Millis, Offset, PartitionletId
from headrace.base.levels import Level
from headrace.catalog.command import CatalogCommand, Item
from headrace.catalog.link_commands import (
    DeleteLink,
    HomeChange,
    LinkConfig,
    PutLink,
    SetHome,
    SetLinkSource,
    SetLinkState,
    Start,
)

__all__ = [
    "DeleteLink",
    "HomeChange",
    "LinkConfig",
    "PutLink",
    "SetHome",
    "SetLinkSource",
    "SetLinkState",
    "Start",
]


class StreamPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """What holds for all topics of a stream, unless a topic's configs say otherwise."""

    ttl_ms: int = 0
    """Time to live of a record; 0 = for ever."""
    retention_bytes: int = -1
    """Per partition, as Kafka's retention.bytes; -1 = no limit."""
    default_partitions: int = 1
    auto_create: bool = True
    """Topics are made on first use."""
    compression: str = "producer"
    max_message_bytes: int = 1_048_588
    timestamp_type: str = "CreateTime"
    description: str = ""
    volume: str = "default"
    """Whose containers take the stream's new partitionlets."""


class PolicyChanges(msgspec.Struct, frozen=True, omit_defaults=True):
    """Fields of StreamPolicy to change; None leaves one as it is."""

    ttl_ms: int | None = None
    retention_bytes: int | None = None
    default_partitions: int | None = None
    auto_create: bool | None = None
    compression: str | None = None
    max_message_bytes: int | None = None
    timestamp_type: str | None = None
    description: str | None = None
    volume: str | None = None


class CreateStream(CatalogCommand, frozen=True):
    """Outcome: StreamOutcome; an existing stream is left as it is, with `changed` false."""

    path: str
    policy: StreamPolicy
    now: Millis


class AlterStream(CatalogCommand, frozen=True):
    """Outcome: StreamOutcome."""

    path: str
    changes: PolicyChanges


class DeleteStream(CatalogCommand, frozen=True):
    """Outcome: StreamOutcome. Refused with POLICY_VIOLATION while the stream has topics or links, unless `force`.

    From level 1 on the rows of its topics go with `ForgetDeleted`.
    """

    path: str
    now: Millis
    force: bool = False


class ForgetDeleted(CatalogCommand, frozen=True):
    """Deletes the next rows, a bounded number, of streams and topics that were deleted. Outcome: Forgotten."""


class NewTopic(Item, frozen=True):
    """A topic to make. `stream` is a path; one container id per partition, in order.

    With `home` it is a copy, settled for that home: `origin` is the cluster that counter 0 stands for, `histories` are
    (partition, counter, cluster, start). The home is the source's, the records come later.
    """

    stream: str
    name: str
    topic_id: bytes
    partitions: int
    configs: dict[str, str]
    container_ids: list[ContainerId]
    container_epochs: list[Epoch]
    home: tuple[int, str] | None = None
    origin: str = ""
    histories: list[tuple[int, int, str, Offset]] = msgspec.field(default_factory=list)


class CreateTopics(CatalogCommand, frozen=True):
    """Outcome: list[TopicOutcome], one per item; TOPIC_ALREADY_EXISTS carries the topic that exists.

    A topic of that name that has the item's topic id was made by an earlier copy: that is a success, with its rows.
    """

    items: list[NewTopic]
    now: Millis


class DeleteTopics(CatalogCommand, frozen=True):
    """Outcome: list[TopicOutcome], one per id, with the rows that are gone.

    A repeat finds UNKNOWN_TOPIC_ID; its submitter gets what the first copy came to.
    """

    topic_ids: list[bytes]
    now: Millis


class CreatePartitions(CatalogCommand, frozen=True):
    """Outcome: TopicOutcome with the new partitionlets. `count` is the topic's partitions afterwards.

    Where the topic has `count` partitions, and the last are open in these containers, an earlier copy made them: that
    is a success, with their rows.

    The new ones are settled for the topic's home: their `histories` are as in NewTopic, or begin with that home (None).
    Refused with OPERATION_NOT_ATTEMPTED where that is not `home`, to which the histories belong, counter 0 being that
    of a topic that was never moved; None: whatever it is.
    """

    topic_id: bytes
    count: int
    container_ids: list[ContainerId]
    container_epochs: list[Epoch]
    now: Millis
    histories: list[tuple[int, int, str, Offset]] | None = None
    home: tuple[int, str] | None = None


class AlterTopic(CatalogCommand, frozen=True):
    """Sets and removes a topic's configs. Outcome: TopicOutcome.

    Refused with OPERATION_NOT_ATTEMPTED where they are not `expected`, what the change was made from; None: whatever.
    """

    topic_id: bytes
    set: dict[str, str]
    remove: list[str]
    expected: dict[str, str] | None = None


class RetireContainer(CatalogCommand, frozen=True):
    """No partitionlet is placed in a container any more: it is about to be deleted. Outcome: list[Code].

    Topics, partitions and rolls that a node places there all the same, as it has not heard, are refused with
    LEADER_NOT_AVAILABLE.
    """

    container: ContainerId


class RollTarget(Item, frozen=True):
    """A partition to go on in `container`. `expected_open` fences: it must be the open partitionlet still.

    `abandoned` is the partitionlet that an earlier intent chose and whose container is deleted since; 0 if there was
    none. Should it be opened there, late, its RollDone is refused. (DESIGN section 5 asks for a seal of it in its
    container; no roll leaves a target that could commit one.)
    """

    topic_id: bytes
    partition: int
    expected_open: PartitionletId
    container: ContainerId
    abandoned: PartitionletId = PartitionletId(0)


class RollIntent(CatalogCommand, frozen=True):
    """Outcome: list[RollOutcome] with the intended partitionlet. Repeating an intent gives the same partitionlet."""

    items: list[RollTarget]
    now: Millis


class Rolled(Item, frozen=True):
    """The open partitionlet `sealed` has ended before `end`; `opened` goes on in its container at that epoch.

    `epochs`: the (leader epoch, first offset of that epoch) of the sealed partitionlet, in order.

    `resume`: where the opened one begins; -1 = `end`. Lower: the partition's records from there on leave the chain
    (they are not lost in the containers before their partitionlets expire). Higher: a gap; the log start goes there
    where nothing lies before it. `home`: the partition is settled for it, and its history goes on with it.
    """

    topic_id: bytes
    partition: int
    sealed: PartitionletId
    end: Offset
    epochs: list[tuple[LeaderEpoch, Offset]]
    opened: PartitionletId
    container_epoch: Epoch
    resume: Offset = Offset(-1)
    home: tuple[int, str] | None = None


class RollDone(CatalogCommand, frozen=True):
    """Outcome: list[RollOutcome] with the partitionlet that is open now. Idempotent."""

    items: list[Rolled]
    now: Millis


class LogStart(Item, frozen=True):
    """Records of the partition below `offset` are gone."""

    topic_id: bytes
    partition: int
    offset: Offset


class SetLogStart(CatalogCommand, frozen=True):
    """Outcome: list[LogStartOutcome]. A log start never falls; sealed partitionlets wholly below it leave the chain."""

    items: list[LogStart]


class Cursor(Item, frozen=True):
    """A committed offset; `leader_epoch` -1 if the client gave none.

    `committed_ms`: when another cluster took it, by its clock; -1: now, or not known. `expected`: it is passed over
    (NONE) unless the one that stands has this offset and this time, -1 and -1 for none; None: whatever stands.
    """

    topic_id: bytes
    partition: int
    offset: Offset
    leader_epoch: LeaderEpoch
    metadata: str = ""
    committed_ms: Millis = Millis(-1)
    expected: tuple[Offset, Millis] | None = None


class CommitCursors(CatalogCommand, frozen=True):
    """Outcome: list[Code], one per item.

    Fenced by the group as stored: a generation >= 0 must be the group's (ILLEGAL_GENERATION) and the member one of its
    members (UNKNOWN_MEMBER_ID); generation -1 is a consumer outside a group, for a group without members only.
    """

    group: str
    generation: int
    member_id: str
    items: list[Cursor]
    now: Millis


class CopyCursors(CatalogCommand, frozen=True):
    """Cursors as the home of their topics has them. Outcome: list[Code], one per item.

    For topics whose home is another cluster than `cluster`, which is this one (else POLICY_VIOLATION: the home's
    commits win). Makes the group where there is none; NON_EMPTY_GROUP for all items where it has members here.

    `only_newer`: those are passed over (NONE) that were committed no later than what stands here, by the times that
    stand with them; or, where the time is not known, that are no higher. `moved`: the home has just moved here, and
    these are what its former one had: they are taken for topics whose home is here, too. `alive`: the source has the
    group now, so it counts as changed, and none of its cursors expires here meanwhile.
    """

    group: str
    items: list[Cursor]
    now: Millis
    cluster: str
    only_newer: bool = False
    moved: bool = False
    alive: bool = False


class DeleteCursors(CatalogCommand, frozen=True):
    """Outcome: list[Code], one per (topic id, partition). GROUP_ID_NOT_FOUND for an unknown group."""

    group: str
    items: list[tuple[bytes, int]]


class PutGroup(CatalogCommand, frozen=True):
    """Stores a group as its coordinator has it. Outcome: GroupRow. A lower generation is refused.

    `member_ids` fences commits; `members` is the coordinator's own bytes. An empty `member_ids` is an empty group.
    """

    group: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    member_ids: list[str]
    members: bytes
    state: str
    now: Millis


class DeleteGroups(CatalogCommand, frozen=True):
    """Outcome: list[Code], one per group: NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, NONE."""

    groups: list[str]


class ExpireCursors(CatalogCommand, frozen=True):
    """Forgets cursors, of groups empty since before `before`, that were committed before then. Outcome: Expired."""

    before: Millis


class ExpireSomeCursors(CatalogCommand, frozen=True):
    """As ExpireCursors, of a bounded number of groups and cursors from `after` on. Outcome: Expired."""

    before: Millis
    after: tuple[str, int, int] = ("", -1, -1)
    """A group, and the topic's number and the partition of a cursor of it: from behind that one on."""


class Shortened(Item, frozen=True):
    """A sealed partitionlet of which nothing is left from `end` on."""

    topic_id: bytes
    partition: int
    partitionlet: PartitionletId
    end: Offset


class ShortenChains(CatalogCommand, frozen=True):
    """Records of sealed partitionlets were lost (invariant 15). Outcome: list[LogStartOutcome].

    An end never rises. A log start that lay where nothing is left goes on to the first that is.
    """

    items: list[Shortened]


class SkipNumbers(CatalogCommand, frozen=True):
    """The catalog was recovered for the `recovered`-th time, and may have lost commands (invariant 15): numbers that
    they gave away are not given again. Outcome: list[Code]. Once for each `recovered`."""

    recovered: int


class RaiseLevel(CatalogCommand, frozen=True):
    """Behind here the log may hold what belongs to a feature level (headrace.base.levels). Outcome: list[Code].

    Since every replica meets it at the same position, commands may be applied otherwise from there on.
    """

    level: int


Command = (
    CreateStream
    | AlterStream
    | DeleteStream
    | ForgetDeleted
    | CreateTopics
    | DeleteTopics
    | CreatePartitions
    | AlterTopic
    | RetireContainer
    | RollIntent
    | RollDone
    | SetLogStart
    | CommitCursors
    | DeleteCursors
    | PutGroup
    | DeleteGroups
    | ExpireCursors
    | ExpireSomeCursors
    | ShortenChains
    | SkipNumbers
    | PutLink
    | SetLinkState
    | DeleteLink
    | SetHome
    | CopyCursors
    | SetLinkSource
    | RaiseLevel
)

LEVELS: Final[Mapping[type[CatalogCommand], Level]] = MappingProxyType(
    {RaiseLevel: Level.FENCED, ForgetDeleted: Level.FENCED, ExpireSomeCursors: Level.FENCED}
)
"""The feature levels of those that level 0 has not. A field that is added to an old one needs a level as well: whoever
does not know a field leaves it out, and its tables become others."""

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)


def encode(command: Command) -> bytes:
    """The payload of the command's frame. Raises ValueError for text that is not Unicode (lone surrogates)."""
    return _encoder.encode(command)


def decode(payload: bytes | memoryview) -> Command:
    """The command in a frame. Raises NewerFormat if this version does not know it."""
    try:
        return _decoder.decode(payload)
    except msgspec.DecodeError as error:
        raise NewerFormat(
            f"a catalog command is unknown to this version ({error}); use the version that wrote this folder"
        ) from error

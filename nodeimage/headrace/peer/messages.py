"""The messages between nodes: plain data, no behaviour.

A message is the header of a frame (`peer.framing`), a msgpack map whose `type` is the name of the class. Opaque bytes
(batches, frames, commands) follow as the frame's payload; the docstrings say which.

Versions: fields are only ever added, always with a default; unknown fields are ignored; fields with their default value
are omitted. A node refuses a call of an unknown type, and ends the session for another message of an unknown type, so a
new type is sent only to nodes whose negotiated version includes it.

There are three kinds of messages, by base class:

    Request[Answer]   sent by `PeerClient.call`; the answer has that type, or a Refused is raised as KafkaError
    Opening           turns its session permanently into a stream (`PeerServer(streams=...)`)
    Message           all others: answers, messages within a stream, and the handshake
"""

import uuid
from typing import ClassVar, Final, Generic, TypeVar, Union

import msgspec

from headrace.base.errors import Code
from headrace.base.ids import ContainerId, Epoch, Millis, NodeId, Offset, PartitionletId, Position
from headrace.peer.reports import NodeLoad, ReplicaState

ALL_AT_ONCE: Final = -1
"""Value of `Probe.since` that requests all replicas at once, as older versions do."""
NO_REPLICAS: Final = -2
"""Value of `Probe.since` that requests no replicas. Older versions report their replicas nevertheless."""

PEER_VERSION: Final = 2
"""The newest version of the protocol between nodes that this node supports."""
PAIRS_VERSION: Final = 2
"""The first version of the protocol with heartbeats for pairs of nodes."""
MIN_VERSION: Final = 1
"""The oldest version of the protocol between nodes that this node supports."""


_MAX_REASON: Final = 4_096
"""The most characters of a reason that are sent."""


class Message(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """The base of all messages between nodes."""


AnswerT = TypeVar("AnswerT", bound=Message)


class Request(Message, Generic[AnswerT], frozen=True):
    """A message that has an answer."""

    answer: ClassVar[type[Message]]
    """The type of the answer, `AnswerT`, for use at run time."""
    urgent: ClassVar[bool] = False
    """Whether the request must not wait behind others: urgent requests have a connection of their own, and are not
    subject to the limit of calls in progress."""


class Opening(Message, frozen=True):
    """The first message of a stream. All later messages on its session belong to the stream."""


# --- handshake (peer.handshake)


class Hello(Message, frozen=True):
    """The client's first message."""

    cluster_id: str
    node: NodeId
    run: uuid.UUID
    versions: tuple[int, int]
    """The (oldest, newest) version that the client supports."""
    nonce: bytes


class Challenge(Message, frozen=True):
    """The server's proof, and its challenge to the client."""

    node: NodeId
    run: uuid.UUID
    version: int
    """The version of the session: the newest that both sides support."""
    nonce: bytes
    proof: bytes
    former_proof: bytes = b""
    """The proof by the former secret, while that is valid; b"": there is none."""


class Proof(Message, frozen=True):
    """The client's proof."""

    proof: bytes


class Welcome(Message, frozen=True):
    """The end of a successful handshake, from the server."""

    version: int
    node: NodeId
    run: uuid.UUID


class Refused(Message, frozen=True):
    """A refusal, in place of a later message of the handshake, an answer, or a Following. A follower also sends it to
    its leader when it leaves for a higher epoch. `code`: a Kafka error code."""

    code: int
    reason: str
    epoch: Epoch = Epoch(-1)
    """The epoch known to the sender, if the other side's epoch is too low; -1 otherwise."""


# --- probes, by the controller


class ProbeAnswer(Message, frozen=True):
    """The state of a node."""

    node: NodeId
    run: uuid.UUID
    replicas: list[ReplicaState]
    load: NodeLoad
    reaches_store: bool
    ready: bool
    heard: list[NodeId] = []
    """The nodes that answered this node's own probes within 2 s, so that both directions work. (A stream proves only
    one direction: a follower may still hear a leader that receives nothing from it.)"""
    clock: Millis = Millis(0)
    """The time of the node's wall clock. 0: not reported."""
    fenced: int = 0
    """The feature level that a version must support to accept the node's folder (store.features)."""
    counter: int = ALL_AT_ONCE
    """The `since` for the next probe (peer.replica_pages). ALL_AT_ONCE: `replicas` are all replicas, as from an older
    version."""
    begun: int = 0
    """The `begun` for the next probe (peer.replica_pages)."""
    more: bool = False
    """Whether there are more pages, which the prober must request."""
    anew: bool = False
    """Whether the prober's knowledge is too old, so that all replicas are sent again; this is the first page."""
    gone: list[ContainerId] = []
    """Replicas that no longer exist."""


class Probe(Request[ProbeAnswer], frozen=True):
    """Requests the state of a node. Urgent, so that a node that is busy with other calls is not taken for dead.

    An older version does not know the fields, and reports all its replicas at once.
    """

    since: int = ALL_AT_ONCE
    """The prober knows all changes of replicas up to this number; only later ones are reported, a page at a time
    (peer.replica_pages)."""
    begun: int = 0
    """The node's counter when the prober's knowledge began (peer.replica_pages)."""
    doubted: tuple[NodeId, ...] = ()
    """Nodes that refuse the prober. The probed node must probe them before it reports which nodes it hears. Version
    0.1.0 does not, and reports the nodes that it heard within 2 s."""

    answer = ProbeAnswer
    urgent = True


# --- calls


class Prepared(Message, frozen=True):
    """The replica's folder exists."""

    format: str
    """The replica's incarnation: a uuid that is created with the folder."""


class Prepare(Request[Prepared], frozen=True):
    """Creates an empty folder for a replica. Idempotent: an existing folder is kept."""

    container: ContainerId
    kind: str
    answer = Prepared


class UnrecordedFound(Message, frozen=True):
    """The replicas on a node whose containers have no record. Payload: these replicas (`lost_record`), as msgpack."""

    unseen: list[ContainerId] = []
    """Containers whose records still exist as the node sees it, so that it may lead them. Their replicas are not in
    the payload."""
    warnings: list[str] = []
    """Descriptions of folders that cannot be read."""
    set_back: list[ContainerId] = []
    """Containers whose record is older than what the node's replica knows: the store was set back."""
    counters: dict[str, int] = {}
    """The highest values of id counters that the node has seen, by their keys in the store."""


class Unrecorded(Request[UnrecordedFound], frozen=True):
    """Requests the replicas of containers without a record, after the cluster store has lost records."""

    recorded: list[ContainerId]
    """All containers that have a record."""
    seen: bool = False
    """Whether to include replicas of containers whose records the node still sees. These replicas may still grow."""
    answer = UnrecordedFound


class Submitted(Message, frozen=True):
    """The command is committed."""

    position: Position


class Submit(Request[Submitted], frozen=True):
    """Submits a catalog command, in the payload. Only the catalog's leader accepts it; others refuse it with
    NOT_CONTROLLER.

    The fields identify the attempt (node/submit_fencing.py), so that an abandoned attempt cannot take effect late.
    """

    epoch: Epoch = Epoch(0)
    """The epoch of the leader that is addressed; 0: unknown, from a node of the previous version, which is accepted."""
    run: str = ""
    """The process incarnation that submits the command."""
    number: int = 0
    """The number of the attempt, which rises within a process incarnation."""
    least: int = 0
    """The leader refuses later arrivals of the same process incarnation with a lower number: one more than the highest
    that was abandoned."""
    answer = Submitted


class Opened(Message, frozen=True):
    """The partitionlet is open, and its opening is committed."""

    epoch: Epoch


class OpenPartitionlet(Request[Opened], frozen=True):
    """Opens a partitionlet. Payload: that of the OPEN frame. Idempotent; only the leader accepts it."""

    container: ContainerId
    partitionlet: PartitionletId
    first: Offset
    last: Offset
    answer = Opened


class RangeRead(Message, frozen=True):
    """Contiguous batches in the payload; `lengths`: the length of each, in bytes."""

    lengths: list[int]
    crc: int | None = None
    """CRC-32C of the whole payload, which no other checksum covers completely. None: from an older version."""


class ReadRange(Request[RangeRead], frozen=True):
    """Reads committed batches from `offset` on that end below `limit`, about `max_bytes`."""

    container: ContainerId
    partitionlet: PartitionletId
    offset: Offset
    limit: Offset
    max_bytes: int
    answer = RangeRead


class TimeFound(Message, frozen=True):
    """The result of a FindTime. Payload: the batch, if one was found."""

    found: bool
    crc: int | None = None
    """CRC-32C of the payload. None: from an older version."""


class FindTime(Request[TimeFound], frozen=True):
    """Finds the first batch below `limit` with a record at or after `timestamp`."""

    container: ContainerId
    partitionlet: PartitionletId
    timestamp: Millis
    """-1: find the batch with the largest timestamp."""
    limit: Offset
    answer = TimeFound


class ExtentsFound(Message, frozen=True):
    """The (partitionlet, bytes stored, end offset) of the requested partitionlets that the node holds."""

    items: list[tuple[PartitionletId, int, Offset]]
    times: dict[PartitionletId, Millis] = {}
    """The time of the first record, for each partitionlet for which it was requested and that has one."""


class Extents(Request[ExtentsFound], frozen=True):
    """Requests how much is stored of partitionlets of one container."""

    container: ContainerId
    partitionlets: list[PartitionletId]
    open: list[PartitionletId] = []
    """Those of `partitionlets` that are open."""
    first: dict[PartitionletId, Offset] = {}
    """Partitionlets for which the time of the first record at or after this offset is requested too."""
    answer = ExtentsFound


class Held(Message, frozen=True):
    """The (container, bytes that its records occupy) of all containers that the node leads."""

    items: list[tuple[ContainerId, int]]


class HeldBytes(Request[Held], frozen=True):
    """Requests the sizes of the containers that a node leads."""

    answer = Held


class CoordinationTold(Message, frozen=True):
    """The node that coordinates groups, or is about to, as far as the answering node knows; 0: none."""

    node: NodeId = NodeId(0)


class CoordinationAsked(Request[CoordinationTold], frozen=True):
    """Asks a node which node coordinates groups."""

    answer = CoordinationTold


class AppendedOnce(Message, frozen=True):
    """The batch is committed, by this request or an earlier one."""

    offset: Offset


class AppendOnce(Request[AppendedOnce], frozen=True):
    """Appends a batch to a partition that the node leads, unless the partition has it already. Payload: the batch,
    which has a token."""

    topic_id: bytes
    partition: int
    answer = AppendedOnce


class LinksTold(Message, frozen=True):
    """The state of links on a node. Payload: that state, as msgpack (links.links)."""


class LinksAsked(Request[LinksTold], frozen=True):
    """Requests the state of these links on the node."""

    links: list[str]
    behind: bool = False
    """Whether to report the number of missing records by topic too."""
    answer = LinksTold


class Rolled(Message, frozen=True):
    """`count` partitionlets were rolled."""

    count: int


class RollAway(Request[Rolled], frozen=True):
    """Rolls the hottest partitionlets of a container to another container."""

    container: ContainerId
    most: int
    """The most partitionlets to roll."""
    to: ContainerId = ContainerId(0)
    """The target; 0: any container."""
    reason: str = ""
    share: float = 1.0
    """The part of the container's write traffic to move: no more partitionlets are rolled than needed for that."""
    limit: float = 1.0
    """The largest part of the container's write traffic that may be moved."""
    answer = Rolled


# --- the catalog's tables


class SnapshotPart(Message, frozen=True):
    """A part of a snapshot of the catalog's tables. Payload: its bytes."""

    position: Position
    """The log position up to which the snapshot has all changes."""
    size: int
    """The size of the whole snapshot, in bytes."""
    crc: int | None = None
    """CRC-32C of the whole snapshot. None: from an older version."""


class ReadSnapshot(Request[SnapshotPart], frozen=True):
    """Reads a snapshot of the catalog's leader, from byte `at` on. For a node whose tables are lost but whose log is
    intact.

    A node of the previous version refuses it: then the log is refetched too, if the replica may leave the in-sync set.
    """

    least: Position
    """The position at which the reader's log begins: an older snapshot is of no use."""
    position: Position = Position(-1)
    """The position of the snapshot to continue with; -1: the newest snapshot, or one to be written now."""
    at: int = 0
    answer = SnapshotPart


class TableMarks(Message, frozen=True):
    """The checksums of the catalog's tables on a node."""

    marks: list[tuple[Position, str]]
    """Checksums at positions of the catalog's log, the newest last, which must be the same on all nodes. Empty if the
    node has none."""


class ReadMarks(Request[TableMarks], frozen=True):
    """Requests the checksums of the catalog's tables, for comparison. From feature level 1 on."""

    answer = TableMarks


# --- the stream of replication


class Follow(Opening, frozen=True):
    """A follower requests a container's frames from the leader. Answered by Following or Refused."""

    container: ContainerId
    epoch: Epoch
    node: NodeId
    format: str
    """The incarnation of the follower's replica."""
    observer: bool
    """Whether the follower never joins the in-sync set."""
    history: list[tuple[Epoch, Position]]
    """The (epoch, position at which it began) of the follower's log, oldest first."""
    end: Position
    start: Position
    """The follower's log holds [start, end)."""
    snapshot: bool = False
    """Whether only a snapshot helps the follower: its catalog tables are ahead of its log, which was cut in an unclean
    recovery."""


class Following(Message, frozen=True):
    """The leader's answer: the position from which frames follow, and whether a snapshot precedes them."""

    epoch: Epoch
    history: list[tuple[Epoch, Position]]
    begin: Position
    """Frames are sent from this position on; the follower cuts its log there."""
    committed: Position
    snapshot_position: Position = Position(-1)
    """The position of a snapshot that is sent first, in SnapshotPieces; -1: none."""
    snapshot_bytes: int = 0
    """The size of that snapshot."""


class Frames(Message, frozen=True):
    """Whole frames in the payload, contiguous to those sent before."""

    committed: Position


class Commit(Message, frozen=True):
    """`committed` has advanced; also the leader's heartbeat."""

    committed: Position
    sent_at: float = 0.0
    """In a heartbeat: the leader's loop time, which the follower returns at once. 0: not a heartbeat."""


class Acked(Message, frozen=True):
    """The follower has everything below `position` on disk; also its heartbeat."""

    position: Position
    epoch: Epoch
    beat: float = 0.0
    """The `sent_at` of the newest heartbeat that was received: the follower still followed after it."""


# --- heartbeats of a pair of nodes (container.pair_roster)


class PairUp(Opening, frozen=True):
    """A node with followers of containers that the other node leads requests its heartbeats. From PAIRS_VERSION on."""

    node: NodeId


class PairBeat(Message, frozen=True):
    """A heartbeat of the node with the leaders. Answered by PairAnswer."""

    sent_at: float
    """The sender's loop time, which is returned at once."""
    taken: list[int] = []
    """Numbers of followers that rest from now on: their leaders send them nothing while nothing changes."""
    astir: list[int] = []
    """Numbers of followers that do not rest, or no longer: their leaders send to them directly."""


class Resting(msgspec.Struct, frozen=True):
    """A resting follower, to which its node's PairAnswers apply."""

    number: int
    """The follower's number on this session, never reused."""
    container: ContainerId
    epoch: Epoch
    format: str
    position: Position
    """The follower has everything below this position on disk, and knows that it is committed."""


class PairAnswer(Message, frozen=True):
    """The answer of the node with the followers to a PairBeat: the node lives, and so do all its resting followers."""

    sent_at: float
    """The `sent_at` of the PairBeat."""
    rests: list[Resting] = []
    """Followers that rest from now on."""
    stirs: list[int] = []
    """Numbers of followers that no longer rest."""
    count: int = 0
    """The number of followers that are announced as resting and not withdrawn."""
    digest: int = 0
    """A checksum of these followers, which must be the same on both sides; see container.pair_roster."""


class SnapshotPiece(Message, frozen=True):
    """The next bytes of a snapshot, in the payload. Without bytes: a heartbeat of the leader before the next bytes."""

    last: bool
    crc: int | None = None
    """In the last piece: CRC-32C of the whole snapshot. None: from an older version."""


# --- around calls (peer.client and peer.server put messages in and take them out)


class Call(Message, frozen=True):
    """A Request with a number that its answer repeats. Many can be in progress on a session, answered in any order."""

    call: int
    message: msgspec.Raw
    """The request, encoded separately, so that the number can be read even if the type of the request is unknown."""


class Answer(Message, frozen=True):
    """The answer to the Call with this number."""

    call: int
    message: msgspec.Raw


AnyMessage = Union[  # noqa: UP007  # msgspec evaluates it at run time; one type per line is readable
    Hello,
    Challenge,
    Proof,
    Welcome,
    Refused,
    Probe,
    ProbeAnswer,
    Prepare,
    Prepared,
    Unrecorded,
    UnrecordedFound,
    Submit,
    Submitted,
    OpenPartitionlet,
    Opened,
    ReadRange,
    RangeRead,
    FindTime,
    TimeFound,
    Extents,
    ExtentsFound,
    RollAway,
    Rolled,
    HeldBytes,
    Held,
    CoordinationAsked,
    CoordinationTold,
    AppendOnce,
    AppendedOnce,
    LinksAsked,
    LinksTold,
    ReadSnapshot,
    SnapshotPart,
    ReadMarks,
    TableMarks,
    Follow,
    Following,
    Frames,
    Commit,
    Acked,
    PairUp,
    PairBeat,
    PairAnswer,
    SnapshotPiece,
    Call,
    Answer,
]


def refusal(code: Code, reason: str) -> Refused:
    """A Refused with `reason`, cut to `_MAX_REASON` characters and made encodable in UTF-8."""
    return Refused(int(code), reason[:_MAX_REASON].encode(errors="replace").decode())

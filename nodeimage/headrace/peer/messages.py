"""What nodes say to each other: plain data, no behaviour.

A message is the header of a frame (`peer.framing`), a msgpack map whose `type` is the class's name. Bytes that are not
looked into here (batches, frames, commands) travel behind it as the frame's payload; the docstrings say which.

Versions: a field is only ever added, and with a default; unknown fields are ignored; fields at their default are left
out. A type that the other side does not know is refused there (a call) or ends the session (a stream), so a new type
is sent only to nodes whose negotiated version has it.

Three ways to speak, by base class:

    Request[Answer]   sent by `PeerClient.call`; the answer is of that type, or a KafkaError made of a Refused
    Opening           hands its session over to a stream for good (`PeerServer(streams=...)`)
    Message           all others: answers, what flows in a stream, and the handshake
"""

import uuid
from typing import ClassVar, Final, Generic, TypeVar, Union

import msgspec

from headrace.base.errors import Code
from headrace.base.ids import ContainerId, Epoch, Millis, NodeId, Offset, PartitionletId, Position
from headrace.peer.reports import NodeLoad, ReplicaState

ALL_AT_ONCE: Final = -1
"""In a probe: all replicas are asked for at once, as older versions do."""
NO_REPLICAS: Final = -2
"""In a probe: nothing of replicas is asked for. Older versions tell of them nevertheless."""

PEER_VERSION: Final = 2
"""The newest version of this protocol that this node speaks."""
PAIRS_VERSION: Final = 2
"""From which one on there are heartbeats of pairs of nodes."""
LEAST_VERSION: Final = 1
"""The oldest that it still speaks."""


_MOST_REASON: Final = 4_096
"""Characters of a reason that are sent."""


class Message(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Anything that travels between nodes."""


AnswerT = TypeVar("AnswerT", bound=Message)


class Request(Message, Generic[AnswerT], frozen=True):
    """A message that has an answer."""

    answer: ClassVar[type[Message]]
    """The type of its answer: `AnswerT`, where it can be read at run time."""
    urgent: ClassVar[bool] = False
    """It waits behind no others: it has a connection of its own, and counts for no limit of calls under way."""


class Opening(Message, frozen=True):
    """The first message of a stream. What follows on its session is the stream's alone."""


# --- handshake (peer.handshake)


class Hello(Message, frozen=True):
    """The client's first message."""

    cluster_id: str
    node: NodeId
    run: uuid.UUID
    versions: tuple[int, int]
    """(oldest, newest) that it speaks."""
    nonce: bytes


class Challenge(Message, frozen=True):
    """The server proves itself, and asks the client to."""

    node: NodeId
    run: uuid.UUID
    version: int
    """Chosen: the newest that both speak."""
    nonce: bytes
    proof: bytes
    former_proof: bytes = b""
    """With the secret that was the newest before, while that is good; b"": there is none."""


class Proof(Message, frozen=True):
    """The client proves itself."""

    proof: bytes


class Welcome(Message, frozen=True):
    """The handshake is over."""

    version: int
    node: NodeId
    run: uuid.UUID


class Refused(Message, frozen=True):
    """In place of a Welcome, of an answer, or of Following. `code` is Kafka's."""

    code: int
    reason: str
    epoch: Epoch = Epoch(-1)
    """The epoch that is known here, where the other side's was too low; -1 elsewhere."""


# --- probes, by the controller


class ProbeAnswer(Message, frozen=True):
    """How a node is."""

    node: NodeId
    run: uuid.UUID
    replicas: list[ReplicaState]
    load: NodeLoad
    reaches_store: bool
    ready: bool
    heard: list[NodeId] = []
    """The nodes that answered its own probes within 2 s: those that hear it and that it hears. (A stream proves one of
    the two: a follower goes on hearing a leader to which nothing gets through.)"""
    clock: Millis = Millis(0)
    """What its wall clock shows. 0: it does not tell."""
    fenced: int = 0
    """Versions that do not support this feature level refuse its folder (store.features)."""
    counter: int = ALL_AT_ONCE
    """Of what is told of replicas, the next `since` (peer.replica_pages). ALL_AT_ONCE: these are all, as of an older
    version."""
    begun: int = 0
    more: bool = False
    """Not all is told yet: the next page is to be asked for."""
    anew: bool = False
    """What the asker has is too old: it gets all replicas again, and this is the first page."""
    gone: list[ContainerId] = []
    """Replicas that are no more."""


class Probe(Request[ProbeAnswer], frozen=True):
    """Asks how the node is. Who is busy with others' calls is not dead.

    An older version does not know the fields, and tells of all its replicas at once.
    """

    since: int = ALL_AT_ONCE
    """Only what changed since then is to be told of replicas, a page at a time (peer.replica_pages)."""
    begun: int = 0
    doubted: tuple[NodeId, ...] = ()
    """Nodes that refuse the asker, and that the asked is to try before it tells whom it hears. Version 0.1.0 does not,
    and tells whom it heard within 2 s."""

    answer = ProbeAnswer
    urgent = True


# --- calls


class Prepared(Message, frozen=True):
    """The replica's folder is there."""

    format: str
    """The uuid made with the folder."""


class Prepare(Request[Prepared], frozen=True):
    """Make an empty folder for a replica. The same folder again where there is one."""

    container: ContainerId
    kind: str
    answer = Prepared


class UnrecordedFound(Message, frozen=True):
    """What a node holds of containers that have no record. Payload: their replicas (`lost_record`), as msgpack."""

    unseen: list[ContainerId] = []
    """Those of them whose records are not gone yet as the node sees it: it may lead them. Nothing is said of these."""
    warnings: list[str] = []
    """Of folders that cannot be read."""
    set_back: list[ContainerId] = []
    """Those that have a record of which the replica here knows a newer state: the store was set back."""
    counters: dict[str, int] = {}
    """Of ids, by their keys in the store, as high as the node has seen them."""


class Unrecorded(Request[UnrecordedFound], frozen=True):
    """Ask for that: the cluster store has lost records."""

    recorded: list[ContainerId]
    """All containers that have one."""
    seen: bool = False
    """Say too what is known of those whose records the node still sees, which may grow meanwhile."""
    answer = UnrecordedFound


class Submitted(Message, frozen=True):
    """The command is committed."""

    position: Position


class Submit(Request[Submitted], frozen=True):
    """A catalog command, in the payload. Only the catalog's leader takes it; others refuse with NOT_CONTROLLER.

    The fields tell an attempt from others (node/submit_fencing.py): one that was given up must not land late.
    """

    epoch: Epoch = Epoch(0)
    """Of the leader that it is for; 0: a node of the version before does not say, and is not refused."""
    run: str = ""
    """Of the process that makes it."""
    number: int = 0
    least: int = 0
    """What has a lower number and arrives after this was given up; or comes by another way, and is tried again."""
    answer = Submitted


class Opened(Message, frozen=True):
    """The partitionlet is open, and that is committed."""

    epoch: Epoch


class OpenPartitionlet(Request[Opened], frozen=True):
    """Open a partitionlet, with the payload of its OPEN frame as payload. Idempotent; only the leader takes it."""

    container: ContainerId
    partitionlet: PartitionletId
    first: Offset
    last: Offset
    answer = Opened


class RangeRead(Message, frozen=True):
    """Batches one behind the other in the payload; `lengths` are theirs, in bytes."""

    lengths: list[int]
    crc: int | None = None
    """CRC-32C of the payload, which nothing else covers whole. None: of an older version."""


class ReadRange(Request[RangeRead], frozen=True):
    """Read committed batches from `offset` on, below `limit`, about `max_bytes`."""

    container: ContainerId
    partitionlet: PartitionletId
    offset: Offset
    limit: Offset
    max_bytes: int
    answer = RangeRead


class TimeFound(Message, frozen=True):
    """The batch that was looked for is the payload; without `found` there is none."""

    found: bool
    crc: int | None = None
    """As of RangeRead."""


class FindTime(Request[TimeFound], frozen=True):
    """Find the first batch below `limit` with a record of `timestamp` or later."""

    container: ContainerId
    partitionlet: PartitionletId
    timestamp: Millis
    """-1: the batch with the largest."""
    limit: Offset
    answer = TimeFound


class ExtentsFound(Message, frozen=True):
    """(partitionlet, bytes stored, end offset) of those that are here."""

    items: list[tuple[PartitionletId, int, Offset]]
    times: dict[PartitionletId, Millis] = {}
    """Of the first record, where that was asked for and there is one."""


class Extents(Request[ExtentsFound], frozen=True):
    """Ask how much is stored of partitionlets of one container."""

    container: ContainerId
    partitionlets: list[PartitionletId]
    open: list[PartitionletId] = []
    """Those of them that are open."""
    first: dict[PartitionletId, Offset] = {}
    """Of these, the time of the first record from that offset on is asked for too."""
    answer = ExtentsFound


class Held(Message, frozen=True):
    """(container, bytes that its records occupy) of those that the node leads."""

    items: list[tuple[ContainerId, int]]


class HeldBytes(Request[Held], frozen=True):
    """Ask how much the containers hold that a node leads."""

    answer = Held


class CoordinationTold(Message, frozen=True):
    """The node that coordinates groups, or is about to, as far as the one that is asked knows; 0: none."""

    node: NodeId = NodeId(0)


class CoordinationAsked(Request[CoordinationTold], frozen=True):
    """Ask a node who coordinates groups."""

    answer = CoordinationTold


class AppendedOnce(Message, frozen=True):
    """The batch is committed, now or since long."""

    offset: Offset


class AppendOnce(Request[AppendedOnce], frozen=True):
    """Append a batch that bears a token, the payload, to a partition that the node leads, unless it is there."""

    topic_id: bytes
    partition: int
    answer = AppendedOnce


class LinksTold(Message, frozen=True):
    """What the node says of its links is the payload, in msgpack (links.links)."""


class LinksAsked(Request[LinksTold], frozen=True):
    """Ask how these links do on the node."""

    links: list[str]
    behind: bool = False
    """Which topics lack how many records, too."""
    answer = LinksTold


class Rolled(Message, frozen=True):
    """So many partitionlets went on elsewhere."""

    count: int


class RollAway(Request[Rolled], frozen=True):
    """Roll the hottest partitionlets of a container to another one."""

    container: ContainerId
    most: int
    """Partitionlets."""
    to: ContainerId = ContainerId(0)
    """0: to any."""
    reason: str = ""
    share: float = 1.0
    """No more than needed for this part of what is written to the container."""
    limit: float = 1.0
    """None that makes it more than this part."""
    answer = Rolled


# --- the catalog's tables


class SnapshotPart(Message, frozen=True):
    """Some bytes of a snapshot of the catalog's tables are the payload."""

    position: Position
    """That it holds."""
    size: int
    """Of the whole, in bytes."""
    crc: int | None = None
    """CRC-32C of the whole. None: of an older version."""


class ReadSnapshot(Request[SnapshotPart], frozen=True):
    """Read a snapshot of the catalog's leader, from byte `at` on: the tables here are lost, and the log is whole.

    A node of the version before refuses it: then the log is fetched anew too, if the replica may leave the in-sync set.
    """

    least: Position
    """Where the log here begins: an older snapshot is of no use."""
    position: Position = Position(-1)
    """Of the snapshot of which more is wanted; -1: the newest, or one that is written now."""
    at: int = 0
    answer = SnapshotPart


class TableMarks(Message, frozen=True):
    """What the catalog's tables come to on a node."""

    marks: list[tuple[Position, str]]
    """At positions of its log, the newest last; the same everywhere. None where the node cannot tell."""


class ReadMarks(Request[TableMarks], frozen=True):
    """Ask what the catalog's tables come to, for comparison. From feature level 1 on."""

    answer = TableMarks


# --- the stream of replication


class Follow(Opening, frozen=True):
    """A follower asks the leader for a container's frames. Answered by Following or Refused."""

    container: ContainerId
    epoch: Epoch
    node: NodeId
    format: str
    """The uuid made with its replica's folder."""
    observer: bool
    """It reads along and never joins the in-sync set."""
    history: list[tuple[Epoch, Position]]
    """(epoch, the position at which it began) of the follower's log, oldest first."""
    end: Position
    start: Position
    """The follower's log holds [start, end)."""
    snapshot: bool = False
    """Its catalog's tables are ahead of its log, which was cut in an unclean recovery: only a snapshot helps."""


class Following(Message, frozen=True):
    """The leader's answer: what matches, and what comes."""

    epoch: Epoch
    history: list[tuple[Epoch, Position]]
    begin: Position
    """Frames come from here on; the follower cuts what it has above."""
    committed: Position
    snapshot_position: Position = Position(-1)
    """A snapshot at this position comes first, in SnapshotPieces; -1: none."""
    snapshot_bytes: int = 0


class Frames(Message, frozen=True):
    """Whole frames of contiguous positions in the payload, behind those sent before."""

    committed: Position


class Commit(Message, frozen=True):
    """`committed` moved; also the leader's heartbeat."""

    committed: Position
    sent_at: float = 0.0
    """Of a heartbeat: the leader's loop time, which the follower gives back at once. 0: not a heartbeat."""


class Acked(Message, frozen=True):
    """The follower has everything below `position` safe; also its heartbeat."""

    position: Position
    epoch: Epoch
    beat: float = 0.0
    """`sent_at` of the newest heartbeat that came: the follower followed after it."""


# --- heartbeats of a pair of nodes (container.pair_roster)


class PairUp(Opening, frozen=True):
    """A node with followers of what the other one leads asks for its heartbeats. From PAIRS_VERSION on."""

    node: NodeId


class PairBeat(Message, frozen=True):
    """The leaders' node lives. Answered by PairAnswer."""

    sent_at: float
    """Its loop time, given back at once."""
    taken: list[int] = []
    """Numbers of replicas that rest from now on: their leaders say nothing more as long as nothing changes."""
    astir: list[int] = []
    """Numbers of those that do not, or no longer: their leaders speak to them."""


class Resting(msgspec.Struct, frozen=True):
    """A follower for which its node's answers speak."""

    number: int
    """On this session; each is given once."""
    container: ContainerId
    epoch: Epoch
    format: str
    position: Position
    """It has everything below on its disk, and knows that it is committed."""


class PairAnswer(Message, frozen=True):
    """The followers' node lives, and so does every follower that it told of as resting and not as stirring."""

    sent_at: float
    rests: list[Resting] = []
    stirs: list[int] = []
    """Numbers of those for which it speaks no more."""
    count: int = 0
    """Of those for which it speaks."""
    digest: int = 0
    """The same on both sides; see container.pair_roster."""


class SnapshotPiece(Message, frozen=True):
    """The next bytes of a snapshot are the payload. Without bytes: the leader lives, and they are on their way."""

    last: bool
    crc: int | None = None
    """Of the last one: CRC-32C of the whole snapshot. None: of an older version."""


# --- around calls (peer.client and peer.server put messages in and take them out)


class Call(Message, frozen=True):
    """A Request with a number that its answer bears. Several are under way on one session; answers in any order."""

    call: int
    message: msgspec.Raw
    """Encoded apart, so that a type that is not known here leaves the number readable."""


class Answer(Message, frozen=True):
    """The answer to the Call of that number."""

    call: int
    message: msgspec.Raw


AnyMessage = Union[  # noqa: UP007  # read by msgspec at run time, and by people one a line
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
    """A Refused that says `reason`, whatever its length and characters."""
    return Refused(int(code), reason[:_MOST_REASON].encode(errors="replace").decode())

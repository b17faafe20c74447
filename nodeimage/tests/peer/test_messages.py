"""Version 1 of the messages between nodes, byte by byte: reveals a change of the encoding that older nodes would not
understand.

Lines may be added, but existing lines must never change, or a cluster could not be upgraded node by node. A new field,
which is omitted if it has its default value, gets a line of its own.
"""

import typing
import uuid

import msgspec
import pytest

from headrace.base.ids import ContainerId, Epoch, Millis, NodeId, Offset, PartitionletId, Position
from headrace.peer import handshake, messages, reports
from headrace.peer.framing import FrameReader, decode_message, encode_frame, encode_message
from headrace.peer.handshake import Identity
from headrace.peer.messages import Message

RUN = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")
C, N, E = ContainerId(300), NodeId(7), Epoch(70_000)
LET, AT, BIG = PartitionletId(5_000_000_000), Offset(17), Position(1 << 40)
HISTORY = [(Epoch(1), Position(0)), (E, BIG)]
REPLICA = reports.ReplicaState(C, "primary", E, Epoch(3), BIG, Position(9))
REPLICA_WHOLE = reports.ReplicaState(C, "follower", E, E, BIG, BIG, True, [N], str(RUN), True)
LOAD = reports.NodeLoad(1.5, 2.5, 3.5, 4, 5, 6)

GOLDEN: list[tuple[Message, bytes]] = [
    (
        messages.Hello("cluster", N, RUN, (1, 2), b"n" * 4),
        (
            b"\x86\xa4type\xa5Hello\xaacluster_id\xa7cluster\xa4node\x07\xa3run\xd9$01234567-89ab-cdef-0123"
            b"-456789abcdef\xa8versions\x92\x01\x02\xa5nonce\xc4\x04nnnn"
        ),
    ),
    (
        messages.Challenge(N, RUN, 1, b"n" * 4, b"p" * 4),
        (
            b"\x86\xa4type\xa9Challenge\xa4node\x07\xa3run\xd9$01234567-89ab-cdef-0123-456789abcdef\xa7vers"
            b"ion\x01\xa5nonce\xc4\x04nnnn\xa5proof\xc4\x04pppp"
        ),
    ),
    (
        messages.Proof(b"p" * 4),
        b"\x82\xa4type\xa5Proof\xa5proof\xc4\x04pppp",
    ),
    (
        messages.Welcome(1, N, RUN),
        (b"\x84\xa4type\xa7Welcome\xa7version\x01\xa4node\x07\xa3run\xd9$01234567-89ab-cdef-0123-456789abcdef"),
    ),
    (
        messages.Refused(6, "no"),
        b"\x83\xa4type\xa7Refused\xa4code\x06\xa6reason\xa2no",
    ),
    (
        messages.Refused(6, "no", E),
        b"\x84\xa4type\xa7Refused\xa4code\x06\xa6reason\xa2no\xa5epoch\xce\x00\x01\x11p",
    ),
    (
        messages.Probe(),
        b"\x81\xa4type\xa5Probe",
    ),
    (
        messages.ProbeAnswer(N, RUN, [], reports.NodeLoad(), True, False),
        (
            b"\x87\xa4type\xabProbeAnswer\xa4node\x07\xa3run\xd9$01234567-89ab-cdef-0123-456789abcdef\xa8re"
            b"plicas\x90\xa4load\x80\xadreaches_store\xc3\xa5ready\xc2"
        ),
    ),
    (
        messages.ProbeAnswer(N, RUN, [REPLICA, REPLICA_WHOLE], LOAD, False, True, [N]),
        (
            b"\x88\xa4type\xabProbeAnswer\xa4node\x07\xa3run\xd9$01234567-89ab-cdef-0123-456789abcdef\xa8re"
            b"plicas\x92\x86\xa9container\xcd\x01,\xa4role\xa7primary\xa5epoch\xce\x00\x01\x11p\xaalast_epo"
            b"ch\x03\xa3end\xcf\x00\x00\x01\x00\x00\x00\x00\x00\xa9committed\t\x8a\xa9container\xcd\x01,"
            b"\xa4role\xa8follower\xa5epoch\xce\x00\x01\x11p\xaalast_epoch\xce\x00\x01\x11p\xa3end\xcf\x00"
            b"\x00\x01\x00\x00\x00\x00\x00\xa9committed\xcf\x00\x00\x01\x00\x00\x00\x00\x00\xa7stalled\xc3"
            b"\xa7in_sync\x91\x07\xa6format\xd9$01234567-89ab-cdef-0123-456789abcdef\xa7damaged\xc3\xa4load"
            b"\x86\xaebytes_in_per_s\xcb?\xf8\x00\x00\x00\x00\x00\x00\xafbytes_out_per_s\xcb@\x04\x00\x00"
            b"\x00\x00\x00\x00\xaerequests_per_s\xcb@\x0c\x00\x00\x00\x00\x00\x00\xa9disk_used\x04\xaadisk_"
            b"total\x05\xaeled_containers\x06\xadreaches_store\xc2\xa5ready\xc3\xa5heard\x91\x07"
        ),
    ),
    (
        messages.ProbeAnswer(N, RUN, [], reports.NodeLoad(), True, True, [N], Millis(1_800_000_000_000)),
        (
            b"\x89\xa4type\xabProbeAnswer\xa4node\x07\xa3run\xd9$01234567-89ab-cdef-0123-456789abcdef\xa8re"
            b"plicas\x90\xa4load\x80\xadreaches_store\xc3\xa5ready\xc3\xa5heard\x91\x07\xa5clock\xcf\x00"
            b"\x00\x01\xa3\x18\\P\x00"
        ),
    ),
    (
        messages.Probe(5, 3),
        b"\x83\xa4type\xa5Probe\xa5since\x05\xa5begun\x03",
    ),
    (
        messages.ProbeAnswer(
            N, RUN, [], reports.NodeLoad(), True, True, counter=9, begun=4, more=True, anew=True, gone=[C]
        ),
        (
            b"\x8c\xa4type\xabProbeAnswer\xa4node\x07\xa3run\xd9$01234567-89ab-cdef-0123-456789abcdef\xa8re"
            b"plicas\x90\xa4load\x80\xadreaches_store\xc3\xa5ready\xc3\xa7counter\t\xa5begun\x04\xa4more\xc3"
            b"\xa4anew\xc3\xa4gone\x91\xcd\x01,"
        ),
    ),
    (
        messages.Prepare(C, "data"),
        b"\x83\xa4type\xa7Prepare\xa9container\xcd\x01,\xa4kind\xa4data",
    ),
    (
        messages.Prepared(str(RUN)),
        b"\x82\xa4type\xa8Prepared\xa6format\xd9$01234567-89ab-cdef-0123-456789abcdef",
    ),
    (
        messages.Submit(),
        b"\x81\xa4type\xa6Submit",
    ),
    (
        messages.Submitted(BIG),
        b"\x82\xa4type\xa9Submitted\xa8position\xcf\x00\x00\x01\x00\x00\x00\x00\x00",
    ),
    (
        messages.OpenPartitionlet(C, LET, AT, Offset(16)),
        (
            b"\x85\xa4type\xb0OpenPartitionlet\xa9container\xcd\x01,\xacpartitionlet\xcf\x00\x00\x00\x01*"
            b"\x05\xf2\x00\xa5first\x11\xa4last\x10"
        ),
    ),
    (
        messages.Opened(E),
        b"\x82\xa4type\xa6Opened\xa5epoch\xce\x00\x01\x11p",
    ),
    (
        messages.ReadRange(C, LET, AT, Offset(1 << 33), 1 << 20),
        (
            b"\x86\xa4type\xa9ReadRange\xa9container\xcd\x01,\xacpartitionlet\xcf\x00\x00\x00\x01*\x05\xf2"
            b"\x00\xa6offset\x11\xa5limit\xcf\x00\x00\x00\x02\x00\x00\x00\x00\xa9max_bytes\xce\x00\x10\x00"
            b"\x00"
        ),
    ),
    (
        messages.RangeRead([61, 70_000]),
        b"\x82\xa4type\xa9RangeRead\xa7lengths\x92=\xce\x00\x01\x11p",
    ),
    (
        messages.RangeRead([61], crc=0),
        b"\x83\xa4type\xa9RangeRead\xa7lengths\x91=\xa3crc\x00",
    ),
    (
        messages.FindTime(C, LET, Millis(-1), AT),
        (
            b"\x85\xa4type\xa8FindTime\xa9container\xcd\x01,\xacpartitionlet\xcf\x00\x00\x00\x01*\x05\xf2"
            b"\x00\xa9timestamp\xff\xa5limit\x11"
        ),
    ),
    (
        messages.TimeFound(True),
        b"\x82\xa4type\xa9TimeFound\xa5found\xc3",
    ),
    (
        messages.TimeFound(True, crc=1 << 31),
        b"\x83\xa4type\xa9TimeFound\xa5found\xc3\xa3crc\xce\x80\x00\x00\x00",
    ),
    (
        messages.Extents(C, [LET]),
        (b"\x83\xa4type\xa7Extents\xa9container\xcd\x01,\xadpartitionlets\x91\xcf\x00\x00\x00\x01*\x05\xf2\x00"),
    ),
    (
        messages.Extents(C, [LET], [LET]),
        (
            b"\x84\xa4type\xa7Extents\xa9container\xcd\x01,\xadpartitionlets\x91\xcf\x00\x00\x00\x01*\x05"
            b"\xf2\x00\xa4open\x91\xcf\x00\x00\x00\x01*\x05\xf2\x00"
        ),
    ),
    (
        messages.ExtentsFound([(LET, 1 << 31, AT)]),
        (b"\x82\xa4type\xacExtentsFound\xa5items\x91\x93\xcf\x00\x00\x00\x01*\x05\xf2\x00\xce\x80\x00\x00\x00\x11"),
    ),
    (
        messages.RollAway(C, 64),
        b"\x83\xa4type\xa8RollAway\xa9container\xcd\x01,\xa4most@",
    ),
    (
        messages.RollAway(C, 64, C, "hot", 0.5, 0.25),
        (
            b"\x87\xa4type\xa8RollAway\xa9container\xcd\x01,\xa4most@\xa2to\xcd\x01,\xa6reason\xa3hot\xa5sh"
            b"are\xcb?\xe0\x00\x00\x00\x00\x00\x00\xa5limit\xcb?\xd0\x00\x00\x00\x00\x00\x00"
        ),
    ),
    (
        messages.Rolled(3),
        b"\x82\xa4type\xa6Rolled\xa5count\x03",
    ),
    (
        messages.HeldBytes(),
        b"\x81\xa4type\xa9HeldBytes",
    ),
    (
        messages.Held([(C, 1 << 34)]),
        b"\x82\xa4type\xa4Held\xa5items\x91\x92\xcd\x01,\xcf\x00\x00\x00\x04\x00\x00\x00\x00",
    ),
    (
        messages.Follow(C, E, N, str(RUN), False, HISTORY, BIG, Position(0)),
        (
            b"\x89\xa4type\xa6Follow\xa9container\xcd\x01,\xa5epoch\xce\x00\x01\x11p\xa4node\x07\xa6format"
            b"\xd9$01234567-89ab-cdef-0123-456789abcdef\xa8observer\xc2\xa7history\x92\x92\x01\x00\x92\xce"
            b"\x00\x01\x11p\xcf\x00\x00\x01\x00\x00\x00\x00\x00\xa3end\xcf\x00\x00\x01\x00\x00\x00\x00\x00"
            b"\xa5start\x00"
        ),
    ),
    (
        messages.Follow(C, E, N, str(RUN), True, HISTORY, BIG, Position(0), True),
        (
            b"\x8a\xa4type\xa6Follow\xa9container\xcd\x01,\xa5epoch\xce\x00\x01\x11p\xa4node\x07\xa6format"
            b"\xd9$01234567-89ab-cdef-0123-456789abcdef\xa8observer\xc3\xa7history\x92\x92\x01\x00\x92\xce"
            b"\x00\x01\x11p\xcf\x00\x00\x01\x00\x00\x00\x00\x00\xa3end\xcf\x00\x00\x01\x00\x00\x00\x00\x00"
            b"\xa5start\x00\xa8snapshot\xc3"
        ),
    ),
    (
        messages.Following(E, HISTORY, BIG, Position(5)),
        (
            b"\x85\xa4type\xa9Following\xa5epoch\xce\x00\x01\x11p\xa7history\x92\x92\x01\x00\x92\xce\x00"
            b"\x01\x11p\xcf\x00\x00\x01\x00\x00\x00\x00\x00\xa5begin\xcf\x00\x00\x01\x00\x00\x00\x00\x00"
            b"\xa9committed\x05"
        ),
    ),
    (
        messages.Following(E, HISTORY, BIG, Position(5), Position(4), 1 << 20),
        (
            b"\x87\xa4type\xa9Following\xa5epoch\xce\x00\x01\x11p\xa7history\x92\x92\x01\x00\x92\xce\x00"
            b"\x01\x11p\xcf\x00\x00\x01\x00\x00\x00\x00\x00\xa5begin\xcf\x00\x00\x01\x00\x00\x00\x00\x00"
            b"\xa9committed\x05\xb1snapshot_position\x04\xaesnapshot_bytes\xce\x00\x10\x00\x00"
        ),
    ),
    (
        messages.Frames(BIG),
        b"\x82\xa4type\xa6Frames\xa9committed\xcf\x00\x00\x01\x00\x00\x00\x00\x00",
    ),
    (
        messages.Commit(BIG),
        b"\x82\xa4type\xa6Commit\xa9committed\xcf\x00\x00\x01\x00\x00\x00\x00\x00",
    ),
    (
        messages.Commit(BIG, 1.5),
        (
            b"\x83\xa4type\xa6Commit\xa9committed\xcf\x00\x00\x01\x00\x00\x00\x00\x00\xa7sent_at\xcb?\xf8"
            b"\x00\x00\x00\x00\x00\x00"
        ),
    ),
    (
        messages.Acked(BIG, E),
        (b"\x83\xa4type\xa5Acked\xa8position\xcf\x00\x00\x01\x00\x00\x00\x00\x00\xa5epoch\xce\x00\x01\x11p"),
    ),
    (
        messages.Acked(BIG, E, 1.5),
        (
            b"\x84\xa4type\xa5Acked\xa8position\xcf\x00\x00\x01\x00\x00\x00\x00\x00\xa5epoch\xce\x00\x01"
            b"\x11p\xa4beat\xcb?\xf8\x00\x00\x00\x00\x00\x00"
        ),
    ),
    (
        messages.PairUp(N),
        b"\x82\xa4type\xa6PairUp\xa4node\x07",
    ),
    (
        messages.PairBeat(1.5),
        b"\x82\xa4type\xa8PairBeat\xa7sent_at\xcb?\xf8\x00\x00\x00\x00\x00\x00",
    ),
    (
        messages.PairBeat(1.5, [1], [2]),
        (b"\x84\xa4type\xa8PairBeat\xa7sent_at\xcb?\xf8\x00\x00\x00\x00\x00\x00\xa5taken\x91\x01\xa5astir\x91\x02"),
    ),
    (
        messages.PairAnswer(1.5),
        b"\x82\xa4type\xaaPairAnswer\xa7sent_at\xcb?\xf8\x00\x00\x00\x00\x00\x00",
    ),
    (
        messages.PairAnswer(1.5, [messages.Resting(3, C, E, "f", BIG)], [2], 1, 5),
        (
            b"\x86\xa4type\xaaPairAnswer\xa7sent_at\xcb?\xf8\x00\x00\x00\x00\x00\x00\xa5rests\x91\x85\xa6number"
            b"\x03\xa9container\xcd\x01,\xa5epoch\xce\x00\x01\x11p\xa6format\xa1f\xa8position\xcf\x00\x00\x01"
            b"\x00\x00\x00\x00\x00\xa5stirs\x91\x02\xa5count\x01\xa6digest\x05"
        ),
    ),
    (
        messages.Unrecorded([C]),
        b"\x82\xa4type\xaaUnrecorded\xa8recorded\x91\xcd\x01,",
    ),
    (
        messages.UnrecordedFound(),
        b"\x81\xa4type\xafUnrecordedFound",
    ),
    (
        messages.UnrecordedFound([C], ["w"]),
        b"\x83\xa4type\xafUnrecordedFound\xa6unseen\x91\xcd\x01,\xa8warnings\x91\xa1w",
    ),
    (
        messages.SnapshotPiece(False),
        b"\x82\xa4type\xadSnapshotPiece\xa4last\xc2",
    ),
    (
        messages.SnapshotPiece(True, 0xE3069283),
        b"\x83\xa4type\xadSnapshotPiece\xa4last\xc3\xa3crc\xce\xe3\x06\x92\x83",
    ),
    (
        messages.ReadSnapshot(Position(9)),
        b"\x82\xa4type\xacReadSnapshot\xa5least\t",
    ),
    (
        messages.ReadSnapshot(Position(9), BIG, 1 << 22),
        (
            b"\x84\xa4type\xacReadSnapshot\xa5least\t\xa8position\xcf\x00\x00\x01\x00\x00\x00\x00\x00"
            b"\xa2at\xce\x00@\x00\x00"
        ),
    ),
    (
        messages.SnapshotPart(BIG, 1 << 22),
        (b"\x83\xa4type\xacSnapshotPart\xa8position\xcf\x00\x00\x01\x00\x00\x00\x00\x00\xa4size\xce\x00@\x00\x00"),
    ),
    (
        messages.SnapshotPart(Position(1), 2, 3),
        b"\x84\xa4type\xacSnapshotPart\xa8position\x01\xa4size\x02\xa3crc\x03",
    ),
    (
        messages.AppendOnce(b"t" * 4, 7),
        b"\x83\xa4type\xaaAppendOnce\xa8topic_id\xc4\x04tttt\xa9partition\x07",
    ),
    (
        messages.AppendedOnce(AT),
        b"\x82\xa4type\xacAppendedOnce\xa6offset\x11",
    ),
    (
        messages.CoordinationAsked(),
        b"\x81\xa4type\xb1CoordinationAsked",
    ),
    (
        messages.CoordinationTold(NodeId(3)),
        b"\x82\xa4type\xb0CoordinationTold\xa4node\x03",
    ),
    (
        messages.LinksAsked(["l"], True),
        b"\x83\xa4type\xaaLinksAsked\xa5links\x91\xa1l\xa6behind\xc3",
    ),
    (
        messages.LinksTold(),
        b"\x81\xa4type\xa9LinksTold",
    ),
    (
        messages.ReadMarks(),
        b"\x81\xa4type\xa9ReadMarks",
    ),
    (
        messages.TableMarks([(Position(7), "ab")]),
        b"\x82\xa4type\xaaTableMarks\xa5marks\x91\x92\x07\xa2ab",
    ),
    (
        messages.Call(9, msgspec.Raw(encode_message(messages.Probe()))),
        b"\x83\xa4type\xa4Call\xa4call\t\xa7message\x81\xa4type\xa5Probe",
    ),
    (
        messages.Answer(9, msgspec.Raw(encode_message(messages.Rolled(3)))),
        b"\x83\xa4type\xa6Answer\xa4call\t\xa7message\x82\xa4type\xa6Rolled\xa5count\x03",
    ),
]


@pytest.mark.parametrize(
    ("message", "golden"), GOLDEN, ids=lambda each: type(each).__name__ if isinstance(each, Message) else ""
)
def test_a_message_is_the_bytes_that_it_was(message: Message, golden: bytes) -> None:
    assert encode_message(message) == golden
    assert decode_message(golden) == message


def test_every_message_is_here() -> None:
    assert {type(message) for message, _ in GOLDEN} == set(typing.get_args(messages.AnyMessage))


def test_a_frame_is_the_bytes_that_it_was() -> None:
    (frame,) = encode_frame(messages.Frames(committed=BIG), [b"payload"])
    assert (
        bytes(frame).hex()
        == "0000002b0000002082a474797065a64672616d6573a9636f6d6d6974746564cf00000100000000007061796c6f6164"
    )
    reader = FrameReader()
    reader.get_buffer()[: len(frame)] = frame
    reader.came(len(frame))
    found = reader.next()
    assert found is not None
    header, payload = found
    assert (decode_message(header), bytes(payload)) == (messages.Frames(committed=BIG), b"payload")


def test_a_field_that_a_later_version_adds_is_passed_over() -> None:
    for message, golden in GOLDEN:
        fields = msgspec.msgpack.decode(golden)
        if "message" in fields:  # a Call's content is raw
            continue
        later = msgspec.msgpack.encode(fields | {"of a later version": {"with": [1, 2]}})
        assert decode_message(later) == message


@pytest.mark.parametrize(
    ("role", "channel", "proof"),
    [
        ("server", b"", "16efb1b09b1fc2ec173d26d76e2c5b6f62d840b3b86031f4a0eb5e859c05ca6d"),
        ("client", b"", "7a86588b1d46748c73a058d8c5fce3fd6564e276ca2c0d27ebdc88448c117379"),
        ("server", b"c" * 32, "60799d82d602da0b2bc117c03f9c7ae22d619d7e5526120cbe3dc3be5293cf25"),
        ("client", b"c" * 32, "95bf4d405fa37b15235d5a90f396820b4f2c9c6a5d7b43936cee5bb73244738c"),
    ],
)
def test_a_proof_is_what_it_was(role: str, channel: bytes, proof: str) -> None:
    identity = Identity("cluster", "secret", N, RUN)
    hello = messages.Hello("cluster", N, RUN, (1, 1), b"n" * 32)
    challenge = messages.Challenge(NodeId(8), RUN, 1, b"m" * 32, b"")
    assert handshake._proof("secret", role, identity, hello, challenge, channel).hex() == proof

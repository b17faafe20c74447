"""Each side proves that it knows the secret, for one session and in one role."""

import dataclasses
import uuid
from typing import Any

import msgspec
import pytest

from headrace.base.errors import Code
from headrace.base.ids import NodeId
from headrace.peer.handshake import ClientHandshake, HandshakeFailed, Identity, ServerHandshake
from headrace.peer.messages import MIN_VERSION, PEER_VERSION, Challenge, Hello, Message, Proof, Refused, Welcome


def identity(node: int, secret: str = "secret", cluster_id: str = "c") -> Identity:
    return Identity(cluster_id, secret, NodeId(node), uuid.uuid4())


def begun(
    client: Identity | None = None, server: Identity | None = None, *, channels: tuple[bytes, bytes] = (b"", b"")
) -> tuple[ClientHandshake, ServerHandshake, Hello, Challenge]:
    """A handshake up to the Challenge. `channels`: the channel bindings of the client and of the server."""
    mine, theirs = ClientHandshake(client or identity(2)), ServerHandshake(server or identity(1))
    assert theirs.first(channels[1]) is None
    hello = mine.first(channels[0])
    assert isinstance(hello, Hello)
    challenge = theirs.receive(hello)
    assert isinstance(challenge, Challenge)
    return mine, theirs, hello, challenge


def test_both_sides_learn_who_is_there() -> None:
    client, server = identity(2), identity(1)
    mine, theirs, _, challenge = begun(client, server)
    proof = mine.receive(challenge)
    assert proof is not None
    assert theirs.met is None
    welcome = theirs.receive(proof)
    assert mine.met is None
    assert welcome is not None
    assert mine.receive(welcome) is None
    assert mine.met is not None
    assert theirs.met is not None
    assert (mine.met.node, mine.met.run, mine.met.version) == (server.node, server.run, PEER_VERSION)
    assert (theirs.met.node, theirs.met.run, theirs.met.version) == (client.node, client.run, PEER_VERSION)


CHANNEL, ANOTHER = b"c" * 32, b"d" * 32


@pytest.mark.parametrize("channels", [(CHANNEL, ANOTHER), (CHANNEL, b""), (b"", CHANNEL)])
def test_a_proof_of_one_channel_proves_nothing_at_another(channels: tuple[bytes, bytes]) -> None:
    mine, _, _, challenge = begun(channels=channels)
    with pytest.raises(HandshakeFailed, match="another secret"):
        mine.receive(challenge)
    client = identity(2)
    mine, theirs, _, challenge = begun(client, channels=(channels[0], channels[0]))
    proof = mine.receive(challenge)
    assert proof is not None
    theirs._channel = channels[1]
    with pytest.raises(HandshakeFailed, match="another secret"):
        theirs.receive(proof)


@pytest.mark.parametrize("channel", [b"", CHANNEL])
@pytest.mark.parametrize(
    ("client", "server", "met"),
    [
        (("new", "old"), ("old", ""), True),
        (("old", ""), ("new", "old"), True),
        (("new", "old"), ("new", "old"), True),
        (("new", ""), ("new", "old"), True),
        (("new", "old"), ("new", ""), True),
        (("new", ""), ("old", ""), False),
        (("newer", "new"), ("old", ""), False),
    ],
)
def test_a_secret_changes_by_way_of_both(
    client: tuple[str, str], server: tuple[str, str], met: bool, channel: bytes
) -> None:
    identities = [
        dataclasses.replace(identity(node, secret=secret), former_secret=former)
        for node, (secret, former) in ((2, client), (1, server))
    ]
    mine, theirs, _, challenge = begun(*identities, channels=(channel, channel))
    if not met:
        with pytest.raises(HandshakeFailed, match="another secret"):
            mine.receive(challenge)
        return
    proof = mine.receive(challenge)
    assert proof is not None
    assert theirs.receive(proof) is not None
    assert theirs.met is not None


def test_a_proof_is_made_with_the_newest_secret_of_both() -> None:
    both = dataclasses.replace(identity(2, secret="new"), former_secret="old")
    mine, _, _, challenge = begun(both, dataclasses.replace(identity(1, secret="new"), former_secret="old"))
    proof = mine.receive(challenge)
    assert isinstance(proof, Proof)
    mine, theirs, _, challenge = begun(both, identity(1, secret="new"))
    assert challenge.former_proof == b""
    proof = mine.receive(challenge)
    assert proof is not None
    assert theirs.receive(proof) is not None


def test_a_server_with_another_secret_is_told_and_gets_no_proof() -> None:
    mine, _, _, challenge = begun(identity(2), identity(1, "another"))
    with pytest.raises(HandshakeFailed, match="node 1 has another secret for cluster c") as caught:
        mine.receive(challenge)
    assert caught.value.tell == Refused(
        int(Code.CLUSTER_AUTHORIZATION_FAILED), "node 2 has another secret for cluster c"
    )


def test_a_client_that_cannot_prove_itself_is_refused() -> None:
    _, theirs, _, _ = begun()
    with pytest.raises(HandshakeFailed, match="node 2 has another secret") as caught:
        theirs.receive(Proof(b"0" * 32))
    assert caught.value.tell is not None
    assert theirs.met is None


def test_the_servers_own_proof_sent_back_proves_nothing() -> None:
    _, theirs, _, challenge = begun()
    with pytest.raises(HandshakeFailed):
        theirs.receive(Proof(challenge.proof))


def test_a_proof_of_an_earlier_session_proves_nothing() -> None:
    server = identity(1)
    mine, earlier, hello, challenge = begun(server=server)
    proof = mine.receive(challenge)
    assert proof is not None
    earlier.receive(proof)
    replayed = ServerHandshake(server)
    replayed.receive(hello)
    with pytest.raises(HandshakeFailed):
        replayed.receive(proof)


def test_a_challenge_of_an_earlier_session_proves_nothing() -> None:
    client = identity(2)
    _, _, _, challenge = begun(client)
    with pytest.raises(HandshakeFailed):
        ClientHandshake(client).receive(challenge)


@pytest.mark.parametrize(
    "change",
    [
        {"node": NodeId(9)},
        {"run": uuid.uuid4()},
        {"nonce": b"n" * 32},
        {"nonce": b"short"},
        {"version": PEER_VERSION + 1},
        {"proof": b""},
    ],
)
def test_a_challenge_that_was_changed_on_its_way_is_not_believed(change: dict[str, Any]) -> None:
    mine, _, _, challenge = begun()
    with pytest.raises(HandshakeFailed):
        mine.receive(msgspec.structs.replace(challenge, **change))


@pytest.mark.parametrize(
    "change",
    [
        {"node": NodeId(9)},
        {"run": uuid.uuid4()},
        {"nonce": b"n" * 32},
        {"versions": (0, 1)},
        {"versions": (1, PEER_VERSION + 1)},
    ],
)
def test_a_hello_that_was_changed_on_its_way_leads_nowhere(change: dict[str, Any]) -> None:
    mine = ClientHandshake(identity(2))
    hello = mine.first()
    assert isinstance(hello, Hello)
    challenge = ServerHandshake(identity(1)).receive(msgspec.structs.replace(hello, **change))
    assert challenge is not None
    with pytest.raises(HandshakeFailed):
        mine.receive(challenge)


def test_a_node_of_another_cluster_is_refused() -> None:
    hello = ClientHandshake(identity(2, cluster_id="theirs")).first()
    assert hello is not None
    with pytest.raises(HandshakeFailed, match="node 2 belongs to cluster 'theirs', node 1 to 'c'"):
        ServerHandshake(identity(1)).receive(hello)


@pytest.mark.parametrize("versions", [(PEER_VERSION + 1, PEER_VERSION + 2), (-3, 0), (1, 0)])
def test_a_node_without_a_common_version_is_refused(versions: tuple[int, int]) -> None:
    hello = ClientHandshake(identity(2)).first()
    assert isinstance(hello, Hello)
    with pytest.raises(HandshakeFailed, match="no common version") as caught:
        ServerHandshake(identity(1)).receive(msgspec.structs.replace(hello, versions=versions))
    assert caught.value.tell is not None
    assert caught.value.tell.code == Code.UNSUPPORTED_VERSION


@pytest.mark.parametrize(
    "message", [Proof(b""), Welcome(1, NodeId(1), uuid.uuid4()), Challenge(NodeId(1), uuid.uuid4(), 1, b"", b"")]
)
def test_a_server_takes_steps_in_their_order_only(message: Message) -> None:
    theirs = ServerHandshake(identity(1))
    with pytest.raises(HandshakeFailed):
        theirs.receive(message)
    assert theirs.met is None


def test_a_client_believes_no_welcome_before_a_proof() -> None:
    mine = ClientHandshake(identity(2))
    with pytest.raises(HandshakeFailed):
        mine.receive(Welcome(1, NodeId(1), uuid.uuid4()))
    assert mine.met is None


def test_a_second_hello_does_not_change_who_is_there() -> None:
    _, theirs, hello, _ = begun()
    with pytest.raises(HandshakeFailed):
        theirs.receive(msgspec.structs.replace(hello, node=NodeId(5)))


def test_without_a_secret_nobody_is_let_in() -> None:
    with pytest.raises(ValueError, match="secret"):
        identity(1, secret="")


def test_the_secret_is_not_shown() -> None:
    shown = dataclasses.replace(identity(1, secret="hush"), former_secret="silence")
    assert "hush" not in repr(shown)
    assert "silence" not in repr(shown)


@pytest.mark.parametrize(("client", "server"), [((1, 2), (1, 1)), ((1, 1), (1, 2)), ((1, 2), (1, 3))])
def test_a_node_of_the_next_version_speaks_that_of_one_of_before(
    client: tuple[int, int], server: tuple[int, int]
) -> None:
    mine, theirs, _, challenge = begun(
        dataclasses.replace(identity(2), versions=client), dataclasses.replace(identity(1), versions=server)
    )
    assert challenge.version == min(client[1], server[1])
    proof = mine.receive(challenge)
    assert proof is not None
    welcome = theirs.receive(proof)
    assert welcome is not None
    mine.receive(welcome)
    assert mine.met is not None
    assert theirs.met is not None
    assert mine.met.version == theirs.met.version == min(client[1], server[1])


def test_this_version_is_spoken_with_that_of_before() -> None:
    """Nodes are upgraded one after the other, so two versions in succession form a cluster."""
    assert identity(1).versions == (MIN_VERSION, PEER_VERSION)
    assert max(PEER_VERSION - 1, 1) >= MIN_VERSION

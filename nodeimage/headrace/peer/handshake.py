"""The first four messages of a session: each side proves that it knows the cluster's secret, and learns who is there.

    client                                             server
    Hello{cluster, node, run, versions, nonce}  ---->  the same cluster? a common version?
    server's proof right?                       <----  Challenge{node, run, version, nonce, proof}
    Proof{proof}                                ---->  client's proof right?
                                                <----  Welcome{version, node, run}

Either side may say Refused{code, reason} instead, and closes.

    proof = HMAC-SHA256(secret, msgpack [label, role, cluster id, client's nonce, server's nonce,
                                         client's node, run, oldest version, newest version,
                                         server's node, run, chosen version])
    over TLS the label is another, and the list ends with the channel's binding (security.peer_tls)

Both nonces are 32 random bytes, made for this session alone: a proof that was overheard fits no other session,
whichever side replays it. `role` is "server" or "client", so neither side's proof can be sent back as the other's.
Both nodes, both runs, the cluster and the versions are covered: none of them can be changed on the way, no version
talked down. The encoding is unambiguous, and proofs are compared in constant time. The server proves itself first, so
a client that has been led to a stranger says nothing but its Hello; a server takes nothing but these messages, of
4 KiB at most and within 5 s, before the client is proven. The secret itself never travels.

Relays: somebody between two nodes can pass these messages on as they are. Without TLS that is all it needs to take over
the session behind them, as frames are neither encrypted nor signed then. Over TLS a relay has two connections,
whose bindings differ, so no side's proof fits the other side's connection, even where the relay has the key of a
certificate that the nodes trust; and a proof that was made without TLS fits no connection with it, nor the reverse.

A secret that changes: for a while a node has a former one too. The server proves itself by both, the client answers
with the newest of its own that one of these fits, and the server takes either. So nodes that have learned of the new
one and nodes that have not meet each other.

No sockets and no clock here: messages in, messages out.
"""

import hashlib
import hmac
import secrets
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from headrace.base.errors import Code, HeadraceError
from headrace.base.ids import NodeId
from headrace.peer.messages import (
    LEAST_VERSION,
    PEER_VERSION,
    Challenge,
    Hello,
    Message,
    Proof,
    Refused,
    Welcome,
)

HANDSHAKE_S: Final = 5.0
"""A session that is not past its handshake by then ends."""
MAX_HANDSHAKE_FRAME: Final = 4 * 1024
NONCE_BYTES: Final = 32
_LABEL: Final = "headrace peer"
_LABEL_TLS: Final = "headrace peer over tls 1"
_SHOWN: Final = 200
"""Characters of text from the other side that are shown."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this node is, and what it shares with its cluster."""

    cluster_id: str
    secret: str
    """The newest."""
    node: NodeId
    run: uuid.UUID
    former_secret: str = ""
    """What is good beside it; "": nothing."""
    versions: tuple[int, int] = field(default_factory=lambda: (LEAST_VERSION, PEER_VERSION))
    """(oldest, newest) that it speaks."""

    def __post_init__(self) -> None:
        if not self.secret:
            raise ValueError("a cluster without a secret cannot tell its nodes from others")

    @property
    def secrets(self) -> tuple[str, ...]:
        """All that are good, the newest first."""
        return (self.secret, self.former_secret) if self.former_secret else (self.secret,)

    def __repr__(self) -> str:
        return f"Identity(cluster_id={self.cluster_id!r}, node={self.node}, run={self.run})"


@dataclass(frozen=True, slots=True)
class Met:
    """Who is at the other end, proven."""

    node: NodeId
    run: uuid.UUID
    version: int


class HandshakeFailed(HeadraceError):
    """This side ends the handshake, or the other did. `tell` is said to the other side first."""

    code = Code.CLUSTER_AUTHORIZATION_FAILED

    def __init__(self, reason: str, tell: Refused | None = None) -> None:
        super().__init__(reason)
        self.tell = tell


class Handshake(Protocol):
    """One side of it. Good for one session."""

    met: Met | None
    """Who is there; None until the handshake is over."""

    def first(self, channel: bytes = b"") -> Message | None:
        """What this side says before it has heard anything. `channel`: what proofs are bound to; b"": to no TLS."""

    def receive(self, message: Message) -> Message | None:
        """Take a message; what to say to it. Raises HandshakeFailed."""


class ClientHandshake:
    """The side that connected."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._hello = Hello(
            cluster_id=identity.cluster_id,
            node=identity.node,
            run=identity.run,
            versions=identity.versions,
            nonce=secrets.token_bytes(NONCE_BYTES),
        )
        self._channel = b""
        self._server: Met | None = None
        self.met: Met | None = None

    def first(self, channel: bytes = b"") -> Message | None:
        """Hello."""
        self._channel = channel
        return self._hello

    def receive(self, message: Message) -> Message | None:
        """Challenge, then Welcome."""
        match message:
            case Refused():
                raise HandshakeFailed(f"refused by the other side: {_shown(message.reason)}")
            case Challenge() if self._server is None:
                return self._prove(message)
            case Welcome() if self._server is not None:
                if (message.node, message.run, message.version) != (
                    self._server.node,
                    self._server.run,
                    self._server.version,
                ):
                    raise HandshakeFailed("the other side's Welcome differs from its Challenge")
                self.met = self._server
                return None
        raise HandshakeFailed(f"{type(message).__name__} is not a step of the handshake")

    def _prove(self, challenge: Challenge) -> Message:
        oldest, newest = self._identity.versions
        if len(challenge.nonce) != NONCE_BYTES or not oldest <= challenge.version <= newest:
            raise HandshakeFailed("the other side's Challenge makes no sense")
        covered = self._identity, self._hello, challenge, self._channel
        secret = _fitting(self._identity.secrets, (challenge.proof, challenge.former_proof), "server", *covered)
        if secret is None:
            reason = f"node {challenge.node} has another secret for cluster {self._identity.cluster_id}"
            told = f"node {self._identity.node} has another secret for cluster {self._identity.cluster_id}"
            raise HandshakeFailed(reason, Refused(int(Code.CLUSTER_AUTHORIZATION_FAILED), told))
        self._server = Met(challenge.node, challenge.run, challenge.version)
        return Proof(_proof(secret, "client", *covered))


class ServerHandshake:
    """The side that was connected to."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._hello: Hello | None = None
        self._challenge: Challenge | None = None
        self._channel = b""
        self.met: Met | None = None

    def first(self, channel: bytes = b"") -> Message | None:
        """Nothing: the client speaks first."""
        self._channel = channel
        return None

    def receive(self, message: Message) -> Message | None:
        """Hello, then Proof."""
        match message:
            case Refused():
                raise HandshakeFailed(f"refused by the other side: {_shown(message.reason)}")
            case Hello() if self._hello is None:
                return self._answer(message)
            case Proof() if self._hello is not None and self._challenge is not None and self.met is None:
                covered = self._identity, self._hello, self._challenge, self._channel
                if _fitting(self._identity.secrets, (message.proof,), "client", *covered) is None:
                    raise _refuse(f"node {self._hello.node} has another secret for cluster {self._identity.cluster_id}")
                self.met = Met(self._hello.node, self._hello.run, self._challenge.version)
                return Welcome(self._challenge.version, self._identity.node, self._identity.run)
        raise HandshakeFailed(f"{type(message).__name__} is not a step of the handshake")

    def _answer(self, hello: Hello) -> Message:
        mine = self._identity
        if hello.cluster_id != mine.cluster_id:
            raise _refuse(
                f"node {hello.node} belongs to cluster {_shown(hello.cluster_id)!r},"
                f" node {mine.node} to {mine.cluster_id!r}"
            )
        oldest, newest = hello.versions
        my_oldest, my_newest = mine.versions
        version = min(newest, my_newest)
        if version < max(oldest, my_oldest):
            raise _refuse(
                f"no common version: node {hello.node} speaks {oldest} to {newest},"
                f" node {mine.node} {my_oldest} to {my_newest}",
                Code.UNSUPPORTED_VERSION,
            )
        if len(hello.nonce) != NONCE_BYTES:
            raise _refuse(f"a nonce of {len(hello.nonce)} bytes in node {hello.node}'s Hello", Code.INVALID_REQUEST)
        challenge = Challenge(
            node=mine.node, run=mine.run, version=version, nonce=secrets.token_bytes(NONCE_BYTES), proof=b""
        )
        self._hello = hello
        self._challenge = challenge
        proofs = [_proof(secret, "server", mine, hello, challenge, self._channel) for secret in mine.secrets]
        return msgspec.structs.replace(challenge, proof=proofs[0], former_proof=b"".join(proofs[1:]))


def _shown(text: str) -> str:
    """Text of somebody who is not proven yet, as it may stand in a log's line."""
    return "".join(each if each.isprintable() else "?" for each in text[:_SHOWN])


def _refuse(reason: str, code: Code = Code.CLUSTER_AUTHORIZATION_FAILED) -> HandshakeFailed:
    return HandshakeFailed(reason, Refused(int(code), reason))


def _fitting(
    known: Sequence[str],
    proofs: Sequence[bytes],
    role: str,
    identity: Identity,
    hello: Hello,
    challenge: Challenge,
    channel: bytes,
) -> str | None:
    """The first secret that one of the proofs was made with; None: none of them."""
    for secret in known:
        expected = _proof(secret, role, identity, hello, challenge, channel)
        if any(hmac.compare_digest(expected, proof) for proof in proofs):
            return secret
    return None


def _proof(secret: str, role: str, identity: Identity, hello: Hello, challenge: Challenge, channel: bytes) -> bytes:
    """What `role` proves itself by. Depends on nothing that only one side knows."""
    covered = [
        _LABEL_TLS if channel else _LABEL,
        role,
        identity.cluster_id,
        hello.nonce,
        challenge.nonce,
        hello.node,
        hello.run,
        *hello.versions,
        challenge.node,
        challenge.run,
        challenge.version,
    ]
    if channel:
        covered.append(channel)
    return hmac.digest(secret.encode(), msgspec.msgpack.encode(covered), hashlib.sha256)

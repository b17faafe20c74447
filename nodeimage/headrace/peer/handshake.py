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

Both nonces are 32 random bytes, made for this session alone: a proof that was overheard fits no other session,
whichever side replays it. `role` is "server" or "client", so neither side's proof can be sent back as the other's.
Both nodes, both runs, the cluster and the versions are covered: none of them can be changed on the way, no version
talked down. The encoding is unambiguous, and proofs are compared in constant time. The server proves itself first, so
a client that has been led to a stranger says nothing but its Hello; a server takes nothing but these messages, of
4 KiB at most and within 5 s, before the client is proven. The secret itself never travels.

What it does not do: frames behind the handshake are neither encrypted nor signed, so somebody who can change packets on
their way can take a session over. That is for TLS.

No sockets and no clock here: messages in, messages out.
"""

import hashlib
import hmac
import secrets
import uuid
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
_SHOWN: Final = 200
"""Characters of text from the other side that are shown."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this node is, and what it shares with its cluster."""

    cluster_id: str
    secret: str
    node: NodeId
    run: uuid.UUID
    versions: tuple[int, int] = field(default_factory=lambda: (LEAST_VERSION, PEER_VERSION))
    """(oldest, newest) that it speaks."""

    def __post_init__(self) -> None:
        if not self.secret:
            raise ValueError("a cluster without a secret cannot tell its nodes from others")

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

    def first(self) -> Message | None:
        """What this side says before it has heard anything."""

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
        self._server: Met | None = None
        self.met: Met | None = None

    def first(self) -> Message | None:
        """Hello."""
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
        expected = _proof(self._identity, "server", self._hello, challenge)
        if not hmac.compare_digest(expected, challenge.proof):
            reason = f"node {challenge.node} has another secret for cluster {self._identity.cluster_id}"
            told = f"node {self._identity.node} has another secret for cluster {self._identity.cluster_id}"
            raise HandshakeFailed(reason, Refused(int(Code.CLUSTER_AUTHORIZATION_FAILED), told))
        self._server = Met(challenge.node, challenge.run, challenge.version)
        return Proof(_proof(self._identity, "client", self._hello, challenge))


class ServerHandshake:
    """The side that was connected to."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._hello: Hello | None = None
        self._challenge: Challenge | None = None
        self.met: Met | None = None

    def first(self) -> Message | None:
        """Nothing: the client speaks first."""
        return None

    def receive(self, message: Message) -> Message | None:
        """Hello, then Proof."""
        match message:
            case Refused():
                raise HandshakeFailed(f"refused by the other side: {_shown(message.reason)}")
            case Hello() if self._hello is None:
                return self._answer(message)
            case Proof() if self._hello is not None and self._challenge is not None and self.met is None:
                expected = _proof(self._identity, "client", self._hello, self._challenge)
                if not hmac.compare_digest(expected, message.proof):
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
        return msgspec.structs.replace(challenge, proof=_proof(mine, "server", hello, challenge))


def _shown(text: str) -> str:
    """Text of somebody who is not proven yet, as it may stand in a log's line."""
    return "".join(each if each.isprintable() else "?" for each in text[:_SHOWN])


def _refuse(reason: str, code: Code = Code.CLUSTER_AUTHORIZATION_FAILED) -> HandshakeFailed:
    return HandshakeFailed(reason, Refused(int(code), reason))


def _proof(identity: Identity, role: str, hello: Hello, challenge: Challenge) -> bytes:
    """What `role` proves itself by. Depends on nothing that only one side knows."""
    covered = msgspec.msgpack.encode(
        [
            _LABEL,
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
    )
    return hmac.digest(identity.secret.encode(), covered, hashlib.sha256)

"""The first four messages of a session: each side proves that it knows the cluster's secret, and identifies itself.

    client                                             server
    Hello{cluster, node, run, versions, nonce}  ---->  the same cluster? a common version?
    server's proof right?                       <----  Challenge{node, run, version, nonce, proof}
    Proof{proof}                                ---->  client's proof right?
                                                <----  Welcome{version, node, run}

Either side may send Refused{code, reason} instead, and then closes.

    proof = HMAC-SHA256(secret, msgpack [label, role, cluster id, client's nonce, server's nonce,
                                         client's node, run, oldest version, newest version,
                                         server's node, run, chosen version])
    over TLS the label differs, and the list ends with the channel binding (security.peer_tls)

Both nonces are 32 random bytes, created for this session: an overheard proof is invalid in any other session, whichever
side replays it. `role` is "server" or "client", so no proof can be sent back as the other side's. The proofs cover both
nodes, their process incarnations (`run`), the cluster and the versions, so none of these can be changed on the way, and
no version downgraded. The encoding is unambiguous, and proofs are compared in constant time. The server proves itself
first, so a client that was directed to a stranger reveals only its Hello; until the client is proven, a server accepts
only these messages, of 4 KiB at most and within 5 s. The secret itself is never sent.

Relays: an attacker between two nodes can relay these messages unchanged. Without TLS that is enough to take over the
session afterwards, as frames are neither encrypted nor signed. Over TLS a relay has two connections with different
bindings, so neither side's proof is valid on the other side's connection, even if the relay has the key of a
certificate that the nodes trust; and a proof made without TLS is invalid on a connection with TLS, and vice versa.

Change of secret: for a while a node has a former secret too. The server proves itself by both, the client answers with
the newest of its own secrets that matches one of the proofs, and the server accepts either. So nodes that know the new
secret and nodes that do not can connect to each other.

No sockets and no clock: messages in, messages out.
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
    MIN_VERSION,
    PEER_VERSION,
    Challenge,
    Hello,
    Message,
    Proof,
    Refused,
    Welcome,
)

HANDSHAKE_S: Final = 5.0
"""Seconds after which a session whose handshake is not done ends."""
MAX_HANDSHAKE_FRAME: Final = 4 * 1024
NONCE_BYTES: Final = 32
_LABEL: Final = "headrace peer"
_LABEL_TLS: Final = "headrace peer over tls 1"
_SHOWN: Final = 200
"""The most characters of text from the other side that are logged."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of this node, and the secrets of its cluster."""

    cluster_id: str
    secret: str
    """The newest secret."""
    node: NodeId
    run: uuid.UUID
    """Identifies this start of the process."""
    former_secret: str = ""
    """The former secret while it is still valid; "": there is none."""
    versions: tuple[int, int] = field(default_factory=lambda: (MIN_VERSION, PEER_VERSION))
    """The (oldest, newest) supported version of the protocol."""

    def __post_init__(self) -> None:
        if not self.secret:
            raise ValueError("a cluster without a secret cannot tell its nodes from others")

    @property
    def secrets(self) -> tuple[str, ...]:
        """All valid secrets, the newest first."""
        return (self.secret, self.former_secret) if self.former_secret else (self.secret,)

    def __repr__(self) -> str:
        return f"Identity(cluster_id={self.cluster_id!r}, node={self.node}, run={self.run})"


@dataclass(frozen=True, slots=True)
class Met:
    """The proven identity of the other side, and the version of the session."""

    node: NodeId
    run: uuid.UUID
    version: int


class HandshakeFailed(HeadraceError):
    """The handshake failed on this side or the other. `tell`: a message to send to the other side first."""

    code = Code.CLUSTER_AUTHORIZATION_FAILED

    def __init__(self, reason: str, tell: Refused | None = None) -> None:
        super().__init__(reason)
        self.tell = tell


class Handshake(Protocol):
    """One side of a handshake, for one session."""

    met: Met | None
    """The other side; None until the handshake is done."""

    def first(self, channel: bytes = b"") -> Message | None:
        """The message that this side sends first, if any. `channel`: the TLS channel binding; b"": no TLS."""

    def receive(self, message: Message) -> Message | None:
        """Handles a message; returns the response, if any. Raises HandshakeFailed."""


class ClientHandshake:
    """The handshake of the side that connected."""

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
        """The Hello."""
        self._channel = channel
        return self._hello

    def receive(self, message: Message) -> Message | None:
        """Handles the Challenge, then the Welcome."""
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
            raise HandshakeFailed("the other side's Challenge is invalid")
        covered = self._identity, self._hello, challenge, self._channel
        secret = _fitting(self._identity.secrets, (challenge.proof, challenge.former_proof), "server", *covered)
        if secret is None:
            reason = f"node {challenge.node} has another secret for cluster {self._identity.cluster_id}"
            told = f"node {self._identity.node} has another secret for cluster {self._identity.cluster_id}"
            raise HandshakeFailed(reason, Refused(int(Code.CLUSTER_AUTHORIZATION_FAILED), told))
        self._server = Met(challenge.node, challenge.run, challenge.version)
        return Proof(_proof(secret, "client", *covered))


class ServerHandshake:
    """The handshake of the side that accepted the connection."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._hello: Hello | None = None
        self._challenge: Challenge | None = None
        self._channel = b""
        self.met: Met | None = None

    def first(self, channel: bytes = b"") -> Message | None:
        """None: the client sends first."""
        self._channel = channel
        return None

    def receive(self, message: Message) -> Message | None:
        """Handles the Hello, then the Proof."""
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
    """Text from an unproven side, made safe for a log line."""
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
    """The first of the known secrets with which one of the proofs was made; None if there is none."""
    for secret in known:
        expected = _proof(secret, role, identity, hello, challenge, channel)
        if any(hmac.compare_digest(expected, proof) for proof in proofs):
            return secret
    return None


def _proof(secret: str, role: str, identity: Identity, hello: Hello, challenge: Challenge, channel: bytes) -> bytes:
    """The proof of `role`. Both sides can compute it."""
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

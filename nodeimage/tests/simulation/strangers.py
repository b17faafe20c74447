"""Who nodes are to each other: the handshake of sessions (peer.handshake), and hosts that fail it.

A host has papers: the secrets that its process uses, and a certificate. While all hosts have the same papers, the
handshake is skipped, since every host would pass. Otherwise each session and each call begins with the handshake, run
by the nodes' own state machines: messages of a host with wrong papers reach no handler, and are not answered.

In a run, the host with wrong papers is one of a few nodes for a while (its file was mixed up, or its certificate
expired), or a stranger from outside; or the secret itself changes, node by node, which no node must notice.
"""

import uuid
from dataclasses import dataclass
from typing import Final

from headrace.base.errors import HeadraceError
from headrace.base.ids import NodeId
from headrace.peer.handshake import ClientHandshake, HandshakeFailed, Identity, ServerHandshake
from headrace.peer.messages import Message, Proof

CLUSTER: Final = "simulated"
FIRST: Final = "the first secret"
CLIENTS: Final = 0
"""The number of the clients' host, which has no node."""


@dataclass(slots=True)
class Papers:
    """The secrets and the certificate that a host presents, and by which it checks others."""

    secret: str = FIRST
    former: str = ""
    wrong: int = 0
    """The number of faults that currently give it another cluster's secret."""
    stale: int = 0
    """The number of faults that currently give it an expired certificate."""

    @property
    def is_odd(self) -> bool:
        """Whether no node accepts the host."""
        return bool(self.wrong or self.stale)

    def identity(self, number: int) -> Identity:
        secret, former = ("another secret", "") if self.wrong else (self.secret, self.former)
        return Identity(CLUSTER, secret, NodeId(number), uuid.UUID(int=number), former_secret=former)


class Strangers:
    """The papers of all hosts that differ from the common ones."""

    def __init__(self) -> None:
        self._papers: dict[int, Papers] = {}
        self._secrets = Papers()
        """The papers of all other hosts."""
        self.changing = False
        """Whether the secret is changing: there is one change at a time, since there are at most two secrets."""

    def of(self, number: int) -> Papers:
        """A host's papers, which may be changed."""
        return self._papers.setdefault(number, Papers(self._secrets.secret, self._secrets.former))

    def why_apart(self, source: int, target: int) -> str:
        """Why a host has no session with another; "": it has one."""
        if not self._papers or source == CLIENTS:
            return ""
        one, other = (self._papers.get(each, self._secrets) for each in (source, target))
        if one.stale or other.stale:
            return "a certificate has expired"
        channel = b"of %d and %d" % (source, target)
        return greet(one.identity(source), other.identity(target), (channel, channel))

    def others_go_by(self, secret: str, former: str = "") -> None:
        """Set the common papers, also of hosts that appear later."""
        self._secrets = Papers(secret, former)


def greet(client: Identity, server: Identity, channels: tuple[bytes, bytes]) -> str:
    """A handshake; returns why it fails, or "". `channels`: those of the client's and the server's connection."""
    mine, theirs = ClientHandshake(client), ServerHandshake(server)
    theirs.first(channels[1])
    said = mine.first(channels[0])
    try:
        while said is not None:
            answer = theirs.receive(said)
            said = None if answer is None else mine.receive(answer)
    except HandshakeFailed as error:
        return str(error)
    return "" if mine.met is not None and theirs.met is not None else "nobody is known"


def knock(node: Identity, other: Identity) -> str:
    """The attempts of a stranger to connect to `node`, having overheard what it and `other` said; returns what got him
    in, or "".
    """
    channel, own = b"of the two", b"of the stranger"
    heard: list[Message] = []
    client, server = ClientHandshake(other), ServerHandshake(node)
    server.first(channel)
    said = client.first(channel)
    while said is not None:
        heard.append(said)
        answer = server.receive(said)
        said = None if answer is None else client.receive(answer)
    guessed = Identity(CLUSTER, "guessed", other.node, other.run)
    foreign = Identity("another", node.secret, other.node, other.run)
    for name, attempt in (("a guess", guessed), ("another cluster's node", foreign)):
        if not greet(attempt, node, (channel, channel)):
            return name
    if not greet(other, node, (channel, own)):
        return "a relay"
    for name, messages in (
        ("a replay", heard),
        ("a proof alone", heard[1:]),
        ("a proof of nothing", [heard[0], Proof(bytes(32))]),
    ):
        replayed = ServerHandshake(node)
        replayed.first(channel)
        try:
            for message in messages:
                replayed.receive(message)
        except HeadraceError:
            pass
        if replayed.met is not None:
            return name
    return ""

"""Who nodes are to each other: the handshake that sessions make (peer.handshake), and those that do not pass it.

A host has papers: the secrets that its process goes by, and a certificate. While no host's are other than all others',
nothing is asked of anybody, as everybody would pass. Else each session and each call begins with the handshake, made by
the very state machines that nodes have: what a host with wrong papers says gets to no handler, nor is it answered.

In a run it is one of a few nodes for a while (its file was mixed up, or its certificate ran out), or somebody from
outside; or the secret itself changes, node by node, which nobody is to notice.
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
"""The host of clients, who are no nodes."""


@dataclass(slots=True)
class Papers:
    """What a host shows, and checks others by."""

    secret: str = FIRST
    former: str = ""
    wrong: int = 0
    """It goes by another cluster's secret: so many faults say so."""
    stale: int = 0
    """Its certificate has expired, likewise."""

    @property
    def is_odd(self) -> bool:
        """No node knows it."""
        return bool(self.wrong or self.stale)

    def identity(self, number: int) -> Identity:
        secret, former = ("another secret", "") if self.wrong else (self.secret, self.former)
        return Identity(CLUSTER, secret, NodeId(number), uuid.UUID(int=number), former_secret=former)


class Strangers:
    """The papers of all hosts that have any of their own."""

    def __init__(self) -> None:
        self._papers: dict[int, Papers] = {}
        self._secrets = Papers()
        """What all others go by."""
        self.changing = False
        """The secret changes: it does so once at a time, as there are two of them at most."""

    def of(self, number: int) -> Papers:
        """A host's, which may be changed."""
        return self._papers.setdefault(number, Papers(self._secrets.secret, self._secrets.former))

    def why_apart(self, source: int, target: int) -> str:
        """Why a host has no session with another; "": it has."""
        if not self._papers or source == CLIENTS:
            return ""
        one, other = (self._papers.get(each, self._secrets) for each in (source, target))
        if one.stale or other.stale:
            return "a certificate has expired"
        channel = b"of %d and %d" % (source, target)
        return greet(one.identity(source), other.identity(target), (channel, channel))

    def others_go_by(self, secret: str, former: str = "") -> None:
        """Of hosts that have no papers of their own, and come later."""
        self._secrets = Papers(secret, former)


def greet(client: Identity, server: Identity, channels: tuple[bytes, bytes]) -> str:
    """A handshake; why it fails, "" where it does not. `channels`: of the client's connection, and the server's."""
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
    """What somebody from outside tries on `node`, who has heard what it and `other` said; with what they are let in, ""
    where it is with nothing.
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

"""Who a client is: the principal of a connection, and the rule for the names of users and groups. No I/O, no clock.

Names are compared code point by code point: case counts, and nothing is normalized. A name that breaks the rule below
is refused wherever it comes from (a request, a certificate, a token), so that it cannot forge a line of a log, and so
that every principal can be written in an access expression and as Kafka writes it, `User:alice`.

Invariant: only `NOBODY` is called ANONYMOUS, the word that Kafka has for a client that has proved nothing.
"""

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from headrace.base.errors import Code, HeadraceError

ANONYMOUS: Final = "ANONYMOUS"
NAME_LIMIT: Final = 249
"""Characters of a name, as of a topic's."""

_WILDCARD: Final = "*"
"""Kafka's ACLs mean everybody by `User:*`, so it is nobody's name."""
_TYPE: Final = "User:"
# Control characters (C0, DEL, C1), line and paragraph separators, marks that change the direction of a line, and
# surrogates, which UTF-8 cannot have. Spelt out, since every node must decide alike, whatever Unicode its Python has.
_FORBIDDEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class NameRefused(HeadraceError):
    """A name that no user or group can have."""

    code = Code.INVALID_REQUEST


class Mechanism(StrEnum):
    """How a client proved who it is."""

    NONE = "NONE"
    CERTIFICATE = "SSL"
    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"


@dataclass(frozen=True, slots=True)
class Principal:
    """The user of a connection. Raises NameRefused for a user that there cannot be, or that has proved nothing."""

    user: str
    mechanism: Mechanism
    groups: frozenset[str] = frozenset()
    """The groups that its token names. Those of the catalog come on top, at each check."""
    until: float | None = None
    """When the proof ends, in seconds of the node's monotonic clock, so that setting the time of day neither prolongs
    nor cuts a session; None: it lasts as long as the connection."""
    passwords: frozenset[bytes] = field(default=frozenset(), repr=False, compare=False)
    """Marks of the credentials that the password fits by which it is proven: they are gone once it is another one."""

    def __post_init__(self) -> None:
        if self.mechanism is not Mechanism.NONE:
            check_user_name(self.user)
        elif self.user != ANONYMOUS:
            raise NameRefused(f"the user {_shown(self.user)} has proved nothing, so it is {ANONYMOUS}")

    def __str__(self) -> str:
        """As Kafka writes it: `User:alice`."""
        return _TYPE + self.user

    @property
    def is_anonymous(self) -> bool:
        """Whether the client has proved nothing."""
        return self.user == ANONYMOUS

    def has_expired(self, now: float) -> bool:
        """Whether the proof has ended at `now`, in seconds of the monotonic clock."""
        return self.until is not None and now >= self.until


NOBODY: Final = Principal(ANONYMOUS, Mechanism.NONE)
"""A client that has proved nothing, on a listener that lets it in."""


def name_fault(name: str) -> str:
    """Why no user or group can have this name, in one line that can follow the name; "": one can."""
    if not name:
        return "is empty"
    if len(name) > NAME_LIMIT:
        return f"has {len(name)} characters, at most {NAME_LIMIT} are allowed"
    if found := _FORBIDDEN.search(name):
        return f"has the unprintable character U+{ord(found[0]):04X}"
    if name != name.strip():
        return "begins or ends with a blank"
    return "means everybody in Kafka's ACLs, so it is nobody's name" if name == _WILDCARD else ""


def check_name(name: str, *, kind: str = "user") -> None:
    """Raises NameRefused unless a user (or group, as `kind` says) can have this name. ANONYMOUS is one of them."""
    if fault := name_fault(name):
        raise NameRefused(f"the {kind} name {_shown(name)} {fault}")


def check_user_name(name: str) -> None:
    """Raises NameRefused unless somebody can be created, or proved, to be this user."""
    check_name(name)
    if name == ANONYMOUS:
        raise NameRefused(f"the user name {ANONYMOUS} is kept for clients that have proved nothing")


def user_of(principal: str) -> str:
    """The user whom Kafka writes as `User:alice`. Raises NameRefused for another type of principal, or a bad name."""
    if not principal.startswith(_TYPE):
        raise NameRefused(f"the principal {_shown(principal)} is not of the form {_TYPE}NAME")
    name = principal.removeprefix(_TYPE)
    check_name(name)
    return name


def _shown(name: str) -> str:
    return repr(name if len(name) <= 60 else name[:60] + "...")

"""The principal of a connection, and the rule for names of users and groups. No I/O, no clock.

Names are compared code point by code point: case matters, and nothing is normalized. A name that breaks the rule below
is refused wherever it comes from (a request, a certificate, a token), so that it cannot forge a log line, and so that
every principal can be written in an access expression and in Kafka's form, `User:alice`.

Invariant: only `NOBODY` is called ANONYMOUS, Kafka's word for a client that has proved nothing.
"""

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from headrace.base.errors import Code, HeadraceError

ANONYMOUS: Final = "ANONYMOUS"
NAME_LIMIT: Final = 249
"""Longest name in characters, as for topics."""

_WILDCARD: Final = "*"
"""The name that means everybody in Kafka's ACLs (`User:*`), so it cannot be a user's or a group's."""
_TYPE: Final = "User:"
# Control characters (C0, DEL, C1), line and paragraph separators, marks that change the direction of a line, and
# surrogates, which UTF-8 cannot have. Spelt out, so that all nodes agree, whatever Unicode version their Python has.
_FORBIDDEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class NameRefused(HeadraceError):
    """The name is not valid for a user or group."""

    code = Code.INVALID_REQUEST


class Mechanism(StrEnum):
    """How a client proved its identity."""

    NONE = "NONE"
    CERTIFICATE = "SSL"
    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"


@dataclass(frozen=True, slots=True)
class Principal:
    """The authenticated user of a connection. Raises NameRefused for an invalid user name, and for a name other than
    ANONYMOUS without a proof."""

    user: str
    mechanism: Mechanism
    groups: frozenset[str] = frozenset()
    """The groups in the client's token. The catalog's groups are added at each check."""
    until: float | None = None
    """When the proof expires, in seconds of the node's monotonic clock, so that setting the time of day neither
    prolongs nor cuts a session; None: it lasts as long as the connection."""
    passwords: frozenset[bytes] = field(default=frozenset(), repr=False, compare=False)
    """Marks of the stored credentials that the client's password matched. They disappear when the password changes."""

    def __post_init__(self) -> None:
        if self.mechanism is not Mechanism.NONE:
            check_user_name(self.user)
        elif self.user != ANONYMOUS:
            raise NameRefused(f"the user {_shown(self.user)} has proved nothing, so it is {ANONYMOUS}")

    def __str__(self) -> str:
        """The principal in Kafka's form: `User:alice`."""
        return _TYPE + self.user

    @property
    def is_anonymous(self) -> bool:
        """Whether the client has proved nothing."""
        return self.user == ANONYMOUS

    def has_expired(self, now: float) -> bool:
        """Whether the proof has expired at `now`, in seconds of the monotonic clock."""
        return self.until is not None and now >= self.until


NOBODY: Final = Principal(ANONYMOUS, Mechanism.NONE)
"""The principal of a client that has proved nothing, on a listener that admits it."""


def name_fault(name: str) -> str:
    """Why this is not a valid name for a user or group, in words that can follow the name; "": it is valid."""
    if not name:
        return "is empty"
    if len(name) > NAME_LIMIT:
        return f"has {len(name)} characters, at most {NAME_LIMIT} are allowed"
    if found := _FORBIDDEN.search(name):
        return f"has the unprintable character U+{ord(found[0]):04X}"
    if name != name.strip():
        return "begins or ends with a blank"
    return "means everybody in Kafka's ACLs, so no user can have this name" if name == _WILDCARD else ""


def check_name(name: str, *, kind: str = "user") -> None:
    """Raise NameRefused unless the name is valid for a user (or group, as `kind` says). ANONYMOUS is valid."""
    if fault := name_fault(name):
        raise NameRefused(f"the {kind} name {_shown(name)} {fault}")


def check_user_name(name: str) -> None:
    """Raise NameRefused unless a user with this name can be created or authenticated."""
    check_name(name)
    if name == ANONYMOUS:
        raise NameRefused(f"the user name {ANONYMOUS} is kept for clients that have proved nothing")


def user_of(principal: str) -> str:
    """The user name in Kafka's `User:alice`. Raises NameRefused for another type of principal, or an invalid name."""
    if not principal.startswith(_TYPE):
        raise NameRefused(f"the principal {_shown(principal)} is not of the form {_TYPE}NAME")
    name = principal.removeprefix(_TYPE)
    check_name(name)
    return name


def _shown(name: str) -> str:
    return repr(name if len(name) <= 60 else name[:60] + "...")

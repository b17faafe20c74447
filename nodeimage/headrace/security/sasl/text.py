"""Text that clients send: whole messages, and the names of users and groups in them."""

from typing import Final

from headrace.security.sasl.outcome import Refusal, SaslFailed

MOST_NAME_BYTES: Final = 1024
"""Of a user's or a group's name in UTF-8."""


def message_text(message: bytes, *, most_bytes: int) -> str:
    """The text of a message. Raises SaslFailed for one that is too long or not UTF-8."""
    if len(message) > most_bytes:
        raise SaslFailed(Refusal.TOKEN_TOO_LONG)
    try:
        return message.decode()
    except UnicodeDecodeError:
        pass  # raised outside of this handler: Python's error holds the message, and a password with it
    raise SaslFailed(Refusal.MALFORMED)


def checked_name(name: str) -> str:
    """The name. Raises SaslFailed for one that is empty, too long, not Unicode text, or has control characters."""
    try:
        length = len(name.encode())
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can write
        length = 0
    if not 0 < length <= MOST_NAME_BYTES or any(letter < " " or "\x7f" <= letter <= "\x9f" for letter in name):
        raise SaslFailed(Refusal.ILLEGAL_NAME)
    return name


def unescaped_name(escaped: str) -> str:
    """A name as SCRAM and OAUTHBEARER write it, with `=2C` for a comma and `=3D` for an equals sign (RFC 5802, 5.1).

    Raises SaslFailed for any other use of the two.
    """
    head, *rest = escaped.split("=")
    if "," in escaped or not all(part.startswith(("2C", "3D")) for part in rest):
        raise SaslFailed(Refusal.ILLEGAL_NAME)
    return checked_name(head + "".join(("," if part[0] == "2" else "=") + part[2:] for part in rest))

"""Text from clients: whole messages, and the names of users and groups in them."""

from typing import Final

from headrace.security.sasl.outcome import Refusal, SaslFailed

MAX_NAME_BYTES: Final = 1024
"""The maximum number of bytes of a user's or a group's name in UTF-8."""


def message_text(message: bytes, *, most_bytes: int) -> str:
    """The text of a message. Raises SaslFailed if it is too long or not UTF-8."""
    if len(message) > most_bytes:
        raise SaslFailed(Refusal.TOKEN_TOO_LONG)
    try:
        return message.decode()
    except UnicodeDecodeError:
        pass  # raise outside this handler: Python's error holds the message, and a password with it
    raise SaslFailed(Refusal.MALFORMED)


def checked_name(name: str) -> str:
    """Return the name. Raises SaslFailed if it is empty, too long, not Unicode text, or has control characters."""
    try:
        length = len(name.encode())
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can write
        length = 0
    if not 0 < length <= MAX_NAME_BYTES or any(letter < " " or "\x7f" <= letter <= "\x9f" for letter in name):
        raise SaslFailed(Refusal.ILLEGAL_NAME)
    return name


def unescaped_name(escaped: str) -> str:
    """The name from the form that SCRAM and OAUTHBEARER use, with `=2C` for a comma and `=3D` for an equals sign (RFC
    5802, 5.1).

    Raises SaslFailed for any other use of the equals sign or comma.
    """
    head, *rest = escaped.split("=")
    if "," in escaped or not all(part.startswith(("2C", "3D")) for part in rest):
        raise SaslFailed(Refusal.ILLEGAL_NAME)
    return checked_name(head + "".join(("," if part[0] == "2" else "=") + part[2:] for part in rest))

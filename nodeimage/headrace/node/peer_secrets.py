"""The secrets by which nodes know each other, where a file says them: the newest, and while it changes the former one.

    1f9c22ab04d3e5f6...   the newest, in hexadecimal digits, 32 of them at least
    77d0aa3c5e9b1264...   the former one, which is good too; often it is not there

Without the file it is the secret in the cluster's own record, which is also what the record's secret stays good for
otherwise: it seals the credentials of links. A file that cannot be used, or that is there no longer, leaves in use what
was. Nothing of a secret is in a fault, a log or a status but `id_of` it.
"""

import hmac
import re
from pathlib import Path
from typing import Final, NamedTuple

from headrace.base.errors import Code, HeadraceError

MOST_BYTES: Final = 4_096
LEAST_DIGITS: Final = 32
_SECRET: Final = re.compile(rf"[0-9a-f]{{{LEAST_DIGITS},512}}")
_ID_BYTES: Final = 4


class SecretsRefused(HeadraceError):
    """A file that says no secrets."""

    code = Code.INVALID_CONFIG


class Secrets(NamedTuple):
    """What proofs are checked against."""

    newest: str
    former: str = ""
    """"": there is none."""

    def __repr__(self) -> str:
        return f"Secrets(ids={self.ids})"

    @property
    def ids(self) -> list[str]:
        """What may be shown of them."""
        return [id_of(secret) for secret in self if secret]


class PeerSecrets:
    """Of one node. [blocking] throughout; one thread at a time."""

    def __init__(self, file: Path) -> None:
        """Raises SecretsRefused for a file that is there and says none."""
        self._file = file
        self.told = read_secrets(file)
        """What the file says, or said last; None: it was never there."""
        self.fault = ""
        """Why what is in the file is not in use; "": it is."""

    def look(self) -> bool:
        """Read the file again; whether it says something else."""
        try:
            found = read_secrets(self._file)
        except SecretsRefused as error:
            self.fault = str(error)
            return False
        if found is None and self.told is not None:
            self.fault = f"{self._file} is gone; what it said stays in use until this node starts again: put it back"
            return False
        self.fault = ""
        if found == self.told:
            return False
        self.told = found
        return True


def id_of(secret: str) -> str:
    """By which people tell one secret from another."""
    return hmac.digest(secret.encode(), b"headrace secret id", "sha256")[:_ID_BYTES].hex()


def read_secrets(file: Path) -> Secrets | None:
    """[blocking] What a file says; None: it is not there. Raises SecretsRefused."""
    try:
        with file.open("rb") as opened:
            content = opened.read(MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SecretsRefused(f"{file} cannot be read: {error.strerror}") from None
    lines = content.decode("ascii", "replace").split()
    if len(content) > MOST_BYTES or not 1 <= len(lines) <= 2 or not all(map(_SECRET.fullmatch, lines)):
        raise SecretsRefused(
            f"{file} is not one secret, or two, the newest first: each a line of {LEAST_DIGITS} or more of 0-9 and a-f"
        )
    if len(set(lines)) < len(lines):
        raise SecretsRefused(f"{file} says the same secret twice; say it once, or the former one in the second line")
    return Secrets(*lines)

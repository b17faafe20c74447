"""The secrets by which nodes authenticate each other, from a file: the newest, and during a change the former one too.

    1f9c22ab04d3e5f6...   the newest, at least 32 hexadecimal digits
    77d0aa3c5e9b1264...   the former one, which is also accepted; usually absent

Without the file, nodes use the secret in the cluster's own record. With it, the record's secret still seals the
credentials of links. If the file cannot be used, or disappears, the previous secrets stay in use. Errors, logs and
statuses contain no part of a secret except its `id_of`.
"""

import hmac
import re
from pathlib import Path
from typing import Final, NamedTuple

from headrace.base.errors import Code, HeadraceError

MAX_BYTES: Final = 4_096
MIN_DIGITS: Final = 32
_SECRET: Final = re.compile(rf"[0-9a-f]{{{MIN_DIGITS},512}}")
_ID_BYTES: Final = 4


class SecretsRefused(HeadraceError):
    """The file contains no valid secrets."""

    code = Code.INVALID_CONFIG


class Secrets(NamedTuple):
    """The secrets that proofs are checked against."""

    newest: str
    former: str = ""
    """The former secret; "": there is none."""

    def __repr__(self) -> str:
        return f"Secrets(ids={self.ids})"

    @property
    def ids(self) -> list[str]:
        """The ids of the secrets, which may be shown."""
        return [id_of(secret) for secret in self if secret]


class PeerSecrets:
    """One node's secrets file. [blocking] throughout; used by one thread at a time."""

    def __init__(self, file: Path) -> None:
        """Raises SecretsRefused for an existing file without valid secrets."""
        self._file = file
        self.secrets = read_secrets(file)
        """The secrets that the file last contained; None: the file has never existed."""
        self.fault = ""
        """Why the file's contents are not in use; "": they are."""

    def look(self) -> bool:
        """Read the file again; returns whether its secrets changed."""
        try:
            found = read_secrets(self._file)
        except SecretsRefused as error:
            self.fault = str(error)
            return False
        if found is None and self.secrets is not None:
            self.fault = f"{self._file} is gone; what it said stays in use until this node starts again: put it back"
            return False
        self.fault = ""
        if found == self.secrets:
            return False
        self.secrets = found
        return True


def id_of(secret: str) -> str:
    """An id by which people can tell secrets apart."""
    return hmac.digest(secret.encode(), b"headrace secret id", "sha256")[:_ID_BYTES].hex()


def read_secrets(file: Path) -> Secrets | None:
    """[blocking] The secrets in a file; None: it does not exist. Raises SecretsRefused."""
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SecretsRefused(f"{file} cannot be read: {error.strerror}") from None
    lines = content.decode("ascii", "replace").split()
    if len(content) > MAX_BYTES or not 1 <= len(lines) <= 2 or not all(map(_SECRET.fullmatch, lines)):
        raise SecretsRefused(
            f"{file} is not one secret, or two, the newest first: each a line of {MIN_DIGITS} or more of 0-9 and a-f"
        )
    if len(set(lines)) < len(lines):
        raise SecretsRefused(f"{file} holds the same secret twice; write it once, or the former one in the second line")
    return Secrets(*lines)

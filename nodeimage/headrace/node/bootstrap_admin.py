"""The first administrator of a secure cluster, from a file (`--bootstrap-admin`), in TOML:

user = "admin"
password = "..."
"""

import stat
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from headrace.base.errors import Code, HeadraceError
from headrace.security.principals import check_user_name
from headrace.security.sasl.plain_server import MAX_PASSWORD_BYTES

log = structlog.get_logger()

MAX_BYTES: Final = 64 << 10
MIN_PASSWORD: Final = 8
"""Fewest characters of a bootstrap administrator's password."""
_KEYS: Final = frozenset({"user", "password"})


class BootstrapRefused(HeadraceError):
    """The file of `--bootstrap-admin` cannot be used."""

    code = Code.INVALID_CONFIG


@dataclass(frozen=True, slots=True)
class BootstrapAdmin:
    """The user who becomes the administrator of a cluster that has none."""

    user: str
    password: str = field(repr=False)


def read_bootstrap_admin(path: Path) -> BootstrapAdmin:
    """[blocking] The administrator that a file describes. Raises BootstrapRefused, whose text contains nothing of the
    file but the user's name."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(path.stat().st_mode)
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise _refused(path, f"cannot be read: {error.strerror}") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        log.warning("others may read the administrator's password: make it chmod 600", file=str(path))
    try:
        fields = tomllib.loads(content.decode()) if len(content) <= MAX_BYTES else None
    except ValueError:  # bad TOML or UTF-8; the error itself may quote the file
        fields = None
    if fields is None:
        raise _refused(path, 'is not TOML with user = "..." and password = "..."')
    user, password = fields.get("user"), fields.get("password")
    if fields.keys() != _KEYS or not isinstance(user, str) or not isinstance(password, str):
        raise _refused(path, 'has to hold user = "..." and password = "...", and nothing else')
    try:
        check_user_name(user)
    except HeadraceError as error:
        raise _refused(path, str(error)) from None
    if len(password) < MIN_PASSWORD or len(password.encode()) > MAX_PASSWORD_BYTES:
        raise _refused(
            path, f"password has to have {MIN_PASSWORD} characters at least, and {MAX_PASSWORD_BYTES} bytes at most"
        )
    return BootstrapAdmin(user, password)


def _refused(path: Path, fault: str) -> BootstrapRefused:
    return BootstrapRefused(f"--bootstrap-admin {path}: {fault}")

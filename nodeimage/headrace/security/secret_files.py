"""Files that hold secrets: reading them, checking who else may read them, and writing them for their owner only. All
calls block.

A file is written next to its place and renamed into it: a reader finds either the old or the new file, complete, even
after a crash. The next write overwrites the leftovers of a crash.
"""

import os
import stat
from pathlib import Path
from typing import Final

from headrace.base.errors import Code, KafkaError

MAX_BYTES: Final = 1 << 20


def read_text(path: Path) -> str:
    """The file's text. Raises KafkaError INVALID_CONFIG, which says why it cannot be read."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise KafkaError(Code.INVALID_CONFIG, f"{path} cannot be read: {why}") from None
    if len(content) > MAX_BYTES:
        raise KafkaError(Code.INVALID_CONFIG, f"{path} has more than {MAX_BYTES} bytes: it is another kind of file")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise KafkaError(Code.INVALID_CONFIG, f"{path} is not UTF-8") from None


def read_password(path: Path) -> str:
    """The file's only line. Raises KafkaError INVALID_CONFIG if there is none, or more than one."""
    password = read_text(path).removesuffix("\n").removesuffix("\r")
    if not password or "\n" in password or "\r" in password:
        raise KafkaError(Code.INVALID_CONFIG, f"{path} holds no password: it is one line")
    return password


def may_be_read_by_others(path: Path) -> bool:
    """Whether the owner's group or all users of the machine may read the file; False if it does not exist."""
    try:
        return bool(stat.S_IMODE(path.stat().st_mode) & (stat.S_IRGRP | stat.S_IROTH))
    except (OSError, ValueError):
        return False


def write(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Replace the file by one with this text. Raises OSError."""
    draft = path.with_name(f"{path.name}.new")
    draft.unlink(missing_ok=True)  # a leftover may have another mode
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, mode)  # the umask may have removed bits
        file.write(text)
        file.flush()
        os.fsync(descriptor)
    draft.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)

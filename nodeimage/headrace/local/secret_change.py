"""Changes the secret by which the nodes of a folder authenticate each other, while they run, in two steps.

First the file gets a new secret beside the former one, and nodes accept both from their next look at it on; once all
have looked, the file gets the new one only. A crash leaves the file after one step or the other.
"""

import os
import secrets
from pathlib import Path
from typing import Final

from headrace.base.errors import HeadraceError
from headrace.local.folder import node_folders
from headrace.local.founding import opened_store
from headrace.local.starting import PEER_SECRETS
from headrace.node.client_listeners import LOOK_S
from headrace.node.peer_secrets import Secrets, read_secrets
from headrace.store import records

BYTES: Final = 32
LOOKED_S: Final = 6 * LOOK_S
"""Seconds within which every running node has looked at the file, however busy it is."""


class SecretNotChanged(HeadraceError):
    """The step is not due."""


def begin(folder: Path) -> Secrets:
    """[blocking] Make nodes accept a new secret beside the present one. Raises HeadraceError."""
    file = folder / PEER_SECRETS
    known = read_secrets(file)
    if known is not None and known.former:
        raise SecretNotChanged("the secret is being changed already: `headrace rotate-secret --finish` finishes that")
    return _write(file, Secrets(secrets.token_hex(BYTES), _record_secret(folder) if known is None else known.newest))


def finish(folder: Path, *, now: float) -> Secrets:
    """[blocking] Make nodes accept the newest secret only. `now`: seconds since 1970. Raises HeadraceError."""
    file = folder / PEER_SECRETS
    known = read_secrets(file)
    if known is None or not known.former:
        raise SecretNotChanged("the secret is not being changed: `headrace rotate-secret` starts a change")
    left_s = LOOKED_S - (now - file.stat().st_mtime)
    if left_s > 0:
        raise SecretNotChanged(f"nodes may not have read the new secret yet: try again in {left_s:.0f} s")
    return _write(file, Secrets(known.newest))


def _record_secret(folder: Path) -> str:
    if not node_folders(folder):
        raise SecretNotChanged(f"{folder} holds no cluster; name its folder with --data")
    with opened_store(folder) as store:
        return records.ensure_cluster(store).secret


def _write(file: Path, secrets_to_write: Secrets) -> Secrets:
    draft = file.with_suffix(".new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as opened:
        opened.writelines(f"{secret}\n" for secret in secrets_to_write if secret)
        opened.flush()
        os.fsync(descriptor)
    draft.replace(file)
    return secrets_to_write

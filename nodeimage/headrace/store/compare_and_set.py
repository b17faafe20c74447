"""Changes of one record of the cluster store that hold, whoever else changes it: by compare and set, again and again.

Knows nothing of what the records say: what becomes of one is decided by who asks, anew where somebody else was faster.
All functions block.
"""

import secrets
import time
from collections.abc import Callable

import msgspec

from headrace.store.protocol import ClusterStore, VersionConflict
from headrace.store.record_types import NextId, R, decode

_SKIPPED = 100
"""Ids of which nothing may be left."""
NEXT_PREFIX = "next/"
_PAUSE_S = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02)


def read(store: ClusterStore, key: str, type_: type[R]) -> R | None:
    """The record under `key`, as it is now."""
    found = store.get(key)
    return None if found is None else decode(found.value, type_, key)


def change(
    store: ClusterStore, key: str, type_: type[R], decide: Callable[[R | None], R], *, anyway: bool = False
) -> R:
    """Compare and set until it holds. A record that need not change is not written, unless `anyway`: for what is
    ordered, and may be ordered otherwise next, as an earlier order may still land whose answer was lost.
    """
    attempt = 0
    while True:
        found = store.get(key)
        present = None if found is None else decode(found.value, type_, key)
        wanted = decide(present)
        if wanted == present and not anyway:
            return wanted
        try:
            store.put(key, msgspec.json.encode(wanted), None if found is None else found.version)
        except VersionConflict:
            # Somebody else got on, so this ends; the pause keeps many processes from colliding again.
            time.sleep(secrets.SystemRandom().uniform(0, _PAUSE_S[min(attempt, len(_PAUSE_S) - 1)]))
            attempt += 1
        else:
            return wanted


def take_id(store: ClusterStore, kind: str, *, least: int = 0) -> int:
    """An id that nobody has had, and not below `least`: what the taker has seen of them, as the store may have been set
    back.
    """

    def decide(present: NextId | None) -> NextId:
        return NextId(1 + max((present or NextId()).next, least))

    return change(store, f"{NEXT_PREFIX}{kind}", NextId, decide).next - 1


def had_id(store: ClusterStore, kind: str, id: int) -> bool:
    """Whether the id was handed out, or skipped."""
    return id < (read(store, f"{NEXT_PREFIX}{kind}", NextId) or NextId()).next


def skip_ids(store: ClusterStore, kind: str, highest: int) -> None:
    """No id up to `highest`, nor any that may have been handed out behind it, is handed out (again)."""

    def decide(present: NextId | None) -> NextId:
        return NextId(max((present or NextId()).next, highest + _SKIPPED))

    change(store, f"{NEXT_PREFIX}{kind}", NextId, decide)

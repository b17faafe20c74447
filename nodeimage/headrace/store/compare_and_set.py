"""Changes of one record of the cluster store by compare-and-set, repeated until they succeed.

Knows nothing of what the records say: the caller decides what a record becomes, and decides again if another process
was faster. All functions block.
"""

import secrets
import time
from collections.abc import Callable

import msgspec

from headrace.store.protocol import ClusterStore, VersionConflict
from headrace.store.record_types import NextId, R, decode

_SKIPPED = 100
"""Ids skipped after the highest known one, since they may have been handed out unseen."""
NEXT_PREFIX = "next/"
"""Prefix of the keys of id counters."""
_PAUSE_S = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02)
"""Upper bounds, in seconds, of the random pause after each conflict; the last one repeats."""


def read(store: ClusterStore, key: str, type_: type[R]) -> R | None:
    """Return the record under `key`; None if there is none."""
    found = store.get(key)
    return None if found is None else decode(found.value, type_, key)


def change(
    store: ClusterStore, key: str, type_: type[R], decide: Callable[[R | None], R], *, anyway: bool = False
) -> R:
    """Compare and set until it succeeds; return the record as written.

    A record that need not change is not written, unless `anyway`. Use `anyway` for settings that may be reversed: an
    earlier write whose answer was lost might still be stored, and this write prevents that.
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
            # Another process has made progress, so this loop ends; the pause keeps many processes from colliding again.
            time.sleep(secrets.SystemRandom().uniform(0, _PAUSE_S[min(attempt, len(_PAUSE_S) - 1)]))
            attempt += 1
        else:
            return wanted


def take_id(store: ClusterStore, kind: str, *, least: int = 0) -> int:
    """Return an id that was never handed out, at least `least`.

    `least` is above what the caller has seen handed out, since the store may have been restored to an old copy.
    """

    def decide(present: NextId | None) -> NextId:
        return NextId(1 + max((present or NextId()).next, least))

    return change(store, f"{NEXT_PREFIX}{kind}", NextId, decide).next - 1


def had_id(store: ClusterStore, kind: str, id: int) -> bool:
    """Return whether the id was handed out or skipped."""
    return id < (read(store, f"{NEXT_PREFIX}{kind}", NextId) or NextId()).next


def skip_ids(store: ClusterStore, kind: str, highest: int) -> None:
    """Never hand out ids up to `highest` (again), nor the next ones, which may have been handed out unseen."""

    def decide(present: NextId | None) -> NextId:
        return NextId(max((present or NextId()).next, highest + _SKIPPED))

    change(store, f"{NEXT_PREFIX}{kind}", NextId, decide)

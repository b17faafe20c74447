"""The keys of an issuer, kept up to date (RFC 7517, section 5): when to fetch them, and which keys are used meanwhile.

1. A set is fetched again each hour. A failed fetch is retried after 100 ms, doubling up to 10 s, and the keys of the
   last set stay in use.
2. A request for a key id that is not in the set brings the next fetch forward, at most once in 10 s. The caller waits
   for that fetch, for 5 s at most.
3. A set without any usable key counts as a failed fetch.

`KeySet.run` makes all fetches, so a client that disconnects interrupts none.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import structlog

from headrace.base.backoff import Backoff
from headrace.base.errors import HeadraceError
from headrace.security.sasl.jose_text import json_object
from headrace.security.sasl.jwk import UnusableKey, VerifyingKey, key_of

log = structlog.get_logger()

REFRESH_S: Final = 3600.0
ASK_S: Final = 10.0
WAIT_S: Final = 5.0
MIN_RETRY_S: Final = 0.1
MAX_RETRY_S: Final = 10.0
MAX_JWKS_BYTES: Final = 256 << 10
MAX_KEYS: Final = 256

Keys = Mapping[str, Sequence[VerifyingKey]]
"""Keys by key id."""


class JwksUnavailable(HeadraceError):
    """A key set could not be fetched, or is not valid."""


def keys_of(document: bytes) -> Keys:
    """The keys of a set that can check tokens. Raises JwksUnavailable if there is none."""
    if len(document) > MAX_JWKS_BYTES:
        raise JwksUnavailable(f"the key set is longer than {MAX_JWKS_BYTES} bytes")
    try:
        entries = json_object(document).get("keys")
    except ValueError:
        raise JwksUnavailable("the key set is not JSON") from None
    if not isinstance(entries, list) or len(entries) > MAX_KEYS:
        raise JwksUnavailable(f"the key set is not a list of at most {MAX_KEYS} keys")
    found: dict[str, list[VerifyingKey]] = {}
    for entry in entries:
        try:
            key = key_of(entry)
        except UnusableKey:
            continue  # sets hold keys for other uses too
        found.setdefault(key.key_id, []).append(key)
    if not found:
        raise JwksUnavailable("the key set has no key for signatures with an id")
    return found


class RefreshSchedule:
    """When the next fetch is due. Pure; times are seconds of one monotonic clock."""

    def __init__(self, now_s: float) -> None:
        self.due_s = now_s
        self._backoff = Backoff(MIN_RETRY_S, MAX_RETRY_S)
        self._asked_s: float | None = None

    def succeeded(self, now_s: float) -> None:
        self._backoff.succeeded()
        self.due_s = now_s + REFRESH_S

    def failed(self, now_s: float) -> None:
        """Move `due_s` by the back-off."""
        self.due_s = now_s + self._backoff.failed()

    def ask(self, now_s: float) -> bool:
        """Bring the next fetch forward for an unknown key, and return True; False: too soon after the last time."""
        if self._asked_s is not None and now_s - self._asked_s < ASK_S:
            return False
        self._asked_s = now_s
        self.due_s = min(self.due_s, now_s)
        return True


class KeySet:
    """The keys of one issuer. `run` has to run as long as they are needed."""

    def __init__(self, fetch: Callable[[], Awaitable[bytes]], *, clock_s: Callable[[], float]) -> None:
        """`fetch` raises JwksUnavailable; `clock_s` is monotonic, at the pace of the loop's."""
        self._fetch = fetch
        self._clock_s = clock_s
        self._schedule = RefreshSchedule(clock_s())
        self._keys: Keys = {}
        self._is_failing = False
        self._is_due = asyncio.Event()
        self._fetched = asyncio.Event()
        """Set when the current fetch, or the next one, is over."""

    async def run(self) -> None:
        """Fetch whenever a fetch is due, until cancelled."""
        while True:
            await self._until_due()
            await self._refresh()

    async def keys(self, key_id: str) -> Sequence[VerifyingKey]:
        """The keys with this id; empty if there are none, or if the set could not be fetched in time."""
        if not (found := self._keys.get(key_id)) and self._will_fetch():
            self._is_due.set()
            try:
                async with asyncio.timeout(WAIT_S):
                    await self._fetched.wait()
            except TimeoutError:
                return ()
            found = self._keys.get(key_id)
        return found or ()

    def _will_fetch(self) -> bool:
        """Whether a fetch is running (it stays due until it is over), or starts at once."""
        now_s = self._clock_s()
        return now_s >= self._schedule.due_s or self._schedule.ask(now_s)

    async def _until_due(self) -> None:
        while (left_s := self._schedule.due_s - self._clock_s()) > 0:
            self._is_due.clear()
            try:
                async with asyncio.timeout(left_s):
                    await self._is_due.wait()
            except TimeoutError:
                pass

    async def _refresh(self) -> None:
        try:
            self._keys = keys_of(await self._fetch())
        except JwksUnavailable as error:
            self._schedule.failed(self._clock_s())
            if not self._is_failing:
                log.warning("key set not refreshed", error=str(error), keys_kept=len(self._keys))
            self._is_failing = True
        else:
            self._schedule.succeeded(self._clock_s())
            if self._is_failing:
                log.info("key set refreshed again", keys=len(self._keys))
            self._is_failing = False
        finally:
            self._fetched.set()
            self._fetched = asyncio.Event()

"""How much a link may fetch now: bytes that it holds, and bytes a second. Pure: no clock, no I/O.

`ByteBudget` bounds what has been asked for or has come, and is not committed here yet. What is asked for is reserved in
full until it has come. A source gives at least one whole batch, so one answer may exceed its reservation by that batch;
then nothing more is asked for until there is room again.

`ByteRate` bounds the rate. Bytes are paid for when they have come, so the bucket may be overdrawn by one answer.
"""

from typing import Final

from headrace.base.token_bucket import TokenBucket

BURST_S: Final = 0.25
"""A throttled link that was idle may fetch what comes in this time at once."""


class ByteBudget:
    """Bytes reserved by fetches under way, and held by batches that are not committed."""

    __slots__ = ("held", "limit", "reserved")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.reserved = 0
        self.held = 0

    @property
    def free(self) -> int:
        """What may be asked for now; below 0 after an answer that was longer than its reservation."""
        return self.limit - self.reserved - self.held

    def reserve(self, count: int) -> None:
        """A fetch of `count` bytes begins. They are free."""
        assert count <= self.free, "more than the budget is asked for"
        self.reserved += count

    def came(self, reserved: int, held: int) -> None:
        """A fetch that had `reserved` is over; `held` bytes came of it and are kept."""
        self.reserved -= reserved
        self.held += held

    def release(self, count: int) -> None:
        """`count` bytes are committed here, or dropped."""
        self.held -= count


class ByteRate:
    """So many bytes a second; a rate of 0 has no bound."""

    __slots__ = ("_bytes", "rate")

    def __init__(self, rate: int, now: float) -> None:
        self.rate = rate
        self._bytes = TokenBucket(rate * BURST_S, now)

    def set_rate(self, rate: int, now: float) -> None:
        """From now on."""
        self._fill(now)
        self.rate = rate
        self._fill(now)

    def allowed(self, now: float) -> int | None:
        """Bytes that may be fetched now, 0 for none; None: any number."""
        return max(0, int(self._fill(now))) if self.rate else None

    def pay(self, count: int, now: float) -> None:
        """`count` bytes came."""
        if self.rate:
            self._fill(now)
            self._bytes.take(count)

    def ready_at(self, count: int, now: float) -> float:
        """When `count` bytes are allowed, or as many as ever are at once."""
        if not self.rate:
            return now
        missing = min(count, self.rate * BURST_S) - self._fill(now)
        return now if missing <= 0 else now + missing / self.rate

    def _fill(self, now: float) -> float:
        return self._bytes.fill(now, per_s=self.rate, burst=self.rate * BURST_S)

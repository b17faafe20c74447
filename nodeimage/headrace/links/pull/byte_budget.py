"""How much a link may fetch now, bounded by bytes held and by bytes a second. Pure: no clock, no I/O.

`ByteBudget` bounds the bytes that were requested or have arrived, and are not committed here yet. A fetch reserves all
that it requests until its answer has arrived. A source sends at least one whole batch, so an answer may exceed its
reservation by that batch; then nothing more is requested until there is room again.

`ByteRate` bounds the rate. Bytes are paid for when they have arrived, so one answer may overdraw the bucket.
"""

from typing import Final

from headrace.base.token_bucket import TokenBucket

BURST_S: Final = 0.25
"""A throttled link that was idle may fetch at once as many bytes as its rate allows in this time, in seconds."""


class ByteBudget:
    """Bytes reserved by fetches in progress, and bytes held by uncommitted batches."""

    __slots__ = ("held", "limit", "reserved")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.reserved = 0
        self.held = 0

    @property
    def free(self) -> int:
        """Bytes that may be requested now; below 0 after an answer that was longer than its reservation."""
        return self.limit - self.reserved - self.held

    def reserve(self, count: int) -> None:
        """Begin a fetch of `count` bytes, which must be free."""
        assert count <= self.free, "more than the budget is asked for"
        self.reserved += count

    def arrived(self, reserved: int, held: int) -> None:
        """End a fetch that had `reserved` bytes; `held` bytes of its answer are kept."""
        self.reserved -= reserved
        self.held += held

    def release(self, count: int) -> None:
        """Release `count` bytes that are committed here, or dropped."""
        self.held -= count


class ByteRate:
    """A rate in bytes a second; 0 means no limit."""

    __slots__ = ("_bytes", "rate")

    def __init__(self, rate: int, now: float) -> None:
        self.rate = rate
        self._bytes = TokenBucket(rate * BURST_S, now)

    def allowed(self, now: float) -> int | None:
        """Bytes that may be fetched now, possibly 0; None if there is no limit."""
        return max(0, int(self._fill(now))) if self.rate else None

    def pay(self, count: int, now: float) -> None:
        """Pay for `count` bytes."""
        if self.rate:
            self._fill(now)
            self._bytes.take(count)

    def ready_at(self, count: int, now: float) -> float:
        """When `count` bytes will be allowed, or the largest burst if `count` is more."""
        if not self.rate:
            return now
        missing = min(count, self.rate * BURST_S) - self._fill(now)
        return now if missing <= 0 else now + missing / self.rate

    def _fill(self, now: float) -> float:
        return self._bytes.fill(now, per_s=self.rate, burst=self.rate * BURST_S)

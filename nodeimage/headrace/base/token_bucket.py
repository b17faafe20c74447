"""A token bucket: what comes in at a rate is saved up to a burst, and is taken as it is used. Pure."""


class TokenBucket:
    """Full at first. Rate and burst are said with each `fill`, as they may change."""

    __slots__ = ("_at", "tokens")

    def __init__(self, burst: float, now: float) -> None:
        """`now`: seconds of a monotonic clock."""
        self.tokens = burst
        """How many there were after the last call; below 0 where more was taken than there was."""
        self._at = now

    def fill(self, now: float, *, per_s: float, burst: float) -> float:
        """How many tokens there are by now, with those that came in. A clock that goes back brings none."""
        self.tokens = min(burst, self.tokens + max(0.0, now - self._at) * per_s)
        self._at = max(now, self._at)
        return self.tokens

    def take(self, amount: float = 1.0) -> None:
        """Take tokens, below none if need be."""
        self.tokens -= amount

"""A token bucket: tokens arrive at a rate, are saved up to a burst, and are taken when used. Pure."""


class TokenBucket:
    """Full at first. Rate and burst are parameters of each `fill`, as they may change."""

    __slots__ = ("_at", "tokens")

    def __init__(self, burst: float, now: float) -> None:
        """`now`: seconds of a monotonic clock."""
        self.tokens = burst
        """The number of tokens after the last call; negative if more were taken than existed."""
        self._at = now

    def fill(self, now: float, *, per_s: float, burst: float) -> float:
        """Adds the tokens that have arrived since the last call; returns the number of tokens. Adds none if the clock
        went back."""
        self.tokens = min(burst, self.tokens + max(0.0, now - self._at) * per_s)
        self._at = max(now, self._at)
        return self.tokens

    def take(self, amount: float = 1.0) -> None:
        """Takes tokens, even if the number becomes negative."""
        self.tokens -= amount

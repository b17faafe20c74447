"""The pace at which a client that pauses between bursts is answered, so that it need not pause.

Some clients stop fetching for a fixed time once they hold enough records: librdkafka for a second
(`fetch.queue.backoff.ms`) at 100,000 records. A program that has emptied the queue after a tenth of that second waits
for the rest of it, and the faster the answers arrive, the sooner the next pause begins. Answers that arrive no faster
than the program reads lead to no pause at all. No request reveals how fast the program reads: the rate is between the
client's average and the rate of the burst that led to a pause. So a rate between the two is *tried*, their geometric
mean.

A trial ends with the client's next pause, or when the client has read, without a pause, twice as much as in the longest
burst that led to one. If the trial's average, pause included, is better than that of any rate before, its rate is
accepted. The search continues between the rates that led to a pause and those that did not, until they are close to
each other. Then the best rate stays; another pause begins another search below it. While no rate without pauses is
known, a trial that is not better is the last one: such a client pauses to work on what it has read. After `HOLDS_S`
everything is forgotten.

So a client that never pauses is never delayed, and one that gains nothing is delayed for one trial in `HOLDS_S`.

Knows nothing of requests and has no clock: its owner reports each request and each answer, with the time.
"""

from typing import Final

LARGE_BYTES: Final = 64 * 1024
"""Bytes of a large answer: the client had more to read than what had just been produced. A client's pace is measured
from its first large answer on."""
PAUSE_S: Final = 0.5
"""Seconds without a request after an answer that count as a pause."""
LONGEST_PAUSE_S: Final = 5.0
"""Seconds without a request after which the client is taken not to have wanted to read."""
MIN_ANSWERS: Final = 4
"""Answers in the shortest burst: a client that works on each answer before its next request has no bursts."""
WORTHWHILE: Final = 1.5
"""How many times the average a burst's rate must be for a trial to begin."""
BETTER: Final = 1.1
NEAR: Final = 1.4
"""The ratio of two rates up to which no rate between them is tried."""
HOLDS_S: Final = 120.0
MAX_HELD_S: Final = 0.1
"""The longest delay of one request, in seconds."""
SLACK_S: Final = 0.005
"""Seconds of timer lateness that are compensated."""


class ReadingPace:
    """The reading pace of one connection. Times are monotonic seconds, sizes bytes of records, rates bytes per
    second."""

    __slots__ = (
        "_accepted",
        "_answered_at",
        "_answers",
        "_began",
        "_best",
        "_bytes",
        "_due",
        "_forget_at",
        "_gave_up",
        "_high",
        "_longest",
        "_low",
        "_low_is_tried",
        "_trying",
        "rate",
    )

    def __init__(self, now: float) -> None:
        """`now`: when the client's first large answer is sent; the caller reports it to `answered` next."""
        self.rate = 0.0
        """The highest rate at which the client is answered; 0.0: as fast as it requests."""
        self._accepted = 0.0
        self._best = 0.0
        """The best average rate so far."""
        self._low = 0.0
        """A rate at which the client reads without pausing, as far as known."""
        self._low_is_tried = False
        """Whether the rate `_low` was tried, and led to no pause."""
        self._high = 0.0
        """A rate that led to a pause."""
        self._longest = 0
        """Bytes of the longest burst that led to a pause."""
        self._trying = False
        self._gave_up = False
        """Whether no more rates are tried."""
        self._forget_at = now + HOLDS_S
        self._began = self._answered_at = self._due = now
        self._bytes = self._answers = 0

    def asked(self, now: float) -> float:
        """Note a request of the client; returns the seconds for which to delay it, 0.0 for none."""
        pause_s = now - self._answered_at
        if (
            pause_s >= PAUSE_S
            or (self._trying and self._bytes >= 2 * self._longest)
            or (self.rate and now >= self._forget_at)
        ):
            self._end_cycle(now, pause_s)
        if not self.rate:
            return 0.0
        return max(0.0, min(self._due - now, MAX_HELD_S))

    def answered(self, now: float, size: int) -> None:
        """Note that an answer with `size` bytes is sent."""
        self._answered_at = now
        self._bytes += size
        self._answers += 1
        if self.rate:
            self._due = max(self._due, now - SLACK_S) + size / self.rate

    def _end_cycle(self, now: float, pause_s: float) -> None:
        average = self._bytes / (now - self._began) if now > self._began else 0.0
        if now >= self._forget_at:
            self.rate = self._accepted = 0.0
            self._trying = self._gave_up = False
            self._forget_at = now + HOLDS_S
        if self._trying:
            self._judge(average, pause_s >= PAUSE_S)
        elif PAUSE_S <= pause_s <= LONGEST_PAUSE_S and not self._gave_up:
            self._begin(average)
        self._began = self._due = now
        self._bytes = self._answers = 0

    def _begin(self, average: float) -> None:
        """Begin a search, after a burst at the client's own rate led to a pause."""
        burst_s = self._answered_at - self._began
        if self._answers < MIN_ANSWERS or self._bytes <= WORTHWHILE * average * burst_s or burst_s <= 0.0:
            return
        self._low = self._best = average
        self._low_is_tried = False
        self._high = self._bytes / burst_s
        self._longest = self._bytes
        self._trying = True
        self.rate = (self._low * self._high) ** 0.5

    def _judge(self, average: float, paused: bool) -> None:
        """Evaluate a finished trial."""
        better = average > BETTER * self._best
        if better:
            self._best, self._accepted = average, self.rate
        if paused:
            self._high = self.rate
            self._longest = max(self._longest, self._bytes)
            if not self._low_is_tried:
                self._low = max(self._low, average)
        else:
            self._low, self._low_is_tried = self.rate, True
        if not better and not self._low_is_tried:
            self._gave_up = True
        if (better or (paused and self._low_is_tried)) and self._high > NEAR * self._low:
            self.rate = (self._low * self._high) ** 0.5
        else:
            self._trying = False
            self.rate = self._accepted

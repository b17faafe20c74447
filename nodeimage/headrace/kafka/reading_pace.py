"""How fast a client that pauses is answered, so that it need not pause.

Some clients stop fetching for a fixed time once they hold enough records: librdkafka for a second
(`fetch.queue.backoff.ms`) at 100,000 records. A program that has emptied the queue after a tenth of that second waits
for the rest of it, and the faster the answers come, the sooner the next pause begins. Answers that come no faster than
the program reads lead to no pause at all. How fast it reads, no request tells: it is between the client's average and
the rate of the burst that led to a pause. So a rate between the two is *tried*, their geometric mean.

A trial ends with the client's next pause, or when the client has read twice as much without one as in the longest burst
that led to one. If the average, pause included, is better by it than by any rate before, that rate is accepted. The
search goes on between the rates that led to a pause and those that did not, until both are near to each other. Then the
best rate stays; another pause begins another search below it. While no rate is known that leads to no pause, a trial
that is not better is the last one: that client pauses to work on what it has read. After `HOLDS_S` all of it is
forgotten.

So a client that never pauses is never held up, and one that gains nothing is held up once in `HOLDS_S`.

Knows nothing of requests and has no clock: it is told when a client asks and when it is answered.
"""

from typing import Final

LARGE_BYTES: Final = 64 * 1024
"""Of an answer: the client had more to read than what came just now. Its pace is looked at from there on."""
PAUSE_S: Final = 0.5
"""A client that has not asked for so long after an answer has paused."""
LONGEST_PAUSE_S: Final = 5.0
"""One that has not asked for longer had no wish to read."""
LEAST_ANSWERS: Final = 4
"""Of a burst: a client that works on each answer before it asks for the next has none."""
WORTHWHILE: Final = 1.5
"""A burst that was faster than the average by less is left alone."""
BETTER: Final = 1.1
NEAR: Final = 1.4
"""Rates of which the higher one is at most so much higher: between them nothing is tried."""
HOLDS_S: Final = 120.0
MOST_HELD_S: Final = 0.1
"""For how long one request is held up."""
SLACK_S: Final = 0.005
"""So much of what timers are late is made up for."""


class ReadingPace:
    """One connection's. Times are monotonic seconds, sizes bytes of records, rates bytes a second."""

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
        """`now`: when the client's first large answer goes out; `answered` is told of it next."""
        self.rate = 0.0
        """The client is answered no faster than this; 0.0: as fast as it asks."""
        self._accepted = 0.0
        self._best = 0.0
        """The best average so far."""
        self._low = 0.0
        """The client reads at least this fast."""
        self._low_is_tried = False
        """It was tried, and led to no pause."""
        self._high = 0.0
        """This led to a pause."""
        self._longest = 0
        """Bytes of the longest burst that led to one."""
        self._trying = False
        self._gave_up = False
        """Nothing more is tried."""
        self._forget_at = now + HOLDS_S
        self._began = self._answered_at = self._due = now
        self._bytes = self._answers = 0

    def asked(self, now: float) -> float:
        """The client asks: for how many seconds its request is to be held up, 0.0 for none."""
        pause_s = now - self._answered_at
        if (
            pause_s >= PAUSE_S
            or (self._trying and self._bytes >= 2 * self._longest)
            or (self.rate and now >= self._forget_at)
        ):
            self._end_cycle(now, pause_s)
        if not self.rate:
            return 0.0
        return max(0.0, min(self._due - now, MOST_HELD_S))

    def answered(self, now: float, size: int) -> None:
        """An answer goes out."""
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
        """A burst at the client's own rate led to a pause."""
        burst_s = self._answered_at - self._began
        if self._answers < LEAST_ANSWERS or self._bytes <= WORTHWHILE * average * burst_s or burst_s <= 0.0:
            return
        self._low = self._best = average
        self._low_is_tried = False
        self._high = self._bytes / burst_s
        self._longest = self._bytes
        self._trying = True
        self.rate = (self._low * self._high) ** 0.5

    def _judge(self, average: float, paused: bool) -> None:
        """A trial is over."""
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

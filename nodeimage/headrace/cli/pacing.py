"""When each reading of a replay is due: the time elapsed in the file, divided by the speed. Pure."""

from dataclasses import dataclass


@dataclass(slots=True)
class Pace:
    """Maps times of readings (ms) to the clock of the replay (s since its start).

    The latest time seen so far drives the clock, so readings out of order are due at once, and a file whose times
    go back (one device after another) never waits twice for the same span. `speed` None: everything is due at once.
    """

    speed: float | None
    first: int | None = None
    latest: int = 0
    went_back: bool = False

    def due(self, time: int) -> float:
        """Seconds from the start of the replay until a reading of `time` is due."""
        if self.first is None:
            self.first = self.latest = time
        elif time < self.latest:
            self.went_back = True
        else:
            self.latest = time
        if self.speed is None:
            return 0.0
        return (self.latest - self.first) / 1000 / self.speed

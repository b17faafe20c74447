"""Member ids of one group that were handed out with MEMBER_ID_REQUIRED and have not been used yet (KIP-394).

A rebalance waits for each of them, for one session timeout. Knows nothing of members or rebalances: an id that is not
used in time is forgotten, and the group is notified.
"""

from collections.abc import Callable
from functools import partial

from headrace.coordination.deadline_heap import Alarm, Deadlines


class Pending:
    """The pending ids. `owner`: the owner of their alarms; `expired` is called, with the time, after an id has
    expired."""

    __slots__ = ("_alarms", "_deadlines", "_expired", "_owner")

    def __init__(self, deadlines: Deadlines, *, owner: object, expired: Callable[[int], None]) -> None:
        self._deadlines = deadlines
        self._owner = owner
        self._expired = expired
        self._alarms: dict[str, Alarm] = {}

    def __len__(self) -> int:
        return len(self._alarms)

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._alarms

    def expect(self, member_id: str, session_timeout_ms: int, now: int) -> None:
        """Await an id that was handed out, for a session timeout."""
        alarm = Alarm(self._owner, partial(self._expire, member_id))
        self._alarms[member_id] = alarm
        self._deadlines.set(alarm, now + session_timeout_ms)

    def forget(self, member_id: str) -> bool:
        """Stop awaiting an id; returns whether it was awaited. The caller then lets the rebalance continue."""
        alarm = self._alarms.pop(member_id, None)
        if alarm is not None:
            self._deadlines.cancel(alarm)
        return alarm is not None

    def forget_all(self) -> None:
        """Stop awaiting all ids."""
        for member_id in list(self._alarms):
            self.forget(member_id)

    def _expire(self, member_id: str, now: int) -> None:
        self._alarms.pop(member_id, None)
        self._expired(now)

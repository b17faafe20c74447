"""Ids of one group that were handed out with MEMBER_ID_REQUIRED and have not come back yet (KIP-394).

A rebalance waits for them, for a session timeout each. Knows nothing of members or rebalances: whose id has not come
back in time is forgotten, and the group is told.
"""

from collections.abc import Callable
from functools import partial

from headrace.coordination.deadline_heap import Alarm, Deadlines


class Pending:
    """The ids. `owner`: of their alarms; `expired` is called after each that is late."""

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
        """An id was handed out; it is awaited for a session timeout."""
        alarm = Alarm(self._owner, partial(self._is_late, member_id))
        self._alarms[member_id] = alarm
        self._deadlines.set(alarm, now + session_timeout_ms)

    def forget(self, member_id: str) -> bool:
        """The id is awaited no more; whether it was. The caller then lets the rebalance go on."""
        alarm = self._alarms.pop(member_id, None)
        if alarm is not None:
            self._deadlines.cancel(alarm)
        return alarm is not None

    def forget_all(self) -> None:
        """No id is awaited any more."""
        for member_id in list(self._alarms):
            self.forget(member_id)

    def _is_late(self, member_id: str, now: int) -> None:
        self._alarms.pop(member_id, None)
        self._expired(now)

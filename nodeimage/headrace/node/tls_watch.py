"""Reports on watched TLS files: in the log, when something changes, and in the node's status."""

import time
from typing import Final

import structlog

from headrace.security.tls_server import ServerTls

log = structlog.get_logger()

DAY_S: Final = 86_400.0
SOON_S: Final = 14 * DAY_S


class TlsWatch:
    """Watches one listener's TLS files; `tls` is None without TLS. Belongs to the event loop, except for `look`."""

    needs = "TLS needs attention"
    is_well = "TLS is in order again"
    """Log messages for a new problem (`needs`) and for its end (`is_well`)."""

    def __init__(self, name: str, tls: ServerTls | None, *, now: float) -> None:
        self.problem = ""
        """The problem that needs attention; "": none."""
        self._name = name
        self._tls = tls
        self._since = now

    @property
    def has_files(self) -> bool:
        """Whether there are files to watch."""
        return self._tls is not None

    def look(self) -> bool:
        """[blocking] Read the files again and use what changed; returns whether new connections are affected."""
        return self._tls is not None and self._tls.look(now=time.time())

    def report(self, *, changed: bool, now: float) -> None:
        """Log what `look` found, if it is new."""
        if not self.has_files:
            return
        problem = ""
        if self._tls is not None:
            if changed:
                log.info("certificate replaced", listener=self._name, days_left=_days(self._tls.not_after - now))
            problem = self._tls.fault or _expiry(self._tls.not_after - now)
        problem = problem or self.other_problem()
        if problem == self.problem:
            return
        if problem:
            log.warning(self.needs, listener=self._name, reason=problem)
        elif not changed:
            log.info(self.is_well, listener=self._name)
        if not self.problem:
            self._since = now
        self.problem = problem

    def other_problem(self) -> str:
        """A further problem that needs attention; "": none."""
        return ""

    def shown_as(self, *, port: int, protocol: str, failed: int) -> dict[str, object]:
        """This listener's part of the node's status."""
        return {
            "name": self._name,
            "port": port,
            "protocol": protocol,
            "certificate_expires_ms": None if self._tls is None else int(self._tls.not_after * 1000),
            "failed_handshakes_since_start": failed,
            "problem": self.problem,
            "problem_since_ms": int(self._since * 1000) if self.problem else None,
        }


def _days(seconds: float) -> int:
    return int(seconds // DAY_S)


def _expiry(left_s: float) -> str:
    if left_s > SOON_S:
        return ""
    if left_s <= 0:
        return "the certificate has expired; put a new one in its place"
    days = _days(left_s)
    when = "within a day" if days == 0 else f"in {days} day{'s' if days > 1 else ''}"
    return f"the certificate expires {when}; put a new one in its place"

"""Tells the audit who has proved to be whom, and who has failed to.

A failed login is told as one of ANONYMOUS, with the user that was claimed as the object: nobody has proved to be that
user, and so whoever tries does not use up what is told of him.
"""

from headrace.base.runtime import Runtime
from headrace.partitions.caller import Caller
from headrace.security.audit import LOGIN, AuditEvent, AuditLog
from headrace.security.principals import ANONYMOUS
from headrace.security.sasl.exchange import Attempt


class LoginAudit:
    """Of one node."""

    def __init__(self, *, runtime: Runtime, audit: AuditLog) -> None:
        self._runtime = runtime
        self._audit = audit
        self.succeeded: dict[str, int] = {}
        self.refused: dict[str, int] = {}
        """Logins since the start, by mechanism; `none`: the client named none that is offered."""

    def authenticated(self, caller: Caller, attempt: Attempt) -> None:
        """Tell of an authentication that ended. Successes are told where logins are among what is asked for."""
        succeeded = attempt.refusal is None
        counts, mechanism = self.succeeded if succeeded else self.refused, attempt.mechanism or "none"
        counts[mechanism] = counts.get(mechanism, 0) + 1
        if not self._audit.wants(LOGIN, allowed=succeeded):
            return
        how = f"by {attempt.mechanism}" if attempt.mechanism else "by no mechanism that is offered"
        again = ", again" if attempt.is_renewal else ""
        self._audit.tell(
            AuditEvent(
                at_ms=self._runtime.now(),
                user=(attempt.user if succeeded else caller.principal.user) or ANONYMOUS,
                address=caller.peer.rpartition(":")[0],
                listener=caller.listener,
                action=LOGIN,
                kind=LOGIN,
                name=attempt.user or "",
                allowed=succeeded,
                reason=f"{how}{again}" if attempt.refusal is None else f"{how}{again}: {attempt.refusal.value}",
                api="SaslAuthenticate",
                client_id=caller.client_id or "",
            )
        )

"""Audits and counts successful and failed logins.

A failed login is recorded as an action of ANONYMOUS, with the claimed user as its object: the claim is unproven, and
failed attempts in a user's name must not use up that user's share of the audit log.
"""

from headrace.base.runtime import Runtime
from headrace.partitions.caller import Caller
from headrace.security.audit import LOGIN, AuditEvent, AuditLog
from headrace.security.principals import ANONYMOUS
from headrace.security.sasl.exchange import Attempt


class LoginAudit:
    """Audits the logins of clients of this node."""

    def __init__(self, *, runtime: Runtime, audit: AuditLog) -> None:
        self._runtime = runtime
        self._audit = audit
        self.succeeded: dict[str, int] = {}
        """Successful logins since the node's start, by mechanism."""
        self.refused: dict[str, int] = {}
        """Refused logins since the node's start, by mechanism; `none`: the client named no mechanism that is
        offered."""

    def authenticated(self, caller: Caller, attempt: Attempt) -> None:
        """Record an authentication that ended. Successes are audited if the audit is configured to record logins."""
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

"""Asks what a client may do, and tells the audit of it: the one door to `AccessControl` for everything that answers.

While security is off everybody may do everything, and asking costs an attribute's look-up. What is decided holds for
this moment alone: whoever waits (a parked fetch) asks again when `on_change` calls.
"""

from collections.abc import Callable

from headrace.base.runtime import Runtime
from headrace.partitions.access_control import AccessControl
from headrace.partitions.caller import Caller
from headrace.security.access_rules import Decision, Kind, Permission
from headrace.security.audit import AuditEvent, AuditLog

DESCRIBE = "describe"
"""The audit's action for somebody who may not even see an object."""


class Authorizer:
    """Of one node. Everything is on the loop's thread."""

    def __init__(self, *, runtime: Runtime, access: AccessControl, audit: AuditLog) -> None:
        self._runtime = runtime
        self._access = access
        self._audit = audit

    @property
    def is_on(self) -> bool:
        """Whether anything is ever refused: security is on."""
        return self._access.rules.on

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` when somebody may do more or less than before."""
        self._access.on_change(callback)

    def allows(
        self, caller: Caller, permission: Permission, kind: Kind = Kind.CLUSTER, name: str = "", *, api: str = ""
    ) -> bool:
        """Whether a client may do something now; a denial is told to the audit. `name` as in access_rules.Rule: of a
        topic `/stream:topic`, never an alias. `api`: by which call, for the audit.
        """
        if not self._access.rules.on:
            return True
        allowed = self._access.allows(caller.principal, permission, kind, name)
        if self._audit.wants(permission, allowed=allowed):
            decision = self.explain(caller, permission, kind, name)
            self._tell(caller, permission, kind, name, allowed=allowed, reason=decision.reason, api=api)
        return allowed

    def allows_any(
        self, caller: Caller, permissions: tuple[Permission, ...], kind: Kind, name: str, *, api: str = ""
    ) -> bool:
        """Whether a client has one of these permissions now; a denial is told as one of `describe`."""
        if self.sees(caller, permissions, kind, name):
            return True
        reason = f"none of {', '.join(permissions)} is allowed"
        self._tell(caller, DESCRIBE, kind, name, allowed=False, reason=reason, api=api)
        return False

    def sees(self, caller: Caller, permissions: tuple[Permission, ...], kind: Kind, name: str) -> bool:
        """The same without the audit: for lists, which leave out what a client may not see."""
        if not self._access.rules.on:
            return True
        access, principal = self._access, caller.principal
        return any(access.allows(principal, permission, kind, name) for permission in permissions)

    def sees_stream(self, caller: Caller, path: str) -> bool:
        """Whether a client has any permission on a stream, or on a topic of it that has expressions of its own."""
        access, principal = self._access, caller.principal
        return self.sees(caller, tuple(Permission), Kind.STREAM, path) or any(
            access.allows(principal, permission, kind, name) for kind, name, permission in access.rules.of_topics(path)
        )

    def differs_by_topic(self, permission: Permission, path: str) -> bool:
        """Whether topics of a stream have expressions of their own for a permission, and security is on."""
        rules = self._access.rules
        return rules.on and any(each is permission for _, _, each in rules.of_topics(path))

    def allows_some_topic(self, caller: Caller, permission: Permission) -> bool:
        """Whether a client has a permission on some topic, stream or path, be there one or not. Not audited."""
        rules, principal = self._access.rules, caller.principal
        return rules.any_topic(principal.user, self._access.groups_of(principal), permission)

    def explain(self, caller: Caller, permission: Permission, kind: Kind = Kind.CLUSTER, name: str = "") -> Decision:
        """Whether and why."""
        principal = caller.principal
        return self._access.rules.explain(principal.user, self._access.groups_of(principal), permission, kind, name)

    def refused(self, caller: Caller, action: str, kind: Kind, name: str, *, reason: str, api: str = "") -> None:
        """Tell the audit of a denial that was decided elsewhere."""
        self._tell(caller, action, kind, name, allowed=False, reason=reason, api=api)

    def _tell(
        self, caller: Caller, action: str, kind: Kind, name: str, *, allowed: bool, reason: str, api: str
    ) -> None:
        self._audit.tell(
            AuditEvent(
                at_ms=self._runtime.now(),
                user=caller.principal.user,
                address=caller.peer.rpartition(":")[0],
                listener=caller.listener,
                action=action,
                kind=kind,
                name=name,
                allowed=allowed,
                reason=reason,
                api=api,
                client_id=caller.client_id or "",
            )
        )

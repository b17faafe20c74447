"""Asks what a client may do, and tells the audit of it: the one door to `AccessControl` for everything that answers.

While security is off everybody may do everything, and asking costs an attribute's look-up. What is decided holds for
this moment alone: whoever waits (a parked fetch) asks again when `on_change` calls.
"""

from collections.abc import Callable, Sequence

from headrace.base.runtime import Runtime
from headrace.partitions.access_control import AccessControl
from headrace.partitions.caller import Caller
from headrace.security.access_rules import Decision, Kind, Permission
from headrace.security.audit import AuditEvent, AuditLog, Change
from headrace.security.principals import Principal

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
        self,
        caller: Caller,
        permissions: Sequence[Permission],
        kind: Kind = Kind.CLUSTER,
        name: str = "",
        *,
        api: str = "",
        action: str = DESCRIBE,
    ) -> bool:
        """Whether a client has one of these permissions now. `action`: as what a denial is told to the audit."""
        rules = self._access.rules
        if not rules.on:
            return True
        principal = caller.principal
        groups = self._access.groups_of(principal)
        for permission in permissions:
            if rules.allows(principal.user, groups, permission, kind, name):
                if self._audit.wants(permission, allowed=True):
                    reason = self.explain(caller, permission, kind, name).reason
                    self._tell(caller, permission, kind, name, allowed=True, reason=reason, api=api)
                return True
        if len(permissions) == 1:
            reason = self.explain(caller, permissions[0], kind, name).reason
        else:
            reason = f"none of {', '.join(permissions)} is allowed" if permissions else "nobody is allowed this"
        self._tell(caller, action, kind, name, allowed=False, reason=reason, api=api)
        return False

    def sees(self, caller: Caller, permissions: Sequence[Permission], kind: Kind, name: str) -> bool:
        """The same without the audit: for lists, which leave out what a client may not see."""
        return self.permits(caller.principal, permissions, kind, name)

    def permits(self, principal: Principal, permissions: Sequence[Permission], kind: Kind, name: str) -> bool:
        """The same of a user, whose connection may be gone."""
        rules = self._access.rules
        if not rules.on:
            return True
        groups = self._access.groups_of(principal)
        return any(rules.allows(principal.user, groups, permission, kind, name) for permission in permissions)

    def decided_by(self, topic: str) -> str:
        """As AccessRules.decided_by: two topics with the same are allowed alike, to everybody."""
        return self._access.rules.decided_by(topic)

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
        rules = self._access.rules
        if not rules.on:
            return True
        principal = caller.principal
        return rules.any_topic(principal.user, self._access.groups_of(principal), permission)

    def tells(self, permission: Permission) -> bool:
        """Whether the audit is told of each time that a permission is used, so that no decision may be kept."""
        return self._audit.wants(permission, allowed=True)

    def explain(self, caller: Caller, permission: Permission, kind: Kind = Kind.CLUSTER, name: str = "") -> Decision:
        """Whether and why."""
        principal = caller.principal
        return self._access.rules.explain(principal.user, self._access.groups_of(principal), permission, kind, name)

    def refused(self, caller: Caller, action: str, kind: Kind, name: str, *, reason: str, api: str = "") -> None:
        """Tell the audit of a denial that was decided elsewhere."""
        self._tell(caller, action, kind, name, allowed=False, reason=reason, api=api)

    def changed(self, caller: Caller, change: Change, kind: str, name: str, what: str, *, api: str = "") -> None:
        """Tell the audit of a change that took place. `what`: in a few words, and never a secret."""
        self._tell(caller, change, kind, name, allowed=True, reason=what, api=api)

    def _tell(self, caller: Caller, action: str, kind: str, name: str, *, allowed: bool, reason: str, api: str) -> None:
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

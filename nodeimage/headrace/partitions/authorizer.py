"""Authorization and its audit: everything that answers requests checks permissions here, not in `AccessControl`.

While security is off everybody may do everything, and a check costs one attribute look-up. A decision holds for the
moment only: a waiting request (a parked fetch) is checked again when `on_change` calls.
"""

from collections.abc import Callable, Sequence

from headrace.base.runtime import Runtime
from headrace.partitions.access_control import AccessControl
from headrace.partitions.caller import Caller
from headrace.security.access_rules import Decision, Kind, Permission
from headrace.security.audit import AuditEvent, AuditLog, Change
from headrace.security.principals import Principal

DESCRIBE = "describe"
"""The audited action of a client that may not even see an object."""


class Authorizer:
    """Checks what clients of this node may do. All methods run on the loop's thread."""

    def __init__(self, *, runtime: Runtime, access: AccessControl, audit: AuditLog) -> None:
        self._runtime = runtime
        self._access = access
        self._audit = audit

    @property
    def is_on(self) -> bool:
        """Whether security is on. While it is off, nothing is refused."""
        return self._access.rules.on

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever somebody's permissions change."""
        self._access.on_change(callback)

    def allows(
        self, caller: Caller, permission: Permission, kind: Kind = Kind.CLUSTER, name: str = "", *, api: str = ""
    ) -> bool:
        """Whether a client has a permission now; denials are audited. `name` as in access_rules.Rule: for a topic
        `/stream:topic`, never an alias. `api`: the client's call, for the audit.
        """
        if not self._access.rules.on:
            return True
        allowed = self._access.allows(caller.principal, permission, kind, name)
        if self._audit.wants(permission, allowed=allowed):
            decision = self.explain(caller, permission, kind, name)
            self._record(caller, permission, kind, name, allowed=allowed, reason=decision.reason, api=api)
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
        """Whether a client has one of these permissions now. `action`: the action under which a denial is audited."""
        rules = self._access.rules
        if not rules.on:
            return True
        principal = caller.principal
        groups = self._access.groups_of(principal)
        for permission in permissions:
            if rules.allows(principal.user, groups, permission, kind, name):
                if self._audit.wants(permission, allowed=True):
                    reason = self.explain(caller, permission, kind, name).reason
                    self._record(caller, permission, kind, name, allowed=True, reason=reason, api=api)
                return True
        if len(permissions) == 1:
            reason = self.explain(caller, permissions[0], kind, name).reason
        else:
            reason = f"none of {', '.join(permissions)} is allowed" if permissions else "nobody is allowed this"
        self._record(caller, action, kind, name, allowed=False, reason=reason, api=api)
        return False

    def sees(self, caller: Caller, permissions: Sequence[Permission], kind: Kind, name: str) -> bool:
        """As `allows_any`, without the audit: for lists, which leave out what a client may not see."""
        return self.permits(caller.principal, permissions, kind, name)

    def permits(self, principal: Principal, permissions: Sequence[Permission], kind: Kind, name: str) -> bool:
        """As `sees`, for a user whose connection may be gone."""
        rules = self._access.rules
        if not rules.on:
            return True
        groups = self._access.groups_of(principal)
        return any(rules.allows(principal.user, groups, permission, kind, name) for permission in permissions)

    def decided_by(self, topic: str) -> str:
        """As AccessRules.decided_by: everybody has the same permissions on two topics with the same result."""
        return self._access.rules.decided_by(topic)

    def sees_stream(self, caller: Caller, path: str) -> bool:
        """Whether a client has any permission on a stream, or on one of its topics with expressions of their own."""
        access, principal = self._access, caller.principal
        return self.sees(caller, tuple(Permission), Kind.STREAM, path) or any(
            access.allows(principal, permission, kind, name) for kind, name, permission in access.rules.of_topics(path)
        )

    def differs_by_topic(self, permission: Permission, path: str) -> bool:
        """Whether security is on and some topics of a stream have expressions of their own for a permission."""
        rules = self._access.rules
        return rules.on and any(each is permission for _, _, each in rules.of_topics(path))

    def allows_some_topic(self, caller: Caller, permission: Permission) -> bool:
        """Whether a client has a permission on some topic, stream or path, existing or not. Not audited."""
        rules = self._access.rules
        if not rules.on:
            return True
        principal = caller.principal
        return rules.any_topic(principal.user, self._access.groups_of(principal), permission)

    def tells(self, permission: Permission) -> bool:
        """Whether every use of a permission is audited, so that decisions must not be cached."""
        return self._audit.wants(permission, allowed=True)

    def explain(self, caller: Caller, permission: Permission, kind: Kind = Kind.CLUSTER, name: str = "") -> Decision:
        """Whether a client has a permission now, and why."""
        principal = caller.principal
        return self._access.rules.explain(principal.user, self._access.groups_of(principal), permission, kind, name)

    def refused(self, caller: Caller, action: str, kind: Kind, name: str, *, reason: str, api: str = "") -> None:
        """Audit a denial that was decided elsewhere."""
        self._record(caller, action, kind, name, allowed=False, reason=reason, api=api)

    def changed(self, caller: Caller, change: Change, kind: str, name: str, what: str, *, api: str = "") -> None:
        """Audit a change that was made. `what`: the change in a few words, without secrets."""
        self._record(caller, change, kind, name, allowed=True, reason=what, api=api)

    def _record(
        self, caller: Caller, action: str, kind: str, name: str, *, allowed: bool, reason: str, api: str
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

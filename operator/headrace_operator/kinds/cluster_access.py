"""The access checks of a cluster that answers, as its resource asks, and the operator's password in it.

1. In a cluster that was open, security is turned on once all pods have it, and only if the resource asks for it.
2. A new password of the operator is written to its Secret before it is set in the cluster; only then is the former one
   removed from the Secret. So if the operator dies in between, one of the two is valid (`cluster_security` finds out
   which).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headrace.security.access_expression import parse
from headrace.security.access_syntax import ExpressionFault
from headrace_operator.admin import Calls
from headrace_operator.builders import listeners, operator_secret
from headrace_operator.builders.authorities import decoded
from headrace_operator.builders.cluster import ClusterObjects
from headrace_operator.builders.names import OPERATOR_USER, ObjectName, belongs, bootstrap
from headrace_operator.builders.secured_pods import secured_of
from headrace_operator.kinds.cluster_security import OPEN, SECURED, kept
from headrace_operator.kinds.cluster_view import ANSWER_S, QUIET_S, WORKING_S, ObservedCluster
from headrace_operator.kinds.permissions import CLUSTER, shown_expressions, wanted_items
from headrace_operator.kinds.reporting import Reporter
from headrace_operator.kube import Kube
from headrace_operator.routes import Route, Routes
from headrace_operator.specs import ClusterSpec, Permissions


class AccessStep:
    """Configures the access checks of all clusters."""

    def __init__(self, *, kube: Kube, admin: Calls, routes: Routes, reporter: Reporter) -> None:
        self._kube = kube
        self._admin = admin
        self._routes = routes
        self._reporter = reporter

    async def step(self, objects: ClusterObjects, spec: ClusterSpec, seen: ObservedCluster) -> None:
        """Make the cluster check access as the resource says, and note the condition. Raises HeadraceError."""
        if not spec.security.enabled or any(each.type == SECURED for each in seen.conditions):
            return
        having = [secured_of(pod) for pod in seen.pods]
        if not having or any(each is None for each in having):
            text = f"{OPEN} until all pods have security: they are restarted with it one by one"
            seen.note(SECURED, False, "Rolling", text, again_s=WORKING_S)
            return
        where = bootstrap(objects.name, objects.namespace)
        await self._rotate_password(objects, where)
        shown = await self._admin.call(where, "security.show", {}, patience_s=ANSWER_S)
        if refusal := await self._set_permissions(where, spec.security.permissions):
            seen.note(SECURED, False, "Refused", refusal, again_s=QUIET_S)
            return
        if spec.security.authorization and not shown["on"]:
            shown = await self._admin.call(where, "security.on", {})
        elif not spec.security.authorization and shown["on"]:
            shown = await self._admin.call(where, "security.off", {"open_everything": True})
        self._judge(spec, seen, shown)

    async def _set_permissions(self, where: str, permissions: Permissions) -> str:
        """Set the cluster's own access expressions; return why they are refused, or ""."""
        asked = permissions.given()
        try:
            wanted = {name: parse(text).text for name, text in asked.items()}
        except ExpressionFault as fault:
            return f"spec.security.permissions cannot be read: {fault}"
        own = f"u:{OPERATOR_USER}"
        wanted["admin"] = parse(f"{own} | ({asked['admin']})" if asked.get("admin", "").strip() else own).text
        present = await shown_expressions(self._admin, where, CLUSTER)
        if items := wanted_items(CLUSTER, wanted, present):
            await self._admin.call(where, "access.set", {"items": items})
        return ""

    async def _rotate_password(self, objects: ClusterObjects, where: str) -> None:
        """Set the operator's pending password in the cluster, and make it the Secret's only one."""
        name = ObjectName.OPERATOR.of(objects.name)
        found = operator_secret.read(await self._held(objects, name))
        if found is None or not found.next_password:
            return
        told = {"name": OPERATOR_USER, "password": found.next_password}
        await self._admin.call(where, "user.passwd", told)
        after = replace(found, password=found.next_password, next_password="")
        await self._kube.apply(operator_secret.secret(after, metadata=kept(objects, name)))
        ca = (await self._held(objects, ObjectName.CA.of(objects.name))).get("ca.crt", "")
        before = self._routes.get(objects.namespace, objects.name)
        route = Route.of(operator_secret.properties(after, ca), before.pods if before else ())
        self._routes.put(objects.namespace, objects.name, route)
        await self._reporter.tell(objects, "CredentialsRenewed", "the operator's password at the cluster was changed")

    @staticmethod
    def _judge(spec: ClusterSpec, seen: ObservedCluster, shown: Mapping[str, Any]) -> None:
        open_ones = [port.name for port in listeners.ports(spec) if port.lets_anybody_in]
        if not shown["on"]:
            text = "access expressions are not checked: set spec.security.authorization to true once they are written"
            seen.note(SECURED, False, "NotChecked", f"{OPEN}: {text}")
        elif open_ones:
            text = (
                f"clients of listener {', '.join(open_ones)} do not authenticate and act as the user ANONYMOUS: "
                "set its protocol to SASL_SSL once they have moved"
            )
            seen.note(SECURED, False, "OpenListener", text)
        else:
            seen.note(SECURED, True, "Secured")

    async def _held(self, objects: ClusterObjects, name: str) -> Mapping[str, str]:
        """Return the decoded content of a Secret of the cluster."""
        found = await self._kube.get("v1", "Secret", objects.namespace, name)
        return decoded(found if found is not None and belongs(found, objects.name) else None)

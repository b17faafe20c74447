"""StreamUser: a Secret beside it with all that a client needs."""

import base64
import secrets
from typing import Final

import msgspec

from headrace.store.kubernetes.api import ApiError
from headrace_operator.builders.names import CLUSTER_LABEL, Manifest, labels, owner
from headrace_operator.engine import Body, Cache, Key
from headrace_operator.kinds.references import Unresolved, invalid, resolve
from headrace_operator.kinds.reporting import Reporter
from headrace_operator.kube import REFUSALS, Kube
from headrace_operator.specs import UserSpec
from headrace_operator.status import Condition

AGAIN_S: Final = 15.0
REFUSED_AGAIN_S: Final = 60.0
PASSWORD_BYTES: Final = 24


class Users:
    """Reconciles StreamUsers."""

    def __init__(self, *, kube: Kube, reporter: Reporter, cache: Cache) -> None:
        self._kube = kube
        self._reporter = reporter
        self._cache = cache

    async def reconcile(self, key: Key, body: Body | None) -> float | None:
        """See engine.Reconcile."""
        if body is None or body["metadata"].get("deletionTimestamp"):
            return None
        try:
            spec = msgspec.convert(body["spec"], UserSpec)
        except msgspec.ValidationError as error:
            await self._reporter.report(body, [invalid(error)], {})
            return None
        name = spec.secret_name or key.name
        user = spec.user or key.name
        try:
            cluster, _, internal = resolve(self._cache, body, spec.cluster_ref)
            bootstrap = internal
            if spec.listener == "external":
                bootstrap = str((cluster.get("status") or {}).get("externalBootstrap") or "")
                if not bootstrap:
                    raise Unresolved("NoAddress", "the cluster has no address outside of Kubernetes (yet)")
            present = await self._kube.get("v1", "Secret", key.namespace, name)
            if present is not None and not _is_ours(present, body):
                raise Unresolved("SecretTaken", f"Secret {name} is somebody else's: name another with secretName")
            await self._kube.apply(secret(dict(body), name=name, user=user, bootstrap=bootstrap, present=present))
            await self._drop_former(body, name)
        except Unresolved as error:
            await self._reporter.report(body, [error.condition], {})
            return AGAIN_S
        except ApiError as error:
            if error.status not in REFUSALS:
                raise
            why = f"Secret {name} cannot be so: {error}: change what it names"
            await self._reporter.report(body, [Condition("Reconciled", False, "Refused", why)], {})
            return REFUSED_AGAIN_S
        await self._reporter.report(body, [Condition("Reconciled", True, "AsAsked")], {"secret": name, "user": user})
        return None

    async def _drop_former(self, body: Body, name: str) -> None:
        """The Secret of another name that this user had: nobody would look for its password there."""
        former = (body.get("status") or {}).get("secret")
        if not former or former == name:
            return
        namespace = str(body["metadata"]["namespace"])
        present = await self._kube.get("v1", "Secret", namespace, str(former))
        if present is not None and _is_ours(present, body):
            await self._kube.delete("v1", "Secret", namespace, str(former), uid=present["metadata"].get("uid"))


def _is_ours(present: Manifest, body: Body) -> bool:
    uid = body["metadata"]["uid"]
    return any(each.get("uid") == uid for each in present["metadata"].get("ownerReferences") or [])


def secret(resource: Manifest, *, name: str, user: str, bootstrap: str, present: Manifest | None) -> Manifest:
    """The Secret; a password that it has already stays."""
    known = (present or {}).get("data", {}).get("password")
    password = base64.b64decode(known).decode() if known else secrets.token_urlsafe(PASSWORD_BYTES)
    # The listeners do not ask who somebody is yet: what is here connects as it is, and will with them too.
    properties = f"bootstrap.servers={bootstrap}\nsecurity.protocol=PLAINTEXT\nclient.id={user}\n"
    values = {"bootstrap": bootstrap, "user": user, "password": password, "client.properties": properties}
    cluster = resource["spec"]["clusterRef"]["name"]
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": name,
            "namespace": resource["metadata"]["namespace"],
            "labels": {**labels(cluster, "user"), CLUSTER_LABEL: cluster},
            "ownerReferences": [owner(resource)],
        },
        "type": "Opaque",
        "data": {entry: base64.b64encode(value.encode()).decode() for entry, value in values.items()},
    }

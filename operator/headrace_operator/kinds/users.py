"""StreamUser: a user of a cluster, and a Secret beside the resource with all that a client of the user needs.

In a cluster without security there is only the Secret. With security:

1. A user is created only if it does not exist. An existing user is not taken over: otherwise anybody who may create
   StreamUsers could get any user's access. So the Secret is marked with the user before the user is created.
2. The user's groups and quotas are restored if they differ. The password, if the resource asks for one, is sent if the
   user has none, or if it differs from the one that was sent last, by its digest in the Secret. If the resource asks
   for none, the user's password is removed from the cluster.
3. Deleting the resource deletes the user, so a finalizer holds it until the user is gone, or the StreamCluster is. If
   `user` changes, the former user is deleted. The marks of the Secret tell which users are the resource's; if
   `secretName` changes, those of the former Secret, until that is deleted.
"""

import base64
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.security.certificate_authority import CertificateRefused, KeyPair
from headrace.store.kubernetes.api import ApiError
from headrace_operator.builders import authorities, certificates, operator_secret
from headrace_operator.builders.authorities import FORCE, decoded, encoded
from headrace_operator.builders.digest import digest
from headrace_operator.builders.listeners import EXTERNAL, Port, port_of
from headrace_operator.builders.names import (
    CLIENT_PORT,
    CLUSTER_LABEL,
    OPERATOR_USER,
    Manifest,
    ObjectName,
    labels,
    owner,
)
from headrace_operator.builders.user_secret import Entry, mechanism_of, password_fault, values
from headrace_operator.engine import Body
from headrace_operator.kinds.cluster_view import annotation
from headrace_operator.kinds.kind import AGAIN_S, FIGURES_AGAIN_S, Figures, Kind, Outcome
from headrace_operator.kinds.references import Unresolved, check_oldest, cluster_key, resolve
from headrace_operator.kinds.user_passwords import remove_password
from headrace_operator.kinds.user_quotas import alter_quotas
from headrace_operator.kube import REFUSALS, path
from headrace_operator.specs import GROUP, ClusterSpec, Quotas, Scram, Spec, UserSpec
from headrace_operator.status import Condition

__all__ = ["Users"]

REFUSED_AGAIN_S: Final = 60.0
MADE: Final = f"{GROUP}/made-user"
"""Annotation of the Secret: the user that belongs to this resource, with the resource's uid."""
TOLD: Final = f"{GROUP}/told-password"
"""Annotation of the Secret: a digest of the password that the cluster was sent last."""


@dataclass(frozen=True, slots=True)
class _Secrets:
    """The Secrets of a resource that exist: that of its name, and that of its former name until it is deleted."""

    present: Manifest | None
    former: Manifest | None

    @property
    def last(self) -> Manifest | None:
        """The Secret that was written last."""
        return self.former if self.present is None else self.present


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The resolved resource."""

    entry: Entry
    scram: bool
    forced: bool


class Users(Kind[UserSpec]):
    """Reconciles StreamUsers."""

    name = "StreamUser"
    types: ClassVar[Sequence[str]] = ("Reconciled",)
    spec = UserSpec

    def __init__(self, *, now: Callable[[], float] = lambda: time.time(), **common: Any) -> None:
        """Takes the arguments of Kind. `now`: seconds since 1970."""
        super().__init__(**common)
        self._now = now

    def _deletes(self, spec: Spec) -> bool:
        return True

    async def _advance(self, body: Body, spec: UserSpec) -> tuple[list[Condition], Figures, float | None]:
        meta = body["metadata"]
        name, user = spec.secret_name or meta["name"], _user(body, spec)
        try:
            cluster, of, bootstrap = resolve(self._cache, body, spec.cluster_ref)
            check_oldest(self._cache, self._index, body)
            secrets = await self._secrets(body, name)
            if secrets.present is not None and not _is_ours(secrets.present, body):
                raise Unresolved("SecretTaken", f"Secret {name} is somebody else's: name another with secretName")
            wanted = await self._wanted(body, spec, cluster, of, secrets.last)
            if of.security.enabled:
                await self._secured(body, spec, bootstrap, name, secrets, wanted)
            else:
                await self._kube.apply(_secret(body, name, wanted.entry, {}))
            await self._drop_former(secrets)
        except Unresolved as error:
            return [error.condition], {}, AGAIN_S
        except ApiError as error:
            if error.status not in REFUSALS:
                raise
            why = f"Kubernetes refused a request for Secret {name}: {error}: change what this error names"
            return [Condition("Reconciled", False, "Refused", why)], {}, REFUSED_AGAIN_S
        except (KafkaError, CertificateRefused) as error:
            return [Condition("Reconciled", False, "Refused", str(error))], {}, AGAIN_S
        except HeadraceError as error:
            return [Condition("Reconciled", False, "NoAnswer", str(error))], {}, AGAIN_S
        again = self._again(FIGURES_AGAIN_S, 0.1) if of.security.enabled else None
        return [Condition("Reconciled", True, "AsAsked")], {"secret": name, "user": user}, again

    async def _make(self, bootstrap: str, body: Body, spec: UserSpec) -> Outcome:
        raise NotImplementedError  # this kind overrides _advance

    async def _unmake(self, bootstrap: str, body: Body, spec: UserSpec) -> None:
        user = _user(body, spec)
        _, cluster, _ = resolve(self._cache, body, spec.cluster_ref)
        if not cluster.security.enabled:
            return
        made = _made(await self._secrets(body, spec.secret_name or body["metadata"]["name"]), body)
        await self._delete_former_users(bootstrap, body, spec, made)
        if user in made:
            await self._delete_user(bootstrap, user, has_quotas=spec.quotas != Quotas())

    # --- resolution

    async def _wanted(
        self, body: Body, spec: UserSpec, cluster: Body, of: ClusterSpec, present: Manifest | None
    ) -> _Wanted:
        user = _user(body, spec)
        if user == OPERATOR_USER:
            raise Unresolved("UserTaken", f"{user} is the operator's own user: name another with spec.user")
        before = decoded(present)
        forced = (body["metadata"].get("annotations") or {}).get(FORCE) == "true"
        scram = spec.authentication.scram
        if scram is None and spec.authentication.tls is None:
            scram = Scram()
        password = "" if scram is None else await self._password(body, user, scram, before, forced=forced)
        port = port_of(of, spec.listener) if of.security.enabled else None
        if of.security.enabled and port is None:
            raise Unresolved("NoListener", f"the cluster has no listener {spec.listener}: add it to its listeners")
        bootstrap = self._bootstrap(cluster, spec, port)
        if port is None:
            mechanism = "" if scram is None else scram.mechanism
            return _Wanted(Entry(user, bootstrap, None, mechanism, password), scram=False, forced=forced)
        mechanism = "" if scram is None else mechanism_of(port, scram.mechanism)
        if scram is not None and spec.authentication.tls is None and not mechanism and not port.lets_anybody_in:
            raise Unresolved(
                "NoWayIn",
                f"listener {port.name} accepts no passwords ({port.protocol}): give the user authentication.tls, or "
                "another listener",
            )
        if spec.authentication.tls is not None and port.client_ca_entry and not port.takes_own_certificates:
            raise Unresolved(
                "NoWayIn",
                f"listener {port.name} accepts no certificates of the cluster's own authority (clientCa): leave "
                "authentication.tls out, give the listener clientCa.includeClusterCa, or the user another listener",
            )
        key = cluster_key(body, spec.cluster_ref)
        ca = await self._trusted(key.namespace, key.name, port)
        certificate = None
        if spec.authentication.tls is not None:
            certificate = await self._certificate(key.namespace, key.name, of, user, before, forced=forced)
        # The Secret has the password even for a listener without SASL: another listener may accept it.
        known = mechanism or (scram.mechanism if scram is not None else "")
        entry = Entry(user, bootstrap, port, known, password, certificate, ca)
        return _Wanted(entry, scram=scram is not None, forced=forced)

    @staticmethod
    def _bootstrap(cluster: Body, spec: UserSpec, port: Port | None) -> str:
        """Return the bootstrap address. `port` is None for a cluster without security."""
        if spec.listener == EXTERNAL or (port is not None and port.outside is not None):
            status = cluster.get("status") or {}
            told = {**(status.get("externalBootstraps") or {}), EXTERNAL: status.get("externalBootstrap")}
            found = str(told.get(spec.listener) or "")
            if not found:
                raise Unresolved("NoAddress", "the cluster has no address outside of Kubernetes (yet)")
            return found
        meta = cluster["metadata"]
        first = CLIENT_PORT if port is None else port.first
        return f"{meta['name']}-bootstrap.{meta['namespace']}.svc:{first}"

    async def _password(self, body: Body, user: str, scram: Scram, before: Mapping[str, str], *, forced: bool) -> str:
        if scram.password is None:
            kept = before.get("password", "")
            return kept if kept and not forced else operator_secret.generated()
        ref = scram.password
        found = await self._kube.get("v1", "Secret", body["metadata"]["namespace"], ref.name)
        try:
            told = base64.b64decode(((found or {}).get("data") or {}).get(ref.key, "")).decode().rstrip("\n")
        except ValueError:
            raise Unresolved("BadPassword", f"Secret {ref.name}: its entry {ref.key} is not text") from None
        if not told:
            raise Unresolved("NoSecret", f"there is no Secret {ref.name} with {ref.key} in it: create it")
        if fault := password_fault(told, user):
            raise Unresolved("BadPassword", f"Secret {ref.name}: {ref.key} is not an acceptable password: {fault}")
        return told

    async def _trusted(self, namespace: str, cluster: str, port: Port) -> str:
        """Return the authorities that clients of a listener trust, in PEM; "" for those that their machine trusts."""
        if not port.has_tls:
            return ""
        name = port.given_secret or ObjectName.CA.of(cluster)
        found = decoded(await self._kube.get("v1", "Secret", namespace, name)).get("ca.crt", "")
        if not found and port.given_secret is None:
            raise Unresolved("NoSecret", f"the cluster has no Secret {name} yet: see its conditions")
        return found

    async def _certificate(
        self, namespace: str, cluster: str, of: ClusterSpec, user: str, before: Mapping[str, str], *, forced: bool
    ) -> KeyPair:
        found = await self._kube.get("v1", "Secret", namespace, ObjectName.CLIENTS_CA.of(cluster))
        if found is None:
            raise Unresolved(
                "NoSecret", f"the cluster has no Secret {ObjectName.CLIENTS_CA.of(cluster)} yet: see its conditions"
            )
        authority = authorities.read(found)
        known = before.get("user.crt"), before.get("user.key")
        present = KeyPair(*known) if known[0] and known[1] else None  # type: ignore[arg-type]
        terms = authorities.terms_of(of.security.certificates)
        return certificates.issued(present, authority, user, terms, client=True, forced=forced, now=self._now())

    # --- changes

    async def _secured(
        self,
        body: Body,
        spec: UserSpec,
        bootstrap: str,
        name: str,
        secrets: _Secrets,
        wanted: _Wanted,
    ) -> None:
        entry = wanted.entry
        shown = await self._shown(bootstrap, entry.user)
        made = _made(secrets, body)
        if shown is not None and entry.user not in made:
            raise Unresolved(
                "UserTaken",
                f"the cluster has a user {entry.user} that is not this resource's: delete it with `headrace user "
                f"delete {entry.user}`, or name another with spec.user",
            )
        await self._delete_former_users(bootstrap, body, spec, made)  # before the mark names another
        notes = {MADE: _mark(body, entry.user)}
        mark = digest([entry.user, entry.password]) if wanted.scram else ""
        told = annotation(secrets.last, TOLD) if secrets.last is not None else ""
        if told and wanted.scram and not wanted.forced:
            notes[TOLD] = told
        await self._kube.apply(_secret(body, name, entry, notes))  # first, so that no password is lost
        if wanted.forced:
            where = path(body["apiVersion"], body["kind"], body["metadata"]["namespace"], body["metadata"]["name"])
            await self._kube.merge(where, {"metadata": {"annotations": {FORCE: None}}})
        groups = sorted(set(spec.groups))
        if shown is None:
            asked = {"name": entry.user, "groups": groups, **({"password": entry.password} if wanted.scram else {})}
            await self._admin.call(bootstrap, "user.create", asked)
        else:
            if sorted(shown["groups"]) != groups:
                await self._admin.call(bootstrap, "user.alter", {"name": entry.user, "groups": groups})
            if wanted.scram and (told != mark or not shown["mechanisms"]):
                await self._admin.call(bootstrap, "user.passwd", {"name": entry.user, "password": entry.password})
            if not wanted.scram and shown["mechanisms"]:
                await remove_password(self._admin, bootstrap, entry.user, shown["mechanisms"])
        if wanted.scram and told != mark:
            await self._kube.apply(_secret(body, name, entry, {**notes, TOLD: mark}))
        await alter_quotas(self._admin, bootstrap, entry.user, spec.quotas)

    async def _shown(self, bootstrap: str, user: str) -> Mapping[str, Any] | None:
        try:
            found: Mapping[str, Any] = await self._admin.call(bootstrap, "user.show", {"name": user})
        except KafkaError as error:
            if error.code is not Code.RESOURCE_NOT_FOUND:
                raise
            return None
        return found

    async def _delete_former_users(self, bootstrap: str, body: Body, spec: UserSpec, made: Collection[str]) -> None:
        """Delete the users that this resource has made and no longer declares, except those that somebody deleted and
        other resources have made since.
        """
        cluster = cluster_key(body, spec.cluster_ref)
        for user in sorted(set(made) - {_user(body, spec)}):
            others = map(self._cache.get, self._index.declaring(self.name, cluster, user))
            if not any(other is not None and (other.get("status") or {}).get("user") == user for other in others):
                await self._delete_user(bootstrap, user, has_quotas=True)

    async def _delete_user(self, bootstrap: str, user: str, *, has_quotas: bool) -> None:
        if has_quotas:
            await alter_quotas(self._admin, bootstrap, user, Quotas())
        try:
            await self._admin.call(bootstrap, "user.delete", {"name": user})
        except KafkaError as error:
            if error.code is not Code.RESOURCE_NOT_FOUND:
                raise

    # --- Secrets

    async def _secrets(self, body: Body, name: str) -> _Secrets:
        namespace = str(body["metadata"]["namespace"])
        present = await self._kube.get("v1", "Secret", namespace, name)
        former = (body.get("status") or {}).get("secret")
        if not former or former == name:
            return _Secrets(present, None)
        found = await self._kube.get("v1", "Secret", namespace, str(former))
        return _Secrets(present, found if found is not None and _is_ours(found, body) else None)

    async def _drop_former(self, secrets: _Secrets) -> None:
        """Delete this user's Secret of a former name: nobody would look for its password there."""
        if secrets.former is not None:
            meta = secrets.former["metadata"]
            await self._kube.delete("v1", "Secret", meta["namespace"], meta["name"], uid=meta.get("uid"))


def _user(body: Body, spec: UserSpec) -> str:
    return spec.user or str(body["metadata"]["name"])


def _mark(body: Body, user: str) -> str:
    return f"{user} {body['metadata']['uid']}"


def _made(secrets: _Secrets, body: Body) -> Collection[str]:
    """Return the users that belong to this resource, by the marks of its Secrets."""
    marks = [
        annotation(each, MADE).rpartition(" ")
        for each in (secrets.present, secrets.former)
        if each is not None and _is_ours(each, body)
    ]
    return {user for user, _, uid in marks if user and uid == body["metadata"]["uid"]}


def _is_ours(present: Manifest, body: Body) -> bool:
    uid = body["metadata"]["uid"]
    return any(each.get("uid") == uid for each in present["metadata"].get("ownerReferences") or [])


def _secret(body: Body, name: str, entry: Entry, notes: Mapping[str, str]) -> Manifest:
    resource = dict(body)
    cluster = resource["spec"]["clusterRef"]["name"]
    made: Manifest = {
        "name": name,
        "namespace": resource["metadata"]["namespace"],
        "labels": {**labels(cluster, "user"), CLUSTER_LABEL: cluster},
        "ownerReferences": [owner(resource)],
    }
    if notes:
        made["annotations"] = dict(notes)
    return {"apiVersion": "v1", "kind": "Secret", "metadata": made, "type": "Opaque", "data": encoded(values(entry))}

"""A cluster's security: authorities and certificates, the operator's credentials, and their stage in the pods.

Each reconcile reads the Secrets and does what is due: an authority's next step (`builders.authorities`), the renewal of
a certificate, a requested change of the operator's password. Nodes reload the files themselves, so none of this
restarts a pod.

1. A failure never opens anything: pods that are to have security are not created without it.
2. What cannot be recovered is never recreated: if the Secrets of the authorities or of the operator are missing in a
   cluster that has security already, the condition says so, and nodes continue with what they have.
3. A cluster whose feature level has no users gets no security: nodes would wait, and serve nobody.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from headrace.base.errors import HeadraceError, KafkaError
from headrace.base.levels import Level, format_of
from headrace.security.certificate_authority import CertificateRefused
from headrace_operator.admin import Calls, NotAuthenticated
from headrace_operator.builders import authorities, certificates, listeners, operator_secret, secured_pods, trust
from headrace_operator.builders.authorities import FORCE, Generations, Terms, decoded, encoded
from headrace_operator.builders.cluster import ClusterObjects
from headrace_operator.builders.digest import digest
from headrace_operator.builders.listeners import CLIENTS_CA
from headrace_operator.builders.names import Manifest, ObjectName, belongs, bootstrap, metadata
from headrace_operator.builders.operator_secret import Proofs
from headrace_operator.builders.secured_pods import Secured, next_secured, secured_of, serves_operator
from headrace_operator.engine import Key
from headrace_operator.kinds.causes import is_ready
from headrace_operator.kinds.cluster_given import Fault, Given, pair_of
from headrace_operator.kinds.cluster_view import ANSWER_S, QUIET_S, STUCK_S, WORKING_S, ObservedCluster, annotation
from headrace_operator.kinds.references import Unresolved
from headrace_operator.kinds.reporting import Reporter
from headrace_operator.kube import Kube, NameTaken, path
from headrace_operator.routes import Route, Routes
from headrace_operator.specs import GROUP, ClusterSpec

log = structlog.get_logger()

SECURED: Final = "Secured"
CERTIFICATES: Final = "Certificates"
TYPES: Final = (SECURED, CERTIFICATES)
ASIDE: Final = (SECURED,)
"""Conditions that Ready does not depend on: an open cluster is as its resource asks."""
MIN_OVERLAP_S: Final = 60.0
"""Least seconds between an authority's steps: pods see a changed Secret at once (`_force_sync`), and nodes check every
ten seconds.
"""
NEEDED_LEVEL: Final = int(Level.SECURED)
HAS_IT: Final = f"{GROUP}/secured"
"""Annotation of the cluster record: its pods have security, so that missing Secrets are not recreated."""
SHOWN: Final = f"{GROUP}/certificates"
"""Annotation of pods: a digest of the certificates that they are to have."""
OPEN: Final = "anyone who can reach a listener may do anything"


@dataclass(frozen=True, slots=True)
class _Held:
    """The content of the security Secrets, once all are in order."""

    cluster: Generations
    clients: Generations
    proofs: Proofs
    faults: Sequence[Fault]
    """The faults of user-provided authorities."""


class Withheld(Exception):
    """Pods cannot get the security that they need, and are not created without it. The conditions say why."""


class SecurityStep:
    """Prepares the security of all clusters."""

    def __init__(
        self,
        *,
        kube: Kube,
        admin: Calls,
        routes: Routes,
        reporter: Reporter,
        now: Callable[[], float] = lambda: time.time(),
    ) -> None:
        self._kube = kube
        self._admin = admin
        self._routes = routes
        self._reporter = reporter
        self._now = now
        self._given = Given(kube=kube, now=now)

    # --- before the cluster is called

    async def find_way(self, key: Key, spec: ClusterSpec, pods: Sequence[Manifest]) -> None:
        """Note how the cluster is reached. Raises ApiError, ApiSilent."""
        serving = [pod["metadata"]["name"] for pod in sorted(pods, key=is_ready, reverse=True) if serves_operator(pod)]
        if not serving and (pods or not spec.security.enabled):
            self._routes.put(key.namespace, key.name, None)
            return
        proofs = operator_secret.read(decoded(await self._secret(key, ObjectName.OPERATOR.of(key.name))))
        ca = decoded(await self._secret(key, ObjectName.CA.of(key.name))).get("ca.crt", "")
        if proofs is None or not ca:
            if self._routes.get(key.namespace, key.name) is None:
                secrets = f"{ObjectName.OPERATOR.of(key.name)} and {ObjectName.CA.of(key.name)}"
                why = f"the operator has no credentials for the cluster (yet): Secrets {secrets}"
                self._routes.close(key.namespace, key.name, why)
            return
        some = serving if len(serving) < len(pods) else []
        try:
            route = Route.of(operator_secret.properties(proofs, ca), some)
        except KafkaError as error:
            self._routes.close(
                key.namespace, key.name, f"the operator's credentials for the cluster cannot be used: {error}"
            )
            return
        self._routes.put(key.namespace, key.name, route)
        if proofs.next_password and not await self._is_known(key):
            changed = replace(proofs, password=proofs.next_password)  # the cluster has the new password already
            route = Route.of(operator_secret.properties(changed, ca), some)
            self._routes.put(key.namespace, key.name, route)

    async def _is_known(self, key: Key) -> bool:
        """Return whether the cluster accepts the route's credentials; also True if it does not answer."""
        try:
            await self._admin.call(bootstrap(key.name, key.namespace), "security.show", {}, patience_s=ANSWER_S)
        except NotAuthenticated:
            return False
        except HeadraceError:
            return True
        return True

    async def _secret(self, key: Key, name: str) -> Manifest | None:
        """Return one of the cluster's own Secrets; None if there is none."""
        found = await self._kube.get("v1", "Secret", key.namespace, name)
        return found if found is not None and belongs(found, key.name) else None

    # --- what pods need

    async def step(self, objects: ClusterObjects, spec: ClusterSpec, seen: ObservedCluster) -> Secured | None:
        """Bring the Secrets up to date, and return the stage of security for the pods; None for none at all. Raises
        Withheld, NameTaken, ApiError, ApiSilent.
        """
        template = secured_of(_template(seen))
        if not spec.security.enabled:
            seen.note(SECURED, False, "Open", f"{OPEN}: spec.security.enabled turns security on (docs/security.md)")
            seen.note(CERTIFICATES, True, "NoneNeeded")
            return template  # security is never removed: only the resource opens a listener, explicitly
        try:
            held = await self._held(objects, spec, seen, has_it=template is not None or has_had_it(seen))
        except Unresolved as lost:
            reason = lost.condition.reason
            seen.note(CERTIFICATES, False, reason, str(lost), again_s=STUCK_S)
            seen.note(SECURED, None, reason, f"see {CERTIFICATES}")
            return _as_it_is(template, seen)
        except CertificateRefused as error:
            seen.note(CERTIFICATES, False, "Refused", str(error), again_s=STUCK_S)
            seen.note(SECURED, None, "Refused", f"see {CERTIFICATES}")
            return _as_it_is(template, seen)
        await self._check_given(objects, spec, seen, held.faults)
        terms = _terms(spec)
        due = min(each.again_s(terms, now=self._now()) for each in (held.cluster, held.clients))
        seen.again_s = min(seen.again_s, max(WORKING_S, due))
        is_new = seen.stateful_set is None and not seen.pods
        if template is None and seen.record_format < format_of(NEEDED_LEVEL):
            seen.note(
                SECURED,
                False,
                "LevelFirst",
                f"{OPEN}: the cluster is raised to feature level {NEEDED_LEVEL} first, see FeatureLevel",
                again_s=WORKING_S,
            )
            return None
        return next_secured(
            template, [secured_of(pod) for pod in seen.pods], is_new=is_new, authorization=spec.security.authorization
        )

    async def _held(self, objects: ClusterObjects, spec: ClusterSpec, seen: ObservedCluster, *, has_it: bool) -> _Held:
        terms, key = _terms(spec), Key("StreamCluster", objects.namespace, objects.name)
        cluster = await self._authority(objects, ObjectName.CLUSTER_CA.of(key.name), terms, has_it=has_it)
        clients = await self._authority(objects, ObjectName.CLIENTS_CA.of(key.name), terms, has_it=has_it)
        proofs = await self._proofs(objects, has_it=has_it)
        await self._apply(objects, ObjectName.CA.of(key.name), {"ca.crt": cluster.trusted})
        outside = _outside(spec, seen)
        trusted, faults = await self._trusted(objects, spec, clients)
        hosts = secured_pods.hosts(key.name, key.namespace, outside)
        server = await self._leaf(
            objects,
            ObjectName.SERVER.of(key.name),
            cluster,
            terms,
            common_name=key.name,
            hosts=hosts,
            client=False,
            beside={"ca.crt": cluster.trusted, CLIENTS_CA: clients.trusted, **trusted},
        )
        peers = await self._leaf(
            objects,
            ObjectName.PEERS.of(key.name),
            cluster,
            terms,
            common_name=f"{key.name}-nodes",
            hosts=[f"{key.name}-nodes"],
            client=True,
            beside={"ca.crt": cluster.trusted},
        )
        await self._force_sync(objects, seen, digest([_public(server), _public(peers)]))
        return _Held(cluster, clients, proofs, faults)

    async def _trusted(
        self, objects: ClusterObjects, spec: ClusterSpec, clients: Generations
    ) -> tuple[dict[str, str], list[Fault]]:
        """Return the entries of NAME-server for user-provided authorities, and their faults."""
        if not any(trust.references(spec)):
            return {}, []
        held = decoded(await self._own(objects, ObjectName.SERVER.of(objects.name)))
        given, faults = await self._given.authorities(objects.namespace, spec, held)
        return trust.entries(spec, given, own=clients.trusted), faults

    async def _force_sync(self, objects: ClusterObjects, seen: ObservedCluster, mark: str) -> None:
        """Make pods see changed Secrets at once: the kubelet syncs a pod when the pod changes, and otherwise within a
        minute and a half.
        """
        for pod in seen.pods:
            if secured_of(pod) is not None and annotation(pod, SHOWN) != mark:
                where = path("v1", "Pod", objects.namespace, pod["metadata"]["name"])
                await self._kube.merge(where, {"metadata": {"annotations": {SHOWN: mark}}})

    async def _authority(self, objects: ClusterObjects, name: str, terms: Terms, *, has_it: bool) -> Generations:
        present = await self._own(objects, name)
        if present is None:
            if has_it:
                raise Unresolved(
                    "SecretLost",
                    f"Secret {name} is gone, and nodes and clients trust what it has signed: restore it from a backup",
                )
            made = authorities.created(name, terms, now=self._now())
            if await self._kube.create(authorities.secret(made, metadata=kept(objects, name))):
                return made
            present = await self._own(objects, name) or {}
        try:
            before = authorities.read(present)
        except CertificateRefused as error:
            raise Unresolved(
                "CertificateUnfit", f"Secret {name} cannot be used: {error}; restore it from a backup"
            ) from None
        forced = annotation(present, FORCE) == "true"
        after, done = authorities.step(name, before, terms, forced=forced and not before.turns, now=self._now())
        if done:
            await self._kube.apply(authorities.secret(after, metadata=kept(objects, name)))
            await self._reporter.tell(objects, "AuthorityRenewed", f"{name}: {done}")
        if forced:
            await self._take_off_force(objects, name)
        return after

    async def _proofs(self, objects: ClusterObjects, *, has_it: bool) -> Proofs:
        name = ObjectName.OPERATOR.of(objects.name)
        present = await self._own(objects, name)
        found = operator_secret.read(decoded(present))
        if found is None:
            if has_it:
                raise Unresolved(
                    "SecretLost",
                    f"Secret {name} is gone or incomplete, and the operator authenticates at the nodes with it: "
                    "restore it from a backup",
                )
            made = operator_secret.made()
            await self._kube.apply(operator_secret.secret(made, metadata=kept(objects, name)))
            return made
        if present is not None and annotation(present, FORCE) == "true":
            if not found.next_password:
                found = replace(found, next_password=operator_secret.generated())
                await self._kube.apply(operator_secret.secret(found, metadata=kept(objects, name)))
            await self._take_off_force(objects, name)
        return found

    async def _leaf(
        self,
        objects: ClusterObjects,
        name: str,
        authority: Generations,
        terms: Terms,
        *,
        common_name: str,
        hosts: Sequence[str],
        client: bool,
        beside: Mapping[str, str],
    ) -> Mapping[str, str]:
        """Issue or renew a certificate, and return the content of its Secret."""
        present = await self._own(objects, name)
        before = pair_of(decoded(present))
        forced = present is not None and annotation(present, FORCE) == "true"
        pair = certificates.issued(
            before, authority, common_name, terms, hosts=hosts, client=client, forced=forced, now=self._now()
        )
        values = {"tls.crt": pair.certificate, "tls.key": pair.key, **beside}
        await self._apply(objects, name, values)
        if before is not None and pair != before:
            await self._reporter.tell(objects, "CertificateRenewed", f"Secret {name} has another certificate")
        if forced:
            await self._take_off_force(objects, name)
        return values

    async def _check_given(
        self, objects: ClusterObjects, spec: ClusterSpec, seen: ObservedCluster, faults: Sequence[Fault]
    ) -> None:
        """Note the condition of the certificates: user-provided ones, and what nodes report about theirs."""
        found = [*faults, *await self._given.certificates(objects.namespace, spec)]
        if problem := await self._problem_of_nodes(seen):
            found.append(Fault("NodeDisagrees", problem))
        if not found:
            seen.note(CERTIFICATES, True, "Valid")
            return
        worst, *others = sorted(found, key=lambda each: not each.is_now)
        more = f" (and {len(others)} more)" if others else ""
        again_s = STUCK_S if worst.is_now else QUIET_S
        seen.note(CERTIFICATES, False, worst.reason, f"{worst.text}{more}", again_s=again_s)

    async def _problem_of_nodes(self, seen: ObservedCluster) -> str:
        """Return the first listener problem that a node reports; "" if there is none."""
        if secured_of(_template(seen)) is None:
            return ""
        nodes = [node for node in (seen.status or {}).get("nodes", []) if str(node["state"]).startswith("up")]
        told = await asyncio.gather(*(self._listeners_of(str(node["address"])) for node in nodes))
        for node, its_listeners in zip(nodes, told, strict=True):
            for each in its_listeners:
                if each.get("problem"):
                    return f"node {node['node']}, listener {each['name']}: {each['problem']}"
        return ""

    async def _listeners_of(self, address: str) -> Sequence[Mapping[str, Any]]:
        try:
            told = await self._admin.call(address, "status", {}, patience_s=ANSWER_S)
        except HeadraceError as error:
            log.info("a node's listeners are not known", of=address, error=str(error))
            return []
        found: Sequence[Mapping[str, Any]] = told.get("listeners", [])
        return found

    # --- objects

    async def _own(self, objects: ClusterObjects, name: str) -> Manifest | None:
        found = await self._kube.get("v1", "Secret", objects.namespace, name)
        if found is not None and not belongs(found, objects.name):
            raise NameTaken(found)
        return found

    async def _apply(self, objects: ClusterObjects, name: str, values: Mapping[str, str]) -> None:
        """Apply a Secret that is owned by the resource: its content can be recreated."""
        made = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": metadata(name, objects.namespace, objects.name, owned_by=objects.resource),
            "type": "Opaque",
            "data": encoded(values),
        }
        await self._kube.apply(made)

    async def _take_off_force(self, objects: ClusterObjects, name: str) -> None:
        where = path("v1", "Secret", objects.namespace, name)
        await self._kube.merge(where, {"metadata": {"annotations": {FORCE: None}}})


def has_had_it(seen: ObservedCluster) -> bool:
    """Return whether the cluster record says that its pods had security, whether or not any pods exist."""
    return seen.secret is not None and annotation(seen.secret, HAS_IT) == "true"


def _as_it_is(template: Secured | None, seen: ObservedCluster) -> Secured | None:
    """Return the stage of security that the pods keep while the Secrets are faulty. Raises Withheld if keeping it would
    open a cluster.
    """
    was_open = any(secured_of(pod) is None for pod in seen.pods)
    if template is None and not was_open:
        raise Withheld
    return template


def kept(objects: ClusterObjects, name: str) -> Manifest:
    """Return the metadata of a Secret that outlives the resource."""
    return metadata(name, objects.namespace, objects.name, owned_by=None)


def kept_secrets(cluster: str) -> list[str]:
    """Return the names of the Secrets that outlive the resource, unless it is deleted with its data."""
    return [ObjectName.CLUSTER_CA.of(cluster), ObjectName.CLIENTS_CA.of(cluster), ObjectName.OPERATOR.of(cluster)]


def _terms(spec: ClusterSpec) -> Terms:
    asked = authorities.terms_of(spec.security.certificates)
    return replace(asked, overlap_s=max(asked.overlap_s, MIN_OVERLAP_S))


def _template(seen: ObservedCluster) -> Manifest | None:
    return None if seen.stateful_set is None else dict(seen.stateful_set["spec"]["template"])


def _public(values: Mapping[str, str]) -> list[str]:
    """Return the values of a Secret without its keys."""
    return [value for name, value in sorted(values.items()) if not name.endswith(".key")]


def _outside(spec: ClusterSpec, seen: ObservedCluster) -> list[str]:
    """Return the hosts that clients outside use, as far as they are known."""
    told = []
    for port in listeners.exposed(spec):
        if port.outside is not None and port.outside.host:
            told.append(port.outside.host)
        told += [address.rpartition(":")[0] for address in seen.advertised(port.name)]
    return sorted({certificates.host_name(each) for each in told if each})

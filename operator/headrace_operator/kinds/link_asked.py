"""Resolves a ReplicationLink to a cluster's parameters: looks up clusters and Streams, and reads Secrets. Calls no
cluster, and changes nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.base.addresses import parse_addresses
from headrace.base.errors import HeadraceError
from headrace_operator.builders.authorities import decoded
from headrace_operator.engine import Body, Cache, Key, key_of
from headrace_operator.kinds.index import Index
from headrace_operator.kinds.link_credentials import properties_of
from headrace_operator.kinds.references import Unresolved, check_oldest, claim, is_allowed, resolve
from headrace_operator.kube import Kube
from headrace_operator.specs import LinkSpec, UserRef, milliseconds, quantity


class Unheard(Unresolved):
    """A fault whose end no event reports: it is checked again."""


@dataclass(frozen=True, slots=True)
class Given:
    """Credentials from a Secret."""

    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)
    version: str = ""
    """The Secret's name and version; "" if there is none."""
    where: str = ""
    """The bootstrap address in a StreamUser's Secret."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The resource's link in the cluster's parameters."""

    bootstrap: str
    """The target cluster's bootstrap address."""
    name: str
    source: Sequence[str]
    source_bootstrap: str | None
    """The address for admin calls to the source; None if the source is no StreamCluster here."""
    reach: Sequence[str]
    """The target's addresses, as the source reaches them; [] if none are known."""
    given: Given
    """The credentials with which the source is read."""
    reverse: Given
    """The credentials with which the source copies from here."""
    fields: Mapping[str, Any]
    """The parameters that `link.alter` can change, without the credentials."""

    @property
    def both(self) -> bool:
        """Whether the source is to copy from here too."""
        return bool(self.fields["direction"] == "both")


class LinkResolver:
    """Resolves all ReplicationLinks."""

    def __init__(self, *, kube: Kube, cache: Cache, index: Index) -> None:
        self._kube = kube
        self._cache = cache
        self._index = index

    async def resolved(self, body: Body, spec: LinkSpec) -> Asked:
        """Return the resolved link. Raises Unresolved, and KafkaError for addresses that cannot be parsed."""
        cluster, _, bootstrap = resolve(self._cache, body, spec.cluster_ref)
        check_oldest(self._cache, self._index, body)
        self._check_ttl(body, spec)
        source_bootstrap = None
        if spec.source.cluster_ref is not None:
            _, _, source_bootstrap = resolve(self._cache, body, spec.source.cluster_ref, field="source.clusterRef")
        given = await self._given(body, spec.source.user_ref, spec.source.credentials_secret)
        reverse = await self._given(body, spec.target.user_ref, spec.target.credentials_secret)
        of_user = given.where if spec.source.cluster_ref is not None else ""
        source = addresses(of_user or source_bootstrap or spec.source.bootstrap or "")
        if spec.target.bootstrap is not None or reverse.where:
            reach = addresses(spec.target.bootstrap or reverse.where)
        elif source_bootstrap is not None:
            reach = [bootstrap]
        else:
            reach = addresses(str((cluster.get("status") or {}).get("externalBootstrap") or ""))
        both = spec.mode == "MultiHome"
        if both and not reach:
            raise Unheard(
                "NoAddress",
                "with MultiHome the source copies from here, and this cluster has no address outside of Kubernetes"
                " (yet): give it listeners.external, or say in target.bootstrap which addresses the source reaches",
            )
        fields: dict[str, Any] = {
            "source": source,
            "topics": list(dict.fromkeys(spec.topics)),
            "direction": "both" if both else "pull",
            "forward_writes": spec.forward_writes,
            "throttle": quantity(spec.throttle) if spec.throttle is not None else 0,
            "bootstrap": reach,
        }
        return Asked(
            bootstrap=bootstrap,
            name=spec.name or body["metadata"]["name"],
            source=source,
            source_bootstrap=source_bootstrap,
            reach=reach,
            given=given,
            reverse=reverse if both else Given(),
            fields=fields,
        )

    async def _given(self, body: Body, user: UserRef | None, secret_name: str | None) -> Given:
        """Return the credentials from a StreamUser or a Secret beside the resource. Raises Unheard."""
        name = secret_name if user is None else self._secret_of(body, user.name)
        if name is None:
            return Given()
        secret = await self._kube.get("v1", "Secret", body["metadata"]["namespace"], name)
        if secret is None:
            raise Unheard("NoSecret", f"there is no Secret {name} beside this resource: create it, or name another")
        try:
            properties = properties_of(secret)
        except HeadraceError as error:
            raise Unheard("BadSecret", f"Secret {name} cannot be used: {error}") from None
        where = "" if user is None else decoded(secret).get("bootstrap", "")
        return Given(properties, f"{name}@{secret['metadata']['resourceVersion']}", where)

    def _secret_of(self, body: Body, user: str) -> str:
        found = self._cache.get(Key("StreamUser", body["metadata"]["namespace"], user))
        if found is None:
            raise Unheard("NoUser", f"there is no StreamUser {user} beside this resource: create it, or name another")
        return str((found.get("spec") or {}).get("secretName") or user)

    def declared(self, body: Body) -> Body | None:
        """Return the Stream that declares the target's path; None if there is none."""
        for key in self._index.streams_around(key_of(body)):
            found = self._cache.get(key)
            if found is not None and is_allowed(self._cache, found):
                return found
        return None

    def _check_ttl(self, body: Body, spec: LinkSpec) -> None:
        """Check that no older resource sets another time to live of the same stream: the two would overwrite each other
        for ever. Raises Unresolved.
        """
        if spec.target.ttl is None:
            return
        stream = self.declared(body)
        others = [] if stream is None else [(stream, str(stream["spec"].get("ttl", "0")))]
        for key in self._index.links_beside(key_of(body)):
            other = self._cache.get(key)
            if other is not None and claim(other) < claim(body) and is_allowed(self._cache, other):
                theirs = (other["spec"].get("target") or {}).get("ttl")
                others += [] if theirs is None else [(other, str(theirs))]
        for other, theirs in others:
            if milliseconds(theirs) != milliseconds(spec.target.ttl):
                meta = other["metadata"]
                of = f"{other['kind']} {meta['namespace']}/{meta['name']} gives {spec.target.stream} a ttl of {theirs}"
                raise Unheard("TtlTwice", f"{of}: leave target.ttl out, or change it there")


def addresses(text: str) -> list[str]:
    """Return the addresses as a cluster writes them; [] for "". Raises KafkaError."""
    return [str(each) for each in parse_addresses([text])] if text else []

"""Certificates and authorities that users provide to a cluster by reference.

Listeners' certificates with their keys are mounted as they are; the authorities that listeners trust are copied
(`builders.trust`). Faults of either are reported, and never open a listener.
"""

import base64
from collections.abc import Callable, Mapping
from typing import NamedTuple

from headrace.security.certificate_authority import CertificateRefused, KeyPair
from headrace_operator.builders import certificates, listeners, trust
from headrace_operator.builders.authorities import decoded
from headrace_operator.builders.certificates import GivenFault
from headrace_operator.builders.listeners import Port
from headrace_operator.builders.trust import Reference
from headrace_operator.kube import Kube
from headrace_operator.specs import ClusterSpec


class Fault(NamedTuple):
    """A fault that needs a person's attention."""

    reason: str
    text: str
    is_now: bool = True
    """Whether the fault is present already; otherwise it lies ahead."""


class Given:
    """Reads and checks what users provide, for all clusters."""

    def __init__(self, *, kube: Kube, now: Callable[[], float]) -> None:
        self._kube = kube
        self._now = now

    async def authorities(
        self, namespace: str, spec: ClusterSpec, held: Mapping[str, str]
    ) -> tuple[dict[str, str], list[Fault]]:
        """Return the provided authorities by their entry in NAME-server, and their faults. `held`: the present content
        of NAME-server, which is kept for references that are faulty. Raises ApiError, ApiSilent.
        """
        found: dict[str, str] = {}
        faults: list[Fault] = []
        left = trust.MAX_BYTES
        for reference in trust.references(spec):
            text = await self._text(namespace, reference)
            try:
                if text is None:
                    raise CertificateRefused("does not exist: create it, or name another")
                given = trust.authorities_in(text)
                if len(given) > left:
                    raise CertificateRefused(
                        f"is too long: the authorities of a cluster have {trust.MAX_BYTES >> 10} KiB at most together"
                    )
            except CertificateRefused as error:
                given = self._former(held.get(reference.entry, ""))
                stays = (
                    "no certificate is trusted until then"
                    if trust.is_nobody(given)
                    else "the former authorities stay in use"
                )
                said = f"{reference.where} {error}; {stays}"
                faults.append(Fault("NoAuthority" if text is None else "AuthorityUnfit", said))
            else:
                faults += self._expiry(reference, given)
            found[reference.entry] = given
            left -= len(given)
        return found, faults

    async def certificates(self, namespace: str, spec: ClusterSpec) -> list[Fault]:
        """Return the faults of listeners' certificates. Raises ApiError, ApiSilent."""
        return [
            fault
            for port in listeners.ports(spec)
            if port.has_tls and port.given_secret is not None
            for fault in await self._of_certificate(namespace, port, port.given_secret)
        ]

    async def _text(self, namespace: str, reference: Reference) -> str | None:
        """Return the text that a reference names; None if it does not exist."""
        if (named := reference.source.secret_ref) is not None:
            secret = await self._kube.get("v1", "Secret", namespace, named.name)
            value = ((secret or {}).get("data") or {}).get(named.key)
            return None if value is None else base64.b64decode(value).decode(errors="replace")
        if (named := reference.source.config_map_ref) is not None:
            config = await self._kube.get("v1", "ConfigMap", namespace, named.name)
            text = ((config or {}).get("data") or {}).get(named.key)
            return None if text is None else str(text)
        return None

    def _former(self, held: str) -> str:
        """Return the authorities provided before; if there were none, an authority whose key nobody has."""
        try:
            return trust.authorities_in(held)
        except CertificateRefused:
            return trust.nobody(now=self._now())

    def _expiry(self, reference: Reference, given: str) -> list[Fault]:
        end, now = trust.last_end(given), self._now()
        if now >= end:
            return [Fault("CertificateExpired", f"{reference.where} has expired: put a new authority there")]
        if now >= end - certificates.SOON_S:
            return [Fault("CertificateExpires", f"{reference.where} expires within 14 days", is_now=False)]
        return []

    async def _of_certificate(self, namespace: str, port: Port, name: str) -> list[Fault]:
        pair = pair_of(decoded(await self._kube.get("v1", "Secret", namespace, name)))
        where = f"listener {port.name}: Secret {name}"
        if pair is None:
            text = f"{where} does not exist, or has no tls.crt and tls.key: create it (cert-manager's Certificate does)"
            return [Fault("NoSecret", text)]
        match certificates.given_fault(pair, now=self._now()):
            case GivenFault.UNFIT, why:
                return [Fault("CertificateUnfit", f"{where}: {why}")]
            case GivenFault.EXPIRED, why:
                return [Fault("CertificateExpired", f"{where}: {why}")]
            case GivenFault.EXPIRES, why:
                return [Fault("CertificateExpires", f"{where}: {why}", is_now=False)]
        return []


def pair_of(values: Mapping[str, str]) -> KeyPair | None:
    """Return the certificate and key that a Secret holds; None if it lacks one."""
    if not values.get("tls.crt") or not values.get("tls.key"):
        return None
    return KeyPair(values["tls.crt"], values["tls.key"])

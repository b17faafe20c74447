"""A cluster's own certificate authority, through its generations, as its Secret holds it. Pure.

    data          ca.crt, ca.key          signs certificates now
                  next.crt, next.key      signs next; already trusted
                  former.crt              no longer signs; still trusted
    annotations   headrace.dev/ca-generation   of the authority that signs: 1, 2, ...
                  headrace.dev/ca-turned       when the last of these steps was taken

A new generation is introduced in three steps, `overlap_s` apart, so that nodes and clients can reload the certificates
that they trust: it is trusted beside the current one, then it signs, then the former one is no longer trusted. So no
node or client ever sees a certificate of an authority that it has not yet had time to load.

1. One step at a time: no third generation is created before the first is dropped.
2. An expired authority is replaced at once: certificates that it has signed are no longer trusted anyway.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from headrace.security.certificate_authority import DAY_S, Authority, CertificateRefused, KeyPair, not_after
from headrace_operator.builders.names import Manifest
from headrace_operator.specs import GROUP, Certificates, milliseconds

GENERATION: Final = f"{GROUP}/ca-generation"
TURNED: Final = f"{GROUP}/ca-turned"
FORCE: Final = f"{GROUP}/force-renew"
"""Annotation that asks for an immediate renewal of what the object holds. It is removed once the renewal has begun."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How long signed certificates are valid, and when they are renewed."""

    days: int
    renewal_days: int
    overlap_s: float


def terms_of(asked: Certificates) -> Terms:
    """Return the terms that a resource asks for."""
    return Terms(asked.validity_days, asked.renewal_days, milliseconds(asked.overlap) / 1000)


@dataclass(frozen=True, slots=True)
class Generations:
    """The generations of an authority that currently exist."""

    current: KeyPair
    generation: int
    turned: float
    """When the last step was taken, in seconds since 1970."""
    next: KeyPair | None = None
    former: str = ""
    """A certificate; "" if there is none."""

    @property
    def trusted(self) -> str:
        """The certificates of all trusted generations, in PEM, the signing one first."""
        more = self.next.certificate if self.next is not None else ""
        return self.current.certificate + more + self.former

    @property
    def turns(self) -> bool:
        """Whether a new generation is under way."""
        return self.next is not None or bool(self.former)

    def again_s(self, terms: Terms, *, now: float) -> float:
        """Return the seconds until the next step is due."""
        if self.turns:
            return max(0.0, self.turned + terms.overlap_s - now)
        return max(0.0, not_after(self.current.certificate) - terms.renewal_days * DAY_S - now)


def read(secret: Mapping[str, Any]) -> Generations:
    """Return the generations in a Secret. Raises CertificateRefused if it holds no authority, with what to do."""
    data = {name: _decoded(value) for name, value in (secret.get("data") or {}).items()}
    notes = secret["metadata"].get("annotations") or {}
    current = KeyPair(data.get("ca.crt", ""), data.get("ca.key", ""))
    Authority.of(current)
    following = KeyPair(data["next.crt"], data.get("next.key", "")) if data.get("next.crt") else None
    if following is not None:
        Authority.of(following)
    former = data.get("former.crt", "")
    if former:
        not_after(former)
    try:
        return Generations(current, int(notes.get(GENERATION, 1)), float(notes.get(TURNED, 0)), following, former)
    except ValueError:
        raise CertificateRefused(f"its annotations {GENERATION} and {TURNED} are not numbers") from None


def created(name: str, terms: Terms, *, now: float) -> Generations:
    """Return the first generation of a new authority."""
    return Generations(_authority(name, 1, terms, now=now), 1, now)


def step(name: str, present: Generations, terms: Terms, *, forced: bool, now: float) -> tuple[Generations, str]:
    """Return the generations after the next step that is due, and the step in words for an event; "" if none is due."""
    ends = not_after(present.current.certificate)
    if present.next is not None:
        if now < present.turned + terms.overlap_s and now < ends:
            return present, ""
        former = present.current.certificate if now < ends else ""
        used = Generations(present.next, present.generation + 1, now, former=former)
        return (
            used,
            f"certificates of generation {used.generation} are in use; the previous generation is still trusted",
        )
    if present.former:
        if now < present.turned + terms.overlap_s:
            return present, ""
        return replace(present, former="", turned=now), f"only generation {present.generation} is trusted"
    if now >= ends:
        made = _authority(name, present.generation + 1, terms, now=now)
        return Generations(
            made, present.generation + 1, now
        ), f"generation {present.generation + 1} is created and used"
    if not forced and now < ends - terms.renewal_days * DAY_S:
        return present, ""
    made = _authority(name, present.generation + 1, terms, now=now)
    begun = replace(present, next=made, turned=now)
    return (
        begun,
        f"generation {present.generation + 1} is created and trusted, and will be used in {terms.overlap_s:g} s",
    )


def secret(found: Generations, *, metadata: Manifest) -> Manifest:
    """Return the Secret that holds the generations."""
    values = {"ca.crt": found.current.certificate, "ca.key": found.current.key}
    if found.next is not None:
        values |= {"next.crt": found.next.certificate, "next.key": found.next.key}
    if found.former:
        values["former.crt"] = found.former
    notes = {GENERATION: str(found.generation), TURNED: f"{found.turned:.0f}"}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {**metadata, "annotations": notes},
        "type": "Opaque",
        "data": encoded(values),
    }


def encoded(values: Mapping[str, str]) -> dict[str, str]:
    """Return `values` encoded as a Secret's `data`."""
    return {name: base64.b64encode(value.encode()).decode() for name, value in values.items()}


def decoded(secret: Mapping[str, Any] | None) -> dict[str, str]:
    """Return a Secret's decoded `data` without the entries that are not text; {} for None."""
    found = {}
    for name, value in ((secret or {}).get("data") or {}).items():
        try:
            found[str(name)] = _decoded(value)
        except CertificateRefused:
            continue
    return found


def _authority(name: str, generation: int, terms: Terms, *, now: float) -> KeyPair:
    return Authority.create(f"{name} {generation}", days=terms.days, now=now).pair


def _decoded(value: str | None) -> str:
    try:
        return base64.b64decode(value or "").decode()
    except ValueError:
        raise CertificateRefused("an entry of the Secret is not text") from None

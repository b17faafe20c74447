"""A cluster's own certificate authority, through its generations, as its Secret holds it. Pure.

    data          ca.crt, ca.key          signs certificates now
                  next.crt, next.key      will sign; is trusted already
                  former.crt              signs no longer; is trusted still
    annotations   headrace.dev/ca-generation   of the one that signs: 1, 2, ...
                  headrace.dev/ca-turned       when the last of these steps was taken

A new generation comes in three steps, with `overlap_s` between them, in which nodes and clients read what they trust
anew: it is trusted beside the present one, then it signs, then the former one is trusted no longer. So at no time does
anybody meet a certificate of an authority that it has had no time to hear of.

1. One step at a time: no third generation begins before the first is dropped.
2. An authority that has expired is replaced at once: nobody trusts what it has signed anyway.
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
"""Annotation: what the object holds is made anew at once. It is taken away once that has begun."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How long what is signed lives, and when it is made anew."""

    days: int
    renewal_days: int
    overlap_s: float


def terms_of(asked: Certificates) -> Terms:
    """Of a resource."""
    return Terms(asked.validity_days, asked.renewal_days, milliseconds(asked.overlap) / 1000)


@dataclass(frozen=True, slots=True)
class Generations:
    """What there is of an authority."""

    current: KeyPair
    generation: int
    turned: float
    """When the last step was taken, in seconds since 1970."""
    next: KeyPair | None = None
    former: str = ""
    """A certificate; "": there is none."""

    @property
    def trusted(self) -> str:
        """The certificates of all that are trusted, in PEM, the one that signs first."""
        more = self.next.certificate if self.next is not None else ""
        return self.current.certificate + more + self.former

    @property
    def turns(self) -> bool:
        """Whether a new generation is under way."""
        return self.next is not None or bool(self.former)

    def again_s(self, terms: Terms, *, now: float) -> float:
        """Until the next step is due."""
        if self.turns:
            return max(0.0, self.turned + terms.overlap_s - now)
        return max(0.0, not_after(self.current.certificate) - terms.renewal_days * DAY_S - now)


def read(secret: Mapping[str, Any]) -> Generations:
    """What a Secret holds. Raises CertificateRefused for what is no authority, with what to do."""
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
        raise CertificateRefused(f"its annotations {GENERATION} and {TURNED} are no numbers") from None


def created(name: str, terms: Terms, *, now: float) -> Generations:
    """The first generation."""
    return Generations(_authority(name, 1, terms, now=now), 1, now)


def step(name: str, present: Generations, terms: Terms, *, forced: bool, now: float) -> tuple[Generations, str]:
    """What it is to be now, and what has been done, in words for an event; "": nothing."""
    ends = not_after(present.current.certificate)
    if present.next is not None:
        if now < present.turned + terms.overlap_s and now < ends:
            return present, ""
        former = present.current.certificate if now < ends else ""
        used = Generations(present.next, present.generation + 1, now, former=former)
        return used, f"certificates of generation {used.generation} are used; the former one is trusted still"
    if present.former:
        if now < present.turned + terms.overlap_s:
            return present, ""
        return replace(present, former="", turned=now), f"only generation {present.generation} is trusted"
    if now >= ends:
        made = _authority(name, present.generation + 1, terms, now=now)
        return Generations(made, present.generation + 1, now), f"generation {present.generation + 1} is made and used"
    if not forced and now < ends - terms.renewal_days * DAY_S:
        return present, ""
    made = _authority(name, present.generation + 1, terms, now=now)
    begun = replace(present, next=made, turned=now)
    return begun, f"generation {present.generation + 1} is made and trusted, and used in {terms.overlap_s:g} s"


def secret(found: Generations, *, metadata: Manifest) -> Manifest:
    """The Secret that holds it."""
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
    """As a Secret's `data`."""
    return {name: base64.b64encode(value.encode()).decode() for name, value in values.items()}


def decoded(secret: Mapping[str, Any] | None) -> dict[str, str]:
    """A Secret's `data`, but for what is no text. None: {}."""
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
        raise CertificateRefused("an entry of the Secret is no text") from None

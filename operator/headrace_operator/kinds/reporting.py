"""Writes statuses and events, limited in rate."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import structlog

from headrace_operator.builders.names import Manifest
from headrace_operator.engine import Body, Cache, key_of
from headrace_operator.kube import Kube
from headrace_operator.status import (
    FIGURES_S,
    Condition,
    complete,
    differs,
    figures_of,
    instant,
    ready,
    status,
    warnings,
)

log = structlog.get_logger()

SHOWN: Final = 500
"""The maximum number of characters of a condition's message in the log."""
ROOM: Final = 1000
"""Resources whose times of writing are kept before outdated ones are dropped."""


class Named(Protocol):
    """A builder of a resource's objects."""

    @property
    def resource(self) -> Manifest: ...


class Reporter:
    """Writes the statuses and events of all kinds."""

    def __init__(self, kube: Kube, *, cache: Cache | None = None) -> None:
        """`cache`: updated with what was written, and with resources that turned out to be deleted."""
        self._kube = kube
        self._cache = cache
        self._figures_at: dict[str, float] = {}
        """When a resource's figures were last written because they were due, by uid."""
        self._room = ROOM
        self.statuses = 0

    async def report(
        self,
        body: Body,
        conditions: Sequence[Condition],
        figures: Mapping[str, Any],
        *,
        types: Sequence[str] = (),
        aside: Sequence[str] = (),
        counts: Sequence[str] = (),
    ) -> None:
        """Write a resource's status: conditions at once, figures once a minute.

        `types`: conditions of the kind. `aside`: those that Ready does not depend on. `counts`: figures that are also
        written at once, as they change seldom and people wait for them. A write of conditions includes the figures, but
        does not postpone their next regular write: the figures of a new resource are still 0.
        """
        meta = body["metadata"]
        before = body.get("status") or {}
        all_of_them = complete(conditions, types)
        wanted = status(
            generation=meta["generation"],
            conditions=[ready([each for each in all_of_them if each.type not in aside]), *all_of_them],
            # Figures that are unknown now keep their last value.
            figures={**figures_of(before), **{name: value for name, value in figures.items() if value is not None}},
            before=before,
            now=instant(time.time()),
        )
        due = time.monotonic() - self._figures_at.get(meta["uid"], float("-inf")) >= FIGURES_S
        if not differs(wanted, before, figures=due) and all(wanted.get(name) == before.get(name) for name in counts):
            return
        self.statuses += 1
        after = await self._kube.apply_status(body, wanted)
        if after is None:
            self.forget(meta["uid"])
            if self._cache is not None:
                self._cache.gone(key_of(body), uid=meta["uid"])
            return
        _tell_changes(body, wanted, before)
        for each in warnings(all_of_them, before):
            await self._kube.tell(body, reason=each.reason, message=each.message, warning=True)
        if due:
            self._note_figures(meta["uid"], time.monotonic())
        if self._cache is not None:
            self._cache.learn({"apiVersion": body["apiVersion"], "kind": body["kind"], **after})

    def _note_figures(self, uid: str, now: float) -> None:
        """Note when figures were written. Most resources disappear without notice, so outdated entries are dropped from
        time to time.
        """
        if len(self._figures_at) >= self._room:
            self._figures_at = {each: at for each, at in self._figures_at.items() if now - at < FIGURES_S}
            self._room = max(ROOM, 2 * len(self._figures_at))
        self._figures_at[uid] = now

    async def tell(self, of: Named, reason: str, message: str, *, warning: bool = False, mark: str = "") -> bool:
        """Post an event. See Kube.tell."""
        return await self._kube.tell(of.resource, reason=reason, message=message, warning=warning, mark=mark)

    def forget(self, uid: str) -> None:
        """Drop what is remembered about a deleted resource."""
        self._figures_at.pop(uid, None)


def _tell_changes(body: Body, status: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    """Log each condition that has changed, except new ones that are unknown."""
    known = {each["type"]: (each["status"], each["reason"]) for each in before.get("conditions", [])}
    for each in status["conditions"]:
        state = each["status"], each["reason"]
        if state == known.get(each["type"]) or (each["status"] == "Unknown" and each["type"] not in known):
            continue
        of = {name: body["metadata"].get(name, "") for name in ("namespace", "name")}
        said = {"condition": each["type"], "status": state[0], "reason": state[1], "message": each["message"][:SHOWN]}
        log.info("condition", kind=body.get("kind"), of=f"{of['namespace']}/{of['name']}", **said)

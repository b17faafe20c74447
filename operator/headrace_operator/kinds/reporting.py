"""Writes statuses and events, no more often than they are worth."""

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
"""Characters of a condition's message in the log."""
ROOM: Final = 1000
"""Resources whose time of figures is kept without a look at which of them still matter."""


class Named(Protocol):
    """What builds the objects of a resource."""

    @property
    def resource(self) -> Manifest: ...


class Reporter:
    """For all kinds."""

    def __init__(self, kube: Kube, *, cache: Cache | None = None) -> None:
        """`cache`: learns what was written, and that a resource turned out to be gone."""
        self._kube = kube
        self._cache = cache
        self._figures_at: dict[str, float] = {}
        """When the figures of a resource were written last because it was their time, by uid."""
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
        """What came of a resource: conditions at once, figures once a minute. `types`: conditions of its kind.

        `aside`: those that Ready does not sum up. `counts`: figures that are written at once too, as they change seldom
        and people wait for them. A condition takes the figures along, and does not put off their own
        time: of what has just begun they are 0.
        """
        meta = body["metadata"]
        before = body.get("status") or {}
        all_of_them = complete(conditions, types)
        wanted = status(
            generation=meta["generation"],
            conditions=[ready([each for each in all_of_them if each.type not in aside]), *all_of_them],
            # What is not known now is as it was: no answer is no reason to forget.
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
        """Most resources go without a word: what says nothing any more is dropped now and then."""
        if len(self._figures_at) >= self._room:
            self._figures_at = {each: at for each, at in self._figures_at.items() if now - at < FIGURES_S}
            self._room = max(ROOM, 2 * len(self._figures_at))
        self._figures_at[uid] = now

    async def tell(self, of: Named, reason: str, message: str, *, warning: bool = False, mark: str = "") -> bool:
        """An event. See Kube.tell."""
        return await self._kube.tell(of.resource, reason=reason, message=message, warning=warning, mark=mark)

    def forget(self, uid: str) -> None:
        """The resource is gone."""
        self._figures_at.pop(uid, None)


def _tell_changes(body: Body, status: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    """A line of the log for each condition that is another one now, but for those that are not known yet."""
    known = {each["type"]: (each["status"], each["reason"]) for each in before.get("conditions", [])}
    for each in status["conditions"]:
        state = each["status"], each["reason"]
        if state == known.get(each["type"]) or (each["status"] == "Unknown" and each["type"] not in known):
            continue
        of = {name: body["metadata"].get(name, "") for name in ("namespace", "name")}
        said = {"condition": each["type"], "status": state[0], "reason": state[1], "message": each["message"][:SHOWN]}
        log.info("condition", kind=body.get("kind"), of=f"{of['namespace']}/{of['name']}", **said)

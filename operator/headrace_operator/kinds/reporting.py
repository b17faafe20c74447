"""Writes statuses and events, no more often than they are worth."""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from headrace_operator.builders.names import Manifest
from headrace_operator.engine import Body
from headrace_operator.kube import Kube
from headrace_operator.status import FIGURES_S, Condition, differs, ready, status


class Named(Protocol):
    """What builds the objects of a resource."""

    @property
    def resource(self) -> Manifest: ...


class Reporter:
    """For all kinds."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._figures_at: dict[str, float] = {}
        """When a resource's figures were written last, by uid."""

    async def report(self, body: Body, conditions: Sequence[Condition], figures: Mapping[str, Any]) -> None:
        """What came of a resource: conditions at once, figures once a minute."""
        meta = body["metadata"]
        before = body.get("status", {})
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        wanted = status(
            generation=meta["generation"],
            conditions=[ready(conditions), *conditions],
            figures=figures,
            before=before,
            now=now,
        )
        due = time.monotonic() - self._figures_at.get(meta["uid"], float("-inf")) >= FIGURES_S
        if differs(wanted, before, figures=due):
            await self._kube.apply_status(body, wanted)
            self._figures_at[meta["uid"]] = time.monotonic()

    async def tell(self, of: Named, reason: str, message: str, *, warning: bool = False) -> None:
        """An event."""
        await self._kube.tell(of.resource, reason=reason, message=message, warning=warning)

    def forget(self, uid: str) -> None:
        """The resource is gone."""
        self._figures_at.pop(uid, None)

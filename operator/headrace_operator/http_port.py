"""The operator's HTTP port.

/healthz   200 while the engine works; 503 with what it is stuck with, or deaf to
/readyz    200 once everything has been listed, and resources are looked after; 503 before
/metrics   Prometheus's text format
"""

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final

from aiohttp import web

from headrace.metrics.merging import CONTENT_TYPE

Figures = Mapping[tuple[str, str], float]
"""By (name, labels as Prometheus writes them)."""
HELP: Final[Mapping[str, str]] = {
    "headrace_operator_reconciles_total": "Looks at a resource, by what came of them; those that failed are repeated.",
    "headrace_operator_reconcile_seconds_total": "Time that was spent in reconciles.",
    "headrace_operator_missed_changes_total": "Changes that a sweep found, and no watch had told of.",
    "headrace_operator_writes_total": "Writes to the API server, statuses included, events not.",
    "headrace_operator_unchanged_total": "Objects that were looked at, and were as they should be.",
    "headrace_operator_status_writes_total": "Statuses written.",
    "headrace_operator_admin_calls_total": "Calls to storage nodes.",
    "headrace_operator_queue_resources": "Resources that wait for a reconcile, or are in one.",
    "headrace_operator_resources": "Resources that are looked after, by kind.",
}
"""What each metric is."""


class HttpPort:
    """One operator's."""

    def __init__(
        self, *, stale: Callable[[], str], figures: Callable[[], Figures], starting: Callable[[], bool] = lambda: False
    ) -> None:
        """`stale`: why it is not healthy; "": it is. `starting`: whether resources are not looked after yet."""
        self._stale = stale
        self._starting = starting
        self._figures = figures
        application = web.Application()
        application.router.add_get("/healthz", self._health)
        application.router.add_get("/readyz", self._ready)
        application.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(application, access_log=None)

    async def start(self, host: str, port: int) -> int:
        """Serve; the port. Raises OSError."""
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        return int(self._runner.addresses[0][1])

    async def close(self) -> None:
        """Serve no longer."""
        await self._runner.cleanup()

    async def _health(self, _request: web.Request) -> web.Response:
        why = self._stale()
        if why:
            return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text=f"{why}\n")
        return web.Response(text="ok\n")

    async def _ready(self, _request: web.Request) -> web.Response:
        if self._starting():
            return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text="what there is has not been listed yet\n")
        return web.Response(text="ok\n")

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=exposition(self._figures()).encode(), headers={"Content-Type": CONTENT_TYPE})


def exposition(figures: Figures) -> str:
    """Counters end in `_total`; all others are gauges. Pure. Raises KeyError for one that HELP does not have."""
    lines: list[str] = []
    named = ""
    for (name, labels), value in figures.items():
        if name != named:
            lines.append(f"# HELP {name} {HELP[name]}")
            lines.append(f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}")
            named = name
        lines.append(f"{name}{{{labels}}} {value:g}" if labels else f"{name} {value:g}")
    return "\n".join(lines) + "\n"

"""The operator's HTTP port.

/healthz   200 while the engine works; 503 with what it is stuck with, or deaf to
/metrics   Prometheus's text format
"""

from collections.abc import Callable, Mapping
from http import HTTPStatus

from aiohttp import web

from headrace.admin.metrics import CONTENT_TYPE

Figures = Mapping[tuple[str, str], float]
"""By (name, labels as Prometheus writes them)."""


class HttpPort:
    """One operator's."""

    def __init__(self, *, stale: Callable[[], str], figures: Callable[[], Figures]) -> None:
        """`stale`: why it is not healthy; "": it is."""
        self._stale = stale
        self._figures = figures
        application = web.Application()
        application.router.add_get("/healthz", self._health)
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

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=exposition(self._figures()).encode(), headers={"Content-Type": CONTENT_TYPE})


def exposition(figures: Figures) -> str:
    """Counters end in `_total`; all others are gauges. Pure."""
    lines: list[str] = []
    named = ""
    for (name, labels), value in figures.items():
        if name != named:
            lines.append(f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}")
            named = name
        lines.append(f"{name}{{{labels}}} {value:g}" if labels else f"{name} {value:g}")
    return "\n".join(lines) + "\n"

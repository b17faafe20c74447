"""The operator's HTTP port: truthful health, and metrics that count."""

import aiohttp
import pytest

from headrace_operator.metrics import CONTENT_TYPE


async def test_health_tells_the_truth(running, monkeypatch: pytest.MonkeyPatch) -> None:
    _, url = running
    async with aiohttp.ClientSession() as http:
        async with http.get(f"{url}/healthz") as answer:
            assert answer.status == 200
        monkeypatch.setattr("headrace_operator.engine.STALE_S", -1e9)
        async with http.get(f"{url}/healthz") as answer:
            assert answer.status == 503
            assert "sweep" in await answer.text()


async def test_metrics_are_told_as_text(running) -> None:
    _, url = running
    async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics") as answer:
        text = await answer.text()
        assert answer.headers["Content-Type"] == CONTENT_TYPE
    assert "# TYPE headrace_operator_writes_total counter" in text
    assert 'headrace_operator_resources{kind="Topic"} 0.0' in text

"""The operator's HTTP port: health that tells the truth, and metrics that count."""

import aiohttp
import pytest

from headrace.metrics.merging import CONTENT_TYPE
from headrace_operator.http_port import HELP, exposition


async def test_health_tells_the_truth(running, monkeypatch: pytest.MonkeyPatch) -> None:
    _, url = running
    async with aiohttp.ClientSession() as http:
        async with http.get(f"{url}/healthz") as answer:
            assert answer.status == 200
        monkeypatch.setattr("headrace_operator.engine.STALE_S", -1e9)
        async with http.get(f"{url}/healthz") as answer:
            assert answer.status == 503
            assert "sweep" in await answer.text()


async def test_metrics_count_what_is_done(running) -> None:
    _, url = running
    async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics") as answer:
        text = await answer.text()
        assert answer.headers["Content-Type"] == CONTENT_TYPE
    assert "# TYPE headrace_operator_writes_total counter" in text
    assert 'headrace_operator_resources{kind="Topic"} 0' in text
    names = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if not line.startswith("#")}
    for head in ("HELP", "TYPE"):
        assert {line.split()[2] for line in text.splitlines() if line.startswith(f"# {head} ")} == names
    assert names == set(HELP)


def test_counters_and_gauges_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace_operator.http_port.HELP", {"a_total": "A.", "b": "B."})
    text = exposition({("a_total", 'x="1"'): 2.0, ("a_total", 'x="2"'): 3.0, ("b", ""): 0.5})
    a = '# HELP a_total A.\n# TYPE a_total counter\na_total{x="1"} 2\na_total{x="2"} 3\n'
    assert text == f"{a}# HELP b B.\n# TYPE b gauge\nb 0.5\n"

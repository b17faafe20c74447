"""An API server whose etcd was restored from a backup: the operator restarts rather than rely on an outdated state."""

import asyncio

import aiohttp
import pytest
from structlog.testing import capture_logs

from headrace.store.kubernetes.api import ApiError, ApiSilent
from headrace_operator import main
from headrace_operator.revision_watch import RevisionWatch

from .fake_api import ClosingApi
from .test_engine import until


class Told:
    """Scripted revisions and errors; the last one is repeated for ever."""

    def __init__(self, *told: int | Exception) -> None:
        self._told = list(told)
        self.asked = 0

    async def __call__(self) -> int:
        self.asked += 1
        each = self._told.pop(0) if len(self._told) > 1 else self._told[0]
        if isinstance(each, Exception):
            raise each
        return each


async def test_a_revision_that_falls_is_told_once_with_what_to_do() -> None:
    trouble = [ApiSilent("no answer"), ApiError(500, "not now"), ValueError("no number"), KeyError("metadata")]
    told = Told(5, 9, 9, *trouble, 7, 8)
    watch = RevisionWatch(told, every_s=0)
    with capture_logs() as logs:
        watch.start()
        await until(lambda: watch.set_back)
        await watch.close()
    assert told.asked == 8
    assert "from revision 9 to 7" in watch.set_back
    errors = [each["event"] for each in logs if each["log_level"] == "error"]
    assert errors == ["reading the revision of the API server failed", "the API server was set back"]


async def test_a_server_that_is_away_and_comes_back_was_not_set_back() -> None:
    told = Told(5, ApiSilent("no answer"), 5, 6)
    watch = RevisionWatch(told, every_s=0)
    watch.start()
    await until(lambda: told.asked > 10)
    await watch.close()
    assert watch.set_back == ""


@pytest.mark.parametrize("namespaces", [[], ["gone", "there"]])
async def test_the_operator_is_not_well_until_it_starts_again(
    monkeypatch: pytest.MonkeyPatch, namespaces: list[str]
) -> None:
    monkeypatch.setattr("headrace_operator.revision_watch.RevisionWatch.__init__.__kwdefaults__", {"every_s": 0.01})
    api = ClosingApi()
    api.refuse = lambda _method, path: ApiError(403, "no") if "/gone/" in path else None
    api._version = 7
    operator = main.Operator(api, namespaces=namespaces, sweep_s=300, image="i", spark="s")  # type: ignore[arg-type]
    operator._revisions.start()
    url = f"http://127.0.0.1:{await operator.http.start('127.0.0.1', 0)}/healthz"
    async with aiohttp.ClientSession() as http:
        await until(lambda: operator._revisions._highest == 7)
        async with http.get(url) as answer:
            assert answer.status == 200
        api._version = 6
        await until(lambda: operator._revisions.set_back)
        async with http.get(url) as answer:
            assert answer.status == 503
            assert "from revision 7 to 6" in await answer.text()
    await asyncio.wait_for(operator.close(), 10)

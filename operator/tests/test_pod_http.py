"""Responses of pods over HTTP, from a real server, and from none."""

from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from headrace_operator.pod_http import PodHttp


def pod(address: str | None) -> dict[str, object]:
    return {"metadata": {"name": "c-0"}, "status": {"podIP": address} if address else {}}


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async def safe(_: web.Request) -> web.Response:
        return web.Response(status=503, text="container 7 would have too few replicas in sync\n")

    application = web.Application()
    application.router.add_get("/safez", safe)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield int(runner.addresses[0][1])
    await runner.cleanup()


@pytest.fixture
async def pods() -> AsyncIterator[PodHttp]:
    made = PodHttp()
    yield made
    await made.close()


async def test_an_answer_is_its_status_and_its_text(pods: PodHttp, port: int) -> None:
    answer = await pods.get(pod("127.0.0.1"), port, "/safez")
    assert answer == (503, "container 7 would have too few replicas in sync\n")


async def test_a_pod_that_has_no_address_or_does_not_answer_is_none(pods: PodHttp, port: int) -> None:
    assert await pods.get(pod(None), port, "/safez") is None
    assert await pods.get(pod("127.0.0.1"), 1, "/safez") is None
    assert await pods.get(pod("::1"), 1, "/safez") is None

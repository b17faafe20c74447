"""kopf against an API server over HTTP: its events reach the engine, and it writes nothing by itself."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import kopf
import pytest
from aiohttp import web

from headrace_operator import main
from headrace_operator.engine import Key

from .fake_api import KINDS, FakeApi, Object
from .fake_cluster import NS, FakeCluster

STREAM = {"clusterRef": {"name": "c"}, "path": "/plant"}


class ToyServer:
    """As much of HTTP as kopf uses, over a FakeApi: discovery, lists, and watches that poll."""

    def __init__(self, api: FakeApi) -> None:
        self.api = api
        self.writes: list[str] = []
        self.forbidden = ""
        """A namespace in which nobody has rights."""
        self.refused: Counter[str] = Counter()
        """How many requests were refused, by path."""
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self.handle)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)

    async def start(self) -> str:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def close(self) -> None:
        await self._runner.cleanup()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.method != "GET":
            self.writes.append(f"{request.method} {request.path}")
        path = request.path.rstrip("/")
        if f"/namespaces/{self.forbidden}/" in path:
            self.refused[path] += 1
            return web.json_response({"kind": "Status", "code": 403, "message": "forbidden"}, status=403)
        if path == "/api":
            return web.json_response({"versions": ["v1"]})
        if path == "/apis":
            return web.json_response(
                {"groups": [self._group(each) for each in ("headrace.dev/v1alpha1", "apps/v1", "policy/v1")]}
            )
        if path in ("/api/v1", "/apis/headrace.dev/v1alpha1", "/apis/apps/v1", "/apis/policy/v1"):
            return web.json_response({"resources": self._resources(path)})
        if path.rpartition("/")[2] not in KINDS:
            return web.json_response({"items": [], "metadata": {"resourceVersion": "0"}})
        if "watch" in request.query:
            return await self._watch(request, path)
        listed = await self.api.call("GET", path)
        return web.json_response({"kind": "List", "apiVersion": "v1", **listed})

    @staticmethod
    def _group(group_version: str) -> Object:
        name, version = group_version.split("/")
        shown = {"groupVersion": group_version, "version": version}
        return {"name": name, "versions": [shown], "preferredVersion": shown}

    @staticmethod
    def _resources(path: str) -> list[Object]:
        plurals = {
            "/api/v1": ("services", "pods", "namespaces"),
            "/apis/apps/v1": ("statefulsets",),
            "/apis/policy/v1": ("poddisruptionbudgets",),
        }.get(path, (*main.OURS, "storagenodes"))
        verbs = ["list", "watch", "patch", "get"]
        return [
            {"name": each, "singularName": "", "kind": KINDS[each], "namespaced": each != "namespaces", "verbs": verbs}
            for each in plurals
        ]

    async def _watch(self, request: web.Request, path: str) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        since = int(request.query.get("resourceVersion") or 0)
        known = {name: each for name, each in (await self._by_name(path)).items() if self._version(each) <= since}
        while request.transport is not None and not request.transport.is_closing():
            now = await self._by_name(path)
            for name in now.keys() | known.keys():
                if name not in now:
                    await self._send(answer, "DELETED", known[name])
                elif name not in known:
                    await self._send(answer, "ADDED", now[name])
                elif now[name] != known[name]:
                    await self._send(answer, "MODIFIED", now[name])
            known = now
            await asyncio.sleep(0.02)
        return answer

    async def _by_name(self, path: str) -> dict[str, Object]:
        return {each["metadata"]["name"]: each for each in (await self.api.call("GET", path))["items"]}

    @staticmethod
    def _version(found: Object) -> int:
        return int(found["metadata"]["resourceVersion"])

    @staticmethod
    async def _send(answer: web.StreamResponse, kind: str, found: Object) -> None:
        await answer.write(json.dumps({"type": kind, "object": found}).encode() + b"\n")


class ClosingApi(FakeApi):
    async def close(self) -> None:
        pass


@asynccontextmanager
async def running_operator(
    monkeypatch: pytest.MonkeyPatch, *, namespaces: Sequence[str] = ()
) -> AsyncIterator[tuple[FakeApi, FakeCluster, ToyServer]]:
    """Must be entered by the test's own task: when kopf ends it cancels all tasks started after itself."""
    api = ClosingApi()
    cluster, server = FakeCluster(api), ToyServer(api)
    url = await server.start()
    operator = main.Operator(api, namespaces=namespaces, sweep_s=300, image="i", spark="s")  # type: ignore[arg-type]
    operator._admin = cluster  # type: ignore[assignment]
    operator.engine._reconcilers = operator._reconcilers(operator.engine.cache, image="i", spark="s", sees_workers=True)
    monkeypatch.setattr(main, "_operator", operator)
    registry = kopf.OperatorRegistry()
    before = kopf.get_default_registry()
    kopf.set_default_registry(registry)
    main.register()
    kopf.set_default_registry(before)

    @kopf.on.login(registry=registry)
    def login(**_: Any) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(server=url)

    settings = kopf.OperatorSettings()
    main.bound(settings, namespaced=bool(namespaces))
    settings.scanning.disabled = bool(namespaces)
    settings.process.ultimate_exiting_timeout = None
    stop = asyncio.Event()
    operator.engine.start()
    running = asyncio.create_task(
        kopf.operator(
            registry=registry,
            settings=settings,
            clusterwide=not namespaces,
            namespaces=namespaces,
            standalone=True,
            stop_flag=stop,
        )
    )
    yield api, cluster, server
    stop.set()
    await asyncio.wait([running], timeout=2)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await operator.engine.close()
    await server.close()


async def until(condition: Callable[[], object], timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


def is_ready(api: FakeApi, kind: str, name: str) -> bool:
    conditions = api.one(kind, name).get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


async def test_what_is_applied_comes_to_be_and_kopf_itself_writes_nothing(monkeypatch) -> None:
    async with running_operator(monkeypatch) as (api, cluster, server):
        await check(api, cluster, server)


async def test_a_namespace_whose_rights_are_gone_ends_no_watch_of_another(monkeypatch) -> None:
    monkeypatch.setattr(main, "RETRIES_S", (0.01,))
    async with running_operator(monkeypatch, namespaces=["gone", NS]) as (api, cluster, server):
        server.forbidden = "gone"
        await until(lambda: server.refused and min(server.refused.values()) > 20)
        await check(api, cluster, server)


async def check(api: FakeApi, cluster: FakeCluster, server: ToyServer) -> None:
    def declare(kind: str, name: str, spec: Object) -> None:
        (present,) = api.find(kind, name) or [{"metadata": {"name": name, "namespace": NS}}]
        meta = dict(present["metadata"])
        api.put({"apiVersion": "headrace.dev/v1alpha1", "kind": kind, "metadata": meta, "spec": spec})

    declare("Stream", "plant", STREAM)  # before its cluster exists, which nobody polls for
    declare("StreamCluster", "c", {"nodes": 1})
    await until(lambda: api.find("StatefulSet"))
    cluster.converge()
    await until(lambda: is_ready(api, "StreamCluster", "c"))
    await until(lambda: is_ready(api, "Stream", "plant"))
    assert "/plant" in cluster.streams
    api.remove("Service", "c-bootstrap")
    await until(lambda: api.find("Service", "c-bootstrap"))
    declare("Stream", "plant", STREAM | {"ttl": "1h"})
    await until(lambda: cluster.streams["/plant"]["ttl_ms"] == 3_600_000)
    api.remove("Stream", "plant")
    cache = main._running().engine.cache
    await until(lambda: cache.get(Key("Stream", NS, "plant")) is None)
    assert server.writes == []
    assert not api.one("StreamCluster", "c")["metadata"].get("finalizers")

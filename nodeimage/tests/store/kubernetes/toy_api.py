"""As much of an API server as the cluster store and the operator use: objects, versions, selectors, watches, faults.

Server-side apply merges maps by key and replaces lists, which is enough for one field manager.
"""

import asyncio
import copy
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl

from aiohttp import web

Body = dict[str, Any]


class ToyApi:
    """One server, in a thread of its own."""

    def __init__(self) -> None:
        self.objects: dict[str, Body] = {}
        """By path."""
        self.version = 100
        self.events: list[tuple[int, str, str, Body]] = []
        """(version, collection, type, object)."""
        self.oldest = 0
        """Watches from before are told that they are too old."""
        self.tokens: set[str] | None = None
        self.away = False
        self.deaf = False
        """Watches stay silent."""
        self.swallow = 0
        """So many answers to writes are lost: they take place."""
        self.calls: list[tuple[str, str]] = []
        self._changed = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self.url = ""

    # --- the thread

    def start(self) -> None:
        """Serve."""
        threading.Thread(target=self._run, name="toy-api", daemon=True).start()
        assert self._ready.wait(10)

    def stop(self) -> None:
        """Serve no longer."""
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.run_forever()

    async def _serve(self) -> None:
        application = web.Application(client_max_size=8 << 20)
        application.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self._ready.set()

    # --- for tests

    def put(self, path: str, body: Body) -> None:
        """As somebody else writes it."""
        self._call(lambda: self._store(path, body))

    def drop(self, path: str) -> None:
        """As somebody else deletes it."""
        self._call(lambda: self._remove(path))

    def forget_events(self) -> None:
        """Watches have to list again."""
        self._call(lambda: setattr(self, "oldest", self.version))

    def _call(self, function: Any) -> Any:
        async def called() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(called(), self._loop).result(10)

    # --- answering

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = "/" + request.match_info["path"]
        self.calls.append((request.method, path))
        if self.away:
            if request.transport is not None:
                request.transport.close()
            raise web.HTTPServiceUnavailable
        if (
            self.tokens is not None
            and request.headers.get("Authorization", "").removeprefix("Bearer ") not in self.tokens
        ):
            return _failed(401, "Unauthorized")
        params = dict(parse_qsl(request.query_string))
        if params.get("watch"):
            return await self._watch(request, path, params)
        body = json.loads(await request.read() or b"null")
        answer = self._act(request.method, path, params, body)
        if request.method != "GET" and self.swallow:
            self.swallow -= 1
            if request.transport is not None:
                request.transport.close()
        return answer

    def _act(self, method: str, path: str, params: dict[str, str], body: Body | None) -> web.Response:
        match method:
            case "GET" if path in self.objects:
                return web.json_response(self.objects[path])
            case "GET" if _is_collection(path):
                items = [
                    each for where, each in sorted(self.objects.items()) if _in(path, where) and _chosen(each, params)
                ]
                return web.json_response({"metadata": {"resourceVersion": str(self.version)}, "items": items})
            case "POST":
                assert body is not None
                where = f"{path}/{body['metadata']['name']}"
                if where in self.objects:
                    return _failed(409, f"{where} exists")
                return web.json_response(self._store(where, body))
            case "PUT":
                assert body is not None
                present = self.objects.get(path)
                if present is None:
                    return _failed(404, f"{path} not found")
                asked = body["metadata"].get("resourceVersion")
                if asked is not None and asked != present["metadata"]["resourceVersion"]:
                    return _failed(409, "the object has been modified")
                return web.json_response(self._store(path, body))
            case "PATCH":
                assert body is not None
                where = path.removesuffix("/status")
                present = self.objects.get(where)
                if present is None and "fieldManager" not in params:
                    return _failed(404, f"{where} not found")
                merged = _merged(copy.deepcopy(present or {}), body)
                return web.json_response(self._store(where, merged))
            case "DELETE":
                present = self.objects.get(path)
                if present is None:
                    return _failed(404, f"{path} not found")
                precise = (body or {}).get("preconditions", {})
                for name, value in precise.items():
                    if present["metadata"].get(name) != value:
                        return _failed(409, f"precondition {name}")
                self._remove(path)
                return web.json_response(present)
        return _failed(404, f"{path} not found")

    def _store(self, path: str, body: Body) -> Body:
        self.version += 1
        made = copy.deepcopy(body)
        present = self.objects.get(path)
        meta = made.setdefault("metadata", {})
        meta["resourceVersion"] = str(self.version)
        meta["uid"] = present["metadata"]["uid"] if present else f"uid-{self.version}"
        self.objects[path] = made
        self._tell("MODIFIED" if present else "ADDED", path, made)
        return made

    def _remove(self, path: str) -> None:
        self.version += 1
        gone = copy.deepcopy(self.objects.pop(path))
        gone["metadata"]["resourceVersion"] = str(self.version)
        self._tell("DELETED", path, gone)

    def _tell(self, kind: str, path: str, body: Body) -> None:
        self.events.append((self.version, path.rpartition("/")[0], kind, copy.deepcopy(body)))
        self._changed.set()
        self._changed = asyncio.Event()

    async def _watch(self, request: web.Request, path: str, params: dict[str, str]) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        since = int(params["resourceVersion"])
        if since < self.oldest:
            gone = {"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}}
            await response.write(json.dumps(gone).encode() + b"\n")
            return response
        while not self.away:
            changed = self._changed
            for version, collection, kind, body in self.events:
                if version > since and collection == path and _chosen(body, params) and not self.deaf:
                    await response.write(json.dumps({"type": kind, "object": body}).encode() + b"\n")
                    since = version
            await changed.wait()
        return response


@contextmanager
def toy_api() -> Iterator[ToyApi]:
    """One that serves."""
    api = ToyApi()
    api.start()
    try:
        yield api
    finally:
        api.stop()


def _failed(status: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "code": status, "message": message}, status=status)


def _is_collection(path: str) -> bool:
    parts = path.strip("/").split("/")
    if "namespaces" in parts:
        return (len(parts) - parts.index("namespaces")) % 2 == 1
    return True


def _in(collection: str, path: str) -> bool:
    return path.rpartition("/")[0] == collection


def _chosen(body: Body, params: dict[str, str]) -> bool:
    labels = body["metadata"].get("labels", {})
    for each in filter(None, params.get("labelSelector", "").split(",")):
        name, _, value = each.partition("=")
        if labels.get(name) != value:
            return False
    field = params.get("fieldSelector", "")
    return not field or field.removeprefix("metadata.name=") == body["metadata"]["name"]


def _merged(present: Any, patch: Any) -> Any:
    if not isinstance(patch, dict) or not isinstance(present, dict):
        return patch
    for name, value in patch.items():
        if value is None:
            present.pop(name, None)
        else:
            present[name] = _merged(present.get(name, {}), value)
    return present

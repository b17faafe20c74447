"""The parts of an API server that the cluster store and the operator use, over HTTP on loopback, with faults.

As in a real one, versions rise over all objects; a write at another version is a conflict, a write without a version is
an error for custom resources, and one that changes nothing gets no new version; a deletion has its own version; lists
come in pages, all of one moment; watches start at a version, send bookmarks, and return 410 if the history does not go
back far enough; a token that is unknown or expired is refused. Server-side apply merges maps by key and replaces lists,
which is enough for one field manager.
"""

import asyncio
import copy
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from aiohttp import web

T = TypeVar("T")
Body = dict[str, Any]


class ToyApi:
    """One server, in a separate thread. Its fields switch faults."""

    def __init__(self) -> None:
        self.objects: dict[str, Body] = {}
        """Objects by path."""
        self.version = 100
        self.events: list[tuple[int, str, str, Body, Body | None]] = []
        """(version, collection, type, object, the object before)."""
        self.oldest = 0
        """Watches from before this version are told that they are too old."""
        self.tokens: dict[str, float] | None = None
        """Accepted tokens, and the monotonic time at which each expires; None: all are accepted."""
        self.away = False
        """Connections are closed without an answer."""
        self.deaf: set[str] = set()
        """Watches of these plurals stay silent, without ending."""
        self.slow_s = 0.0
        """Seconds that every answer takes."""
        self.busy = 0
        """The number of next calls that are told to come back after `busy_s`."""
        self.busy_s: float | str = 1
        self.refuse: tuple[int, str] | None = None
        """(status, message) with which every call is refused."""
        self.swallow = 0
        """The number of next writes that take effect but get no answer."""
        self.late = 0
        """The number of next writes that take effect only when `land` is called; their connections end at once."""
        self.loses = ""
        """Text in the paths of the writes that are late or unanswered."""
        self.bookmarks_s = 60.0
        self.end_watches_s = 3600.0
        self.calls: list[tuple[str, str]] = []
        self.watches = 0
        """The number of open watches."""
        self.url = ""
        self._late: list[Callable[[], object]] = []
        self._pages: dict[str, tuple[int, list[Body]]] = {}
        self._cut = 0
        self._changed = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="toy-api", daemon=True)

    # --- the thread

    def start(self) -> None:
        """Start serving."""
        self._thread.start()
        assert self._ready.wait(10)

    def stop(self) -> None:
        """Stop serving."""
        self.cut_watches()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        runner = self._loop.run_until_complete(self._serve())
        self._loop.run_forever()
        self._loop.run_until_complete(self._end(runner))
        self._loop.close()

    async def _end(self, runner: web.AppRunner) -> None:
        await runner.cleanup()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for each in left:
            each.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _serve(self) -> web.AppRunner:
        application = web.Application(client_max_size=8 << 20)
        application.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self._ready.set()
        return runner

    # --- for tests

    def put(self, path: str, body: Body) -> Body:
        """Write an object as another client would."""
        return self._call(lambda: self._store(path, body))

    def drop(self, path: str) -> None:
        """Delete an object as another client would."""
        self._call(lambda: self._remove(path))

    def forget_events(self) -> None:
        """New watches have to list again, and so have lists in progress."""

        def forget() -> None:
            self.oldest = self.version
            self._pages.clear()

        self._call(forget)

    def cut_watches(self) -> None:
        """End the connections of all watches, in the middle of their streams."""

        def cut() -> None:
            self._cut += 1
            self._wake()

        self._call(cut)

    def write_elsewhere(self, count: int) -> None:
        """Raise versions by so much, as writes outside of the test's cluster do."""
        self._call(lambda: self._write_elsewhere(count))

    def _write_elsewhere(self, count: int) -> None:
        for number in range(count):
            other = {"metadata": {"name": "other"}, "data": {"write": f"{self.version}-{number}"}}
            self._store("/api/v1/namespaces/elsewhere/configmaps/other", other)

    def backup(self) -> tuple[dict[str, Body], int]:
        """The complete contents, as in etcd's snapshot."""
        return self._call(lambda: (copy.deepcopy(self.objects), self.version))

    def restore(self, backup: tuple[dict[str, Body], int], *, bump: int = 0, others_write: int = 0) -> None:
        """Restore everything, including versions. `bump`: except the revision (etcdutl's --bump-revision, with
        --mark-compacted): watches from before are told that they are too old. Otherwise open watches end, and watches
        that begin at a version that no longer exists stay silent until it exists again. `others_write`: so many writes
        outside of the test's cluster happen before anybody reads.
        """

        def put_back() -> None:
            objects, version = backup
            self.objects = copy.deepcopy(objects)
            self.version = version + bump
            self.events.clear()
            self._pages.clear()
            self.oldest = self.version if bump else 0
            self._cut += 1
            self._write_elsewhere(others_write)
            self._wake()

        self._call(put_back)

    def land(self) -> None:
        """Late writes take effect now, or fail as they must; nobody gets an answer."""

        def all_of_them() -> None:
            for each in self._late:
                each()
            self._late.clear()

        self._call(all_of_them)

    def count(self, method: str, part: str) -> int:
        """The number of calls so far, by method and a part of the path."""
        return sum(1 for each, path in list(self.calls) if each == method and part in path)

    def _call(self, function: Callable[[], T]) -> T:
        async def called() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(called(), self._loop).result(10)

    # --- answering

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = "/" + request.match_info["path"]
        params = dict(parse_qsl(request.query_string))
        self.calls.append(("WATCH" if params.get("watch") else request.method, path))
        begun = time.monotonic()
        while time.monotonic() < begun + self.slow_s:  # noqa: ASYNC110  # set by other threads
            await asyncio.sleep(min(0.05, self.slow_s))
        if self.away:
            return _broken(request)
        if self.tokens is not None:
            token = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if self.tokens.get(token, 0.0) <= time.monotonic():
                return _failed(401, "Unauthorized")
        if self.refuse is not None:
            return _failed(*self.refuse)
        if self.busy:
            self.busy -= 1
            return _failed(429, "too many requests, please try again later", {"Retry-After": str(self.busy_s)})
        if params.get("watch"):
            return await self._watch(request, path, params)
        body = json.loads(await request.read() or b"null")
        loses = request.method != "GET" and self.loses in path
        if loses and self.late:
            self.late -= 1
            self._late.append(lambda: self._act(request.method, path, params, body))
            return _broken(request)
        answer = self._act(request.method, path, params, body)
        if loses and self.swallow:
            self.swallow -= 1
            return _broken(request)
        return answer

    def _act(self, method: str, path: str, params: dict[str, str], body: Body | None) -> web.Response:
        match method:
            case "GET" if path in self.objects:
                return web.json_response(self.objects[path])
            case "GET" if _is_collection(path):
                return self._list(path, params)
            case "POST":
                assert body is not None
                where = f"{path}/{body['metadata']['name']}"
                if where in self.objects:
                    return _failed(409, f"{where} already exists")
                return web.json_response(self._store(where, body), status=201)
            case "PUT":
                assert body is not None
                return self._replace(path, body)
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
                for name, value in ((body or {}).get("preconditions") or {}).items():
                    if present["metadata"].get(name) != value:
                        return _failed(409, f"precondition {name}: {value}, is {present['metadata'].get(name)}")
                self._remove(path)
                return web.json_response({"kind": "Status", "status": "Success"})
        return _failed(404, f"{path} not found")

    def _replace(self, path: str, body: Body) -> web.Response:
        present = self.objects.get(path)
        if present is None:
            return _failed(404, f"{path} not found")
        asked, there = body["metadata"], present["metadata"]
        if not asked.get("resourceVersion") and "/apis/headrace.dev/" in path:
            return _failed(422, "metadata.resourceVersion: must be specified for an update")
        if asked.get("resourceVersion", there["resourceVersion"]) != there["resourceVersion"]:
            return _failed(409, "the object has been modified; please apply your changes to the latest version")
        if asked.get("uid", there["uid"]) != there["uid"]:
            return _failed(409, "precondition failed: uid")
        return web.json_response(self._store(path, body))

    def _list(self, path: str, params: dict[str, str]) -> web.Response:
        if params.get("continue"):
            kept = self._pages.pop(params["continue"], None)
            if kept is None:
                return _failed(410, "the provided continue parameter is too old")
            version, items = kept
        else:
            version = self.version
            items = [each for at, each in sorted(self.objects.items()) if _in(path, at) and _chosen(each, params)]
        limit = int(params.get("limit") or len(items) or 1)
        meta = {"resourceVersion": str(version)}
        if len(items) > limit:
            meta["continue"] = uuid.uuid4().hex
            self._pages[meta["continue"]] = (version, items[limit:])
        bare = [{name: value for name, value in each.items() if name not in ("kind", "apiVersion")} for each in items]
        return web.json_response({"metadata": meta, "items": bare[:limit]})

    def _store(self, path: str, body: Body) -> Body:
        present = self.objects.get(path)
        made = copy.deepcopy(body)
        meta = made.setdefault("metadata", {})
        if present is not None:
            there = present["metadata"]
            meta |= {name: there[name] for name in ("uid", "creationTimestamp", "resourceVersion", "generation")}
            if made == present:
                return present
            meta["generation"] = there["generation"] + (made.get("spec") != present.get("spec"))
        else:
            meta |= {"uid": str(uuid.uuid4()), "generation": 1}
            meta["creationTimestamp"] = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        self.version += 1
        meta["resourceVersion"] = str(self.version)
        meta["managedFields"] = [{"manager": "toy"}]
        self.objects[path] = made
        self._tell("MODIFIED" if present else "ADDED", path, made, present)
        return made

    def _remove(self, path: str) -> None:
        self.version += 1
        before = self.objects.pop(path)
        gone = copy.deepcopy(before)
        gone["metadata"]["resourceVersion"] = str(self.version)
        self._tell("DELETED", path, gone, before)

    def _tell(self, kind: str, path: str, body: Body, before: Body | None) -> None:
        self.events.append((self.version, path.rpartition("/")[0], kind, copy.deepcopy(body), before))
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _watch(self, request: web.Request, path: str, params: dict[str, str]) -> web.StreamResponse:
        cut = self._cut
        response = web.StreamResponse()
        await response.prepare(request)
        since = int(params["resourceVersion"])
        if since < self.oldest:
            await _write(response, "ERROR", {"kind": "Status", "code": 410, "message": "too old resource version"})
            return response
        ends = time.monotonic() + min(float(params.get("timeoutSeconds", 3600)), self.end_watches_s)
        sent = 0
        self.watches += 1
        try:
            while not self.away and time.monotonic() < ends:
                if cut != self._cut:
                    return _broken(request)
                changed = self._changed
                while sent < len(self.events):
                    version, collection, kind, body, before = self.events[sent]
                    sent += 1
                    deaf = path.rpartition("/")[2] in self.deaf
                    shown = _event(kind, body, before, params)
                    if version > since and collection == path and shown is not None and not deaf:
                        await _write(response, shown, body)
                try:
                    async with asyncio.timeout(min(self.bookmarks_s, max(ends - time.monotonic(), 0.0))):
                        await changed.wait()
                except TimeoutError:
                    if path.rpartition("/")[2] not in self.deaf:
                        await _write(response, "BOOKMARK", {"metadata": {"resourceVersion": str(self.version)}})
        except ConnectionError:
            pass
        finally:
            self.watches -= 1
        return _broken(request) if self.away else response


@contextmanager
def toy_api() -> Iterator[ToyApi]:
    """A serving API server."""
    api = ToyApi()
    api.start()
    try:
        yield api
    finally:
        api.stop()


def _broken(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=503)


def _failed(status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    body = {"kind": "Status", "status": "Failure", "code": status, "message": message}
    return web.json_response(body, status=status, headers=headers)


async def _write(response: web.StreamResponse, kind: str, body: Body) -> None:
    await response.write(json.dumps({"type": kind, "object": body}).encode() + b"\n")


def _event(kind: str, body: Body, before: Body | None, params: dict[str, str]) -> str | None:
    """The event that a watch with a selector gets: for an object that no longer fits, a deletion."""
    fits, fitted = _chosen(body, params), before is not None and _chosen(before, params)
    if kind == "MODIFIED" and fits != fitted:
        return "ADDED" if fits else "DELETED"
    return kind if fits or fitted else None


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

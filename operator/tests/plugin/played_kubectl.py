"""kubectl over the API server in memory, without a process; and that API server over HTTP, for the real kubectl."""

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote

from aiohttp import web

from headrace.store.kubernetes.api import ApiError
from headrace_operator.plugin.kubectl import PLURALS, Kubectl, failure

from ..fake_api import FakeApi
from ..fake_cluster import NS


@dataclass
class Served:
    """The served objects, and the recorded requests."""

    api: FakeApi
    logs: dict[str, str] = field(default_factory=dict)
    """By `pod/container`, and `pod/container/previous`."""
    answers: dict[str, str] = field(default_factory=dict)
    """The output of commands in pods, by the words after `headrace`."""
    forbidden: set[str] = field(default_factory=set)
    """Plurals that may not be read."""
    asked: list[str] = field(default_factory=list)
    """Paths that were read."""
    ran: list[tuple[str, list[str]]] = field(default_factory=list)
    """Commands in pods, by pod."""
    code: int = 0
    """The exit code of these commands."""

    def read(self, target: str) -> str:
        """Answer a GET. Raises ApiError."""
        path, _, query = target.partition("?")
        path, params = unquote(path), dict(parse_qsl(query))
        self.asked.append(path)
        if path.rpartition("/")[2] in self.forbidden:
            raise ApiError(403, f'{path} is forbidden: User "ada" cannot list resource')
        if path.endswith("/log"):
            pod = path.split("/")[-2]
            key = f"{pod}/{params['container']}" + ("/previous" if params.get("previous") else "")
            if key not in self.logs:
                raise ApiError(404, f"no log of {key}")
            return self.logs[key]
        found = self.api._get(path, params)
        if "items" in found:
            (kind,) = (kind for (_, kind), plural in PLURALS.items() if plural == path.rpartition("/")[2])
            (version,) = (version for version, each in PLURALS if each == kind)
            found = {"kind": f"{kind}List", "apiVersion": version, **found}
        return json.dumps(found)

    def change(self, path: str, patch: Any) -> Mapping[str, Any]:
        """Apply a merge patch. Raises ApiError."""
        return self.api._merge(path, patch)


class PlayedKubectl(Kubectl):
    """kubectl without a process."""

    __slots__ = ("served",)

    def __init__(self, served: Served) -> None:
        super().__init__()
        object.__setattr__(self, "served", served)

    def namespace(self) -> str:
        return NS

    def _run(self, arguments: Sequence[str]) -> str:
        match arguments:
            case ["get", "--raw", target]:
                try:
                    return self.served.read(target)
                except ApiError as error:
                    word = {403: "Forbidden", 404: "NotFound"}[error.status]
                    raise failure(f"Error from server ({word}): {error}\n") from None
            case ["exec", "--namespace", _, pod, "--container", "node", "--", *command]:
                self.served.ran.append((pod, command))
                said = self.served.answers.get(" ".join(command[1:3]))
                if said is None:
                    raise failure("headrace: no cluster answers\ncommand terminated with exit code 1\n")
                return said
            case ["patch", resource, name, "--namespace", namespace, "--type", "merge", "--patch", patch]:
                plural, _, group = resource.partition(".")
                where = f"/apis/{group}/v1alpha1/namespaces/{namespace}/{plural}/{name}"
                try:
                    self.served.change(where, json.loads(patch))
                except ApiError as error:
                    raise failure(f"Error from server (NotFound): {error}\n") from None
                return ""
        raise AssertionError(arguments)

    def logs(
        self, namespace: str, labels: Mapping[str, str], container: str, *, lines: int, follow: bool
    ) -> Iterator[str]:
        for pod in self.all("v1", "Pod", namespace, labels=labels):
            name = pod["metadata"]["name"]
            for line in self.served.logs.get(f"{name}/{container}", "").splitlines()[-lines:]:
                yield f"[pod/{name}/{container}] {line}"

    def run_in(self, namespace: str, pod: str, container: str, command: Sequence[str]) -> int:
        self.served.ran.append((pod, list(command)))
        return self.served.code


@contextmanager
def over_http(served: Served) -> Iterator[str]:
    """Serve the API over HTTP, with as much of discovery as kubectl uses; yield the URL."""
    started, stopping = threading.Event(), asyncio.Event()
    url: list[str] = []
    loop = asyncio.new_event_loop()

    async def answered(request: web.Request) -> web.Response:
        if (told := _discovery(request.path)) is not None:
            return web.json_response(told)
        try:
            if request.method == "PATCH":
                return web.json_response(served.change(request.path, await request.json()))
            text = served.read(request.raw_path)
        except ApiError as error:
            reason = {403: "Forbidden", 404: "NotFound"}[error.status]
            status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": str(error)}
            return web.json_response({**status, "reason": reason, "code": error.status}, status=error.status)
        kind = "text/plain" if request.path.endswith("/log") else "application/json"
        return web.Response(text=text, content_type=kind)

    async def serve() -> None:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", answered)
        runner = web.AppRunner(application, shutdown_timeout=1.0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        url.append(f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}")  # type: ignore[attr-defined]
        started.set()
        await stopping.wait()
        await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert started.wait(30)
    try:
        yield url[0]
    finally:
        loop.call_soon_threadsafe(stopping.set)
        thread.join(30)
        loop.close()


def _discovery(path: str) -> Mapping[str, Any] | None:
    groups = sorted({version.partition("/")[0] for version, _ in PLURALS if "/" in version})
    versions = {version for version, _ in PLURALS}
    match path:
        case "/version":
            return {"major": "1", "minor": "32", "gitVersion": "v1.32.4", "platform": "linux/amd64"}
        case "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        case "/apis":
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(each, versions) for each in groups]}
    version = path.removeprefix("/apis/").removeprefix("/api/")
    if version not in versions or path.count("/") > 3:
        return None
    resources = [
        {
            "name": plural,
            "singularName": kind.lower(),
            "namespaced": kind != "Node",
            "kind": kind,
            "verbs": ["get", "list", "patch"],
        }
        for (of, kind), plural in PLURALS.items()
        if of == version
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}


def _group(name: str, versions: set[str]) -> Mapping[str, Any]:
    (version,) = (each for each in versions if each.startswith(f"{name}/"))
    told = {"groupVersion": version, "version": version.partition("/")[2]}
    return {"name": name, "versions": [told], "preferredVersion": told}

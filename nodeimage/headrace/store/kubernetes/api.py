"""One API server of Kubernetes, over aiohttp: JSON calls, lists and watches. Knows nothing of records.

1. Every request ends within CALL_S, unless the caller sets another limit, with an answer or with one of three errors:
   ApiError (nothing was done), ApiBusy (nothing was done, try later) and ApiSilent (it may have been done, or may still
   be). A call whose token is rejected makes a second request.
2. A watch ends when its time is over, or with one of these errors. Silence ends it too: servers send a bookmark every
   minute, and TCP's keepalives detect a dead host.
3. The service account's token is read again whenever its file changes, because the kubelet rotates it, and when the
   server rejects it.
"""

import asyncio
import contextlib
import math
import os
import socket
import ssl
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
from aiohttp import AddrInfoType

from headrace import __version__
from headrace.base.errors import Code, FolderRefused, HeadraceError
from headrace.base.sockets import keep_alive

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Folder of the service account's files in a pod."""
JSON: Final = "application/json"
CALL_S: Final = 5.0
"""Seconds within which a request ends."""
CONNECT_S: Final = 2.0
"""Seconds within which a connection must be established."""
PAGE: Final = 500
"""The maximum number of objects in one answer to a list."""
LIST_TRIES: Final = 3
"""Attempts to list a collection if it takes so long that the server drops its snapshot."""
EVENT_BYTES: Final = 4 * 1024 * 1024
"""The maximum number of bytes of one event of a watch; an object in etcd has up to 1.5 MB."""
WATCH_S: Final = 300
"""Seconds after which the server ends a watch, which is then resumed."""
WHOLE_TIME: Final = 0.99
"""Part of `WATCH_S` after which a watch counts as complete, since its end is determined by the server's clock."""
SILENT_WATCH_S: Final = 90.0
"""Seconds of silence after which a watch ends; servers send a bookmark every minute."""
BUSY_S: Final = 1.0
"""Seconds to wait if a busy server does not say how long, or not in seconds."""
MIN_BUSY_S: Final = 0.1
"""Shortest wait, in seconds, for a busy server."""
MAX_BUSY_S: Final = 10.0
"""Longest wait, in seconds, for a busy server. The server, or a proxy in front of it, may name any time; while it
waits, a process neither sees changes nor renews a lease."""


class ApiError(HeadraceError):
    """The server refused, and nothing was done."""

    code = Code.BROKER_NOT_AVAILABLE

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"Kubernetes answers {status}: {reason}")
        self.status = status


class ApiBusy(ApiError):
    """The server is overloaded, and nothing was done."""

    def __init__(self, reason: str, *, retry_after_s: float) -> None:
        """`retry_after_s`: from MIN_BUSY_S to MAX_BUSY_S."""
        super().__init__(HTTPStatus.TOO_MANY_REQUESTS, reason)
        self.retry_after_s = retry_after_s


class ApiSilent(HeadraceError):
    """The server did not answer, or failed: the request may have been carried out."""

    code = Code.BROKER_NOT_AVAILABLE


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach the server."""

    url: str
    token_file: Path | None = None
    ca_file: Path | None = None

    @classmethod
    def in_cluster(cls) -> "Access":
        """Return a pod's access, from its environment and its service account's files. Raises FolderRefused outside a
        pod."""
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
        if not host or not port:
            raise FolderRefused("this is no pod: KUBERNETES_SERVICE_HOST is not set; give --kubernetes-api")
        if ":" in host:
            host = f"[{host}]"
        return cls(f"https://{host}:{port}", ACCOUNT / "token", ACCOUNT / "ca.crt")


class Api:
    """Calls of one API server, on the loop that creates it. Raises OSError, ssl.SSLError for a CA file that cannot be
    read."""

    def __init__(self, access: Access, *, agent: str = "headrace-node") -> None:
        """`agent`: the field manager that Kubernetes records if a call does not name one."""
        self._access = access
        self._token = ""
        self._token_of: tuple[int, int] | None = None
        context: ssl.SSLContext | bool = True
        if access.ca_file is not None:
            context = ssl.create_default_context(cafile=str(access.ca_file))
        self._http = aiohttp.ClientSession(
            base_url=access.url,
            connector=aiohttp.TCPConnector(ssl=context, limit=0, socket_factory=_socket),
            read_bufsize=EVENT_BYTES,
            headers={"User-Agent": f"{agent}/{__version__}"},
        )
        # Otherwise aiohttp repeats PUT and DELETE when a connection ends: if the first was done, the second conflicts.
        self._http._retry_connection = False

    async def close(self) -> None:
        """End all connections."""
        await self._http.close()

    async def call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = JSON,
        timeout_s: float = CALL_S,
    ) -> dict[str, Any]:
        """Return the answer to one call. `body` is sent as JSON; for a patch, `content_type` names its kind.

        Raises ApiError, ApiBusy, ApiSilent.
        """
        call = partial(self._call, method, path, params, body, content_type, timeout_s)
        try:
            return await call()
        except ApiError as error:
            if error.status != HTTPStatus.UNAUTHORIZED:
                raise
        return await call()  # the token may have been rotated just now

    async def list_all(self, path: str, *, params: Mapping[str, str]) -> tuple[list[dict[str, Any]], str]:
        """Return all objects of a collection at one moment, and the version to watch from. Raises what `call`
        raises."""
        for again in reversed(range(LIST_TRIES)):
            try:
                return await self._list(path, params)
            except ApiError as error:
                if error.status != HTTPStatus.GONE or not again:
                    raise  # 410: the list took so long that the server dropped its snapshot
        raise AssertionError("unreachable")

    async def watch(
        self, path: str, *, params: Mapping[str, str], since: str
    ) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
        """Yield (type, object) for each event after version `since`, including bookmarks; end when its time is over.

        Raises ApiError (410: `since` is too old, list again), ApiBusy, and ApiSilent if it ends early, even if the
        server ended it, as one that is stopping does.
        """
        asked = {
            **params,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": since,
            "timeoutSeconds": str(WATCH_S),
        }
        patience = aiohttp.ClientTimeout(total=WATCH_S + 10, sock_connect=CONNECT_S, sock_read=SILENT_WATCH_S)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        with _reported("a watch of Kubernetes ended"):
            async with self._http.get(path, params=asked, headers=self._headers(), timeout=patience) as answer:
                await self._check(answer)
                async for line in answer.content:
                    event = msgspec.json.decode(line)
                    found = event["object"]
                    if event["type"] == "ERROR":
                        raise ApiError(int(found.get("code", 500)), str(found.get("message", "")))
                    yield event["type"], found
        if loop.time() - begun < WHOLE_TIME * WATCH_S:
            raise ApiSilent("a watch of Kubernetes ended before its time")

    async def _list(self, path: str, params: Mapping[str, str]) -> tuple[list[dict[str, Any]], str]:
        found: list[dict[str, Any]] = []
        asked = {**params, "limit": str(PAGE)}
        while True:
            page = await self.call("GET", path, params=asked)
            found += page.get("items") or []
            meta = page["metadata"]
            if not meta.get("continue"):
                return found, str(meta["resourceVersion"])
            asked["continue"] = meta["continue"]

    async def _call(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        body: object,
        content_type: str,
        timeout_s: float,
    ) -> dict[str, Any]:
        sent = None if body is None else msgspec.json.encode(body)
        patience = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_S)
        with _reported("Kubernetes does not answer"):
            headers = {**self._headers(), "Content-Type": content_type}
            async with self._http.request(
                method, path, params=params, data=sent, headers=headers, timeout=patience
            ) as answer:
                await self._check(answer)
                decoded = msgspec.json.decode(await answer.read())
                if not isinstance(decoded, dict):
                    raise ValueError(f"no object: {decoded!r:.100}")
                return decoded
        raise AssertionError("unreachable")

    async def _check(self, answer: aiohttp.ClientResponse) -> None:
        if answer.status < HTTPStatus.BAD_REQUEST:
            return
        reason = answer.reason or ""
        with contextlib.suppress(aiohttp.ClientError, ValueError, TypeError, KeyError):
            reason = str(msgspec.json.decode(await answer.read())["message"])
        match answer.status:
            case HTTPStatus.TOO_MANY_REQUESTS:
                raise ApiBusy(reason, retry_after_s=_seconds(answer.headers.get("Retry-After", "")))
            case status if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                raise ApiSilent(f"Kubernetes answers {status}: {reason}")
            case HTTPStatus.UNAUTHORIZED:
                self._token_of = None
                file = self._access.token_file
                none_given = "it requires a token, and no token file is given"
                why = none_given if file is None else f"it does not accept the token of {file}"
                raise ApiError(answer.status, f"{reason}; {why}")
            case HTTPStatus.FORBIDDEN:
                raise ApiError(answer.status, f"{reason}; see the Role of the pod's service account")
        raise ApiError(answer.status, reason)

    def _headers(self) -> dict[str, str]:
        file = self._access.token_file
        if file is None:
            return {}
        state = file.stat()  # follows the symbolic link: the kubelet swaps a folder
        if (state.st_mtime_ns, state.st_ino) != self._token_of:
            self._token, self._token_of = file.read_text().strip(), (state.st_mtime_ns, state.st_ino)
        return {"Authorization": f"Bearer {self._token}"}


@contextlib.contextmanager
def _reported(what: str) -> Iterator[None]:
    try:
        yield
    except (aiohttp.ClientError, OSError, ValueError, KeyError, TypeError) as error:
        raise ApiSilent(f"{what}: {type(error).__name__} {error}".rstrip()) from error


def _seconds(retry_after: str) -> float:
    try:
        named = float(retry_after)
    except ValueError:  # empty, or a date, which would depend on another host's clock
        return BUSY_S
    return BUSY_S if math.isnan(named) else min(max(named, MIN_BUSY_S), MAX_BUSY_S)


def _socket(address: AddrInfoType) -> socket.socket:
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    keep_alive(made, idle_s=3, every_s=2, tries=3)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(CALL_S * 1000))
    made.setblocking(False)
    return made

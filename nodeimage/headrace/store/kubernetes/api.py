"""One API server of Kubernetes, over aiohttp: JSON calls, and watches.

The service account's token is read again when its file changes (the kubelet rotates it), and once more when the server
does not take it. Knows nothing of records.
"""

import asyncio
import contextlib
import json
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import aiohttp

from headrace.errors import Code, HeadraceError

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
CALL_S: Final = 5.0
LINE_BYTES: Final = 4 * 1024 * 1024
"""Of one event of a watch, at most."""
WATCH_S: Final = 240
"""Servers end watches after a while; silent ones are ended here a little later."""


class ApiError(HeadraceError):
    """The server's answer is no success."""

    code = Code.BROKER_NOT_AVAILABLE

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"Kubernetes answers {status}: {reason}")
        self.status = status


class ApiSilent(HeadraceError):
    """The server did not answer: whatever was asked for may have taken place."""

    code = Code.BROKER_NOT_AVAILABLE


@dataclass(frozen=True, slots=True)
class Access:
    """How the server is reached."""

    url: str
    token_file: Path | None = None
    ca_file: Path | None = None

    @classmethod
    def in_cluster(cls) -> "Access":
        """As a pod does, by its environment and its service account's files."""
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
        if ":" in host:
            host = f"[{host}]"
        return cls(f"https://{host}:{port}", ACCOUNT / "token", ACCOUNT / "ca.crt")


class Api:
    """Calls belong to the loop that makes it."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._token = ""
        self._token_of = 0.0
        context: ssl.SSLContext | bool = True
        if access.ca_file is not None:
            context = ssl.create_default_context(cafile=str(access.ca_file))
        self._http = aiohttp.ClientSession(
            base_url=access.url,
            connector=aiohttp.TCPConnector(ssl=context, limit=0, enable_cleanup_closed=True),
            read_bufsize=LINE_BYTES,
        )

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
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        """The answer to one call; `body` goes as JSON. Raises ApiError, ApiSilent."""
        sent = None if body is None else json.dumps(body).encode()
        for again in (True, False):
            try:
                async with self._http.request(
                    method,
                    path,
                    params=params,
                    data=sent,
                    headers={**self._headers(), "Content-Type": content_type},
                    timeout=aiohttp.ClientTimeout(total=CALL_S),
                ) as answer:
                    if answer.status == HTTPStatus.UNAUTHORIZED and again:
                        self._token_of = 0.0
                        continue
                    await _check(answer)
                    return dict(await answer.json())
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                raise ApiSilent(f"Kubernetes does not answer: {error!r}") from error
        raise AssertionError("unreachable")

    async def watch(
        self, path: str, *, params: Mapping[str, str], since: str
    ) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """(type, object) of each event after resource version `since`, bookmarks too; ends when the server ends it.

        Raises ApiError (410: `since` is too old, list again), ApiSilent.
        """
        asked = {
            **params,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": since,
            "timeoutSeconds": str(WATCH_S),
        }
        try:
            async with self._http.get(
                path,
                params=asked,
                headers=self._headers(),
                timeout=aiohttp.ClientTimeout(total=WATCH_S + 10, sock_connect=CALL_S),
            ) as answer:
                await _check(answer)
                async for line in answer.content:
                    event = json.loads(line)
                    found = event["object"]
                    if event["type"] == "ERROR":
                        raise ApiError(int(found.get("code", 500)), str(found.get("message", "")))
                    yield event["type"], found
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError) as error:
            raise ApiSilent(f"a watch of Kubernetes ended: {error!r}") from error

    def _headers(self) -> dict[str, str]:
        file = self._access.token_file
        if file is None:
            return {}
        changed = file.stat().st_mtime
        if changed != self._token_of:
            self._token, self._token_of = file.read_text().strip(), changed
        return {"Authorization": f"Bearer {self._token}"}


async def _check(answer: aiohttp.ClientResponse) -> None:
    if answer.status < HTTPStatus.BAD_REQUEST:
        return
    reason = answer.reason or ""
    with contextlib.suppress(aiohttp.ClientError, ValueError, asyncio.TimeoutError):
        reason = str((await answer.json()).get("message", reason))
    if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR or answer.status == HTTPStatus.TOO_MANY_REQUESTS:
        raise ApiSilent(f"Kubernetes answers {answer.status}: {reason}")
    raise ApiError(answer.status, reason)

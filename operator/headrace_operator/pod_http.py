"""HTTP requests to pods, at their own addresses: whether a storage node can be spared, how a job's driver proceeds.

A pod that does not answer is normal: it starts, ends, or hangs.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol

import aiohttp

ANSWER_S: Final = 3.0


class Answer(NamedTuple):
    """A pod's response."""

    status: int
    text: str


class Pods(Protocol):
    """The requests that reconcilers send to pods; tests replace the implementation."""

    async def get(self, pod: Mapping[str, Any], port: int, path: str) -> Answer | None:
        """Return a pod's response; None if it does not answer."""


class PodHttp:
    """HTTP client for all pods. Belongs to the event loop that first calls it."""

    def __init__(self) -> None:
        self._http: aiohttp.ClientSession | None = None

    async def get(self, pod: Mapping[str, Any], port: int, path: str) -> Answer | None:
        """See Pods."""
        address = str(pod.get("status", {}).get("podIP") or "")
        if not address:
            return None
        if self._http is None:
            # By the next call the address may belong to another pod.
            connector = aiohttp.TCPConnector(force_close=True)
            self._http = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=ANSWER_S))
        host = f"[{address}]" if ":" in address else address
        try:
            async with self._http.get(f"http://{host}:{port}{path}") as answer:
                return Answer(answer.status, await answer.text(errors="replace"))
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None

    async def close(self) -> None:
        """Close the client."""
        if self._http is not None:
            await self._http.close()

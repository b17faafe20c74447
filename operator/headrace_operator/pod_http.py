"""What pods tell over HTTP, at their own addresses: whether a storage node can be spared, how a job's driver gets on.

A pod that does not answer is nothing out of the ordinary: it starts, ends, or hangs.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol

import aiohttp

ANSWER_S: Final = 3.0


class Answer(NamedTuple):
    """Of a pod."""

    status: int
    text: str


class Pods(Protocol):
    """What reconcilers ask of pods: the seam for tests."""

    async def get(self, pod: Mapping[str, Any], port: int, path: str) -> Answer | None:
        """What a pod answers; None: it does not."""


class PodHttp:
    """All pods. Belongs to the loop that first calls it."""

    def __init__(self) -> None:
        self._http: aiohttp.ClientSession | None = None

    async def get(self, pod: Mapping[str, Any], port: int, path: str) -> Answer | None:
        """See Pods."""
        address = str(pod.get("status", {}).get("podIP") or "")
        if not address:
            return None
        if self._http is None:
            # An address may be another pod's by the next call.
            connector = aiohttp.TCPConnector(force_close=True)
            self._http = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=ANSWER_S))
        host = f"[{address}]" if ":" in address else address
        try:
            async with self._http.get(f"http://{host}:{port}{path}") as answer:
                return Answer(answer.status, await answer.text(errors="replace"))
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None

    async def close(self) -> None:
        """End what is under way."""
        if self._http is not None:
            await self._http.close()

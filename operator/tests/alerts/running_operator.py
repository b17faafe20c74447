"""The operator, run in a thread as in its pod, with an API server in memory."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

from headrace_operator import main

from ..fake_api import ClosingApi

HOST = "127.0.0.1"


class RunningOperator:
    """An operator that sweeps frequently."""

    def __init__(self, api: ClosingApi, *, sweep_s: float = 0.5) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.port: int = self._run(self._started(api, sweep_s))

    async def _started(self, api: ClosingApi, sweep_s: float) -> int:
        self._operator = main.Operator(
            api,  # type: ignore[arg-type]
            namespaces=[],
            sweep_s=sweep_s,
            longest_backoff_s=0.5,
            image="i",
            spark="s",
        )
        self._operator.engine.start()
        return await self._operator.http.start(HOST, 0)

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def close(self) -> None:
        self._run(self._operator.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

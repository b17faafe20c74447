"""Headrace's own admin calls, for reconcilers. The client blocks, so it runs in threads."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from headrace.cli.connect import connected
from headrace.errors import HeadraceError

THREADS: Final = 8
CALL_S: Final = 20.0


class Unreachable(HeadraceError):
    """No node of a cluster answers."""


class Admin:
    """All clusters."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="admin")

    async def call(self, bootstrap: str, method: str, params: Mapping[str, Any] | None = None) -> Any:
        """The result. Raises KafkaError as the node says, Unreachable."""

        def asked() -> Any:
            try:
                with connected(bootstrap, None, timeout_s=CALL_S) as cluster:
                    return cluster.admin(method, params)
            except (OSError, TimeoutError) as error:
                raise Unreachable(f"{bootstrap} does not answer: {error}") from error

        return await asyncio.get_running_loop().run_in_executor(self._threads, asked)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

"""Headrace's own admin calls, for reconcilers. The client blocks, so it runs in threads."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from headrace.cli.connect import Cluster, connected
from headrace.errors import HeadraceError
from headrace.wire.api_keys import ApiKey

THREADS: Final = 8
CALL_S: Final = 20.0


class Unreachable(HeadraceError):
    """No node of a cluster answers."""


class Admin:
    """All clusters."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="admin")

    async def call(self, bootstrap: str, method: str, params: Mapping[str, Any] | None = None) -> Any:
        """The result of one of Headrace's own calls. Raises KafkaError as the node says, Unreachable."""
        return await self._with(bootstrap, lambda cluster: cluster.admin(method, params))

    async def kafka(self, bootstrap: str, api_key: ApiKey, version: int, fields: Mapping[str, Any]) -> Any:
        """The response of one of Kafka's cold APIs. Raises KafkaError, Unreachable."""
        return await self._with(bootstrap, lambda cluster: cluster.kafka(api_key, version, fields))

    async def _with(self, bootstrap: str, use: Callable[[Cluster], Any]) -> Any:
        def asked() -> Any:
            try:
                with connected(bootstrap, None, timeout_s=CALL_S) as cluster:
                    return use(cluster)
            except (OSError, TimeoutError) as error:
                raise Unreachable(f"{bootstrap} does not answer: {error}") from error

        return await asyncio.get_running_loop().run_in_executor(self._threads, asked)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

"""A node's traces: whether they are on, where they go, and why they do not arrive there.

A node can work without traces, so no fault of theirs stops it: faults appear in the log and the node's status.
"""

import asyncio
from collections.abc import Mapping
from concurrent.futures import Executor
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import structlog

from headrace.tracing.endpoint import MISSING, TracingRefused, endpoint_of
from headrace.tracing.tracer import NO_TRACER, Tracer

if TYPE_CHECKING:
    from headrace.tracing.otlp import OtlpTracer

log = structlog.get_logger()


class Tracing:
    """One node's traces."""

    def __init__(self, option: str, *, environment: Mapping[str, str], executor: Executor) -> None:
        """`option`: the endpoint in the node's options, which precedes the environment's."""
        self._option = option
        self._environment = environment
        self._executor = executor
        self._otlp: OtlpTracer | None = None
        self._endpoint = ""
        self._problem = ""
        """Why there are no traces, though they were requested."""

    async def start(self, resource: Mapping[str, str]) -> None:
        """Load what is needed, if traces are requested. `resource`: attributes that describe the node."""
        try:
            self._endpoint = endpoint_of(self._option, self._environment)
            if self._endpoint:
                loop = asyncio.get_running_loop()
                self._otlp = await loop.run_in_executor(self._executor, partial(_opened, self._endpoint, resource))
                log.info("traces go to a collector", to=self._endpoint)
        except TracingRefused as error:
            self._problem = str(error)
        except Exception as error:  # an optional package in an unknown environment
            self._problem = f"traces cannot be set up: {type(error).__name__}"
            log.exception("traces cannot be set up")
        if self._problem:
            log.error("this node has no traces", reason=self._problem)

    @property
    def problem(self) -> str:
        """Why there are no traces, though they were requested; "": no problem, or not requested."""
        return self._problem

    @property
    def tracer(self) -> Tracer:
        """The tracer that receives the node's spans."""
        return NO_TRACER if self._otlp is None else self._otlp

    @property
    def outcomes(self) -> Mapping[str, int]:
        """The number of spans by outcome; empty without traces."""
        return {} if self._otlp is None else self._otlp.outcomes

    def shown(self) -> dict[str, Any]:
        """The part for the node's status; empty if no traces are requested."""
        if not self._endpoint and not self._problem:
            return {}
        counts = {f"spans_{outcome}_since_start": count for outcome, count in self.outcomes.items()}
        problem = self._problem if self._otlp is None else self._otlp.problem
        return {"endpoint": self._endpoint, **counts, "problem": problem}

    async def close(self) -> None:
        """Send or drop the remaining spans, within a second."""
        if self._otlp is not None:
            await self._otlp.close()


def _opened(endpoint: str, resource: Mapping[str, str]) -> "OtlpTracer":
    """[blocking] The tracer for an endpoint. Raises TracingRefused."""
    try:
        otlp = import_module("headrace.tracing.otlp")
    except ImportError as error:
        raise TracingRefused(f"{MISSING} ({error})") from error
    made: OtlpTracer = otlp.OtlpTracer(endpoint, resource=resource)
    return made

"""A Produce request between its start and its answer. Knows nothing of how batches are stored."""

from typing import Final

import structlog

from headrace.base.errors import Code
from headrace.kafka.session import Reply
from headrace.wire.produce import ProduceResult, encode_response

log = structlog.get_logger()

_PENDING: Final = ProduceResult("", -1, Code.UNKNOWN_SERVER_ERROR)


class Produce:
    """One Produce request under way: counts down its partitions, then answers."""

    __slots__ = (
        "_acks",
        "_remaining",
        "_results",
        "_version",
        "is_transactional",
        "slot",
        "timeout_ms",
    )

    def __init__(
        self,
        *,
        slot: Reply,
        version: int,
        acks: int,
        partitions: int,
        timeout_ms: int,
        is_transactional: bool = False,
    ) -> None:
        self.slot = slot
        self._version = version
        self._acks = acks
        self._results: list[ProduceResult] = []
        self._remaining = partitions
        self.timeout_ms = timeout_ms
        self.is_transactional = is_transactional
        """Whether the request names a transactional id."""

    def add(self, result: ProduceResult, *, complete: bool) -> None:
        """Add the outcome of the next partition, in the request's order. `complete`: false while the batch waits for
        its commit."""
        self._results.append(result)
        if complete:
            self._note(result)
            self.committed()

    def later(self) -> int:
        """Reserve the next partition's outcome, which is not known yet; returns its number, for `complete`."""
        self._results.append(_PENDING)
        return len(self._results) - 1

    def complete(self, number: int, result: ProduceResult) -> None:
        """Set the outcome that `later` reserved."""
        self._results[number] = result
        self._note(result)
        self.committed()

    def _note(self, result: ProduceResult) -> None:
        if result.error:
            self.slot.failed(result.error)

    def lost(self) -> None:
        """End the connection without an answer: the outcome of a partition's batch is unknown."""
        self.slot.lose()

    def committed(self) -> None:
        """Count one more partition as complete; answer the request if it was the last."""
        self._remaining -= 1
        if self._remaining:
            return
        if self._acks:
            self.slot.answer([encode_response(self._version, self._results, self.slot.throttle_ms)])
        elif (refused := next((result for result in self._results if result.error), None)) is not None:
            # As in Kafka: only a closed connection makes such a producer look up the leaders of its partitions again.
            log.info(
                "a batch with acks=0 was refused, so its connection is closed",
                topic=refused.topic,
                partition=refused.partition,
                peer=self.slot.peer,
                reason=refused.message,
            )
            self.slot.lose()
        else:
            self.slot.complete_without_answer()

"""A Produce request between its start and its answer. Knows nothing of what becomes of the batches."""

from typing import Final

import structlog

from headrace.base.errors import Code
from headrace.kafka.session import Reply
from headrace.wire.produce import ProduceResult, encode_response

log = structlog.get_logger()

_PENDING: Final = ProduceResult("", -1, Code.UNKNOWN_SERVER_ERROR)


class Produce:
    """One request under way: counts down its partitions, then answers."""

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
        """The request names a transactional id."""

    def add(self, result: ProduceResult, *, complete: bool) -> None:
        """The outcome for the next partition, in the request's order; not `complete` while it waits for its commit."""
        self._results.append(result)
        if complete:
            self._note(result)
            self.committed()

    def later(self) -> int:
        """The outcome for the next partition is not known yet; its number, for `complete`."""
        self._results.append(_PENDING)
        return len(self._results) - 1

    def complete(self, number: int, result: ProduceResult) -> None:
        """The outcome that `later` left open."""
        self._results[number] = result
        self._note(result)
        self.committed()

    def _note(self, result: ProduceResult) -> None:
        if result.error:
            self.slot.failed(result.error)

    def lost(self) -> None:
        """What came of a partition's batch is not known."""
        self.slot.lose()

    def committed(self) -> None:
        """One more partition is complete."""
        self._remaining -= 1
        if self._remaining:
            return
        if self._acks:
            self.slot.answer([encode_response(self._version, self._results, self.slot.throttle_ms)])
        elif (refused := next((result for result in self._results if result.error), None)) is not None:
            # As Kafka does: nothing else tells such a producer to ask anew who leads its partitions.
            log.info(
                "a batch that wants no answer is refused",
                topic=refused.topic,
                partition=refused.partition,
                peer=self.slot.peer,
                reason=refused.message,
            )
            self.slot.lose()
        else:
            self.slot.no_answer()

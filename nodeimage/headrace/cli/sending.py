"""Sends records through a stock producer, counts acknowledgements, and stops at the first failure."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaException

from headrace.base.errors import HeadraceError
from headrace.cli.connect import CLIENT_ID, TIMEOUT_S
from headrace.cli.kafka_client import describe
from headrace.cli.target import Target
from headrace.cli.zero_timestamp_producer import Record, ZeroTimestampProducer

POLL_EVERY: Final = 256
FULL_WAIT_S: Final = 0.1
FLUSH_STEP_S: Final = 0.2
CLOSING_S: Final = 300.0
"""Seconds to wait for the last acknowledgements: as long as librdkafka itself retries (message.timeout.ms)."""
LAST_FLUSH_S: Final = 10.0
"""Seconds to wait, after a failure, for records that are under way."""


class Sender:
    """Wraps a confluent_kafka Producer.

    The producer's queue is bounded; when it is full, `send` waits. After a record could not be delivered, the next
    `send` or `finish` raises its error.
    """

    def __init__(self, producer: Any, target: Target) -> None:
        self._delivered_count = 0
        self._zero_timestamp: ZeroTimestampProducer | None = None
        self.sent = 0
        self.failed: int | None = None
        """Number of the first record that could not be sent or delivered, counted from 1."""
        self._producer = producer
        self._target = target
        self._failure: HeadraceError | None = None

    def send(
        self,
        topic: str,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
        partition: int = -1,
        timestamp: int | None = None,
    ) -> None:
        """Queue a record; `timestamp` in ms, None: now. Raises the first failure of any record so far."""
        if timestamp == 0:  # librdkafka would replace it by the present time
            self._hold(Record(topic, partition, key, value, headers))
            return
        self._store_held()
        more: dict[str, Any] = {"headers": list(headers)} if headers else {}
        on_delivery = partial(self._delivered, self.sent + 1)
        while True:
            try:
                self._producer.produce(
                    topic, value, key, partition, on_delivery=on_delivery, timestamp=timestamp or 0, **more
                )
                break
            except KafkaException as error:
                self._fail(self.sent + 1, describe(error.args[0], topic))
                self._raise_failure()
            except BufferError:
                self._producer.poll(FULL_WAIT_S)
                self._raise_failure()
        self.sent += 1
        if self.sent % POLL_EVERY == 0:
            self.poll()

    @property
    def acknowledged(self) -> int:
        """How many records the cluster has stored."""
        return self._delivered_count + (self._zero_timestamp.stored if self._zero_timestamp is not None else 0)

    def _hold(self, record: Record) -> None:
        if self._zero_timestamp is None:
            self._zero_timestamp = ZeroTimestampProducer(
                self._producer, client_id=CLIENT_ID, timeout_s=TIMEOUT_S, access=self._target.access
            )
        self._zero_timestamp.hold(record)
        self.sent += 1
        if self._zero_timestamp.is_full:
            self._store_held()

    def _store_held(self) -> None:
        """Store the records with timestamp 0, after all that were sent before. Raises the first failure."""
        if self._zero_timestamp is None or self._zero_timestamp.is_idle:
            return
        while self._producer.flush(FLUSH_STEP_S):
            self._raise_failure()
        self._raise_failure()
        try:
            self._zero_timestamp.flush()
        except HeadraceError as error:
            self._fail(self.sent, error)
            raise
        finally:
            self._zero_timestamp.close()

    def poll(self, timeout_s: float = 0.0) -> None:
        """Process acknowledgements. Raises the first failure of any record so far."""
        self._store_held()
        self._producer.poll(timeout_s)
        self._raise_failure()

    def finish(self, *, timeout_s: float = CLOSING_S) -> None:
        """Wait until every record is acknowledged. Raises the first failure, or HeadraceError for unacknowledged
        records."""
        deadline = time.monotonic() + timeout_s
        if self._failure is None:
            self._store_held()
        while self._producer.flush(FLUSH_STEP_S):
            self._raise_failure()
            if time.monotonic() > deadline:
                raise HeadraceError(f"{self.sent - self.acknowledged} records are still not acknowledged; gave up")
        self._raise_failure()

    def final_error(self, error: HeadraceError, *, told: HeadraceError | None = None) -> HeadraceError:
        """The error that ended the sending, with the number of stored records; first waits for the records that are
        under way.

        `told`: a clearer error in place of `error`.
        """
        try:
            self.finish()
        except (HeadraceError, KeyboardInterrupt):
            deadline = time.monotonic() + LAST_FLUSH_S
            while self._producer.flush(FLUSH_STEP_S) and time.monotonic() < deadline:
                pass
        why = "" if self._failure in (None, error) else f" ({self._failure})"
        told = told or error
        if not self.acknowledged:
            return HeadraceError(f"{told}; nothing is stored{why}")
        count = (
            f"{self.acknowledged:,}" if self.acknowledged == self.sent else f"{self.acknowledged:,} of {self.sent:,}"
        )
        records, are = ("record", "is") if self.sent == 1 else ("records", "are")
        return HeadraceError(f"{told}; {count} {records} {are} stored{why}")

    def _delivered(self, number: int, error: Any, message: Any) -> None:
        if error is None:
            self._delivered_count += 1
        else:
            self._fail(number, describe(error, message.topic()))

    def _fail(self, number: int, failure: HeadraceError) -> None:
        if self._failure is None:
            self.failed, self._failure = number, failure

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

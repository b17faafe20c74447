"""`headrace consume`: prints records through the stock client.

With a group, offsets are committed only up to what was printed: every few seconds and at the end. Values are written
byte for byte; on a terminal, control characters are escaped.
"""

import base64
import sys
import time
import uuid
from operator import methodcaller
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.connect import CLIENT_ID, TIMEOUT_S
from headrace.cli.options import Bootstrap, DataFolder, Output, TopicName
from headrace.cli.output import OutputFormat, is_terminal, json_text, note, write
from headrace.cli.record_headers import HeaderReader, Headers, HeadersUnreadable
from headrace.cli.signals import Interrupts, Uninterrupted
from headrace.cli.text import printable_bytes

if TYPE_CHECKING:
    from headrace.cli.target import Target

BATCH = 500
POLL_S = 0.2
COMMIT_EVERY_S = 5.0
LONGEST_GROUP = 2**15 - 1
SILENCE_S = 10.0
"""Seconds without a record after which partitions whose end is awaited are named."""


def consume(
    topic: TopicName,
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="Start at the oldest record")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on to print new records as they come")] = False,
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", help="Consumer group: read from its committed offsets", show_default=False),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="Stop after this many records", show_default=False)
    ] = None,
    with_key: Annotated[bool, typer.Option("--with-key", help="Print KEY, a tab and VALUE")] = False,
    bootstrap: Bootstrap = None,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Print a topic's records, one a line.

    With --from-beginning or --group it ends at the newest record, without --follow. With neither it waits for new
    records. Ctrl-C ends it. A group that has no cursors yet starts at the oldest record. --output json prints key,
    offset, timestamp and headers too.

    \b
    Examples:
      headrace consume /factory/sensors:press-7 --from-beginning --with-key
      headrace consume /factory/sensors:press-7 --group dashboard --follow
    """
    if group is not None and not group.strip():
        raise typer.BadParameter("--group is empty")
    if group is not None and len(group.encode()) > LONGEST_GROUP:
        raise typer.BadParameter(
            f"--group is longer than {LONGEST_GROUP} bytes, the most that Kafka's protocol can carry"
        )
    if group is not None and group[0].isspace():
        raise typer.BadParameter("--group begins with a blank, which librdkafka drops: it would read as another group")
    from confluent_kafka import Consumer

    from headrace.cli.connect import check_access
    from headrace.cli.kafka_client import client_config, client_errors
    from headrace.cli.target import find_target

    settings = {
        "group.id": group or f"headrace-cli-{uuid.uuid4()}",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        # A new group that started at the end would commit nothing, and miss what arrives before it runs again.
        "auto.offset.reset": "earliest" if from_beginning or group else "latest",
        "fetch.wait.max.ms": 200,
    }
    interrupts = Interrupts()
    target = find_target(bootstrap, data)
    check_access(target)
    with client_errors(topic), interrupts.caught():
        consumer = Uninterrupted(Consumer(client_config(target, settings)), interrupts)
        as_json = output is OutputFormat.JSON
        reading = _Reading(
            consumer, topic, target, interrupts, in_group=group is not None, as_json=as_json, with_key=with_key
        )
        try:
            reading.start(from_beginning=from_beginning)
            reading.run(to_the_end=not follow and (from_beginning or group is not None), count=count)
        except KeyboardInterrupt:
            pass
        finally:
            reading.close()


_headers_of = methodcaller("headers")
"""Calls a message's `headers()`. confluent-kafka's C code may return a result and leave an exception set. A call
through `methodcaller` detects that and raises SystemError; the direct method call, which the interpreter specialises
(3.11), does not, and the exception would surface at some later point."""


class _Reading:
    """One consumer and what it has printed."""

    def __init__(
        self,
        consumer: Any,
        topic: str,
        target: "Target",
        interrupts: Interrupts,
        *,
        in_group: bool,
        as_json: bool,
        with_key: bool,
    ) -> None:
        self._consumer = consumer
        self._topic = topic
        self._interrupts = interrupts
        self._in_group = in_group
        self._as_json = as_json
        self._with_key = with_key
        self._to_terminal = is_terminal(sys.stdout)
        self._headers = HeaderReader(consumer, topic, client_id=CLIENT_ID, timeout_s=TIMEOUT_S, access=target.access)
        self._unread: set[int] | None = None  # assigned partitions not read to their end; None before assignment
        self._uncommitted = False
        self._committed_at = time.monotonic()

    def start(self, *, from_beginning: bool) -> None:
        """Assign all partitions, or join the group."""
        from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, TopicPartition

        from headrace.cli.kafka_client import partitions_of

        partitions = partitions_of(self._consumer, self._topic)
        if self._in_group:
            self._consumer.subscribe([self._topic], on_assign=self._assigned)
            return
        start = OFFSET_BEGINNING if from_beginning else OFFSET_END
        self._consumer.assign([TopicPartition(self._topic, number, start) for number in partitions])
        self._unread = set(partitions)

    def run(self, *, to_the_end: bool, count: int | None) -> None:
        """Print until `count` records are out or, with `to_the_end`, every assigned partition was read to its end."""
        left = count
        heard_at: float | None = time.monotonic()
        while left != 0 and not (to_the_end and self._unread is not None and not self._unread):
            messages = self._consumer.consume(BATCH if left is None else min(BATCH, left), POLL_S)
            if messages:
                heard_at = time.monotonic()
            elif to_the_end and self._unread and heard_at is not None and time.monotonic() - heard_at > SILENCE_S:
                heard_at = None
                _tell_of_silence(self._unread)
            lines = [self._line(message) for message in messages if self._is_record(message)]
            with self._interrupts:  # printing and advancing the offsets belong together
                write(lines)
                if self._in_group:
                    self._advance_cursors(messages)
            left = None if left is None else left - len(lines)

    def close(self) -> None:
        """Commit what was printed, and leave the group."""
        try:
            self._commit()
        finally:
            self._headers.close()
            self._consumer.close()

    def _assigned(self, consumer: Any, partitions: list[Any]) -> None:
        self._unread = {item.partition for item in partitions}

    def _is_record(self, message: Any) -> bool:
        """Whether the message is a record; False for an end of partition, which is noted. Raises for errors that are
        not transient."""
        from confluent_kafka import KafkaError

        from headrace.cli.kafka_client import describe

        error = message.error()
        if error is None:
            return True
        if error.code() == KafkaError._PARTITION_EOF:
            if self._unread is not None:
                self._unread.discard(message.partition())
        elif not error.retriable() and error.code() not in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
            raise describe(error, self._topic)
        return False

    def _line(self, message: Any) -> bytes:
        if self._as_json:
            return json_text(json_fields(message, self._headers_of(message))).encode() + b"\n"
        value = message.value() or b""
        line = (message.key() or b"") + b"\t" + value if self._with_key else value
        if self._to_terminal:
            line = printable_bytes(line, keep="\t\n").encode()
        return line + b"\n"

    def _headers_of(self, message: Any) -> Headers:
        """The headers byte for byte, or in librdkafka's form if they cannot be read again. Raises HeadersUnreadable."""
        try:
            given = _headers_of(message)
        except (SystemError, UnicodeDecodeError):  # a name is not UTF-8
            return self._headers.headers(message.partition(), message.offset())
        if not given:
            return []
        try:
            return self._headers.headers(message.partition(), message.offset())
        except HeadersUnreadable:
            return [(name.encode(), value) for name, value in given]

    def _advance_cursors(self, messages: list[Any]) -> None:
        for message in messages:
            if message.error() is None:
                self._consumer.store_offsets(message=message)
                self._uncommitted = True
        if time.monotonic() - self._committed_at > COMMIT_EVERY_S:
            self._commit()

    def _commit(self) -> None:
        self._committed_at = time.monotonic()
        if self._uncommitted:
            self._consumer.commit(asynchronous=False)
            self._uncommitted = False


def _tell_of_silence(partitions: set[int]) -> None:
    names = ", ".join(map(str, sorted(partitions)))
    which = f"partition {names}" if len(partitions) == 1 else f"partitions {names}"
    note(f"{which} cannot be read at present; `headrace status` shows why; waiting, Ctrl-C ends it")


def json_fields(message: Any, headers: Headers) -> dict[str, Any]:
    """A record as JSON prints it: bytes as text if they are UTF-8, otherwise under `<name>_base64`."""
    kind, timestamp = message.timestamp()
    shown: dict[str, Any] = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": timestamp if kind else None,
    }
    shown |= _text("key", message.key()) | _text("value", message.value())
    if headers:
        shown["headers"] = [_text("name", name) | _text("value", value) for name, value in headers]
    return shown


def _text(name: str, content: bytes | None) -> dict[str, str | None]:
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content).decode()}

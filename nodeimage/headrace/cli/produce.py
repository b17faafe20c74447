"""`headrace produce`: lines of stdin as records, through the stock client."""

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.base.errors import HeadraceError
from headrace.cli.arguments import ANY_BYTES, LARGEST_INT32
from headrace.cli.options import Bootstrap, DataFolder, Output, TopicName
from headrace.cli.output import OutputFormat, is_terminal, note, print_json
from headrace.cli.signals import Interrupts, Uninterrupted
from headrace.cli.text import to_bytes

if TYPE_CHECKING:
    from headrace.cli.target import Target

INTERRUPTED_FLUSH_S = 10.0


def produce(
    topic: TopicName,
    value: Annotated[
        list[str] | None,
        typer.Option("--value", "-v", help="Send this instead of stdin's lines; may repeat", show_default=False),
        ANY_BYTES,
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", "-k", help="Key of every record", show_default=False), ANY_BYTES
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-K", help="Separates KEY and VALUE in each line", show_default=False),
        ANY_BYTES,
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header", "-H", metavar="NAME=VALUE", help="A header of every record; may repeat", show_default=False
        ),
        ANY_BYTES,
    ] = None,
    partition: Annotated[
        int,
        typer.Option("--partition", "-p", min=-1, max=LARGEST_INT32, help="-1: chosen by key; without a key, in turn"),
    ] = -1,
    compression: Annotated[str, typer.Option("--compression", help="none, gzip, snappy, lz4 or zstd")] = "none",
    bootstrap: Bootstrap = None,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Write records: the lines of stdin, or each --value.

    Returns when all are acknowledged. A line that cannot be sent ends the command: the error says which line, and
    how many records are stored.

    \b
    Examples:
      headrace produce /factory/sensors:press-7 --key temperature --value 81.9
      printf 'temperature 81.2\\n' | headrace produce /factory/sensors:press-7 --key-separator ' '
    """
    if key is not None and key_separator is not None:
        raise typer.BadParameter("--key and --key-separator exclude each other")
    if key_separator == "":
        raise typer.BadParameter("--key-separator is empty")
    from confluent_kafka import Producer

    from headrace.cli.connect import check_access
    from headrace.cli.kafka_client import RefusedByPolicy, client_errors, partitions_of, producer_config
    from headrace.cli.sending import Sender
    from headrace.cli.target import find_target
    from headrace.cli.topic_names import parse_headers

    headers = parse_headers(header or [])
    settings = {"enable.idempotence": True, "linger.ms": 5, "compression.codec": compression}
    interrupts = Interrupts()
    target = find_target(bootstrap, data)
    check_access(target)
    with client_errors(topic):
        producer = Uninterrupted(Producer(producer_config(target, settings)), interrupts)
    partitions = partitions_of(producer, topic)
    if partition not in (-1, *partitions):
        raise HeadraceError(f"{topic} has no partition {partition}: it has {len(partitions)}")

    sender = Sender(producer, target)
    interrupted = False
    began = time.monotonic()
    with interrupts.caught():
        try:
            for record_key, record in _records(value, key=key, key_separator=key_separator):
                sender.send(topic, record, key=record_key, headers=headers, partition=partition)
                sender.poll()
            sender.finish()
        except RefusedByPolicy as error:
            raise sender.final_error(error, told=_refused(topic, error, target)) from error
        except HeadraceError as error:
            failed = sender.failed
            final = sender.final_error(error)
            raise (final if failed is None or value else HeadraceError(f"line {failed}: {final}")) from error
        except KeyboardInterrupt:
            interrupted = True
            sender.finish(timeout_s=INTERRUPTED_FLUSH_S)
    seconds = time.monotonic() - began
    if output is OutputFormat.JSON:
        print_json({"topic": topic, "records": sender.acknowledged, "seconds": round(seconds, 3)})
    else:
        records = f"{sender.acknowledged:,} record{'' if sender.acknowledged == 1 else 's'}"
        note(f"{records} acknowledged by {topic} in {seconds:.1f} s")
    if interrupted:
        raise typer.Exit(130)


def _refused(topic: str, error: HeadraceError, target: "Target") -> HeadraceError:
    """Add the topic's home to a refusal: the client receives only a code, and the cluster knows where the home is.

    Returns the refusal as it is if the cluster does not tell the home: the count of stored records is still to be told.
    """
    from headrace.cli.connect import connected_to

    try:
        with connected_to(target) as cluster:
            home = cluster.admin("topic.show", {"topic": topic}).get("home")
    except (HeadraceError, KeyboardInterrupt):
        return error
    if home is None:
        return error
    where = f"cluster {home['cluster']}" + (f", at {home['address']}" if "address" in home else "")
    return HeadraceError(f"{topic} is a copy here: its home is {where}; produce there, or `headrace topic move-home`")


def _records(
    values: Sequence[str] | None, *, key: str | None, key_separator: str | None
) -> Iterator[tuple[bytes | None, bytes]]:
    """(key, value) of each record to send."""
    lines = (to_bytes(value) for value in values) if values else _lines_of_stdin()
    fixed = None if key is None else to_bytes(key)
    if key_separator is None:
        for line in lines:
            yield fixed, line
        return
    separator = to_bytes(key_separator)
    for number, line in enumerate(lines, start=1):
        record_key, found, record = line.partition(separator)
        if not found:
            raise HeadraceError(f"line {number} has no {key_separator!r} between key and value")
        yield record_key, record


def _lines_of_stdin() -> Iterator[bytes]:
    if is_terminal(sys.stdin):
        note("each line is a record; Ctrl-D ends")
    try:
        for line in sys.stdin.buffer:
            yield line.removesuffix(b"\n").removesuffix(b"\r")
    except OSError as error:
        raise HeadraceError(f"stdin cannot be read: {error.strerror or error}") from error

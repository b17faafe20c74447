"""`headrace replay`: sends a file of readings as if its devices were live.

Each reading becomes one record of its device's topic: the key is the sensor, the value the JSON object {"time",
"sensor", "value"}, the timestamp the reading's time (or, with `--timestamps now`, the moment of sending, in both
places). Topics are created as devices appear, for a block of readings at a time.
"""

import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from headrace.base.errors import HeadraceError
from headrace.cli.cells import moment_of
from headrace.cli.options import Bootstrap, DataFolder, Output
from headrace.cli.output import OutputFormat, is_terminal, note, print_json
from headrace.cli.pacing import Pace
from headrace.cli.readings import STDIN, Asked, BadReadings, Reading, ReadingsFile
from headrace.cli.signals import Interrupts, Uninterrupted
from headrace.cli.topic_names import in_stream
from headrace.cli.units import parse_speed, show_duration

BLOCK = 2_000
"""Number of readings that are read ahead, so that new topics are created together."""
INTERRUPTED_FLUSH_S = 10.0
LONGEST_WAIT_S = 0.1
REPORT_EVERY_S = 0.5

Column = Annotated[str | None, typer.Option(show_default=False, metavar="NAME")]


class TopicBy(StrEnum):
    """What gets a topic of its own."""

    DEVICE = "device"
    SENSOR = "sensor"
    FILE = "file"


class Timestamps(StrEnum):
    """Which time records carry."""

    ORIGINAL = "original"
    NOW = "now"


def replay(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="CSV or Parquet; - for stdin", show_default=False)],
    stream: Annotated[str, typer.Option("--stream", "-s", metavar="PATH", help="Where to send it, such as /factory")],
    speed: Annotated[str, typer.Option("--speed", help="Pace: 1x (as recorded), 100x, or max")] = "100x",
    topic_by: Annotated[TopicBy, typer.Option("--topic-by", help="What each topic stands for")] = TopicBy.DEVICE,
    timestamps: Annotated[
        Timestamps, typer.Option("--timestamps", help="The readings' own times, or the moment of sending")
    ] = Timestamps.ORIGINAL,
    time_column: Column = None,
    device_column: Column = None,
    sensor_column: Column = None,
    value_column: Annotated[
        list[str] | None,
        typer.Option(show_default=False, metavar="NAME", help="May repeat, if a row has several values"),
    ] = None,
    time_format: Annotated[
        str | None,
        typer.Option(show_default=False, metavar="FORMAT", help="Form of the times, as for strptime: %d/%m/%Y %H:%M"),
    ] = None,
    encoding: Annotated[
        str | None,
        typer.Option(
            show_default=False,
            metavar="NAME",
            help="Of a CSV file, such as cp1252 [default: by its byte order mark, or UTF-8]",
        ),
    ] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out rows that cannot be read")] = False,
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-n", min=1, max=sys.maxsize, help="Stop after this many readings", show_default=False),
    ] = None,
    bootstrap: Bootstrap = None,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Send the readings of a CSV or Parquet file.

    A reading is a time, a device and a value. They are sent at the pace they were taken (--speed 1x) or faster.
    Columns are found by name and kind; a file without a device column takes its own name as the device. Every
    device gets a topic; records are keyed by sensor.

    \b
    Example:
      headrace replay readings.csv --stream /factory/sensors --speed max
    """
    pace = Pace(parse_speed(speed))
    asked = Asked(
        time=time_column,
        device=device_column,
        sensor=sensor_column,
        values=tuple(value_column or ()),
        time_format=time_format,
        encoding=encoding,
        skip_bad=skip_bad,
    )
    readings = ReadingsFile(file, asked)
    note(f"{readings.name if file == STDIN else file.name}: {_describe(readings)}")

    from confluent_kafka import Producer

    from headrace.cli.connect import connected
    from headrace.cli.kafka_client import client_errors, producer_config
    from headrace.cli.sending import Sender
    from headrace.cli.topics import create_missing

    with connected(bootstrap, data) as cluster, client_errors(stream):
        _warn_of_expiry(cluster.admin("stream.show", {"path": stream}), readings, timestamps)
        settings = {"enable.idempotence": True, "linger.ms": 5, "compression.codec": "lz4"}
        interrupts = Interrupts()
        target = cluster.target.at(cluster.address)
        sender = Sender(Uninterrupted(Producer(producer_config(target, settings)), interrupts), target)
        replaying = Replaying(
            sender=sender,
            pace=pace,
            topic_of=_topic_namer(stream, topic_by, readings.stem),
            create=lambda topics: create_missing(cluster, topics),
            now=timestamps is Timestamps.NOW,
        )
        interrupted = False
        with interrupts.caught():
            try:
                with _progress() as report:
                    replaying.run(itertools.islice(readings, limit), report)
                sender.finish()
            except HeadraceError as error:
                raise sender.final_error(error) from error
            except KeyboardInterrupt:
                interrupted = True
                sender.finish(timeout_s=INTERRUPTED_FLUSH_S)
    _print_summary(replaying, readings, output)
    if interrupted:
        raise typer.Exit(130)


@dataclass(slots=True, kw_only=True)
class Replaying:
    """One replay. It acts on the cluster only through `sender` and `create`."""

    sender: Any
    pace: Pace
    topic_of: Callable[[Reading], str]
    create: Callable[[Sequence[str]], None]
    now: bool
    topics: set[str] = field(default_factory=set)
    first: int | None = None
    last: int | None = None
    began: float = field(default_factory=time.monotonic)

    def run(self, readings: Iterator[Reading], report: Callable[["Replaying"], None]) -> None:
        """Send all readings, each when it is due; `report` is called from time to time.

        Raises BadReadings for one that cannot be read, after all before it were sent.
        """
        self.began = time.monotonic()
        report_at = self.began
        bad: BadReadings | None = None
        while bad is None:
            block, bad = _next_block(readings)
            if not block:
                break
            named = [(self.topic_of(reading), reading) for reading in block]
            new = dict.fromkeys(topic for topic, _ in named if topic not in self.topics)
            if new:
                self.create(list(new))
                self.topics |= new.keys()
            for topic, reading in named:
                self._wait(self.began + self.pace.due(reading.time))
                self._send(topic, reading)
                if time.monotonic() >= report_at:
                    report(self)
                    report_at = time.monotonic() + REPORT_EVERY_S
        report(self)
        if bad is not None:
            raise bad

    @property
    def rate(self) -> float:
        """Readings per second since the start."""
        return float(self.sender.sent) / max(time.monotonic() - self.began, 1e-3)

    def _wait(self, due: float) -> None:
        while (left := due - time.monotonic()) > 0:
            self.sender.poll(min(left, LONGEST_WAIT_S))

    def _send(self, topic: str, reading: Reading) -> None:
        moment = int(time.time() * 1000) if self.now else reading.time
        value = {"time": iso_time(moment), "sensor": reading.sensor, "value": reading.value}
        self.sender.send(topic, _values.encode(value), key=reading.sensor.encode(), timestamp=moment)
        self.first = moment if self.first is None else min(self.first, moment)
        self.last = moment if self.last is None else max(self.last, moment)


_values: Final = msgspec.json.Encoder(decimal_format="number")
"""Encodes values. Decimal numbers keep all of their digits."""


def _next_block(readings: Iterator[Reading]) -> tuple[list[Reading], BadReadings | None]:
    """The next block of readings, and the error that ended it early, if any."""
    block: list[Reading] = []
    try:
        block.extend(itertools.islice(readings, BLOCK))
    except BadReadings as error:
        return block, error
    return block, None


def iso_time(millis: int) -> str:
    """The time as `2014-02-05T08:30:00.000Z`."""
    return moment_of(millis).isoformat(timespec="milliseconds")[:-6] + "Z"


def _topic_namer(stream: str, by: TopicBy, stem: str) -> Callable[[Reading], str]:
    """A function that returns a reading's topic, and raises HeadraceError if two names would share one."""
    names: dict[str, str] = {}
    owners: dict[str, str] = {}

    def name(reading: Reading) -> str:
        match by:
            case TopicBy.DEVICE:
                key = reading.device
            case TopicBy.SENSOR:
                key = reading.sensor
            case TopicBy.FILE:
                key = stem
        if key not in names:
            topic = names[key] = in_stream(stream, key)
            if (owner := owners.setdefault(topic, key)) != key:
                raise HeadraceError(f"{owner!r} and {key!r} would share the topic {topic}: rename one of them")
        return names[key]

    return name


def _describe(readings: ReadingsFile) -> str:
    columns = readings.columns
    device = f"device {columns.device!r}" if columns.device else f"device is the file's name, {readings.stem!r}"
    header = "" if readings.has_header else "no header, columns by number: "
    sensor = f", sensor {columns.sensor!r}" if columns.sensor else ""
    return f"{header}time {columns.time!r}, {device}{sensor}, value {', '.join(map(repr, columns.values))}"


def _warn_of_expiry(stream: dict[str, Any], readings: ReadingsFile, timestamps: Timestamps) -> None:
    """Warn if the first reading is older than the stream's time to live: it would be deleted within a minute."""
    ttl = stream.get("ttl_ms") or 0
    age = time.time() * 1000 - readings.first_time
    if timestamps is Timestamps.ORIGINAL and 0 < ttl < age:
        note(
            f"warning: the stream keeps records for {show_duration(ttl)}, the first of these readings is "
            f"{show_duration(int(age))} old and will expire at once: use --timestamps now, "
            "or `headrace stream alter --ttl forever`"
        )


class _progress:
    """Shows a replay's progress on stderr: a live line on a terminal, otherwise nothing until the summary."""

    def __enter__(self) -> Callable[[Replaying], None]:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        console = Console(stderr=True)
        self._live = Live(console=console, auto_refresh=False, transient=True) if is_terminal(sys.stderr) else None
        if self._live is not None:
            self._live.start()

        def report(replaying: Replaying) -> None:
            if self._live is not None:
                at = iso_time(replaying.last) if replaying.last is not None else ""
                parts = (f"{replaying.sender.sent:,} readings", f"{replaying.rate:,.0f}/s")
                line = "  ".join((*parts, f"{len(replaying.topics):,} topics", at))
                self._live.update(Text(line), refresh=True)

        return report

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()


def _print_summary(replaying: Replaying, readings: ReadingsFile, output: OutputFormat) -> None:
    seconds = time.monotonic() - replaying.began
    acknowledged = replaying.sender.acknowledged
    if replaying.pace.went_back:
        note("times in the file go back in places: readings out of order were sent without a pause")
    if output is OutputFormat.JSON:
        print_json(
            {
                "file": readings.name,
                "readings": acknowledged,
                "skipped": readings.skipped,
                "topics": sorted(replaying.topics),
                "seconds": round(seconds, 3),
                "rate": round(acknowledged / max(seconds, 1e-3), 1),
                "first_time": None if replaying.first is None else iso_time(replaying.first),
                "last_time": None if replaying.last is None else iso_time(replaying.last),
            }
        )
        return
    skipped = f", {readings.skipped} empty or unreadable ones left out" if readings.skipped else ""
    topics = f"{len(replaying.topics):,} topic{'' if len(replaying.topics) == 1 else 's'}"
    note(
        f"{acknowledged:,} readings acknowledged in {topics}, {seconds:.1f} s, "
        f"{acknowledged / max(seconds, 1e-3):,.0f} a second{skipped}"
    )
